"""Leasing: messages that were read become leases, one record each.

A lease is a copy of its message that waits: for the group's retry topic, until the lease is over.

    receive     a timer for %RETRY%<group>|<topic>, due at the lease's end; the last attempt's is
                for %DLQ%<group>
    ack         that timer is cancelled
    extend      it gets another time
    nack        the same, by the back-off
    nothing     it comes, by the wheel, once; who reads it there leases it again, attempt + 1

Threads:  any, one at a time a reader.
Holds:    (1) leases of one queue are in the log in the queue's order, so that the last one says how
          far the group is; (2) how far it is, is noted in the hold that places them.
Fails:    MessageError where a message leaves no room for its lease; FullError, FlowControlError:
          what was leased before that is answered, the rest comes again.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.column_batch import Rows
from timerstore._engine.base.failpoints import reach
from timerstore._engine.format.lease import (
    LEASE_PROPERTY,
    TOPIC_PROPERTY,
    Lease,
    Receipt,
    dead_letter_topic,
    read_lease,
    retry_topic,
    write_lease,
    write_receipt,
)
from timerstore._engine.leases.lease_request import Request
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.write.append import Appender
from timerstore._engine.write.places import Destination, TrackedPlaces
from timerstore.clock import Clock
from timerstore.errors import CorruptError, FlowControlError, MessageError
from timerstore.messages import SYS_FLAG_COMPRESSED, Int64Array, Message
from timerstore.receipts import unique_key

_NOT_KEPT = frozenset({
    "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "DELAY", "__CRC32#", "TS_ID", "TS_GROUP", "TS_LEVEL",
    "TS_ONCE", "TS_PLACE", LEASE_PROPERTY, TOPIC_PROPERTY,
})  # fmt: skip
"""Properties of a copy that are made anew, or mean nothing to the next one."""

_MADE_ID_BYTES = 32  # of an id that the store makes: every record has room for it


class Reads(NamedTuple):
    """Who reads, and where."""

    topic: str
    group: str
    is_retry: bool

    @property
    def source(self) -> str:
        """The topic that is read."""
        return retry_topic(self.topic, self.group) if self.is_retry else self.topic


class _Row(NamedTuple):
    message: Message
    lease: Lease
    is_last: bool
    target: str
    message_id: str
    body: bytes
    text: bytes


class _Noted(TrackedPlaces):
    """Places of leases; says how far the group is as they get them."""

    def __init__(self, rows: Sequence[_Row], lease_progress: LeaseProgress, reads: Reads) -> None:
        super().__init__(len(rows))
        self._rows = rows
        self._progress = lease_progress
        self._source = reads.source
        self._group = reads.group

    def placed(self, begin: int, end: int) -> None:
        """Under the append lock."""
        offsets = {
            row.lease.source_queue: row.lease.source_offset + 1 for row in self._rows[begin:end]
        }
        self._progress.note(self._source, self._group, offsets)


class Leasing:
    """Makes leases of messages, in one store."""

    def __init__(
        self,
        store_id: int,
        id_prefix: str,
        lease_progress: LeaseProgress,
        clock: Clock,
        putting: Appender,
        opening: int,
    ) -> None:
        self._lease_progress = lease_progress
        self._clock = clock
        self._putting = putting
        self._opening = opening
        self._store_id = store_id
        self._id_prefix = id_prefix

    def lease(
        self,
        reads: Reads,
        messages: Sequence[Message],
        request: Request,
        leased: list[LeasedMessage],
    ) -> None:
        """Lease messages that were read, in their order, and add each to `leased` once it is: so it
        tells how far this came, whatever is raised.
        """
        config = self._putting.config
        now_ms = self._clock.now_ms
        until_ms = due_times.due_ms_of(now_ms, None, None, now_ms + request.lease_ms, config)
        first = self._putting.take_ids(len(messages))
        rows, unroutable = [], None
        for k, message in enumerate(messages):
            row = self._row(reads, message, request, first + k)
            unroutable = self._unroutable(row)
            if unroutable is not None:
                break
            rows.append(row)
        for _, run in groupby(rows, lambda row: row.target):
            self._append(reads, list(run), request, until_ms, leased)
        if unroutable is not None:
            raise unroutable

    # --- one message ---

    def _row(self, reads: Reads, message: Message, request: Request, number: int) -> _Row:
        store_id = self._store_id
        before = read_lease(message.properties.get(LEASE_PROPERTY, "")) if reads.is_retry else None
        at = (int(reads.is_retry), message.queue_id, message.queue_offset)
        if before is not None and before.store_id == store_id:
            lease = Lease(store_id, before.attempt + 1, bool(at[0]), *at[1:], *before[5:])
        else:
            lease = Lease(
                store_id, 1, bool(at[0]), *at[1:], *at[1:],
                message.due_ms, message.delivered_ms, message.born_ms, message.flag,
            )  # fmt: skip
        made = unique_key(self._id_prefix, number)
        is_last = 0 < request.attempts_max <= lease.attempt
        return _Row(
            message,
            lease,
            is_last,
            dead_letter_topic(reads.group) if is_last else retry_topic(reads.topic, reads.group),
            message.message_id or made,
            _body_of(message),
            _properties(message, lease, reads.topic),
        )

    def _unroutable(self, row: _Row) -> MessageError | None:
        """What is wrong with a message that leaves no room for its lease."""
        config, one = self._putting.config, row.message
        try:
            message_fields.check_sizes(
                len(row.body),
                len(row.text) + max(len(row.message_id.encode()) - _MADE_ID_BYTES, 0),
                message_fields.check_topic(row.target),
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
        reads: Reads,
        rows: list[_Row],
        request: Request,
        until_ms: int,
        leased: list[LeasedMessage],
    ) -> None:
        """Append leases that go to one topic. Where flow control takes fewer, that many, and its
        error.
        """
        due = np.full(len(rows), until_ms, np.int64)
        places = _Noted(rows, self._lease_progress, reads)
        route = self._putting.route_to(rows[0].target)
        try:
            # By the time that the lease began: it is a timer, also where it is over by now. Else it
            # had a place in a queue, and its receipt named another timer by that number.
            began_ms = until_ms - request.lease_ms
            self._putting.append_rows(
                Destination(route), _columns(rows, due), due, places, began_ms
            )
        except FlowControlError:
            if len(rows) > 1:
                self._append(reads, rows[: len(rows) // 2], request, until_ms, leased)
            raise
        finally:
            for k, row in enumerate(rows):
                if places.numbers[k] < 0:
                    break
                leased.append(self._answer(reads, row, route, request, until_ms, places, k))
        reach("lease_appended")

    def _answer(
        self,
        reads: Reads,
        row: _Row,
        route: Route,
        request: Request,
        until_ms: int,
        places: TrackedPlaces,
        k: int,
    ) -> LeasedMessage:
        message, lease = row.message, row.lease
        backoff_ms = request.backoff.delay_ms(lease.attempt, row.message_id)
        receipt = Receipt(
            lease.store_id,
            self._opening,
            row.is_last,
            reads.group,
            reads.topic,
            route.queue_id,
            lease.attempt,
            until_ms,
            int(places.numbers[k]),
            int(places.log_offsets[k]),
            min(backoff_ms, self._putting.config.delay_ms_max),
            row.message_id,
        )
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in (LEASE_PROPERTY, TOPIC_PROPERTY) or not reads.is_retry
        }
        properties["UNIQ_KEY"] = row.message_id
        return LeasedMessage(
            topic=reads.topic,
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


def _columns(rows: list[_Row], due: Int64Array) -> Rows:
    ids = [row.message_id.encode() for row in rows]
    bodies, texts = [row.body for row in rows], [row.text for row in rows]
    made = Rows(b"".join(bodies), _spans(bodies), due, b"")
    return made.with_extra(b"".join(texts), _spans(texts)).with_ids(b"".join(ids), _spans(ids))


def _spans(parts: list[bytes]) -> Int64Array:
    spans = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=spans[1:])
    return spans


def _body_of(message: Message) -> bytes:
    """The body; inflated, since a copy has no flags to say otherwise, where that can be done."""
    if not message.sys_flag & SYS_FLAG_COMPRESSED:
        return message.raw_body
    try:
        return message.body
    except (MessageError, CorruptError):
        return message.raw_body


def _properties(message: Message, lease: Lease, topic: str) -> bytes:
    """The lease's property text: what the message has of its own, and what a lease adds."""
    pairs = [
        f"{name}\x01{value}\x02"
        for name, value in message.properties.items()
        if name not in _NOT_KEPT and not name.startswith(message_fields.RESERVED_PREFIX)
    ]
    pairs.append(f"{LEASE_PROPERTY}\x01{write_lease(lease)}\x02{TOPIC_PROPERTY}\x01{topic}\x02")
    return "".join(pairs).encode()
