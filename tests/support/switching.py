"""Threads that take turns often: what one of them is amid, the others meet."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def many_switches(interval_s: float = 1e-5) -> Iterator[None]:
    """Python gives another thread its turn after so long, within."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
