"""Decide whether the loop does blocking work itself, or a thread.

A thread costs two switches, and it shares Python's lock with the loop. The loop of a server has
nothing else to do than calls of the store. It does short work itself; if the last work of a kind
took long, a thread does the next one, so that other calls are not held up.

Thread safety: any thread.
See also: docs/decisions/0018-server-and-client.md.
"""

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

Answer = TypeVar("Answer")

_QUICK_S = 0.010


class QuickWork:
    """The time that work of one kind takes."""

    def __init__(self, *, may_block: bool) -> None:
        """`may_block`: whether the loop belongs to a server. That of a program never blocks."""
        self._may_block = may_block
        self._took_s = 0.0

    @property
    def is_for_loop(self) -> bool:
        """Whether the loop does the next work itself."""
        return self._may_block and self._took_s <= _QUICK_S

    def timed(self, work: Callable[[], Answer]) -> Answer:
        """Do the work, on any thread."""
        began_s = perf_counter()
        try:
            return work()
        finally:
            self._took_s = perf_counter() - began_s
