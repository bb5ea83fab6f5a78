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
from contextlib import suppress
from typing import NamedTuple

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.format.lease import (
    BACKOFF_PROPERTY,
    ERROR_PROPERTY,
    LEASE_PROPERTY,
    RENEWED_PROPERTY,
    TOPIC_PROPERTY,
    Lease,
    Receipt,
    dead_letter_topic,
    lease_queue_of,
    read_lease,
    retry_topic,
    with_error,
    write_receipt,
)
from timerstore._engine.leases.lease_timers import LeaseKinds
from timerstore._engine.leases.leased_message import (
    LeasedMessage,
    body_of,
    properties_of,
)
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer_offsets import LeaseProgress
from timerstore._engine.write.append import Appender, OwnMessage
from timerstore._engine.write.targets import TopicTarget
from timerstore.errors import MessageError
from timerstore.types.clock import Clock
from timerstore.types.messages import Message

_OF_A_RETRY = frozenset(
    {LEASE_PROPERTY, TOPIC_PROPERTY, ERROR_PROPERTY, BACKOFF_PROPERTY, RENEWED_PROPERTY}
)
"""Properties of a message in a retry topic that its consumers do not see."""
_MADE_ID_BYTES = 32  # length of an id that the store makes; every record has room for it


class LeaseSource(NamedTuple):
    """A topic and group; the topic that is read, and whether that is the topic of retries."""

    topic: str
    group: str
    read_topic: str
    is_retry: bool


class _Row(NamedTuple):
    message: Message
    lease: Lease
    is_last: bool
    route: Route
    own: OwnMessage


class LeaseAppender:
    """Appends the leases of one store."""

    def __init__(
        self,
        store_id: int,
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
        self._surely_fits_bytes = message_fields.surely_fits_bytes(
            properties_bytes_max=appender.config.properties_bytes_max,
            record_bytes_max=appender.config.record_bytes_max,
        )

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
        if not self._appender.config.timer_enabled:
            raise due_times.timers_off()
        until_ms = self._clock.now_ms + terms.lease_ms
        for message in messages:
            row = self._row(source, message, terms)
            self._append(source, row, terms, until_ms, leased)
            reach("lease_appended")

    def _row(self, source: LeaseSource, message: Message, terms: ReceiveTerms) -> _Row:
        """Return what the lease of a message needs.

        Raises:
            MessageError: the message leaves no room for its lease.
        """
        store_id, is_retry = self._store_id, source.is_retry
        before = read_lease(message.properties.get(LEASE_PROPERTY, "")) if is_retry else None
        at = (message.queue_id, message.queue_offset)
        if before is not None and before.store_id == store_id:
            lease = Lease(store_id, before.attempt + 1, is_retry, *at, *before[5:])
        else:
            lease = Lease(
                store_id, 1, is_retry, *at, *at,
                message.due_ms, message.delivered_ms, message.born_ms, message.flag,
            )  # fmt: skip
        is_last = 0 < terms.attempts_max <= lease.attempt
        if is_last:
            chosen = lease_queue_of(lease.queue_id) if message.message_group else 0
            target, route = self._appender.place_of(dead_letter_topic(source.group), chosen)
        else:
            target, route = self.retry_place(
                source.topic, source.group, lease.queue_id, is_grouped=bool(message.message_group)
            )
        message_id = message.message_id or self._appender.make_id()
        text = properties_of(message, lease, source.topic)
        own = OwnMessage(message_id.encode(), body_of(message), text)
        self._check_size(message, target, own)
        if is_retry and (error := message.properties.get(ERROR_PROPERTY)) is not None:
            with suppress(MessageError):  # there is no room for the reason
                reasoned = own._replace(text=with_error(error, text))
                self._check_size(message, target, reasoned)
                own = reasoned
        return _Row(message, lease, is_last, route, own)

    def retry_place(
        self, topic: str, group: str, queue_id: int, *, is_grouped: bool
    ) -> tuple[TopicTarget, Route]:
        """Return where a group gets messages of a queue of a topic again: a topic and its queue."""
        chosen = self._appender.targets.retry_queue(topic, queue_id, is_grouped=is_grouped)
        return self._appender.place_of(retry_topic(topic, group), chosen)

    def _check_size(self, one: Message, target: TopicTarget, own: OwnMessage) -> None:
        """Raise MessageError if a message leaves no room for its lease."""
        config = self._appender.config
        properties_bytes = len(own.text) + max(len(own.message_id) - _MADE_ID_BYTES, 0)
        if len(own.body) + properties_bytes <= self._surely_fits_bytes:
            return
        try:
            message_fields.check_sizes(
                len(own.body),
                properties_bytes,
                target.name,
                properties_bytes_max=config.properties_bytes_max,
                record_bytes_max=config.record_bytes_max,
            )
        except MessageError as error:
            where = f"receive: message {one.queue_offset} of {one.topic!r}, queue {one.queue_id}"
            raise MessageError([f"{where}: {what}" for what in error.problems]) from None

    # --- appending ---

    def _append(
        self,
        source: LeaseSource,
        row: _Row,
        terms: ReceiveTerms,
        until_ms: int,
        leased: list[LeasedMessage],
    ) -> None:
        read_topic, lease, place = source.read_topic, row.lease, None

        def note(log_offset: int, timer_id: int) -> None:
            nonlocal place
            place = log_offset, timer_id
            offsets = {lease.source_queue: lease.source_offset + 1}
            self._lease_progress.record(read_topic, source.group, offsets)

        # Relative to the start of the lease, so it becomes a timer even if it is over by now.
        # Otherwise it would get a queue offset, and its receipt would name another timer.
        began_ms = until_ms - terms.lease_ms
        try:
            self._appender.append_own(row.route, row.own, until_ms, note, began_ms)
        finally:
            if place is not None:
                leased.append(self._answer(source, row, terms, until_ms, *place))

    def _answer(
        self,
        source: LeaseSource,
        row: _Row,
        terms: ReceiveTerms,
        until_ms: int,
        log_offset: int,
        timer_id: int,
    ) -> LeasedMessage:
        if row.is_last:
            self._kinds.last_attempts.add(source.topic, source.group, timer_id)
        message, lease, message_id = row.message, row.lease, row.own.message_id.decode()
        backoff_ms = terms.backoff.delay_ms(lease.attempt, message_id)
        receipt = Receipt(
            lease.store_id,
            self._opening,
            row.is_last,
            source.group,
            source.topic,
            row.route.queue_id,
            lease.attempt,
            until_ms,
            timer_id,
            log_offset,
            min(backoff_ms, self._appender.config.delay_ms_max),
            message_id,
        )
        properties = dict(message.properties)
        if source.is_retry:
            for name in _OF_A_RETRY:
                properties.pop(name, None)
        properties["UNIQ_KEY"] = message_id
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
