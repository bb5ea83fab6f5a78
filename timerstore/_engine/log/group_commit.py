"""Group commit: one thread syncs the log for all waiting threads.

The first thread becomes the leader of a round and syncs. Threads that arrive during the round wait
until a sync has covered their records.

Thread safety: any thread.
Locking: one lock of its own, held for a few steps. No other lock is taken under it.
Invariants:
    1. At most one thread leads.
    2. No thread waits unless another one leads. The end of a round wakes all threads that it
       served, and the first of the others, which leads the next round.
    3. A thread that leaves with an exception (Ctrl-C) wakes all waiting threads.
See also: docs/decisions/0002-group-commit.md.
"""

import threading
from contextlib import suppress
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner


class _Waiter(NamedTuple):
    """A thread that waits for a sync by another thread."""

    offset: int  # log offset of the end of its records
    wakeup: threading.Lock  # held until the thread is woken


class GroupCommit(Owner):
    """Choose the thread that syncs, and let the others wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._leader: int | None = None  # thread identifier
        self._waiters: list[_Waiter] = []

    @property
    def is_led_here(self) -> bool:
        """Whether the calling thread leads a round: then this is a call from a signal handler."""
        return threading.get_ident() == self._leader

    def lead(self, offset: int) -> bool:
        """Become the leader and return True, or wait for the end of a round and return False.

        `offset`: the log offset up to which the caller needs the log to be durable. The leader must
        call `end` or `abandon`.
        """
        with self._lock:
            if self._leader is None:
                self._leader = threading.get_ident()
                return True
            wakeup = threading.Lock()
            wakeup.acquire()
            self._waiters.append(_Waiter(offset, wakeup))
        wakeup.acquire()
        return False

    def end(self, durable: int) -> None:
        """End the round; the log is durable below `durable`."""
        with self._lock:
            served = [waiter for waiter in self._waiters if waiter.offset <= durable]
            others = [waiter for waiter in self._waiters if waiter.offset > durable]
            for waiter in served + others[:1]:
                waiter.wakeup.release()
            self._waiters = others[1:]
            self._leader = None  # last: until then a signal handler gets ReentrantCallError

    def abandon(self) -> None:
        """Leave after an exception, whether the thread was leading, ending a round or waiting."""
        with self._lock:
            me = threading.get_ident()
            self._leader = None if self._leader == me else self._leader
            for waiter in self._waiters:
                with suppress(RuntimeError):  # an interrupted `end` has already woken it
                    waiter.wakeup.release()
            self._waiters = []
