"""A pull that may wait, without the waiting: that is done by a thread, or by an event loop.

    while enter(ring): sleep until ring or left_s, leave(); then look; is_done? final; at last end

Threads:  the one pull's own; `ring` comes from any.
Holds:    (1) what is given never skips a message: what `final` says was looked at was, message by
          message; (2) a pull answers its store's end with what it knew, and reads no file after it.
Fails:    FailedError where the store has failed while it waits.
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
"""What a pull that may wait does not take for an answer."""


Got = TypeVar("Got")
Given_co = TypeVar("Given_co", covariant=True)


class Waits(Protocol[Got, Given_co]):
    """What a thread or a loop waits by: a pull here, a consumer's poll in waiting_poll.py."""

    @property
    def left_s(self) -> float: ...
    @property
    def is_closed(self) -> bool: ...
    def enter(self, ring: Callable[[], None]) -> bool: ...
    def leave(self) -> None: ...
    def look(self) -> Got: ...
    def is_done(self, got: Got) -> bool: ...
    def final(self, got: Got) -> Given_co: ...
    def when_closed(self) -> Given_co: ...
    def end(self) -> None: ...


class Bounds(NamedTuple):
    """A queue's ends, and what a pull from one offset comes to."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int


class WaitContext(NamedTuple):
    """What every waiting pull of a store needs."""

    clock: Clock
    holds: LongPollTable
    check_alive: Callable[[], None]
    ask_sync: Callable[[], None]
    wait_ns_max: int | None  # where polls are short: how long one waits at most

    def end_ns(self, wait_s: float) -> int:
        """When a pull that begins now ends, by the monotonic clock."""
        wait_ns = int(wait_s * 1e9)
        if self.wait_ns_max is not None:
            wait_ns = min(wait_ns, self.wait_ns_max)
        return self.clock.monotonic_ns + wait_ns


class WaitingPull(Owner, Generic[Answer]):
    """One pull."""

    def __init__(
        self,
        waiter: WaitContext,
        route: Route,
        offset: int,
        wait_s: float,
        message_filter: Filter | None,
        look: Callable[[int], Answer],
        empty: Callable[[Route, Bounds], Answer],
    ) -> None:
        """`look` pulls from an offset without waiting; `empty` makes an answer without messages."""
        self._waiter = waiter
        self._route = route
        self._asked = offset
        self._offset = offset  # nothing below it is for this pull
        self._end_ns = waiter.end_ns(wait_s)
        self._filter = message_filter
        self._look = look
        self._empty = empty
        self._hold: LongPoll | None = None
        self._has_waited = False
        self._was_empty = False  # the queue, when this last began to wait
        self._is_over = False

    def look(self) -> Answer:
        """What there is now."""
        return self._look(self._offset)

    @property
    def left_s(self) -> float:
        """How long it may still wait, seconds."""
        return max((self._end_ns - self._waiter.clock.monotonic_ns) / 1e9, 0.0)

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed: then `when_closed` is the answer."""
        return self._waiter.holds.closed

    def enter(self, ring: Callable[[], None]) -> bool:
        """Begin to wait; False where there is something to look at, or no time left.

        `ring` is called, once or more, from any thread, when it is time to `leave` and look; it
        must be left after `left_s` in any case. It must not call a store: a service may call it
        while it holds a lock.
        """
        if self.left_s <= 0:
            return False
        waiter = self._waiter
        hold = waiter.holds.enter(self._route, self._offset, self._end_ns, self._filter, ring)
        if hold is None:
            return False
        self._hold = hold
        self._was_empty = hold.entered_at == 0
        try:
            waiter.check_alive()  # after it entered: a store that fails now answers it
            waiter.ask_sync()
        except BaseException:
            self.leave()
            raise
        self._has_waited = True
        return True

    def leave(self) -> None:
        """End of waiting, whatever ended it."""
        hold, self._hold = self._hold, None
        assert hold is not None, "left without having entered"
        if not self._waiter.holds.leave(hold):
            self._is_over = True
        self._offset = hold.looked

    def is_done(self, got: Answer) -> bool:
        """Whether this is the answer; else `enter` again."""
        if got.status is PullStatus.NO_MATCHED_MESSAGE and self._has_waited:
            self._offset = got.next_offset  # woken by what did not match after all: go on from it
        elif got.status not in WAITING:
            return True
        return self._is_over or self.is_closed or self.left_s <= 0

    def final(self, got: Answer) -> Answer:
        """The answer: messages that came and did not match were looked at."""
        if got.status is PullStatus.OFFSET_OVERFLOW_ONE and self._offset > self._asked:
            return replace(got, status=PullStatus.NO_MATCHED_MESSAGE)
        return got

    def when_closed(self) -> Answer:
        """The answer of a store that was closed meanwhile, by what was last known."""
        at, low = self._offset, self._route.queue.min_offset
        if self._was_empty:
            bounds = Bounds(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, 0)
        else:
            bounds = Bounds(PullStatus.OFFSET_OVERFLOW_ONE, at, low, at)
        return self.final(self._empty(self._route, bounds))

    def end(self) -> None:
        """Nobody waits behind it: pulls are independent of each other."""
        if self._hold is not None:  # a signal came before it left
            self.leave()


def wait_in_thread(waiting: Waits[Got, Given_co], got: Got) -> Given_co:
    """Wait in this thread, after a first look that came to `got`."""
    try:
        while not waiting.is_done(got):
            bell = WakeEvent()  # whoever rings holds others up if a signal could leave it locked
            if waiting.enter(bell.set):
                try:
                    bell.wait(min(waiting.left_s, threading.TIMEOUT_MAX))
                finally:
                    waiting.leave()
                if waiting.is_closed:
                    return waiting.when_closed()
            got = waiting.look()
        return waiting.final(got)
    finally:
        try:
            waiting.end()
        except BaseException:  # as Ctrl-C amid it: others wait behind
            waiting.end()
            raise
