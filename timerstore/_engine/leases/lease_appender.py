"""Append a lease for each message that was read.

A lease is a timer with a copy of the message, addressed to the group's retry topic.

    receive     creates a timer for %RETRY%<group>|<topic>, due at the end of the lease; the timer
                of a last attempt is for %DLQ%<group>
    ack         cancels the timer
    extend      moves the timer
    nack        moves the timer to the end of the back-off
    otherwise   the timer is delivered, once; a reader of the retry topic leases it as attempt + 1

Thread safety: any thread; one at a time for each reader.
Invariants:
    1. The leases of a queue are in the log in the order of the queue, so the last one tells how far
       the group has read.
    2. That progress is recorded in the critical section that places the leases.
Raises: MessageError if a message leaves no room for its lease; FullError, FlowControlError.
Messages that were leased before the error are returned; the others are read again.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import PriorityQueueId
from timerstore._engine.format.lease import (
    BACKOFF_PROPERTY,
    ERROR_PROPERTY,
    LEASE_PROPERTY,
    RENEWED_PROPERTY,
    TOPIC_PROPERTY,
    Lease,
    Receipt,
    dead_letter_topic,
    read_lease,
    retry_topic,
    with_error,
    write_receipt,
)
from timerstore._engine.leases.lease_timers import LeaseKinds
from timerstore._engine.leases.leased_message import (
    LeasedMessage,
    body_of,
    columns_of,
    properties_of,
)
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.write.append import Appender
from timerstore._engine.write.appended_rows import Destination, TrackedRows
from timerstore.clock import Clock
from timerstore.errors import FlowControlError, MessageError
from timerstore.messages import Message
from timerstore.receipts import unique_key

_OF_A_RETRY = frozenset(
    {LEASE_PROPERTY, TOPIC_PROPERTY, ERROR_PROPERTY, BACKOFF_PROPERTY, RENEWED_PROPERTY}
)
"""Properties of a message in a retry topic that its consumers do not see."""
_MADE_ID_BYTES = 32  # length of an id that the store makes; every record has room for it


class LeaseSource(NamedTuple):
    """A topic and group, and whether the topic or its retry topic is read."""

    topic: str
    group: str
    is_retry: bool

    @property
    def read_topic(self) -> str:
        """Return the topic that is read."""
        return retry_topic(self.topic, self.group) if self.is_retry else self.topic


class LeaseTarget(NamedTuple):
    """Where the timer of a lease delivers its message: a topic, and a queue if it matters."""

    topic: str
    queue_id: PriorityQueueId | None


class _Row(NamedTuple):
    message: Message
    lease: Lease
    is_last: bool
    target: LeaseTarget
    message_id: str
    body: bytes
    text: bytes


class _RecordedPlaces(TrackedRows):
    """The places of leases; records the group's progress when they are assigned."""

    def __init__(
        self, rows: Sequence[_Row], lease_progress: LeaseProgress, source: LeaseSource
    ) -> None:
        super().__init__(len(rows))
        self._rows = rows
        self._progress = lease_progress
        self._source = source.read_topic
        self._group = source.group

    def on_appended(self, begin: int, end: int) -> None:
        """Record the progress; the caller has the append lock."""
        offsets = {
            row.lease.source_queue: row.lease.source_offset + 1 for row in self._rows[begin:end]
        }
        self._progress.record(self._source, self._group, offsets)


