"""Fail points that are passed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.inside import failpoints


def die_at(point: str, nth: int = 1) -> None:
    """Kill this process when it passes a fail point for the n-th time."""
    left = [nth]

    def hook(name: str) -> None:
        if name == point:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook


@contextmanager
def noted() -> Iterator[list[str]]:
    """Record the fail points that are passed inside the context, in order."""
    points: list[str] = []
    failpoints.hook = points.append
    try:
        yield points
    finally:
        failpoints.hook = None
