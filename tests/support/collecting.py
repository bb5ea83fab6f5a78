"""The collector's callback as a caller: it comes amid any step of Python's, of any thread."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_collections(act: Callable[[], object], *, each: int = 7) -> Iterator[None]:
    """Within, `act` is called at the beginning of collections, which come every so many objects.
    No call runs any more when it ends.
    """
    before, acting = gc.get_threshold(), set[int]()

    def called_back(phase: str, _info: dict[str, int]) -> None:
        me = threading.get_ident()
        if phase == "start" and me not in acting:
            acting.add(me)
            try:
                act()
            finally:
                acting.remove(me)

    gc.callbacks.append(called_back)
    gc.set_threshold(each)
    try:
        yield
    finally:
        gc.callbacks.remove(called_back)
        gc.set_threshold(*before)
        while acting:  # another thread is still in its call
            time.sleep(0.001)
