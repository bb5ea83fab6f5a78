"""Read a topic for a group, and commit how far the group has read.

Thread safety: any thread; threads that use one consumer share its messages.
Invariants:
    1. Messages of one queue are handed out in order, without gaps.
    2. A committed message is not handed out again. A message that was handed out and not committed
       is handed out again after a crash, a close, or a move of its queue to another consumer.
    3. A waiting poll uses no CPU; its message wakes it, and wakes only one poll of the consumer.
Raises: MessageError on invalid arguments; ClosedError, ForkedError; what pull and Offsets raise.
See also: docs/decisions/0005-long-poll.md.
"""

import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, Self

from timerstore._engine.base.argument_types import whole
from timerstore._engine.base.due_times import moment_ms
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import Closing
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.consumer_offsets import Offsets, PendingCommit, log_removed_unread
from timerstore._engine.read.groups import AssignedQueue, Filters, Group, Groups, Member, WaitQueue
from timerstore._engine.read.pull import Puller
from timerstore._engine.read.pull_request import check_poll, whole_ms, whole_or
from timerstore._engine.read.queue_reader import PAST_END
from timerstore._engine.read.topic_reader import TopicReader
from timerstore._engine.read.waiting import WaitingPoll, wait_in_thread
from timerstore.errors import ClosedError, MessageError, TimerStoreError, kind_of, quoted
from timerstore.types.clock import Clock
from timerstore.types.messages import Message, PullStatus

# --- commit request ---
# Convert the argument of `Consumer.commit` to queue offsets.
#
# Raises: MessageError on messages and offsets that the consumer has not handed out.


def requested_offsets(group: Group, member: Member, through: object) -> dict[int, int]:
    """Return the offset to commit for each queue; the caller has the group's lock.

    Queues that were revoked, and offsets before one that is durable, are left out.
    """
    assigned = member.assigned
    if through is None:
        return {q: one.position for q, one in assigned.items() if one.position >= 0}
    if isinstance(through, Message):
        queue_id, offset = offset_after(group.topic, through)
        if queue_id not in assigned and queue_id < group.queue_count:
            return {}
        through = {queue_id: offset}
    if not isinstance(through, Mapping):
        raise MessageError(
            f"commit: wanted a Message or a mapping of queues, got {kind_of(through)}"
        )
    problems, requested = [], {}
    for queue_id, offset in through.items():
        number, place = whole_or(queue_id, -1), whole_or(offset, -1)
        one = assigned.get(number)
        if one is not None and 0 <= place <= max(one.position, 0):
            if one.position >= 0 and place >= one.commit_floor:  # -1: the group may be anywhere
                requested[number] = place
        elif 0 <= place <= member.revoked.get(number, -1):
            continue  # the queue was revoked, and may have been assigned again
        elif one is None:
            problems.append(f"commit: it has the queues {sorted(assigned)}, got {quoted(queue_id)}")
        else:
            problems.append(
                f"commit: queue {queue_id} was read to {max(one.position, 0)}, got {quoted(offset)}"
            )
    if problems:
        raise MessageError(problems)
    return requested


def offset_after(topic: str, message: Message) -> tuple[int, int]:
    """Return queue and next offset of a message, whose fields a caller may have made up."""
    its_topic: object = message.topic
    if not isinstance(its_topic, str) or its_topic != topic:
        raise MessageError(f"commit: this consumer reads {topic!r}, got one of {quoted(its_topic)}")
    queue_id, offset = whole(message.queue_id), whole(message.queue_offset)
    if queue_id is None or offset is None:
        raise MessageError(
            "commit: wanted whole numbers as queue_id and queue_offset of the message, got "
            f"{quoted(message.queue_id)} and {quoted(message.queue_offset)}"
        )
    return queue_id, offset + 1


# --- consumer context ---
# The components of a store that its consumers use.