class LeaseAppender:
    """Appends the leases of one store."""

    def __init__(
        self,
        store_id: int,
        id_prefix: str,
        lease_progress: LeaseProgress,
        clock: Clock,
        appender: Appender,
        opening: int,
        kinds: LeaseKinds,
    ) -> None:
        self._kinds = kinds
        self._lease_progress = lease_progress
        self._clock = clock
        self._appender = appender
        self._opening = opening
        self._store_id = store_id
        self._id_prefix = id_prefix

    def lease(
        self,
        source: LeaseSource,
        messages: Sequence[Message],
        terms: ReceiveTerms,
        leased: list[LeasedMessage],
    ) -> None:
        """Lease messages in order, and append each to `leased` as soon as it is leased.

        So after an error `leased` has the messages that were leased before it.
        """
        config = self._appender.config
        now_ms = self._clock.now_ms
        until_ms = due_times.due_ms_of(now_ms, None, None, now_ms + terms.lease_ms, config)
        first = self._appender.take_ids(len(messages))
        rows, problem = [], None
        for k, message in enumerate(messages):
            row = self._row(source, message, terms, first + k)
            problem = self._size_problem(row)
            if source.is_retry and ERROR_PROPERTY in message.properties:
                reasoned = row._replace(
                    text=with_error(message.properties[ERROR_PROPERTY], row.text)
                )
                row = reasoned if self._size_problem(reasoned) is None else row
            if problem is not None:
                break
            rows.append(row)
        for _, run in groupby(rows, lambda row: row.target):
            self._append(source, list(run), terms, until_ms, leased)
        if problem is not None:
            raise problem

    # --- one message ---

    def _row(self, source: LeaseSource, message: Message, terms: ReceiveTerms, number: int) -> _Row:
        store_id = self._store_id
        before = read_lease(message.properties.get(LEASE_PROPERTY, "")) if source.is_retry else None
        at = (int(source.is_retry), message.queue_id, message.queue_offset)
        if before is not None and before.store_id == store_id:
            lease = Lease(store_id, before.attempt + 1, bool(at[0]), *at[1:], *before[5:])
        else:
            lease = Lease(
                store_id, 1, bool(at[0]), *at[1:], *at[1:],
                message.due_ms, message.delivered_ms, message.born_ms, message.flag,
            )  # fmt: skip
        made = unique_key(self._id_prefix, number)
        is_last = 0 < terms.attempts_max <= lease.attempt
        return _Row(
            message,
            lease,
            is_last,
            self._target(source, lease, is_last=is_last),
            message.message_id or made,
            body_of(message),
            properties_of(message, lease, source.topic),
        )

    def _target(self, source: LeaseSource, lease: Lease, *, is_last: bool) -> LeaseTarget:
        """Return the dead-letter topic after the last attempt, or else the retry topic."""
        if is_last:
            return LeaseTarget(dead_letter_topic(source.group), None)
        return self._retry_target(source.topic, source.group, lease.queue_id)

    def _retry_target(self, topic: str, group: str, queue_id: int) -> LeaseTarget:
        priority = self._appender.targets.priority_queue(topic, queue_id)
        return LeaseTarget(retry_topic(topic, group), priority)

    def retry_route(self, topic: str, group: str, queue_id: int) -> Route:
        """Return the queue in which a group gets messages of a queue of a topic again."""
        return self._appender.place_of(*self._retry_target(topic, group, queue_id))[0]

    def _size_problem(self, row: _Row) -> MessageError | None:
        """Return an error if a message leaves no room for its lease."""
        config, one = self._appender.config, row.message
        try:
            message_fields.check_sizes(
                len(row.body),
                len(row.text) + max(len(row.message_id.encode()) - _MADE_ID_BYTES, 0),
                message_fields.check_topic(row.target.topic),
                properties_bytes_max=config.properties_bytes_max,
                record_bytes_max=config.record_bytes_max,
            )
        except MessageError as error:
            where = f"receive: message {one.queue_offset} of {one.topic!r}, queue {one.queue_id}"
            return MessageError([f"{where}: {what}" for what in error.problems])
        return None

    # --- appending ---

    def _append(
        self,
        source: LeaseSource,
        rows: list[_Row],
        terms: ReceiveTerms,
        until_ms: int,
        leased: list[LeasedMessage],
    ) -> None:
        """Append leases for one target.

        If flow control rejects them, append as many as it accepts and raise its error.
        """
        due = np.full(len(rows), until_ms, np.int64)
        places = _RecordedPlaces(rows, self._lease_progress, source)
        route, _ = self._appender.place_of(*rows[0].target)
        try:
            # Relative to the start of the lease, so it becomes a timer even if it is over by now.
            # Otherwise it would get a queue offset, and its receipt would name another timer.
            began_ms = until_ms - terms.lease_ms
            self._appender.append_rows(
                Destination(route), columns_of(rows, due), due, places, began_ms
            )
        except FlowControlError:
            if len(rows) > 1:
                self._append(source, rows[: len(rows) // 2], terms, until_ms, leased)
            raise
        finally:
            for k, row in enumerate(rows):
                if places.numbers[k] < 0:
                    break
                if row.is_last:
                    topic, group = source.topic, source.group
                    self._kinds.last_attempts.add(topic, group, int(places.numbers[k]))
                leased.append(self._answer(source, row, route, terms, until_ms, places, k))
        reach("lease_appended")

    def _answer(
        self,
        source: LeaseSource,
        row: _Row,
        route: Route,
        terms: ReceiveTerms,
        until_ms: int,
        places: TrackedRows,
        k: int,
    ) -> LeasedMessage:
        message, lease = row.message, row.lease
        backoff_ms = terms.backoff.delay_ms(lease.attempt, row.message_id)
        receipt = Receipt(
            lease.store_id,
            self._opening,
            row.is_last,
            source.group,
            source.topic,
            route.queue_id,
            lease.attempt,
            until_ms,
            int(places.numbers[k]),
            int(places.log_offsets[k]),
            min(backoff_ms, self._appender.config.delay_ms_max),
            row.message_id,
        )
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in _OF_A_RETRY or not source.is_retry
        }
        properties["UNIQ_KEY"] = row.message_id
        return LeasedMessage(
            topic=source.topic,
            queue_id=lease.queue_id,
            queue_offset=lease.queue_offset,
            log_offset=message.log_offset,
            raw_body=message.raw_body,
            properties=properties,
            born_ms=lease.born_ms,
            store_ms=message.store_ms,
            due_ms=lease.due_ms,
            delivered_ms=lease.delivered_ms,
            flag=lease.flag,
            sys_flag=message.sys_flag,
            reconsume_times=lease.attempt - 1,
            born_host=message.born_host,
            store_host=message.store_host,
            body_crc=message.body_crc,
            store_bytes=message.store_bytes,
            body_bytes_max=message.body_bytes_max,
            receipt=write_receipt(receipt),
            attempt=lease.attempt,
            lease_until_ms=until_ms,
            is_last_attempt=row.is_last,
        )
