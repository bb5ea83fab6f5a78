"""Order the waiting polls of one consumer; only the first is in the long-poll table.

    three threads poll one consumer   a (in the table at queues 0, 2)   b   c   b and c only sleep
    a message arrives in queue 2      a is woken and reads              b   c   no other wakes
    a returns the message             b (in the table at queues 0, 2)   c       b has not woken

Thread safety: every call needs the lock of the group, except `Waiter.wake`.
Locking: the group's lock, then the long-poll table's.
Invariants:
    1. If the first waiter sleeps, it has a long poll at each queue of the consumer, and there was
       nothing to read when it was added; otherwise it has been woken.
    2. A waiter that leaves, for whatever reason, puts the next one into the table: no message waits
       while every waiter sleeps.
Raises: nothing. If a queue cannot be read, the waiter is woken and finds the error itself.
See also: docs/decisions/0005-long-poll.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from timerstore._engine.read.long_poll import LongPoll
from timerstore.errors import TimerStoreError

AddPoll = Callable[[int, int, int, Callable[[], None]], LongPoll | None]
"""Adds a long poll: queue number, offset, end (monotonic ns), wake. Returns None: read instead."""

FOREVER_NS = 2**62
"""The end of a wait without a limit."""

RemovePoll = Callable[[LongPoll], object]


class Queue(Protocol):
    """A queue that is assigned to a consumer; a new object each time that it is assigned."""

    @property
    def queue_id(self) -> int:
        """Return its number."""


class Waiter:
    """One waiting poll."""

    __slots__ = ("end_ns", "is_waiting", "is_woken", "polls", "wake_caller")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.wake_caller: Callable[[], None] = _ignore
        self.is_woken = False  # since it last began to wait
        self.is_waiting = False
        self.polls: list[tuple[Queue, int, LongPoll]] = []  # queue, offset

    def wake(self) -> None:
        """Have the caller read again; from any thread, any number of times."""
        if not self.is_woken:
            self.is_woken = True
            try:
                self.wake_caller()
            except BaseException:  # KeyboardInterrupt may come first: there is no second `wake`
                self.wake_caller()
                raise


class WaitQueue:
    """The waiters of one consumer, in order of arrival."""

    def __init__(self, add_poll: AddPoll, remove_poll: RemovePoll) -> None:
        self._add_poll = add_poll
        self._remove_poll = remove_poll
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiters)

    def enter(
        self, waiter: Waiter, wake: Callable[[], None], offsets: Mapping[Queue, int] | None
    ) -> bool:
        """Begin to wait, at the end of the queue or in the waiter's old position.

        Return False if the caller must read instead.

        offsets: the offset to wait for in each queue; None if there is something to read.
        """
        self._waiters.setdefault(waiter)
        waiter.wake_caller, waiter.is_woken, waiter.is_waiting = wake, False, True
        if self._first() is not waiter:
            return True  # the first waiter reads, or is in the table
        if self._add_polls(waiter, offsets):
            return True
        waiter.is_waiting = False
        return False

    def suspend(self, waiter: Waiter) -> list[tuple[Queue, int, int]]:
        """Take a waiter out of the table; it keeps its position.

        Return (queue, offset, end) for each of its polls: no message in [offset, end) of the queue
        is for this consumer.
        """
        waiter.is_waiting = False
        polls, waiter.polls = waiter.polls, []
        for _, _, poll in polls:
            self._remove_poll(poll)
        return [(queue, offset, poll.no_match_below) for queue, offset, poll in polls]

    def leave(self, waiter: Waiter, offsets: Mapping[Queue, int] | None) -> None:
        """Remove a waiter and put the next one into the table.

        If a signal interrupts this call, calling it again completes it.
        """
        if waiter in self._waiters:
            self.suspend(waiter)
            del self._waiters[waiter]
        first = self._first()
        if first is None or not first.is_waiting or first.is_woken or first.polls:
            return  # it reads, is about to, or is in the table
        if not self._add_polls(first, offsets):
            first.wake()

    def wake_first(self) -> None:
        """Have the first waiter read; if it leaves messages, the next one is woken in turn."""
        first = self._first()
        if first is not None and first.is_waiting:
            first.wake()

    def wake_all(self, until_ns: int = FOREVER_NS) -> None:
        """Wake every waiter whose time ends at `until_ns` or earlier."""
        for waiter in self._waiters:
            if waiter.is_waiting and waiter.end_ns <= until_ns:
                waiter.wake()

    def _first(self) -> Waiter | None:
        return next(iter(self._waiters), None)

    def _add_polls(self, waiter: Waiter, offsets: Mapping[Queue, int] | None) -> bool:
        if offsets is None:
            return False
        is_added = False
        try:
            for queue, offset in offsets.items():
                poll = self._add_poll(queue.queue_id, offset, waiter.end_ns, waiter.wake)
                if poll is None:
                    break
                waiter.polls.append((queue, offset, poll))
            else:
                is_added = True
        except TimerStoreError:
            pass
        finally:
            if not is_added:  # all polls or none, also after an interrupt
                polls, waiter.polls = waiter.polls, []
                for _, _, poll in polls:
                    self._remove_poll(poll)
        return is_added


def _ignore() -> None:
    """Wake no caller: none has begun to wait."""
