"""The collector's callback as a caller: it comes amid any step of Python's, of any thread."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_collections(act: Callable[[], object], *, each: int = 7) -> Iterator[None]:
    """Within, `act` is called at the beginning of collections, which come every so many objects."""
    before, here = gc.get_threshold(), threading.local()

    def called_back(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and not getattr(here, "is_acting", False):
            here.is_acting = True
            try:
                act()
            finally:
                here.is_acting = False

    gc.callbacks.append(called_back)
    gc.set_threshold(each)
    try:
        yield
    finally:
        gc.callbacks.remove(called_back)
        gc.set_threshold(*before)
