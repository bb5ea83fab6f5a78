"""A pull that may wait; a thread or an event loop does the waiting.

    fetched = look()
    while answer(fetched) is None:
        if enter(wake):
            sleep until `wake` is called, or for left_s
            leave()                     and return when_closed(), if the store was closed
        fetched = look()
    end()                               in every case

Thread safety: one thread at a time; any thread may call `wake`.
Invariants:
    1. An answer skips no message: each message below its next offset was compared with the filter.
    2. If the store is closed, the pull answers from memory and reads no file after that.
Raises: FailedError if the store fails during the wait.
See also: docs/decisions/0005-long-poll.md, with the differences from RocketMQ.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.groups import AssignedQueue, Group, Groups, Member, Waiter
from timerstore._engine.read.long_poll import FOREVER_NS, LongPoll, LongPollTable
from timerstore.errors import ClosedError
from timerstore.types.clock import Clock
from timerstore.types.messages import Message, MessageBatch, PullResult, PullStatus

# --- waiting pull ---


Answer = TypeVar("Answer", bound=PullResult | MessageBatch)

WAITING = (PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE)
"""The statuses on which a pull that may wait goes on waiting."""

Fetched = TypeVar("Fetched")
Answer_co = TypeVar("Answer_co", covariant=True)


class Waitable(Protocol[Fetched, Answer_co]):
    """A call that may wait: a pull, a consumer's poll, or several of them (all below)."""

    @property
    def left_s(self) -> float:
        """Return how many seconds it may still wait."""

    @property
    def is_closed(self) -> bool:
        """Return whether a store was closed; then `when_closed` is the answer."""

    def enter(self, wake: Callable[[], None]) -> bool:
        """Begin to wait; return False if there is something to read or no time left.

        `wake` may be called more than once, from any thread: then it is time to `leave` and to
        `look`. It must not call a store: a service may call it with a lock held.
        """

    def leave(self) -> None:
        """Stop waiting, for whatever reason."""

    def look(self) -> Fetched:
        """Read without waiting."""

    def answer(self, fetched: Fetched) -> Answer_co | None:
        """Return the answer, or None if the caller should `enter` again."""

    def when_closed(self) -> Answer_co:
        """Return the answer of a closed store."""

    def end(self) -> None:
        """Complete the call; every caller must call this in the end."""


