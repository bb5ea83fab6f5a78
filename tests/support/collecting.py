"""Call a store from a callback of the garbage collector, which runs inside any thread."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_collections(act: Callable[[], object], *, each: int = 7) -> Iterator[None]:
    """Call `act` at the beginning of each collection, and collect after every `each` objects.

    No call is running when the context ends.
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
