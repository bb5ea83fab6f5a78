"""Consumer: reads a topic for a group and remembers how far it came.

Threads:  any; what two threads take from one consumer is shared between them.
Holds:    (1) messages of one queue are handed out in order, without gaps; (2) what was committed is
          not handed out again, what was handed out and not committed comes again: after a crash, a
          close, or when the queue moves to another consumer; (3) who waits uses no CPU, and is
          woken by the message; of several who wait at one consumer, one is.
Fails:    MessageError on arguments; ClosedError, ForkedError; what pull and Offsets raise.
Source:   docs/decisions/0005-long-poll.md.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, Self

from timerstore._engine.base.argument_types import whole
from timerstore._engine.base.closing import Closing
from timerstore._engine.base.due_times import moment_ms
from timerstore._engine.read.consumer_offsets import Asked, Offsets
from timerstore._engine.read.groups import Filters, Group, Groups, Held, Member
from timerstore._engine.read.time_seek import BEYOND
from timerstore._engine.read.validation import wait_problems, whole_ms, whole_or
from timerstore._engine.read.wait_queue import Unwatch, WaitQueue, Watch
from timerstore._engine.read.waiting_poll import WaitingPoll
from timerstore._engine.read.waiting_pull import wait_in_thread
from timerstore.clock import Clock
from timerstore.errors import ClosedError, MessageError, TimerStoreError, quoted
from timerstore.messages import Message, PullResult, PullStatus

_REMOVED = {PullStatus.OFFSET_TOO_SMALL, PullStatus.MESSAGE_WAS_REMOVING}
_AHEAD = 32  # messages that are fetched at once, at least
_LOOK_S = (
    0.5  # how often who waits for a commit looks by himself: a signal may keep it from telling
)


class ConsumerContext(NamedTuple):
    """What a consumer needs of its store."""

    clock: Clock
    groups: Groups
    offsets: Offsets
    call: Callable[..., Any]  # runs a function in a call that `close` waits for
    pull: Callable[..., PullResult]
    offset_at: Callable[[str, int, int], int]
    stay_awake: Callable[[], None]  # before sleeping: raises if the store failed, asks for a sync
    watch: Callable[[str, Filters], Watch]
    unwatch: Unwatch


class Consumer(Closing):
    """One reader of a topic for a group; `TimerStore.consumer` makes it. Close it, or use `with`.

        for message in consumer:
            handle(message)
            consumer.commit()

    Iterating waits for the next message: until the consumer or the store is closed, or, where it
    was made with `wait`, until so many seconds passed without one (0: ends at the end).
    """

    def __init__(
        self,
        seams: ConsumerContext,
        topic: str,
        group: str,
        queues: tuple[int, ...] | None,
        filters: Filters,
        wait: float | None,
        *,
        leases: bool = False,
    ) -> None:
        """`leases`: what it reads is leased, and goes to nobody else."""
        self.topic = topic
        self.group = group
        self._seams = seams
        self.wait = wait
        """How long iterating waits for the next message, seconds; None: for ever."""
        self._filters = filters._asdict()
        self.removed_count = 0
        """Messages that were removed from the log before they could be handed out here."""
        self._turn = 0  # whose turn it is among the queues
        self._member = member = Member(
            queues, WaitQueue(seams.watch(topic, filters), seams.unwatch)
        )
        self._group: Group = seams.groups.join(topic, group, member, filters, leases=leases)
        gone = self._group.gone
        member.own_by(weakref.ref(self, lambda _: gone.append(member)))

    # --- reading ---

    def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Give the next messages, at most `max_count`, of any of its queues; waits up to `wait`
        seconds for the first. None came: an empty list.
        """
        count = _check_poll(max_count, wait)
        found: list[Message] = self._seams.call(self._poll, count, wait)
        return found

    def begin_poll(self, max_count: int = 32, wait: float | None = 0.0) -> WaitingPoll:
        """Begin a `poll` of which the caller does the waiting: an event loop (timerstore.aio).

        `wait` None: for ever.
        """
        count = _check_poll(max_count, 0 if wait is None else wait)
        self._seams.call(self._check_open)
        return self._waiting_poll(count, wait)

    def __iter__(self) -> Self:
        self._seams.call(self._check_open)
        return self

    def __next__(self) -> Message:
        try:
            found: list[Message] = self._seams.call(self._poll, 1, self.wait)
        except ClosedError:
            found = []
        if not found:
            raise StopIteration
        return found[0]

    def _waiting_poll(self, max_count: int, wait_s: float | None) -> WaitingPoll:
        seams = self._seams
        return WaitingPoll(
            seams.clock,
            seams.groups,
            self._group,
            self._member,
            self,
            seams.stay_awake,
            max_count,
            wait_s,
        )

    def _poll(self, max_count: int, wait_s: float | None) -> list[Message]:
        self._check_open()
        while queues := self._fetch_next(max_count):
            if found := self.hand_out(queues, max_count):
                return found  # else another thread was quicker
        if wait_s == 0:
            return []
        return wait_in_thread(self._waiting_poll(max_count, wait_s), [])

    def fetch(self, max_count: int) -> list[Held]:
        """Have messages at hand, where there are any; the queues that have them in their turn. For
        who has begun a poll.
        """
        queues: list[Held] = self._seams.call(self._fetch_next, max_count)
        return queues

    def _fetch_next(self, max_count: int) -> list[Held]:
        with self._group.lock:
            self._group.refresh()
            queues = self._in_turn()
        return queues if self._fetch(queues, max_count) else []

    def _fetch(self, queues: list[Held], max_count: int) -> bool:
        """Have so many messages at hand, where there are so many; whether there is any.

        Nothing is handed out yet: an error here, or a signal, must not lose what only it knows of.
        """
        ready = 0
        try:
            for held in queues:
                ready += self._fetch_from(held, max_count - ready)
                if ready >= max_count:
                    break
        except TimerStoreError:
            if not ready:
                raise
            # Else it comes again, with the next call.
        return ready > 0

    def _fetch_from(self, held: Held, count: int) -> int:
        """Pull from one queue as often as it takes; how many messages are at hand."""
        group = self._group
        while True:
            with group.lock:
                if self._member.held.get(held.queue_id) is not held:
                    return 0
                is_underway = held.position < 0 and group.is_committing(held.queue_id)
                if is_underway:  # by whoever had it before: where to begin is not known yet
                    settled = group.when_settled()
                elif held.position < 0:
                    self._place(held)
                missing = count - len(held.ahead)
                if missing <= 0:
                    return count
                offset = held.fetch_at
            if is_underway:
                settled.wait(_LOOK_S)
                continue
            result = self._pull(held.queue_id, offset, max(missing, _AHEAD))
            with group.lock:
                is_next = held.fetch_at == offset  # else another thread was here, or a seek
                is_removed = is_next and held.is_known and result.status in _REMOVED
                if is_next:
                    held.arrived(result)
                is_at_end = is_next and held.fetch_at == offset
                at_hand = len(held.ahead)
                if is_removed:
                    self.removed_count += result.next_offset - offset
            if is_removed:  # under no lock: a handler of logging may ask this consumer something
                self._tell_removed(held.queue_id, result.next_offset - offset)
            if is_at_end:
                return at_hand

    def hand_out(self, queues: list[Held], max_count: int) -> list[Message]:
        """Give what was fetched, of the queues in their turn; it reads and waits for nothing."""
        with self._group.lock:
            return self._take(queues, max_count)

    def peek(self, queues: list[Held], max_count: int) -> list[Message]:
        """Give what `hand_out` would hand out now; for who alone reads with this consumer."""
        found: list[Message] = []
        with self._group.lock:
            for held in queues:
                if self._member.held.get(held.queue_id) is held:
                    found += islice(held.ahead, max_count - len(found))
        return found

    def at_hand(self, count: int) -> list[Message]:
        """Give so many messages where so many were fetched before, else none; reads nothing."""
        with self._group.lock:
            queues = [held for held in self._in_turn() if held.ahead]
            if sum(len(held.ahead) for held in queues) < count:
                return []
            return self._take(queues, count)

    def wake(self) -> None:
        """Have all who wait look again."""
        with self._group.lock:
            self._member.line.wake_all()

    def _in_turn(self) -> list[Held]:
        held = list(self._member.held.values())
        first = self._turn % max(len(held), 1)
        return held[first:] + held[:first]

    def _take(self, queues: list[Held], max_count: int) -> list[Message]:
        found: list[Message] = []
        mine = self._member.held
        for held in queues:
            if mine.get(held.queue_id) is held:
                found += held.take(max_count - len(found))
                if not held.ahead:  # so that none of them keeps the others waiting
                    self._turn = list(mine).index(held.queue_id) + 1
            if len(found) == max_count:
                break
        return found

    def _place(self, held: Held) -> None:
        """Find out where to begin; the commits of whoever had it before have arrived."""
        committed = self._seams.offsets.committed(self.topic, self.group)
        held.jump(max(committed.get(held.queue_id, 0), 0))
        held.know(is_known=held.queue_id in committed)

    def _tell_removed(self, queue_id: int, count: int) -> None:
        """Retention has removed what came next here: it can only go on behind it."""
        logging.getLogger("timerstore.read").warning(
            "removed_unread=%d topic=%s queue=%d group=%s reader=behind",
            count,
            self.topic,
            queue_id,
            self.group,
        )

    def _pull(self, queue_id: int, offset: int, max_count: int) -> PullResult:
        return self._seams.pull(self.topic, queue_id, offset, max_count=max_count, **self._filters)

    # --- committing ---

    def commit(self, through: Message | Mapping[int, int] | None = None) -> dict[int, int]:
        """Note that the group is done with what was handed out here; durable on return.

        `through`: only as far as this message in its queue, or {queue: offset of the next message}.
        Answers what was committed so, no less than a commit asked for before that was still on its
        way. What is committed already is left out, and so is what was handed out before its queue
        moved to another consumer, also when that has come back: it comes again. MessageError on
        what was never handed out.
        """
        offsets: dict[int, int] = self._seams.call(self._commit, through)
        return offsets

    def _commit(self, through: object) -> dict[int, int]:
        group, offsets, mine = self._group, self._seams.offsets, object()
        try:
            with group.lock:
                self._check_open()
                wanted = self._to_commit(through)
                if not wanted:
                    return {}
                held = {q: self._member.held[q] for q in wanted}
                for q, one in held.items():
                    is_second = group.is_committing(q)
                    wanted[q] = one.ask(wanted[q], others_are_on_their_way=is_second)
                jumps = {q: one.jumps for q, one in held.items()}
                group.committing[mine] = tuple(wanted)
                asked: Asked = offsets.ask(self.topic, self.group, wanted)
            offsets.settle(asked)
            with group.lock:  # before it is settled: from then on an earlier one is not held up
                for q, one in held.items():
                    if one.jumps == jumps[q]:  # else the group was sent elsewhere since
                        one.settle(wanted[q])
        finally:
            # In one step, as it came in: no signal leaves it there for others to wait for.
            if group.committing.pop(mine, None) is not None:
                self._seams.groups.commit_settled(group)
        return wanted

    def _to_commit(self, through: object) -> dict[int, int]:
        """What of it is not committed yet; under the group's lock."""
        committed = self._seams.offsets.committed(self.topic, self.group)
        return {
            q: offset
            for q, offset in self._wanted(through).items()
            # What is on its way takes effect before this: the disk is behind the times.
            if offset != committed.get(q, 0) or self._group.is_committing(q)
        }

    def _wanted(self, through: object) -> dict[int, int]:
        held = self._member.held
        if through is None:
            return {q: one.position for q, one in held.items() if one.position >= 0}
        if isinstance(through, Message):
            queue_id, offset = self._place_behind(through)
            if queue_id not in held and queue_id < self._group.queue_count:
                return {}
            through = {queue_id: offset}
        if not isinstance(through, Mapping):
            raise MessageError(
                f"commit: wanted a Message or a mapping of queues, got {type(through).__name__}"
            )
        problems, wanted = [], {}
        for queue_id, offset in through.items():
            number, place = whole_or(queue_id, -1), whole_or(offset, -1)
            one = held.get(number)
            if one is not None and 0 <= place <= max(one.position, 0):
                if one.position >= 0 and place >= one.low:  # -1: the group may be anywhere
                    wanted[number] = place
            elif 0 <= place <= self._member.had.get(number, -1):
                continue  # it moved meanwhile, or came back since
            elif one is None:
                problems.append(f"commit: it has the queues {sorted(held)}, got {quoted(queue_id)}")
            else:
                problems.append(
                    f"commit: queue {queue_id} was read to {max(one.position, 0)}, got "
                    f"{quoted(offset)}"
                )
        if problems:
            raise MessageError(problems)
        return wanted

    def _place_behind(self, message: Message) -> tuple[int, int]:
        """Queue and offset behind a message; what it says of itself a caller may have made up."""
        topic: object = message.topic
        if not isinstance(topic, str) or topic != self.topic:
            raise MessageError(
                f"commit: this consumer reads {self.topic!r}, got one of {quoted(topic)}"
            )
        queue_id, offset = whole(message.queue_id), whole(message.queue_offset)
        if queue_id is None or offset is None:
            raise MessageError(
                "commit: wanted whole numbers as queue_id and queue_offset of the message, got "
                f"{quoted(message.queue_id)} and {quoted(message.queue_offset)}"
            )
        return queue_id, offset + 1

    # --- seeking ---

    def seek(
        self,
        offset: int | None = None,
        *,
        time: datetime | None = None,
        time_ms: int | None = None,
        queue_id: int | None = None,
    ) -> dict[int, int]:
        """Go on elsewhere, in one of its queues or in all: from a queue offset, or from the first
        message stored at a time or later. Answers where that is. `commit` makes it last.

        A time before all messages is the beginning, one behind all the end. MessageError on an
        offset outside of a queue.
        """
        at: dict[int, int] = self._seams.call(self._seek, offset, time, time_ms, queue_id)
        return at

    def _seek(
        self, offset: object, time: object, time_ms: object, queue_id: object
    ) -> dict[int, int]:
        with self._group.lock:
            self._check_open()
            self._group.refresh()
            held = dict(self._member.held)
        if sum(one is not None for one in (offset, time, time_ms)) != 1:
            raise MessageError("seek: wanted one of offset, time and time_ms")
        if queue_id is not None:
            one = held.get(whole_or(queue_id, -1))
            if one is None:
                raise MessageError(
                    f"queue_id: it has the queues {sorted(held)}, got {quoted(queue_id)}"
                )
            held = {one.queue_id: one}
        if offset is None:
            ms = moment_ms("time", time) if time is not None else whole_ms("time_ms", time_ms)
            places = {q: self._seams.offset_at(self.topic, q, ms) for q in held}
        else:
            places = self._checked_places(held, offset)
        with self._group.lock:
            for q, place in places.items():
                if self._member.held.get(q) is held[q]:
                    held[q].jump(place)
            self._member.line.ring()
        return places

    def _checked_places(self, queues: Mapping[int, Held], offset: object) -> dict[int, int]:
        problems, place = [], whole_or(offset, -1)
        for queue_id in queues:
            bounds = self._pull(queue_id, BEYOND, 1)
            low, high = bounds.min_offset, bounds.max_offset
            if not low <= place <= high:
                problems.append(
                    f"offset: queue {queue_id} has {low} to {high}, got {quoted(offset)}"
                )
        if problems:
            raise MessageError(problems)
        return dict.fromkeys(queues, place)

    # --- state ---

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that it has at present."""
        with self._group.lock:
            return tuple(sorted(self._member.held))

    def close(self) -> None:
        """Leave the group; the other consumers get its queues. Commits nothing."""
        try:
            self._seams.call(self._seams.groups.leave, self._group, self._member)
        except ClosedError:
            return  # with the store

    def _check_open(self) -> None:
        if not self._member.is_in:
            raise ClosedError(
                "the consumer is closed", where=f"topic {self.topic} group {self.group}"
            )

    def __repr__(self) -> str:
        return f"<Consumer topic={self.topic!r} group={self.group!r}>"


def _check_poll(max_count: object, wait: object) -> int:
    problems = []
    count = whole_or(max_count, 0)
    if count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    problems += wait_problems(wait)
    if problems:
        raise MessageError(problems)
    return count
