"""Fail points that are passed."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.inside import failpoints


@contextmanager
def noted() -> Iterator[list[str]]:
    """Record the fail points that are passed inside the context, in order."""
    points: list[str] = []
    failpoints.hook = points.append
    try:
        yield points
    finally:
        failpoints.hook = None
