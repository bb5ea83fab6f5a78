"""Another thread, that does something meanwhile: a hook itself is amid the step that it is in."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")


def elsewhere(act: Callable[[], Answer], patience_s: float = 30.0) -> Answer:
    """Give its answer, or raise what it raised; it must not wait for who asks."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(act).result(patience_s)
    finally:
        pool.shutdown(wait=False)
