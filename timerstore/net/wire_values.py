"""Arguments and results as msgpack, as far as they have no obvious form.

Numbers, text, bytes, lists, maps, times and plain records are encoded by msgspec. This module adds
extension types, for columns and for arguments that msgpack does not have, and the records below,
which stand for objects with methods.

Raises: TypeError for a value that cannot travel, ProtocolError for an invalid extension.
On-disk format: none; docs/protocol.md states the form of each value.
"""

import operator
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.msgpack import Ext

from timerstore._engine.leases import Backoff
from timerstore.errors import Described, ProtocolError, kind_of, quoted
from timerstore.types.messages import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    MessageBatch,
    PullStatus,
)
from timerstore.types.receipts import CallerIds, KeptOrigin, PutBatch, PutReceipt, ReceiptOrigin
from timerstore.types.reports import Histogram

INT64_COLUMN: Final = 1
FLOAT64_COLUMN: Final = 2
SPANS: Final = 3
BACKOFF: Final = 4
DESCRIPTION: Final = 5
SURROGATES: Final = 6
LARGE_INTEGER: Final = 7
SPAN: Final = 8
MOMENT: Final = 9

_SPAN_PARTS: Final = struct.Struct("<iii")  # days, seconds, microseconds
_MOMENT_PARTS: Final = struct.Struct("<qq")  # microseconds of local time since year 1, of offset
_NO_OFFSET: Final = -(2**63)
_FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INTEGER_BYTES_MAX: Final = 1 << 16
_V4_HOST_BYTES = 8

_COLUMNS: Final = {INT64_COLUMN: np.dtype("<i8"), FLOAT64_COLUMN: np.dtype("<f8")}
_backoff_decoder = msgspec.msgpack.Decoder(Backoff)


def wire_value(value: Any) -> Any:
    """Return the wire's form of a part of a result that msgspec does not know."""
    if isinstance(value, np.ndarray):
        return column_extension(value)
    return operator.index(value)


def spans_extension(data: Any, offsets: Any) -> Ext:
    """Return a pair of a buffer and offsets: the number of strings, the offsets, the bytes."""
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or not len(bounds):
        raise TypeError("wanted an array of whole numbers as offsets")
    raw = bounds.astype("<i8").tobytes()
    count = len(bounds) - 1
    return Ext(SPANS, b"".join((count.to_bytes(8, "little"), raw, memoryview(data).cast("B"))))


def backoff_extension(backoff: Backoff) -> Ext:
    """Return a Backoff: a map of its fields."""
    return Ext(BACKOFF, msgspec.msgpack.encode(backoff))


def column_extension(array: npt.NDArray[Any]) -> Ext:
    """Return an array of numbers with one dimension."""
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise TypeError(
            f"wanted an array of numbers with one dimension, got {array.dtype} with {array.ndim}"
        )
    code = FLOAT64_COLUMN if array.dtype.kind == "f" else INT64_COLUMN
    return Ext(code, array.astype(_COLUMNS[code]).tobytes())


def description(value: object) -> Ext:
    """Return a value that has no form: the name of its type, and its text in errors."""
    text = f"{kind_of(value)}\0{quoted(value)}"
    return Ext(DESCRIPTION, text.encode("utf-8", "surrogatepass"))


def span_extension(span: timedelta) -> Ext:
    """Return a timedelta."""
    return Ext(SPAN, _SPAN_PARTS.pack(span.days, span.seconds, span.microseconds))


