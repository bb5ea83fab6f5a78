"""A pull that may wait; a thread or an event loop does the waiting.

    fetched = look()
    while not is_done(fetched):
        if enter(wake):
            sleep until `wake` is called, or for left_s
            leave()
        fetched = look()
    answer = final(fetched)             or when_closed(), if the store was closed
    end()                               in every case

Thread safety: one thread at a time; any thread may call `wake`.
Invariants:
    1. An answer skips no message: each message below its next offset was compared with the filter.
    2. If the store is closed, the pull answers from memory and reads no file after that.
Raises: FailedError if the store fails during the wait.
See also: docs/decisions/0005-long-poll.md, with the differences from RocketMQ.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.long_poll import LongPoll, LongPollTable
from timerstore.clock import Clock
from timerstore.messages import MessageBatch, PullResult, PullStatus

Answer = TypeVar("Answer", bound=PullResult | MessageBatch)

WAITING = (PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE)
"""The statuses on which a pull that may wait goes on waiting."""

Fetched = TypeVar("Fetched")
Answer_co = TypeVar("Answer_co", covariant=True)


class Waits(Protocol[Fetched, Answer_co]):
    """A call that may wait: a pull (below), a consumer's poll (waiting_poll.py) or several."""

    @property
    def left_s(self) -> float: ...
    @property
    def is_closed(self) -> bool: ...
    def enter(self, wake: Callable[[], None]) -> bool: ...
    def leave(self) -> None: ...
    def look(self) -> Fetched: ...
    def is_done(self, fetched: Fetched) -> bool: ...
    def final(self, fetched: Fetched) -> Answer_co: ...
    def when_closed(self) -> Answer_co: ...
    def end(self) -> None: ...


class PullBounds(NamedTuple):
    """The ends of a queue, and the status and next offset of a pull from one offset."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int


class WaitContext(NamedTuple):
    """The components of a store that its waiting pulls use."""

    clock: Clock
    long_polls: LongPollTable
    check_alive: Callable[[], None]
    ask_sync: Callable[[], None]
    wait_ns_max: int | None  # the longest wait of a short poll; None for long polls

    def end_ns(self, wait_s: float) -> int:
        """Return the end of a pull that begins now, in ns of the monotonic clock."""
        wait_ns = int(wait_s * 1e9)
        if self.wait_ns_max is not None:
            wait_ns = min(wait_ns, self.wait_ns_max)
        return self.clock.monotonic_ns + wait_ns


class WaitingPull(Owner, Generic[Answer]):
    """One pull."""

    def __init__(
        self,
        context: WaitContext,
        route: Route,
        offset: int,
        wait_s: float,
        message_filter: Filter | None,
        look: Callable[[int], Answer],
        empty: Callable[[Route, PullBounds], Answer],
    ) -> None:
        """Create a pull that has not begun to wait.

        look: pulls from an offset without waiting.
        empty: makes an answer without messages.
        """
        self._context = context
        self._route = route
        self._start_offset = offset
        self._offset = offset  # no message below it is for this pull
        self._end_ns = context.end_ns(wait_s)
        self._filter = message_filter
        self._look = look
        self._empty = empty
        self._poll: LongPoll | None = None
        self._has_waited = False
        self._was_empty = False  # whether the queue was, when the last wait began
        self._is_over = False

    def look(self) -> Answer:
        """Pull without waiting."""
        return self._look(self._offset)

    @property
    def left_s(self) -> float:
        """Return how many seconds it may still wait."""
        return max((self._end_ns - self._context.clock.monotonic_ns) / 1e9, 0.0)

    @property
    def is_closed(self) -> bool:
        """Return whether the store was closed; then `when_closed` is the answer."""
        return self._context.long_polls.closed

    def enter(self, wake: Callable[[], None]) -> bool:
        """Begin to wait; return False if there is something to read or no time left.

        `wake` is called once or more, from any thread: then it is time to `leave` and read again.
        The caller must `leave` after `left_s` in any case. `wake` must not call a store: a service
        may call it with a lock held.
        """
        if self.left_s <= 0:
            return False
        context = self._context
        poll = context.long_polls.enter(self._route, self._offset, self._end_ns, self._filter, wake)
        if poll is None:
            return False
        self._poll = poll
        self._was_empty = poll.entered_at == 0
        try:
            context.check_alive()  # after it entered: a store that fails from now on wakes it
            context.ask_sync()
        except BaseException:
            self.leave()
            raise
        self._has_waited = True
        return True

    def leave(self) -> None:
        """Stop waiting, for whatever reason."""
        poll, self._poll = self._poll, None
        assert poll is not None, "left without having entered"
        if not self._context.long_polls.leave(poll):
            self._is_over = True
        self._offset = poll.no_match_below

    def is_done(self, fetched: Answer) -> bool:
        """Return whether this is the answer; if not, `enter` again."""
        if fetched.status is PullStatus.NO_MATCHED_MESSAGE and self._has_waited:
            self._offset = fetched.next_offset  # the message that woke it does not match
        elif fetched.status not in WAITING:
            return True
        return self._is_over or self.is_closed or self.left_s <= 0

    def final(self, fetched: Answer) -> Answer:
        """Return the answer; its next offset is after the messages that did not match."""
        if fetched.status is PullStatus.OFFSET_OVERFLOW_ONE and self._offset > self._start_offset:
            return replace(fetched, status=PullStatus.NO_MATCHED_MESSAGE)
        return fetched

    def when_closed(self) -> Answer:
        """Return the answer of a closed store, from the offsets that were last known."""
        at, low = self._offset, self._route.queue.min_offset
        if self._was_empty:
            bounds = PullBounds(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, 0)
        else:
            bounds = PullBounds(PullStatus.OFFSET_OVERFLOW_ONE, at, low, at)
        return self.final(self._empty(self._route, bounds))

    def end(self) -> None:
        """Remove the poll if a signal interrupted the wait before `leave`."""
        if self._poll is not None:
            self.leave()


def wait_in_thread(waiting: Waits[Fetched, Answer_co], fetched: Fetched) -> Answer_co:
    """Wait in this thread, after a first look that returned `fetched`."""
    try:
        while not waiting.is_done(fetched):
            event = WakeEvent()  # unlike threading.Event, a signal handler cannot leave it locked
            if waiting.enter(event.set):
                try:
                    event.wait(min(waiting.left_s, threading.TIMEOUT_MAX))
                finally:
                    waiting.leave()
                if waiting.is_closed:
                    return waiting.when_closed()
            fetched = waiting.look()
        return waiting.final(fetched)
    finally:
        try:
            waiting.end()
        except BaseException:  # KeyboardInterrupt too: `end` must put the next waiter in the table
            waiting.end()
            raise
