"""Group commit: one thread syncs for all that wait; the others sleep until a sync served them.

Threads:  any.
Locks:    its own, for a few steps; no other lock is taken while it is held.
Holds:    (1) one at a time leads; (2) nobody sleeps while nobody leads: the end of a round wakes
          all whom it served, all at once, and the first of the others, who leads the next; (3) who
          goes amid it (Ctrl-C) wakes everybody, so that no one waits for him.
Source:   docs/decisions/0002-group-commit.md.
"""

import threading
from contextlib import suppress
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner


class _Sleeper(NamedTuple):
    """One who waits for others' syncs."""

    offset: int  # what he put ends here
    bell: threading.Lock  # held until he is woken


class GroupCommit(Owner):
    """Whose turn it is to sync."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._leader: int | None = None  # the thread's
        self._sleepers: list[_Sleeper] = []

    @property
    def is_led_here(self) -> bool:
        """Whether the calling thread leads a round: then this is a call from a signal handler."""
        return threading.get_ident() == self._leader

    def lead(self, offset: int) -> bool:
        """Lead a round (then `end` it, or `leave`), or sleep through one; whether it is led."""
        with self._lock:
            if self._leader is None:
                self._leader = threading.get_ident()
                return True
            bell = threading.Lock()
            bell.acquire()
            self._sleepers.append(_Sleeper(offset, bell))
        bell.acquire()
        return False

    def end(self, durable: int) -> None:
        """The round is over: the log is durable below this."""
        with self._lock:
            served = [one for one in self._sleepers if one.offset <= durable]
            left = [one for one in self._sleepers if one.offset > durable]
            for one in served + left[:1]:
                one.bell.release()
            self._sleepers = left[1:]
            self._leader = None  # last: until then a signal handler gets ReentrantCallError

    def leave(self) -> None:
        """Go with an error, wherever it struck: leading, ending or asleep."""
        with self._lock:
            me = threading.get_ident()
            self._leader = None if self._leader == me else self._leader
            for one in self._sleepers:
                with suppress(RuntimeError):  # woken already, by an end that was cut short
                    one.bell.release()
            self._sleepers = []
