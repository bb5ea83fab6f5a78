"""Fail points that are passed."""

from collections.abc import Iterator
from contextlib import contextmanager

from timerstore import failpoint


@contextmanager
def noted() -> Iterator[list[str]]:
    """What points are passed meanwhile, in order."""
    points: list[str] = []
    failpoint.hook = points.append
    try:
        yield points
    finally:
        failpoint.hook = None