class ConsumerContext(NamedTuple):
    """The components of one store."""

    clock: Clock
    routes: Routes
    puller: Puller
    groups: Groups
    offsets: Offsets
    metrics: Metrics
    call: Callable[..., Any]
    """Runs a function as a call of the store, which `close` waits for."""


# --- consumer ---


_REMOVED = {PullStatus.OFFSET_TOO_SMALL, PullStatus.MESSAGE_WAS_REMOVING}
OrderQueues = Callable[[Mapping[int, AssignedQueue]], list[AssignedQueue]]
_PREFETCH_COUNT = 32  # messages that one pull fetches, at least
_PULL_BYTES = 1 << 20  # of one pull: how far it reads ahead
_FETCH_BYTES_MAX = 64 << 20
"""Bytes of bodies that are buffered for one call. With more, it gets fewer messages."""
_COMMIT_RECHECK_S = 0.5  # interval of checks for the end of a commit: a signal may skip its event


class Consumer(Closing):
    """A reader of a topic for a group, made by `TimerStore.consumer`. Close it, or use `with`.

        for message in consumer:
            handle(message)
            consumer.commit()

    Iterating waits for the next message. It ends if the consumer or the store is closed, or, if the
    consumer was made with `wait`, after that many seconds without a message (0: at the end).
    """

    def __init__(
        self,
        context: ConsumerContext,
        topic: str,
        group: str,
        queues: tuple[int, ...] | None,
        filters: Filters,
        wait: float | None,
        *,
        leases: bool = False,
    ) -> None:
        """Join the group; with `leases`, as the reader that leases the topic's messages."""
        self.topic = topic
        self.group = group
        self._context = context
        self.wait = wait
        """How many seconds iterating waits for the next message; None: without a limit."""
        self._reader = TopicReader(context.routes, context.puller, context.clock, topic, filters)
        self.removed_count = 0
        """Messages that were removed from the log before this consumer could hand them out."""
        self.dropped: set[int] = set()  # queues in which messages had expired
        self._next_queue = 0  # the index of the queue to read first
        wait_queue = WaitQueue(self._reader.add_poll, context.puller.long_polls.leave)
        self._member = Member(queues, wait_queue, weakref.ref(self))
        self._group: Group = context.groups.join(topic, group, self._member, filters, leases=leases)

    # --- reading ---

    def poll(self, max_count: int = 32, wait: float = 0.0) -> list[Message]:
        """Return the next messages of any of its queues, at most `max_count`.

        Wait up to `wait` seconds for the first one; return an empty list if none arrives.

        Raises:
            MessageError: an argument is invalid.
            ClosedError: the consumer or the store is closed.
        """
        count = check_poll(max_count, wait)
        found: list[Message] = self._context.call(self._poll, count, wait)
        return found

    def begin_poll(self, max_count: int = 32, wait: float | None = 0.0) -> WaitingPoll:
        """Begin a `poll` during which the caller waits, as an event loop does (timerstore.aio).

        wait: seconds; None: without a limit.
        """
        count = check_poll(max_count, 0 if wait is None else wait)
        self._context.call(self._check_open)
        return self._waiting_poll(count, wait)

    def __iter__(self) -> Self:
        self._context.call(self._check_open)
        return self

    def __next__(self) -> Message:
        try:
            found: list[Message] = self._context.call(self._poll, 1, self.wait)
        except ClosedError:
            found = []
        if not found:
            raise StopIteration
        return found[0]

    def _waiting_poll(self, max_count: int, wait_s: float | None) -> WaitingPoll:
        return WaitingPoll(
            self._context.clock, self._context.groups, self._group, self._member,
            lambda count: self._context.call(self.fetch_next, count), self.hand_out,
            self._context.puller.before_wait, max_count, wait_s,
        )  # fmt: skip

    def _poll(self, max_count: int, wait_s: float | None) -> list[Message]:
        self._check_open()
        while queues := self.fetch_next(max_count):
            if found := self.hand_out(queues, max_count):
                return found  # else another thread took the messages
        if wait_s == 0:
            return []
        return wait_in_thread(self._waiting_poll(max_count, wait_s), [])

    def fetch_next(
        self, max_count: int, order: OrderQueues | None = None, *, bytes_max: int = 0
    ) -> list[AssignedQueue]:
        """Buffer messages, within a call of the store; return the queues to hand them out from.

        The list is empty if there are no messages. `order`: sorts the queues; None: in turn.
        `bytes_max`: as of ReceiveTerms. No message is handed out here, so an error or a signal
        loses none.
        """
        with self._group.lock:
            self._group.refresh()
            queues = self._queues_in_turn() if order is None else order(self._member.assigned)
            for queue in queues:
                if queue.may_expire:
                    self._drop_expired(queue)
        ready, left_bytes = 0, bytes_max or _FETCH_BYTES_MAX
        try:
            for queue in queues:
                if self._reader.is_at_end(queue):
                    continue
                ready += self._fetch_from(queue, max_count - ready, left_bytes)
                left_bytes -= queue.buffered_bytes
                if ready >= max_count or left_bytes <= 0:
                    break
        except TimerStoreError:
            if not ready:
                raise
            # Otherwise the next call raises it.
        return queues if ready else []

    def is_at_end(self, queue: AssignedQueue) -> bool:
        """Return whether all messages of a queue were handed out."""
        return self._reader.is_at_end(queue)

    def _fetch_from(self, queue: AssignedQueue, count: int, bytes_max: int) -> int:
        """Pull from one queue until `count` messages or `bytes_max` bytes are buffered.

        Return how many messages there are, at most `count`.
        """
        group = self._group
        while True:
            with group.lock:
                if self._member.assigned.get(queue.queue_id) is not queue:
                    return 0
                is_pending = queue.position < 0 and group.is_committing(queue.queue_id)
                if is_pending:  # a commit of the previous consumer decides where to begin
                    settled = group.settled_event()
                elif queue.position < 0:
                    self._set_start(queue)
                missing = count - len(queue.buffered)
                if missing <= 0:
                    return count
                if queue.buffered_bytes >= bytes_max:
                    return len(queue.buffered)
                offset = queue.fetch_at
            if is_pending:
                settled.wait(_COMMIT_RECHECK_S)
                continue
            wanted_count = max(missing, _PREFETCH_COUNT)
            result = self._reader.pull(queue.queue_id, offset, wanted_count, _PULL_BYTES)
            with group.lock:
                is_next = queue.fetch_at == offset  # else another thread pulled, or a seek came
                is_removed = is_next and queue.is_known and result.status in _REMOVED
                if is_next:
                    queue.add_pulled(result)
                    self._drop_expired(queue)
                is_at_end = is_next and queue.fetch_at == offset
                buffered_count = len(queue.buffered)
                if is_removed:
                    self.removed_count += result.next_offset - offset
            if is_removed:  # without the lock: a logging handler may call this consumer
                log_removed_unread(
                    self.topic, queue.queue_id, self.group, result.next_offset - offset
                )
            if is_at_end:
                return buffered_count

    def hand_out(self, queues: list[AssignedQueue], max_count: int) -> list[Message]:
        """Return buffered messages of these queues, in order; read and wait for nothing."""
        with self._group.lock:
            return self._hand_out(queues, max_count)

    def peek(self, queues: list[AssignedQueue], max_count: int) -> list[Message]:
        """Return what `hand_out` would; only for the sole reader of this consumer."""
        found: list[Message] = []
        with self._group.lock:
            for queue in queues:
                if self._member.assigned.get(queue.queue_id) is queue:
                    found += islice(queue.buffered, max_count - len(found))
        return found

    # --- the sole reader of this consumer, which leases its messages ---

    def queues_in_turn(self) -> list[AssignedQueue]:
        """Return its queues, in the order in which the next call reads them."""
        with self._group.lock:
            self._group.refresh()
            return self._queues_in_turn()

    def position(self, queue_id: int) -> int:
        """Return the offset after the last message handed out of a queue; -1: not known."""
        with self._group.lock:
            queue = self._member.assigned.get(queue_id)
            return -1 if queue is None else queue.position

    def block(self, queue_id: int) -> None:
        """Let no call wait for a queue, whose next message may not be handed out yet."""
        self._member.blocked_queues.add(queue_id)

    def unblock(self, queue_id: int | None = None) -> None:
        """Wake the first call that waits to read all blocked queues, if this one is blocked.

        None: if any is.
        """
        blocked = self._member.blocked_queues
        if blocked if queue_id is None else queue_id in blocked:
            with self._group.lock:
                self._member.unblock()

    def take_buffered(self, count: int) -> list[Message]:
        """Hand out `count` messages if as many are buffered, otherwise none; read nothing."""
        with self._group.lock:
            for queue in self._member.assigned.values():
                if queue.may_expire:
                    self._drop_expired(queue)
            queues = [queue for queue in self._queues_in_turn() if queue.buffered]
            if sum(len(queue.buffered) for queue in queues) < count:
                return []
            return self._hand_out(queues, count)

    def _drop_expired(self, queue: AssignedQueue) -> None:
        """Drop buffered messages that have expired; under the group's lock."""
        if queue.may_expire and (count := queue.drop_expired(self._context.clock.now_ms)):
            self._context.metrics.add("expired_messages", count)
            self.dropped.add(queue.queue_id)

    def take_dropped(self) -> dict[int, int]:
        """Return the offsets after queues whose last messages were dropped since the last call."""
        with self._group.lock:
            queues = [self._member.assigned.get(one) for one in self.dropped]
            self.dropped = set()
            return {one.queue_id: one.position for one in queues if one and not one.buffered}

    def _queues_in_turn(self) -> list[AssignedQueue]:
        queues = list(self._member.assigned.values())
        first = self._next_queue % max(len(queues), 1)
        return queues[first:] + queues[:first]

    def _hand_out(self, queues: list[AssignedQueue], max_count: int) -> list[Message]:
        found: list[Message] = []
        assigned = self._member.assigned
        for queue in queues:
            if assigned.get(queue.queue_id) is queue:
                found += queue.take(max_count - len(found))
                if not queue.buffered:  # the next call begins after it: no queue starves
                    self._next_queue = list(assigned).index(queue.queue_id) + 1
            if len(found) == max_count:
                break
        return found

    def _set_start(self, queue: AssignedQueue) -> None:
        """Begin at the committed offset; commits of the previous consumer have completed."""
        committed = self._context.offsets.committed(self.topic, self.group)
        queue.seek_to(max(committed.get(queue.queue_id, 0), 0))
        queue.set_known(is_known=queue.queue_id in committed)

    # --- committing ---

    def commit(self, through: Message | Mapping[int, int] | None = None) -> dict[int, int]:
        """Commit the messages handed out here, and return the committed offset of each queue.

        The commit is durable on return. An offset is never below that of an earlier commit which
        was still pending. Queues are left out of the result if nothing new was committed, and if
        the messages were handed out before the queue moved to another consumer; those messages are
        handed out again.

        through: commit only up to this message in its queue, or {queue: offset of the next
            message}.

        Raises:
            MessageError: a message or offset was not handed out by this consumer.
            FullError: the disk is full; nothing was committed.
        """
        offsets: dict[int, int] = self._context.call(self._commit, through)
        return offsets

    def _commit(self, through: object) -> dict[int, int]:
        group, offsets, key = self._group, self._context.offsets, object()
        try:
            with group.lock:
                self._check_open()
                targets = self._commit_targets(through)
                if not targets:
                    return {}
                queues = {q: self._member.assigned[q] for q in targets}
                for q, queue in queues.items():
                    has_pending = group.is_committing(q)
                    targets[q] = queue.commit_target(targets[q], has_pending=has_pending)
                seek_counts = {q: queue.seek_count for q, queue in queues.items()}
                group.committing[key] = tuple(targets)
                pending: PendingCommit = offsets.begin_commit(self.topic, self.group, targets)
            offsets.wait_for_commit(pending)
            with group.lock:  # before the commit is settled: then earlier commits are accepted
                for q, queue in queues.items():
                    if queue.seek_count == seek_counts[q]:  # else there was a seek
                        queue.commit_done(targets[q])
        finally:
            # One step, as for the insertion: no signal can leave an entry for others to wait for.
            if group.committing.pop(key, None) is not None:
                self._context.groups.commit_settled(group)
        return targets

    def _commit_targets(self, through: object) -> dict[int, int]:
        """Return the requested offsets that are not committed yet; under the group's lock."""
        committed = self._context.offsets.committed(self.topic, self.group)
        return {
            q: offset
            for q, offset in requested_offsets(self._group, self._member, through).items()
            # A pending commit takes effect before this one: `committed` is out of date.
            if offset != committed.get(q, 0) or self._group.is_committing(q)
        }

    # --- seeking ---

    def seek(
        self,
        offset: int | None = None,
        *,
        time: datetime | None = None,
        time_ms: int | None = None,
        queue_id: int | None = None,
    ) -> dict[int, int]:
        """Continue at another offset, in one of its queues or in all; return the new offsets.

        Give a queue offset, or a time: then reading continues at the first message stored at that
        time or later. A time before all messages means the beginning, one after all the end. Only
        `commit` makes the new offset durable.

        Raises:
            MessageError: an offset lies outside its queue, or an argument is invalid.
        """
        at: dict[int, int] = self._context.call(self._seek, offset, time, time_ms, queue_id)
        return at

    def _seek(
        self, offset: object, time: object, time_ms: object, queue_id: object
    ) -> dict[int, int]:
        with self._group.lock:
            self._check_open()
            self._group.refresh()
            queues = dict(self._member.assigned)
        if sum(one is not None for one in (offset, time, time_ms)) != 1:
            raise MessageError("seek: wanted one of offset, time and time_ms")
        if queue_id is not None:
            one = queues.get(whole_or(queue_id, -1))
            if one is None:
                raise MessageError(
                    f"queue_id: it has the queues {sorted(queues)}, got {quoted(queue_id)}"
                )
            queues = {one.queue_id: one}
        if offset is None:
            ms = moment_ms("time", time) if time is not None else whole_ms("time_ms", time_ms)
            targets = {q: self._reader.first_stored(q, ms) for q in queues}
        else:
            targets = self._checked_targets(queues, offset)
        with self._group.lock:
            for q, target in targets.items():
                if self._member.assigned.get(q) is queues[q]:
                    queues[q].seek_to(target)
            self._member.wait_queue.wake_first()
        return targets

    def _checked_targets(
        self, queues: Mapping[int, AssignedQueue], offset: object
    ) -> dict[int, int]:
        problems, target = [], whole_or(offset, -1)
        for queue_id in queues:
            bounds = self._reader.pull(queue_id, PAST_END, 1, _PULL_BYTES)
            low, high = bounds.min_offset, bounds.max_offset
            if not low <= target <= high:
                problems.append(
                    f"offset: queue {queue_id} has {low} to {high}, got {quoted(offset)}"
                )
        if problems:
            raise MessageError(problems)
        return dict.fromkeys(queues, target)

    # --- state ---

    @property
    def queues(self) -> tuple[int, ...]:
        """Return the queues that it reads at present."""
        with self._group.lock:
            return tuple(sorted(self._member.assigned))

    def close(self) -> None:
        """Leave the group without a commit; the other consumers get its queues."""
        try:
            self._context.call(self._context.groups.leave, self._group, self._member)
        except ClosedError:
            return  # the store was closed, and with it this consumer

    def _check_open(self) -> None:
        if not self._member.is_in:
            raise ClosedError(
                "the consumer is closed", where=f"topic {self.topic} group {self.group}"
            )

    def __repr__(self) -> str:
        return f"<Consumer topic={self.topic!r} group={self.group!r}>"
