"""A consumer's poll that may wait; a thread or an event loop does the waiting.

It is for polls what WaitingPull is for pulls (waiting_pull.py).

Thread safety: one thread at a time, but `look` may run in another thread than the other methods.
Any thread may call `wake`.
Invariants:
    1. `look` fetches messages and returns none; `is_done` returns them and does not block. So a
       task that is cancelled while `look` runs takes no message with it.
    2. After `end` the next waiter of the consumer is in the long-poll table.
Raises: FailedError if the store fails during the wait; what `fetch` raises.
See also: docs/decisions/0005-long-poll.md.
"""

from collections.abc import Callable
from typing import Protocol

from timerstore._engine.base.owner import Owner
from timerstore._engine.read.groups import AssignedQueue, Group, Groups, Member
from timerstore._engine.read.wait_queue import FOREVER_NS, Waiter
from timerstore.clock import Clock
from timerstore.errors import ClosedError
from timerstore.messages import Message


class PollSource(Protocol):
    """The source of a poll's messages: a consumer."""

    def fetch(self, max_count: int) -> list[AssignedQueue]:
        """Buffer messages; return the queues to hand them out from, in order, or none."""

    def hand_out(self, queues: list[AssignedQueue], max_count: int) -> list[Message]:
        """Return buffered messages of these queues."""


class WaitingPoll(Owner):
    """One poll."""

    def __init__(
        self,
        clock: Clock,
        groups: Groups,
        group: Group,
        member: Member,
        source: PollSource,
        before_wait: Callable[[], None],
        max_count: int,
        wait_s: float | None,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._group = group
        self._member = member
        self._source = source
        self._before_wait = before_wait
        self._max_count = max_count
        end_ns = FOREVER_NS if wait_s is None else clock.monotonic_ns + int(wait_s * 1e9)
        self._waiter = Waiter(end_ns)
        self._is_over = False
        self._found: list[Message] = []

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
                if isinstance(queue, AssignedQueue) and assigned.get(queue.queue_id) is queue:
                    queue.skip(offset, no_match_below)
            if not self._waiter.is_woken:
                self._is_over = True

    def look(self) -> list[AssignedQueue]:
        """Fetch the messages that there are now."""
        try:
            return self._source.fetch(self._max_count)
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def is_done(self, fetched: list[AssignedQueue]) -> bool:
        """Return whether there is an answer; if not, `enter` again."""
        if fetched:
            self._found = self._source.hand_out(fetched, self._max_count)
            if self._found:
                return True
            # Another thread took the messages.
        return self._is_over or self.is_closed or self.left_s <= 0

    def final(self, _fetched: list[AssignedQueue]) -> list[Message]:
        """Return the answer."""
        return self._found

    def when_closed(self) -> list[Message]:
        """Return the answer of a closed store or consumer."""
        return []

    def end(self) -> None:
        """Leave the wait queue; every caller that entered must call this in the end."""
        with self._group.lock:
            self._member.wait_queue.leave(self._waiter, self._member.wait_offsets())
