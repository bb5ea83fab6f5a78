"""Read a topic and its retry topic for a group, and lease the messages.

Thread safety: any thread; one at a time leases, any number wait.
Locking: `_lock` is held while messages are read and leased, but not during a sync or a wait.
Invariants:
    1. A message is leased to one caller.
    2. Topic and retry topic take turns, so neither delays the other. If the topic has priorities,
       they do so within each priority (PriorityOrder).
    3. A leased message is not read again, and a message that was not leased is read next, also
       after an error.
    4. All waiting callers use one filter; a call with another filter does not end their wait.
    5. An ordered call leases a message of the topic only if MessageOrder says that it is free.
Raises: MessageError if a consumer reads for the group, or if the group waits with another filter;
BusyError if the topic is being deleted; what reading and leasing raise.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from timerstore._engine.base.message_fields import rank_of_queue
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import Receipt, retry_topic
from timerstore._engine.leases.lease_appender import LeaseAppender, LeaseSource
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.message_order import MessageOrder
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.consumer import Consumer, OrderQueues
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.read.groups import AssignedQueue, Filters
from timerstore._engine.read.waiting import MultiWait, begin_parts
from timerstore.errors import MessageError, TimerStoreError
from timerstore.types.messages import Message

# --- priority order ---
# Choose the order in which a group takes the messages of a topic with priorities.
#
#     1. The highest priority that has messages comes first.
#     2. Each 10th message that the group takes is of the priority that has messages and was served
#        least recently; of several, the lowest.
#     3. Within a priority, new messages and retries take turns, each in the order of its queue.
#
# Thread safety: one thread at a time.
# Invariants:
#     1. No priority starves: of 10 n messages that the group takes while n priorities have
#        messages, each of them has at least one.
# See also: docs/decisions/0017-dead-letters-and-priorities.md.


TURN_EVERY = 10
"""Of so many messages, one is of the priority that was served least recently."""

Source = tuple[int, int]
"""A priority, or the rank of a queue of none, and the side: 0 for retries, 1 for the topic."""


class PriorityOrder:
    """The order of one group and topic."""

    def __init__(self) -> None:
        self._taken_count = 0
        self._last_side = 0
        self._served: dict[int, int] = {}  # by priority: the number of its last message

    def turn_count(self, count: int) -> int:
        """Return how many of the next `count` messages rule 2 chooses."""
        return (self._taken_count + count) // TURN_EVERY - self._taken_count // TURN_EVERY

    def plan(self, available: Mapping[Source, int], count: int) -> list[tuple[Source, int]]:
        """Return the next `count` messages, or all that there are, as runs: how many of a source.

        available: how many messages there are, by source.
        """
        left = {source: n for source, n in available.items() if n > 0}
        chosen: list[Source] = []
        number, side, served = self._taken_count, self._last_side, dict(self._served)
        for _ in range(min(count, sum(left.values()))):
            number += 1
            priorities = {priority for priority, _ in left}
            if number % TURN_EVERY:
                priority = max(priorities)
            else:
                priority = min(priorities, key=lambda one: (served.get(one, 0), one))
            side = 1 - side if (priority, 1 - side) in left else side
            source = priority, side
            chosen.append(source)
            served[priority] = number
            left[source] -= 1
            if not left[source]:
                del left[source]
        return [(source, len(list(run))) for source, run in groupby(chosen)]

    def taken(self, source: Source, count: int) -> None:
        """Record that messages of a run were taken."""
        if count:
            self._taken_count += count
            self._last_side = source[1]
            self._served[source[0]] = self._taken_count


# --- lease reader ---


_NO_FILTERS = Filters(None, None)
_NAMES_BYTES = 512
"""About what names of fields, the receipt and the numbers of a message take in an answer."""
MakeConsumer = Callable[[str, str, Filters], Consumer]
WaitingReceive = MultiWait[LeasedMessage]
"""A `receive` that may wait for a topic and its retry topic, or for several topics."""


class LeaseReader(NotCopyable):
    """Leases the messages of one topic for one group."""

    def __init__(
        self,
        topic: str,
        group: str,
        leasing: LeaseAppender,
        make_consumer: MakeConsumer,
        progress: LeaseProgress,
        routes: Routes,
        make_order: Callable[[Callable[[int], int]], MessageOrder],
    ) -> None:
        self.topic = topic
        self._routes = routes
        self._order = PriorityOrder()
        self._sides = [
            LeaseSource(topic, group, retry_topic(topic, group), is_retry=True),
            LeaseSource(topic, group, topic, is_retry=False),
        ]
        self._leasing = leasing
        self._make_consumer = make_consumer
        self._progress = progress
        self._lock = Lock()
        self._mode: _Mode | None = None
        self._consumers: list[Consumer] = []
        self._make_order = make_order
        self._message_order: MessageOrder | None = None  # if messages are received in order
        self._waiting: WeakSet[WaitingReceive] = WeakSet()  # weak: a dropped one waits no more
        self._turn = 0

    def take(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        """Lease the messages that there are, until `leased` has `max_count`; in the log on return.

        Each is appended to `leased` as soon as it is leased.
        """
        with self._lock:
            if self._routes.deleting:
                self._routes.refuse_deleting(self.topic)
            if (mode := _Mode(terms.filters, terms.ordered)) != self._mode:
                self._read_with(mode)
            if self.topic in self._routes.priority_topics and not terms.ordered:
                self._take_by_priority(terms, leased)
                return
            self._turn ^= 1
            had = len(leased)
            for side in (self._turn, 1 - self._turn):
                if len(leased) == terms.max_count:
                    break
                try:
                    self._take_from(side, terms, leased)
                except TimerStoreError as error:
                    if len(leased) == had or not _may_wait(error):
                        raise
                    break  # the next call raises it

    def _take_from(self, side: int, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        count = terms.max_count - len(leased)
        order = self._message_order
        if side and order is not None:
            self._take_in_order(order, terms, leased)
            return
        before = len(leased)
        queues = self._fetch(side, count, terms.bytes_max)
        if not queues:
            return
        try:
            self._lease_from(side, queues, count, terms, leased)
        finally:
            if order is not None:
                order.handed_out(leased[before:])

    def _take_in_order(
        self, order: MessageOrder, terms: ReceiveTerms, leased: list[LeasedMessage]
    ) -> None:
        """Lease messages of the topic of which no earlier one of their message group is leased."""
        consumer = self._consumers[1]
        for queue in consumer.queues_in_turn():
            count = terms.max_count - len(leased)
            if not count or consumer.is_at_end(queue):
                continue
            self._fetch(1, count, terms.bytes_max, partial(_only, queue.queue_id))
            messages = consumer.peek([queue], count)
            free_count = order.free_count(queue.queue_id, messages)
            if free_count < len(messages):
                consumer.block(queue.queue_id)
                # Again: a message that was settled before the block does not end it.
                free_count = order.free_count(queue.queue_id, messages)
            if free_count == len(messages):
                consumer.unblock(queue.queue_id)
            before = len(leased)
            try:
                self._lease_from(1, [queue], free_count, terms, leased)
            finally:
                order.handed_out(leased[before:])

    def _fetch(
        self, side: int, count: int, bytes_max: int, order: OrderQueues | None = None
    ) -> list[AssignedQueue]:
        """Buffer messages as Consumer.fetch_next; the group is done with those that expired."""
        consumer = self._consumers[side]
        queues = consumer.fetch_next(count, order, bytes_max=bytes_max)
        if consumer.dropped:
            self._progress.pass_over(consumer.topic, consumer.group, consumer.take_dropped())
        return queues

    def _retry_position(self, queue_id: int) -> int:
        """Return the offset after the last message of a retry queue that was handed out."""
        self._fetch(0, 1, 0, partial(_only, queue_id))  # finds where the group is
        return self._consumers[0].position(queue_id)

    def end_call(self) -> None:
        """Return when the call that leases messages has ended; the topic is being deleted."""
        with self._lock:
            if self._message_order is not None:
                self._message_order = self._make_order(self._retry_position)

    def message_done(self, receipt: Receipt) -> None:
        """Let the next message of a message group be received, after this one was settled."""
        order, consumers = self._message_order, self._consumers
        if order is not None and consumers:
            order.settled(receipt.queue_id, receipt.message_id)
            consumers[1].unblock()

    def _take_by_priority(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        had = len(leased)
        count = terms.max_count - had
        queues = self._fetch_by_priority(count, terms.bytes_max)
        available = {source: len(queue.buffered) for source, queue in queues.items()}
        for source, run_count in self._order.plan(available, count):
            before = len(leased)
            try:
                self._lease_from(source[1], [queues[source]], run_count, terms, leased)
            except TimerStoreError as error:
                if len(leased) == had or not _may_wait(error):
                    raise
                break  # the next call raises it
            finally:
                self._order.taken(source, len(leased) - before)

    def _fetch_by_priority(self, count: int, bytes_max: int) -> dict[Source, AssignedQueue]:
        """Buffer the messages that may come next; return the queues by rank and side."""
        found: dict[Source, AssignedQueue] = {}
        turn_count = self._order.turn_count(count)
        for side in range(len(self._sides)):
            queues = self._fetch(side, count, bytes_max, _highest_first)
            for queue in queues if turn_count else ():
                self._fetch(side, turn_count, bytes_max, partial(_only, queue.queue_id))
            found.update(((rank_of_queue(queue.queue_id), side), queue) for queue in queues)
        return found

    def _lease_from(
        self,
        side: int,
        queues: list[AssignedQueue],
        count: int,
        terms: ReceiveTerms,
        leased: list[LeasedMessage],
    ) -> None:
        """Lease up to `count` buffered messages of these queues, in order."""
        consumer = self._consumers[side]
        messages = consumer.peek(queues, count)
        if terms.bytes_max:
            messages = messages[: _fitting_count(messages, terms.bytes_max, leased)]
        if not messages:
            return
        before = len(leased)
        try:
            self._leasing.lease(self._sides[side], messages, terms, leased)
        finally:
            if len(leased) > before:
                consumer.hand_out(queues, len(leased) - before)

    # --- waiting ---

    def begin(self, terms: ReceiveTerms, take: Callable[[], list[LeasedMessage]]) -> WaitingReceive:
        """Begin to wait for both topics; `take` leases messages."""
        with self._lock:
            if (mode := _Mode(terms.filters, terms.ordered)) != self._mode:
                self._read_with(mode)
            polls = [one.begin_poll(terms.max_count, terms.wait_s) for one in self._consumers]
            waiting = MultiWait(polls, take, self._waiting.discard)
            if terms.wait_s > 0:
                self._waiting.add(waiting)
            return waiting

    def _read_with(self, mode: "_Mode") -> None:
        retry, topic = self._sides
        if self._waiting:  # closing their consumers would end their wait, again and again
            raise MessageError(
                f"group {topic.group!r} waits for {topic.topic!r} with {self._mode}, and skips "
                f"every message that does not match; got {mode}"
            )
        if self._consumers:
            self._progress.commit()  # the new consumers begin at the committed offset
            for one in self._consumers:
                one.close()
            self._mode, self._message_order, self._consumers = None, None, []
        # First the one that may raise: otherwise the other would keep its queues.
        of_topic = self._make_consumer(topic.read_topic, topic.group, mode.filters)
        of_retries = self._make_consumer(retry.read_topic, retry.group, _NO_FILTERS)
        self._mode, self._consumers = mode, [of_retries, of_topic]
        self._message_order = self._make_order(self._retry_position) if mode.is_ordered else None


class _Mode(NamedTuple):
    """How all callers that wait at the same time receive."""

    filters: Filters
    is_ordered: bool

    def __str__(self) -> str:
        return f"{self.filters}, ordered {self.is_ordered}"


def _may_wait(error: TimerStoreError) -> bool:
    """Return whether the next call may raise the error, after this one has returned messages."""
    return error.retryable or isinstance(error, MessageError)


def _fitting_count(messages: list[Message], bytes_max: int, leased: list[LeasedMessage]) -> int:
    """Return how many messages fit into an answer with those that are leased; at least one does."""
    left = bytes_max - sum(map(_answer_bytes, leased))
    for count, one in enumerate(messages):
        left -= _answer_bytes(one)
        if left < 0 and (count or leased):
            return count
    return len(messages)


def _answer_bytes(message: Message) -> int:
    return message.store_bytes + _NAMES_BYTES


def _highest_first(queues: Mapping[int, AssignedQueue]) -> list[AssignedQueue]:
    return sorted(queues.values(), key=lambda one: rank_of_queue(one.queue_id), reverse=True)


def _only(queue_id: int, queues: Mapping[int, AssignedQueue]) -> list[AssignedQueue]:
    return [queues[queue_id]] if queue_id in queues else []


# --- topic turns ---
# Lease messages of several topics in one call; the topics take turns.
#
#     receive(["mail", "sms", "push"], "sender")     each call begins after the topic that the last
#                                                    messages of the call before it came from
#
# Thread safety: any thread.
# Locking: `_lock` protects the turn. No topic is read while it is held.
# Invariants:
#     1. No topic starves: a topic that has messages is the first of a call after at most as many
#        calls as there are other topics.
#     2. Messages that were leased before another topic raised an error are returned. The next call
#        begins with that topic and raises its error.
#     3. A waiting call is registered in the wait queues of all topics; its message wakes it, and it
#        leaves all of them.
# Raises: what reading and leasing raise.
# See also: docs/decisions/0017-dead-letters-and-priorities.md.


_TURNS_MAX = 1024  # that are remembered

Key = TypeVar("Key")
Turn = TypeVar("Turn")


def recalled(turns: dict[Key, Turn], key: Key, first: Turn) -> Turn:
    """Return the turn of a key, which becomes the last in `turns`; a new key gets `first`.

    If there are too many, the one not used for the longest time is forgotten.
    """
    turn = turns.pop(key, first)
    if len(turns) >= _TURNS_MAX:
        del turns[next(iter(turns))]
    turns[key] = turn
    return turn


class TopicTurns(NotCopyable):
    """The readers of several topics for one group."""

    def __init__(self, readers: Sequence[LeaseReader]) -> None:
        self._readers = tuple(readers)
        self._lock = Lock()
        self._first = 0

    def take(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        """Lease the messages that there are, as LeaseReader.take of one topic after another."""
        readers = self._readers
        with self._lock:
            first = self._first
        following = first
        try:
            for turn in range(first, first + len(readers)):
                before = len(leased)
                try:
                    readers[turn % len(readers)].take(terms, leased)
                except TimerStoreError as error:
                    following = turn if leased else turn + 1  # the call after it reads the others
                    if not leased or not _may_wait(error):
                        raise
                    break
                if len(leased) > before:
                    following = turn + 1
                if len(leased) == terms.max_count:
                    break
        finally:
            with self._lock:
                self._first = following % len(readers)

    def begin(self, terms: ReceiveTerms, take: Callable[[], list[LeasedMessage]]) -> WaitingReceive:
        """Begin to wait for all topics; `take` leases messages."""
        return MultiWait(
            begin_parts(partial(reader.begin, terms, take) for reader in self._readers), take
        )
