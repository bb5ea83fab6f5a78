"""Bell: who waits in one loop of a store, how he is rung, and what becomes of him with the loop.

Threads:  the loop's own; `ring` comes from any. Where the loop is closed, whoever closes it.
Holds:    (1) many are rung with one call into the loop; (2) nobody stands in a line or in the hold
          table for a loop that is closed: asyncio tells nobody when it closes one, but it lets go
          of what it was to call, and something that it alone holds is told of by that; (3) a loop
          in which nobody waits is not held, nor holds anything of the store.
Fails:    never.
Source:   docs/decisions/0005-long-poll.md.
"""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from timerstore._engine.base.owner import Owner
from timerstore._engine.read.waiting_pull import Waits
from timerstore.errors import TimerStoreError

_NEVER_S = 1e9  # three decades


class LoopWaiters(Owner):
    """One loop's."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bells: "dict[asyncio.AbstractEventLoop, LoopWaiters]",
        check_open: Callable[[], None],
    ) -> None:
        """`bells`: where it stands as long as somebody waits. `check_open` raises where the store
        is closed, or another process's.
        """
        self._loop = loop
        self._bells = bells
        self._check_open = check_open
        self._waits: dict[Waits[Any, Any], None] = {}
        self._rung: deque[asyncio.Future[None]] = deque()
        self._is_called = False
        bells[loop] = self
        self._left = weakref.ref(loop.call_later(_NEVER_S, _Left(self._is_left)))

    def await_(self, waiting: Waits[Any, Any]) -> None:
        """Somebody is about to wait."""
        self._waits[waiting] = None

    def leave(self, waiting: Waits[Any, Any]) -> None:
        """He wakes up, to look or to go, unless his loop's end has made him go."""
        if waiting in self._waits:
            waiting.leave()

    def end(self, waiting: Waits[Any, Any]) -> None:
        """He goes, unless his loop's end has made him go."""
        if waiting not in self._waits:
            return
        del self._waits[waiting]
        try:
            waiting.end()
        finally:
            if not self._waits:
                self._bells.pop(self._loop, None)
                if (left := self._left()) is not None:
                    left.cancel()

    def ring(self, future: "asyncio.Future[None]") -> None:
        """End the wait for this future; from any thread."""
        self._rung.append(future)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._end_waits)
            except RuntimeError:  # the loop is closed: nobody awaits there any more
                self._rung.clear()

    def _end_waits(self) -> None:
        self._is_called = False  # first: what is appended from now on calls again
        while self._rung:
            end_wait(self._rung.popleft())

    def _is_left(self) -> None:
        """The loop has let go of what it was to call."""
        if not self._loop.is_closed() or sys.is_finalizing():
            return
        self._bells.pop(self._loop, None)
        try:
            self._check_open()
        except TimerStoreError:
            return  # all lines are gone, or another process's, as are the locks
        while self._waits:
            self._waits.popitem()[0].end()


class _Left(Owner):
    """What is to be called at a time that never comes, so that the loop holds it."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def __call__(self) -> None:
        """Never."""

    def __del__(self) -> None:
        tell = getattr(self, "_tell", None)
        if tell is not None:
            tell()


def end_wait(future: "asyncio.Future[None]") -> None:
    """Have whoever awaits it go on."""
    if not future.done():
        future.set_result(None)
