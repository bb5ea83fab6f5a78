"""Read a topic and its retry topic for a group, and lease the messages.

Thread safety: any thread; one at a time leases, any number wait.
Locking: `_lock` is held while messages are read and leased, but not during a sync or a wait.
Invariants:
    1. A message is leased to one caller.
    2. Topic and retry topic take turns, so neither delays the other. If the topic has priorities,
       they do so within each priority (priority_order.py).
    3. A leased message is not read again, and a message that was not leased is read next, also
       after an error.
    4. All waiting callers use one filter; a call with another filter does not end their wait.
Raises: MessageError if a consumer reads for the group, or if the group waits with another filter;
what reading and leasing raise.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from weakref import WeakSet

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.priorities import rank_of_queue
from timerstore._engine.leases.lease_appender import LeaseAppender, LeaseSource
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.priority_order import PriorityOrder, Source
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.groups import AssignedQueue, Filters
from timerstore._engine.read.multi_wait import MultiWait
from timerstore._engine.read.queue_ends import QueueEnds
from timerstore._engine.read.waiting_poll import WaitingPoll
from timerstore.errors import MessageError, TimerStoreError
from timerstore.messages import Message

_NO_FILTERS = Filters(None, None)
_NAMES_BYTES = 512
"""About what names of fields, the receipt and the numbers of a message take in an answer."""
MakeConsumer = Callable[[str, str, Filters], Consumer]


class LeaseReader(Owner):
    """Leases the messages of one topic for one group."""

    def __init__(
        self,
        topic: str,
        group: str,
        leasing: LeaseAppender,
        make_consumer: MakeConsumer,
        commit: Callable[[], None],
        priority_topics: Container[str],
        ends: QueueEnds,
    ) -> None:
        self.topic = topic
        self._priority_topics = priority_topics
        self._ends = ends
        self._order = PriorityOrder()
        self._sides = [
            LeaseSource(topic, group, is_retry=True),
            LeaseSource(topic, group, is_retry=False),
        ]
        self._leasing = leasing
        self._make_consumer = make_consumer
        self._commit = commit
        self._lock = Lock()
        self._filters: Filters | None = None
        self._consumers: list[Consumer] = []
        self._waiting: WeakSet[WaitingReceive] = WeakSet()  # weak: a dropped one waits no more
        self._turn = 0

    def take(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        """Lease the messages that there are, until `leased` has `max_count`; in the log on return.

        Each is appended to `leased` as soon as it is leased.
        """
        with self._lock:
            self._read_with(terms.filters)
            if self.topic in self._priority_topics:
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
        queues = self._consumers[side].fetch_next(count)
        self._lease_from(side, queues, count, terms, leased)

    def _take_by_priority(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        had = len(leased)
        count = terms.max_count - had
        queues = self._fetch_by_priority(count)
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

    def _fetch_by_priority(self, count: int) -> dict[Source, AssignedQueue]:
        """Buffer the messages that may come next; return the queues by rank and side."""
        found: dict[Source, AssignedQueue] = {}
        turn_count = self._order.turn_count(count)
        self._ends.catch_up()
        for side, consumer in enumerate(self._consumers):
            topic = self._sides[side].read_topic
            queues = consumer.fetch_next(count, partial(self._highest_first, topic))
            for queue in queues if turn_count else ():
                consumer.fetch_next(turn_count, partial(_only, queue.queue_id))
            found.update(((rank_of_queue(queue.queue_id), side), queue) for queue in queues)
        return found

    def _highest_first(
        self, topic: str, queues: Mapping[int, AssignedQueue]
    ) -> list[AssignedQueue]:
        """Return the queues that may have messages, by descending priority."""
        has_messages = self._ends.has_messages
        return [
            one
            for one in sorted(queues.values(), key=_rank_of, reverse=True)
            if one.buffered or one.position < 0 or has_messages(topic, one.queue_id, one.fetch_at)
        ]

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

    def begin(
        self, terms: ReceiveTerms, take: Callable[[], list[LeasedMessage]]
    ) -> "WaitingReceive":
        """Begin to wait for both topics; `take` leases messages."""
        with self._lock:
            self._read_with(terms.filters)
            polls = [one.begin_poll(terms.max_count, terms.wait_s) for one in self._consumers]
            waiting = WaitingReceive(polls, take, self._waiting)
            if terms.wait_s > 0:
                self._waiting.add(waiting)
            return waiting

    def _read_with(self, filters: Filters) -> None:
        if filters == self._filters:
            return
        retry, topic = self._sides
        if self._waiting:  # closing their consumers would end their wait, again and again
            raise MessageError(
                f"group {topic.group!r} waits for {topic.topic!r} with {self._filters}, and skips "
                f"every message that does not match; got {filters}"
            )
        if self._consumers:
            self._commit()  # the new consumers begin at the committed offset
            for one in self._consumers:
                one.close()
            self._filters, self._consumers = None, []
        # First the one that may raise: otherwise the other would keep its queues.
        of_topic = self._make_consumer(topic.read_topic, topic.group, filters)
        of_retries = self._make_consumer(retry.read_topic, retry.group, _NO_FILTERS)
        self._filters, self._consumers = filters, [of_retries, of_topic]


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


def _rank_of(queue: AssignedQueue) -> int:
    return rank_of_queue(queue.queue_id)


def _only(queue_id: int, queues: Mapping[int, AssignedQueue]) -> list[AssignedQueue]:
    return [queues[queue_id]] if queue_id in queues else []


class WaitingReceive(MultiWait[LeasedMessage]):
    """A `receive` that may wait for its topic and its retry topic."""

    def __init__(
        self,
        polls: Sequence[WaitingPoll],
        take: Callable[[], list[LeasedMessage]],
        waiting: "WeakSet[WaitingReceive]",
    ) -> None:
        super().__init__(polls, take)
        self._waiting = waiting

    def end(self) -> None:
        """Stop waiting; every caller must call this in the end, or drop the object."""
        super().end()
        self._waiting.discard(self)
