"""The waiting calls of one event loop: wake them, and end them when the loop is closed.

asyncio does not notify anyone that a loop is closed, but a closed loop releases its scheduled
callbacks. So a callback that only the loop references (_LoopEnd) detects it in its finalizer.

Thread safety: methods run on the loop's thread, except `wake`, which any thread may call. After the
loop is closed, the thread that closes it ends the waits.
Invariants:
    1. Any number of waits is woken with one call into the loop.
    2. No wait of a closed loop stays in a wait queue or in the long-poll table.
    3. A loop without waits is not referenced, and references nothing of the store.
See also: docs/decisions/0005-long-poll.md.
"""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.read.waiting import Waitable
from timerstore.errors import TimerStoreError

_NEVER_S = 1e9  # three decades


class LoopWaiters(NotCopyable):
    """The waiting calls of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        by_loop: "dict[asyncio.AbstractEventLoop, LoopWaiters]",
        check_open: Callable[[], None],
    ) -> None:
        """`by_loop`: contains this object while a call waits. `check_open` raises if the store is
        closed or belongs to another process.
        """
        self._loop = loop
        self._by_loop = by_loop
        self._check_open = check_open
        self._waits: dict[Waitable[Any, Any], None] = {}
        self._woken: deque[asyncio.Future[None]] = deque()
        self.is_one_woken = False
        """Whether the last turn that woke waits woke a single one."""
        self._is_called = False
        by_loop[loop] = self
        self._loop_end = weakref.ref(loop.call_later(_NEVER_S, _LoopEnd(self._loop_released)))

    def add(self, waiting: Waitable[Any, Any]) -> None:
        """Register a call that is about to wait."""
        self._waits[waiting] = None

    def leave(self, waiting: Waitable[Any, Any]) -> None:
        """Remove a call that wakes up from the wait queues, unless the end of its loop did so."""
        if waiting in self._waits:
            waiting.leave()

    def end(self, waiting: Waitable[Any, Any]) -> None:
        """End a call's waiting for good, unless the end of its loop did so."""
        if waiting not in self._waits:
            return
        del self._waits[waiting]
        try:
            waiting.end()
        finally:
            if not self._waits:
                self._by_loop.pop(self._loop, None)
                if (callback := self._loop_end()) is not None:
                    callback.cancel()

    def wake(self, future: "asyncio.Future[None]") -> None:
        """Wake the task that awaits this future; from any thread."""
        self._woken.append(future)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._end_waits)
            except RuntimeError:  # the loop is closed: no task awaits there any more
                self._woken.clear()

    def _end_waits(self) -> None:
        self._is_called = False  # first: a future that is added from now on calls again
        self.is_one_woken = len(self._woken) == 1
        while self._woken:
            end_wait(self._woken.popleft())

    def _loop_released(self) -> None:
        """End all waits if the loop is closed: it has released its callbacks."""
        if not self._loop.is_closed() or sys.is_finalizing():
            return
        self._by_loop.pop(self._loop, None)
        try:
            self._check_open()
        except TimerStoreError:
            return  # the wait queues and their locks are gone, or belong to another process
        while self._waits:
            self._waits.popitem()[0].end()


class _LoopEnd(NotCopyable):
    """A callback at a time that never comes. The loop alone references it."""

    __slots__ = ("_notify",)

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def __call__(self) -> None:
        """Do nothing; it is never called."""

    def __del__(self) -> None:
        notify = getattr(self, "_notify", None)
        if notify is not None:
            notify()


def end_wait(future: "asyncio.Future[None]") -> None:
    """Wake the task that awaits the future."""
    if not future.done():
        future.set_result(None)
