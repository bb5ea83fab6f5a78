"""Collect the values that the tasks of an event loop add in one turn, and pass them on together.

Thread safety: any loop may add; the values of different loops are not collected together.
Invariants: values are passed on once, in the order in which they were added, by the loop itself.
    Values of a loop that is closed before its turn ends are dropped: no task awaits there.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LoopTurns(Generic[Value]):
    """The values of the present turn of each loop."""

    def __init__(self, end: Callable[[asyncio.AbstractEventLoop, list[Value]], None]) -> None:
        """`end`: called with the values at the end of a turn."""
        self._end = end
        self._turns: dict[asyncio.AbstractEventLoop, list[Value]] = {}

    def add(self, value: Value) -> None:
        """Add a value to this turn of the running loop."""
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            for other in [other for other in list(self._turns) if other.is_closed()]:
                self._turns.pop(other, None)
            # The turn is of all its tasks, so it runs in the context of none of them.
            loop.call_soon(self._finish, loop, context=Context())
            turn = self._turns[loop] = []
        turn.append(value)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        self._end(loop, self._turns.pop(loop))
