"""Decide whether the loop does blocking work itself, or a thread.

A thread costs two switches, and it shares Python's lock with the loop. The loop of a server does
short work itself. After work that took long, threads do the work of this kind for ten times as
long, so that a slow disk blocks the loop for less than a tenth of the time.

Thread safety: any thread.
See also: docs/decisions/0018-server-and-client.md (section 3 has the measurements).
"""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

Answer = TypeVar("Answer")

_QUICK_S = 0.010
_PAUSES = 10  # of the time that slow work took


class QuickWork:
    """Work of one kind."""

    def __init__(self, *, may_block: bool) -> None:
        """`may_block`: whether the loop belongs to a server. That of a program never blocks."""
        self._may_block = may_block
        self._quick_from_s = 0.0

    @property
    def is_for_loop(self) -> bool:
        """Whether the loop does the next work itself."""
        return self._may_block and perf_counter() >= self._quick_from_s

    def timed(self, work: Callable[[], Answer]) -> Answer:
        """Do the work, on any thread."""
        began_s = perf_counter()
        try:
            return work()
        finally:
            now_s = perf_counter()
            if now_s - began_s > _QUICK_S:
                self._quick_from_s = now_s + _PAUSES * (now_s - began_s)