class PullBounds(NamedTuple):
    """The ends of a queue, and the status and next offset of a pull from one offset."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int


Pulled = MessageBatch | PullBounds
"""Messages, or the ends of a queue without messages for the pull."""


class WaitContext(NamedTuple):
    """The components of a store that its waiting pulls use."""

    clock: Clock
    long_polls: LongPollTable
    before_wait: Callable[[], None]
    wait_ns_max: int | None  # the longest wait of a short poll; None for long polls

    def end_ns(self, wait_s: float) -> int:
        """Return the end of a pull that begins now, in ns of the monotonic clock."""
        wait_ns = int(wait_s * 1e9)
        if self.wait_ns_max is not None:
            wait_ns = min(wait_ns, self.wait_ns_max)
        return self.clock.monotonic_ns + wait_ns


class WaitingPull(NotCopyable, Generic[Answer]):
    """One pull."""

    def __init__(
        self,
        context: WaitContext,
        route: Route,
        offset: int,
        wait_s: float,
        message_filter: Filter | None,
        look: Callable[[int], Answer],
        make_answer: Callable[[Route, PullBounds], Answer],
    ) -> None:
        """Create a pull that has not begun to wait.

        look: pulls from an offset without waiting.
        make_answer: makes an answer without messages.
        """
        self._context = context
        self._route = route
        self._start_offset = offset
        self._offset = offset  # no message below it is for this pull
        self._end_ns = context.end_ns(wait_s)
        self._filter = message_filter
        self._look = look
        self._make_answer = make_answer
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
            context.before_wait()  # after it entered: a store that fails from now on wakes it
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

    def answer(self, fetched: Answer) -> Answer | None:
        """Return the answer, or None if the caller should `enter` again."""
        if fetched.status is PullStatus.NO_MATCHED_MESSAGE and self._has_waited:
            self._offset = fetched.next_offset  # the message that woke it does not match
        elif fetched.status not in WAITING:
            return fetched
        if self._is_over or self.is_closed or self.left_s <= 0:
            return self._final(fetched)
        return None

    def _final(self, fetched: Answer) -> Answer:
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
        return self._final(self._make_answer(self._route, bounds))

    def end(self) -> None:
        """Remove the poll if a signal interrupted the wait before `leave`."""
        if self._poll is not None:
            self.leave()


def wait_in_thread(waiting: Waitable[Fetched, Answer_co], fetched: Fetched) -> Answer_co:
    """Wait in this thread, after a first look that returned `fetched`."""
    try:
        while (answer := waiting.answer(fetched)) is None:
            event = WakeEvent()  # unlike threading.Event, a signal handler cannot leave it locked
            if waiting.enter(event.set):
                try:
                    event.wait(min(waiting.left_s, threading.TIMEOUT_MAX))
                finally:
                    waiting.leave()
                if waiting.is_closed:
                    return waiting.when_closed()
            fetched = waiting.look()
        return answer
    finally:
        try:
            waiting.end()
        except BaseException:  # KeyboardInterrupt too: `end` must put the next waiter in the table
            waiting.end()
            raise


# --- waiting poll ---
# A consumer's poll that may wait; a thread or an event loop does the waiting.
#
# Thread safety: one thread at a time, but `look` may run in another thread than the other methods.
# Any thread may call `wake`.
# Invariants:
#     1. `look` fetches messages and returns none; `answer` returns them and does not block. So a
#        task that is cancelled while `look` runs takes no message with it.
#     2. After `end` the next waiter of the consumer is in the long-poll table.
# Raises: FailedError if the store fails during the wait; what `fetch` raises.
# See also: docs/decisions/0005-long-poll.md.


class WaitingPoll(NotCopyable):
    """One poll."""

    def __init__(
        self,
        clock: Clock,
        groups: Groups,
        group: Group,
        member: Member,
        fetch: Callable[[int], list[AssignedQueue]],
        hand_out: Callable[[list[AssignedQueue], int], list[Message]],
        before_wait: Callable[[], None],
        max_count: int,
        wait_s: float | None,
    ) -> None:
        """Create a poll that has not begun to wait.

        fetch: buffers messages; returns the queues to hand them out from, in order, or none.
        hand_out: returns buffered messages of these queues.
        """
        self._clock = clock
        self._groups = groups
        self._group = group
        self._member = member
        self._fetch = fetch
        self._hand_out = hand_out
        self._before_wait = before_wait
        self._max_count = max_count
        end_ns = FOREVER_NS if wait_s is None else clock.monotonic_ns + int(wait_s * 1e9)
        self._waiter = Waiter(end_ns)
        self._is_over = False

    @property
    def left_s(self) -> float:
        """Return how many seconds it may still wait."""
        return max((self._waiter.end_ns - self._clock.monotonic_ns) / 1e9, 0.0)

    @property
    def is_closed(self) -> bool:
        """Return whether the store or the consumer was closed; then `when_closed` is the answer."""
        return self._groups.is_closed or not self._member.is_in

    def enter(self, wake: Callable[[], None]) -> bool:
        """Begin to wait; return False if there is something to read or no time left.

        `wake` may be called more than once, from any thread.
        """
        if self.left_s <= 0:
            return False
        with self._group.lock:
            if self.is_closed:
                return False
            if not self._member.wait_queue.enter(self._waiter, wake, self._member.wait_offsets()):
                return False
        try:
            self._before_wait()  # after it entered: a store that fails from now on wakes it
        except BaseException:
            self.leave()
            raise
        return True

    def leave(self) -> None:
        """Stop waiting, for whatever reason; the poll keeps its position until `end`."""
        with self._group.lock:
            assigned = self._member.assigned
            for queue, offset, no_match_below in self._member.wait_queue.suspend(self._waiter):
                # A queue that was revoked and assigned again begins where its group committed.
                if assigned.get(queue.queue_id) is queue:
                    queue.skip(offset, no_match_below)
            if not self._waiter.is_woken:
                self._is_over = True

    def look(self) -> list[AssignedQueue]:
        """Fetch the messages that there are now."""
        try:
            return self._fetch(self._max_count)
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def answer(self, fetched: list[AssignedQueue]) -> list[Message] | None:
        """Return the answer, or None if the caller should `enter` again."""
        # Another thread may have taken the fetched messages.
        found = self._hand_out(fetched, self._max_count) if fetched else []
        if found or self._is_over or self.is_closed or self.left_s <= 0:
            return found
        return None

    def when_closed(self) -> list[Message]:
        """Return the answer of a closed store or consumer."""
        return []

    def end(self) -> None:
        """Leave the wait queue; every caller that entered must call this in the end."""
        with self._group.lock:
            self._member.wait_queue.leave(self._waiter, self._member.wait_offsets())


# --- multi wait ---
# Wait for several pulls or polls at once, until one of them has messages.
#
# `receive` uses it for a topic and its retry topic, for several topics, and for all shards of a
# directory.
#
# Thread safety: one thread at a time; any thread may call `wake`.
# Invariants:
#     1. A waiting call has entered all of its parts or none.


One = TypeVar("One")
Part = TypeVar("Part", bound=Waitable[Any, Any])


def begin_parts(begins: Iterable[Callable[[], Part]]) -> list[Part]:
    """Begin each part. If one raises an error, end those before it."""
    with ExitStack() as begun:
        parts: list[Part] = []
        for begin in begins:
            parts.append(begin())
            begun.callback(parts[-1].end)
        begun.pop_all()  # all of them
    return parts


class MultiWait(NotCopyable, Generic[One]):
    """A call that may wait for any of its parts; its answer is a list."""

    def __init__(
        self,
        parts: Sequence[Waitable[Any, Any]],
        take: Callable[[], list[One]],
        ended: Callable[["MultiWait[One]"], None] | None = None,
    ) -> None:
        """`take` returns the messages that there are now; `ended` is called at the end."""
        self._parts = parts
        self._take = take
        self._ended = ended

    @property
    def left_s(self) -> float:
        """Return how many seconds it may still wait."""
        return self._parts[0].left_s

    @property
    def is_closed(self) -> bool:
        """Return whether a store was closed."""
        return any(one.is_closed for one in self._parts)

    def enter(self, wake: Callable[[], None]) -> bool:
        """Begin to wait; return False if there is something to read or no time left."""
        with ExitStack() as entered:
            for one in self._parts:
                if not one.enter(wake):
                    return False
                entered.callback(one.leave)
            entered.pop_all()  # all of them
            return True

    def leave(self) -> None:
        """Stop waiting, for whatever reason."""
        for one in self._parts:
            one.leave()

    def look(self) -> list[One]:
        """Take the messages that there are now."""
        try:
            return self._take()
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def answer(self, fetched: list[One]) -> list[One] | None:
        """Return the answer, or None if the caller should `enter` again."""
        return fetched if fetched or self.is_closed or self.left_s <= 0 else None

    def when_closed(self) -> list[One]:
        """Return the answer of a closed store."""
        return []

    def end(self) -> None:
        """End every part; every caller must call this in the end, or drop the object."""
        for one in self._parts:
            one.end()
        if self._ended is not None:
            self._ended(self)