def moment_extension(moment: datetime) -> Ext:
    """Return a datetime that has no time in UTC."""
    local = moment.replace(tzinfo=UTC) - _FIRST
    offset = moment.utcoffset()
    at = _NO_OFFSET if offset is None else offset // _MICROSECOND
    return Ext(MOMENT, _MOMENT_PARTS.pack(local // _MICROSECOND, at))


def encodable(value: Any) -> Any:
    """Return an argument in which no part is a text or a whole number that msgpack cannot have."""
    if type(value) is list:
        return [encodable(one) for one in value]
    if type(value) is dict:
        return {name: encodable(one) for name, one in value.items()}
    if type(value) is int and not -(2**63) <= value < 2**64:
        raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        is_short = len(raw) <= _INTEGER_BYTES_MAX
        return Ext(LARGE_INTEGER, raw) if is_short else description(value)
    if type(value) is str and not value.isascii():
        raw = value.encode("utf-8", "surrogatepass")
        return value if raw.decode("utf-8", "replace") == value else Ext(SURROGATES, raw)
    return value


def decoded_extension(code: int, data: memoryview) -> Any:
    """Return the value of an extension."""
    if (dtype := _COLUMNS.get(code)) is not None and len(data) % 8 == 0:
        return np.frombuffer(bytes(data), dtype)
    if code == SPANS and len(data) >= 16:
        count = int.from_bytes(data[:8], "little")
        begin = 16 + 8 * count
        if begin <= len(data):
            return bytes(data[begin:]), np.frombuffer(bytes(data[8:begin]), "<i8")
    if code == BACKOFF:
        return _backoff_decoder.decode(data)
    try:
        return _decoded_argument(code, bytes(data))
    except (struct.error, ValueError, OverflowError) as error:
        raise ProtocolError(f"an extension is invalid ({error})", got=f"type {code}") from error


def _decoded_argument(code: int, data: bytes) -> Any:
    if code == DESCRIPTION:
        kind, _, text = data.decode("utf-8", "surrogatepass").partition("\0")
        return Described(kind, text)
    if code == SURROGATES:
        return data.decode("utf-8", "surrogatepass")
    if code == LARGE_INTEGER:
        return int.from_bytes(data[:_INTEGER_BYTES_MAX], "big", signed=True)
    if code == SPAN:
        return timedelta(*_SPAN_PARTS.unpack(data))
    if code == MOMENT:
        local, offset = _MOMENT_PARTS.unpack(data)
        zone = None if offset == _NO_OFFSET else timezone(timedelta(microseconds=offset))
        return (_FIRST + timedelta(microseconds=local)).replace(tzinfo=zone)
    raise ProtocolError("an extension is invalid", got=f"type {code}, {len(data)} bytes")


# --- records that stand for objects ---


class ReceiptRecord(Struct, array_like=True, frozen=True):
    """A PutReceipt."""

    topic: str
    message_id: str
    broker_name: str
    precision_ms: int
    timer_id: int
    queue_id: int
    queue_offset: int | None
    log_offset: int
    due_ms: int
    duplicate: bool = False
    cancelled: bool = False


def record_of_receipt(receipt: PutReceipt) -> ReceiptRecord:
    """Return the record of a receipt."""
    origin = receipt.origin
    return ReceiptRecord(
        origin.topic, receipt.message_id, origin.broker_name, origin.precision_ms, *receipt[2:]
    )


def receipt_of_record(one: ReceiptRecord) -> PutReceipt:
    """Return the receipt of a record."""
    return PutReceipt(
        KeptOrigin(one.topic, one.message_id, one.broker_name, one.precision_ms), 0, one.timer_id,
        one.queue_id, one.queue_offset, one.log_offset, one.due_ms, one.duplicate, one.cancelled,
    )  # fmt: skip


class GivenIdsRecord(Struct, frozen=True):
    """The ids that a caller gave to a batch."""

    ids: list[str]
    queue_ids: Ext
    duplicate: bytes
    """One byte for each message: 0 or 1; so is `cancelled`."""
    cancelled: bytes


class BatchRecord(Struct, frozen=True):
    """A PutBatch. The id of message k is `id_prefix` and the 12 hexadecimal digits of
    `counter_begin + k`, unless it was given.
    """

    topic: str
    id_prefix: str
    broker_name: str
    precision_ms: int
    counter_begin: int
    queue_id: int
    log_offsets: Ext
    queue_offsets: Ext
    due_ms: Ext
    timer_ids: Ext
    given: GivenIdsRecord | None = None


def record_of_batch(batch: PutBatch) -> BatchRecord:
    """Return the record of the receipts of a batch."""
    given = None
    if batch.given is not None:
        one = batch.given
        given = GivenIdsRecord(
            list(one.ids),
            column_extension(one.queue_ids),
            one.duplicate.astype(np.uint8).tobytes(),
            one.cancelled.astype(np.uint8).tobytes(),
        )
    return BatchRecord(
        *batch.origin,
        batch.counter_begin,
        batch.queue_id,
        column_extension(batch.log_offsets),
        column_extension(batch.queue_offsets),
        column_extension(batch.due_ms),
        column_extension(batch.timer_ids),
        given,
    )


def batch_of_record(one: BatchRecord) -> PutBatch:
    """Return the receipts of a record."""
    given = None
    if one.given is not None:
        given = CallerIds(
            one.given.ids,
            _int64(one.given.queue_ids),
            np.frombuffer(one.given.duplicate, np.bool_),
            np.frombuffer(one.given.cancelled, np.bool_),
        )
    return PutBatch(
        ReceiptOrigin(one.topic, one.id_prefix, one.broker_name, one.precision_ms),
        one.counter_begin,
        one.queue_id,
        _int64(one.log_offsets),
        _int64(one.queue_offsets),
        _int64(one.due_ms),
        _int64(one.timer_ids),
        given,
    )


_INT64_FIELDS = ("queue_offset", "log_offset", "born_ms", "store_ms", "due_ms", "delivered_ms")
_INT32_FIELDS = ("flag", "sys_flag", "reconsume_times", "body_crc", "store_bytes")


class ColumnsRecord(Struct, frozen=True):
    """A MessageBatch."""

    topic: str
    queue_id: int
    numbers: dict[str, Ext]
    """The columns of numbers, by name."""
    bodies: bytes
    body_offsets: Ext
    properties: bytes
    properties_offsets: Ext
    born_hosts: bytes | None
    store_hosts: bytes | None
    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    body_bytes_max: int


def record_of_columns(batch: MessageBatch) -> ColumnsRecord:
    """Return the record of messages as columns."""
    return ColumnsRecord(
        batch.topic,
        batch.queue_id,
        {name: column_extension(getattr(batch, name)) for name in (*_INT64_FIELDS, *_INT32_FIELDS)},
        bytes(batch.bodies),
        column_extension(batch.body_offsets),
        bytes(batch.properties),
        column_extension(batch.properties_offsets),
        _host_bytes(batch.born_hosts, batch.sys_flag & SYS_FLAG_BORN_HOST_V6),
        _host_bytes(batch.store_hosts, batch.sys_flag & SYS_FLAG_STORE_HOST_V6),
        batch.status.value,
        batch.next_offset,
        batch.min_offset,
        batch.max_offset,
        batch.body_bytes_max,
    )


def columns_of_record(one: ColumnsRecord) -> MessageBatch:
    """Return the messages of a record."""
    columns: dict[str, Any] = {name: _int64(one.numbers[name]) for name in _INT64_FIELDS}
    columns |= {name: _int64(one.numbers[name]).astype(np.int32) for name in _INT32_FIELDS}
    count = len(columns["queue_offset"])
    return MessageBatch(
        topic=one.topic,
        queue_id=one.queue_id,
        bodies=one.bodies,
        body_offsets=_int64(one.body_offsets),
        properties=one.properties,
        properties_offsets=_int64(one.properties_offsets),
        born_hosts=_hosts(one.born_hosts, count),
        store_hosts=_hosts(one.store_hosts, count),
        status=PullStatus(one.status),
        next_offset=one.next_offset,
        min_offset=one.min_offset,
        max_offset=one.max_offset,
        body_bytes_max=one.body_bytes_max,
        **columns,
    )


class HistogramRecord(Struct, array_like=True, frozen=True):
    """A Histogram."""

    edges: Ext
    counts: Ext


def record_of_histogram(one: Histogram) -> HistogramRecord:
    """Return the record of a histogram."""
    return HistogramRecord(column_extension(one.edges), column_extension(one.counts))


def histogram_of_record(one: HistogramRecord) -> Histogram:
    """Return the histogram of a record."""
    return Histogram(_int64(one.edges), _int64(one.counts))


def _int64(column: Ext) -> npt.NDArray[np.int64]:
    data = bytes(column.data)
    if column.code != INT64_COLUMN or len(data) % 8:
        raise ProtocolError("a column is invalid", got=f"type {column.code}, {len(data)} bytes")
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def _host_bytes(hosts: npt.NDArray[np.uint8] | None, is_v6: npt.NDArray[np.int32]) -> bytes | None:
    """Return rows of hosts. Their unused bytes were never written: they must not travel."""
    if hosts is None:
        return None
    rows = hosts.copy()
    rows[is_v6 == 0, _V4_HOST_BYTES:] = 0
    return rows.tobytes()


def _hosts(raw: bytes | None, count: int) -> npt.NDArray[np.uint8] | None:
    if raw is None:
        return None
    return np.frombuffer(raw, np.uint8).reshape(count, len(raw) // max(count, 1))
