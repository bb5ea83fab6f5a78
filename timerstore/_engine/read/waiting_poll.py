"""A poll that may wait, without the waiting: as WaitingPull is for pulls (read/waiting_pull.py).

Threads:  one at a time, but `look` may run in another than the rest; `ring` comes from any.
Holds:    (1) `look` fetches and hands nothing out, `is_done` hands out and does not block: whoever
          awaits a look and is cancelled meanwhile takes no message with him; (2) after `end`,
          however it came to that, the next one in line waits in its stead.
Fails:    FailedError where the store has failed while it waits; what `fetch` raises.
Source:   docs/decisions/0005-long-poll.md.
"""

from collections.abc import Callable
from typing import Protocol

from timerstore._engine.base.owner import Owner
from timerstore._engine.read.groups import Group, Groups, Held, Member
from timerstore._engine.read.wait_queue import FOR_EVER_NS, Waiter
from timerstore.clock import Clock
from timerstore.errors import ClosedError
from timerstore.messages import Message


class Source(Protocol):
    """Where a poll gets its messages: a consumer."""

    def fetch(self, max_count: int) -> list[Held]:
        """Have messages at hand; the queues in whose turn they are to be handed out, or none."""

    def hand_out(self, queues: list[Held], max_count: int) -> list[Message]:
        """Give what is at hand."""


class WaitingPoll(Owner):
    """One poll."""

    def __init__(
        self,
        clock: Clock,
        groups: Groups,
        group: Group,
        member: Member,
        source: Source,
        stay_awake: Callable[[], None],
        max_count: int,
        wait_s: float | None,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._group = group
        self._member = member
        self._source = source
        self._stay_awake = stay_awake
        self._max_count = max_count
        end_ns = FOR_EVER_NS if wait_s is None else clock.monotonic_ns + int(wait_s * 1e9)
        self._place = Waiter(end_ns)
        self._is_over = False
        self._found: list[Message] = []

    @property
    def left_s(self) -> float:
        """How long it may still wait, seconds."""
        return max((self._place.end_ns - self._clock.monotonic_ns) / 1e9, 0.0)

    @property
    def is_closed(self) -> bool:
        """Whether the store or the consumer was closed: then `when_closed` is the answer."""
        return self._groups.is_closed or not self._member.is_in

    def enter(self, ring: Callable[[], None]) -> bool:
        """Begin to wait; False where there is something to look at, or no time left.

        `ring` may be called more than once, from any thread.
        """
        if self.left_s <= 0:
            return False
        with self._group.lock:
            if self.is_closed:
                return False
            if not self._member.line.sleep(self._place, ring, self._member.wanted()):
                return False
        try:
            self._stay_awake()  # after it entered: a store that fails now rings it
        except BaseException:
            self.leave()
            raise
        return True

    def leave(self) -> None:
        """End of waiting, whatever ended it; it keeps its place in line until `end`."""
        with self._group.lock:
            mine = self._member.held
            for held, offset, looked in self._member.line.wake(self._place):
                # One that left and came back meanwhile begins where its group committed.
                if isinstance(held, Held) and mine.get(held.queue_id) is held:
                    held.skip(offset, looked)
            if not self._place.is_woken:
                self._is_over = True

    def look(self) -> list[Held]:
        """Fetch what there is now."""
        try:
            return self._source.fetch(self._max_count)
        except ClosedError:
            if self.is_closed:
                return []
            raise

    def is_done(self, got: list[Held]) -> bool:
        """Whether there is an answer; else `enter` again."""
        if got:
            self._found = self._source.hand_out(got, self._max_count)
            if self._found:
                return True
            # Another thread was quicker.
        return self._is_over or self.is_closed or self.left_s <= 0

    def final(self, _got: list[Held]) -> list[Message]:
        """The answer."""
        return self._found

    def when_closed(self) -> list[Message]:
        """The answer where all is over."""
        return []

    def end(self) -> None:
        """Leave the line; whoever entered must come here at last."""
        with self._group.lock:
            self._member.line.leave(self._place, self._member.wanted())
