"""Receipts: the results of `put` and `put_many`. They are values; this module opens no file.

Invariants:
    1. A value never changes after it was created.
    2. Message ids and handles are computed when they are requested.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
ByteRows = npt.NDArray[np.uint8]

_COUNTER_MASK = (1 << 48) - 1


def unique_key(prefix: str, counter: int) -> str:
    """Return a message id: the 20 hexadecimal digits of `prefix`, then `counter` (48 bits, wraps)
    in 12.
    """
    return f"{prefix}{counter & _COUNTER_MASK:012X}"


def out_ms(due_ms: int, precision_ms: int) -> int:
    """Return the slot time of a due time: the last slot boundary before it, ms."""
    return (due_ms - 1) // precision_ms * precision_ms


def make_handle(
    topic: str, broker_name: str, timestamp_ms: int, message_id: str, timer_id: int | None
) -> str:
    """Return a handle. Without `timer_id` it has the five fields of a RocketMQ broker's handle."""
    text = f"v1 {topic} {broker_name} {timestamp_ms} {message_id}"
    if timer_id is not None:
        text = f"{text} {timer_id}"
    return base64.urlsafe_b64encode(text.encode()).decode("ascii")


class ReceiptOrigin(NamedTuple):
    """The fields that all receipts of one store and topic share."""

    topic: str
    id_prefix: str
    broker_name: str
    precision_ms: int

    def message_id(self, counter: int) -> str:
        """Return the id of the message with this number."""
        return unique_key(self.id_prefix, counter)

    def handle(self, counter: int, due_ms: int, timer_id: int) -> str:
        """Return the handle of a message. Its timestamp is the slot time + 1, so that aligning it
        to a slot returns the slot time.
        """
        stamp = out_ms(due_ms, self.precision_ms) + 1
        return make_handle(self.topic, self.broker_name, stamp, self.message_id(counter), timer_id)

    def keeping(self, message_id: str) -> KeptOrigin:
        """Return the origin of a message of the topic that has this id."""
        return KeptOrigin(self.topic, message_id, self.broker_name, self.precision_ms)

    def receipt(
        self, counter: int, queue_id: int, number: int, log_offset: int, due_ms: int, now_ms: int
    ) -> PutReceipt:
        """Return the receipt of an appended record.

        number: of a timer, due at `due_ms`, its id; if `due_ms` is 0, the queue offset of a message
        that was delivered at `now_ms`.
        """
        if due_ms:
            return PutReceipt(self, counter, number, queue_id, None, log_offset, due_ms)
        return PutReceipt(self, counter, -1, queue_id, number, log_offset, now_ms)


class KeptOrigin(ReceiptOrigin):
    """The origin of one message that keeps an existing id: `id_prefix` is the whole id."""

    __slots__ = ()

    def message_id(self, counter: int) -> str:  # noqa: ARG002 - it took no number
        """Return the existing id."""
        return self.id_prefix


class _ReceiptFields(NamedTuple):
    origin: ReceiptOrigin
    counter: int
    timer_id: int
    queue_id: int
    queue_offset: int | None
    log_offset: int
    due_ms: int
    duplicate: bool = False
    cancelled: bool = False


class PutReceipt(_ReceiptFields):
    """The result of `put`.

    A pending message has the `queue_offset` None. `timer_id` is -1 for a message that is
    not delayed or waits for a delay level. `due_ms` is in milliseconds since 1970.

    `duplicate`: the message id was put before, and this is the receipt of the first put.
    `cancelled`: that first message has been cancelled since.

    Receipts are created once for each put. So this is a tuple that computes id and handle on
    demand.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.origin.topic

    @property
    def waits_for_level(self) -> bool:
        """Whether the message was put with `level=`."""
        return self.queue_offset is None and self.timer_id < 0

    @property
    def message_id(self) -> str:
        """The id of the message, which all its copies share."""
        return self.origin.message_id(self.counter)

    @property
    def handle(self) -> str:
        """A text with which any process can cancel the message, also after a restart.

        Empty for a message that waits for a delay level, which cannot be cancelled.
        """
        if self.waits_for_level:
            return ""
        return self.origin.handle(self.counter, self.due_ms, self.timer_id)

    def __repr__(self) -> str:
        return (
            f"PutReceipt(topic={self.topic!r}, message_id={self.message_id!r}, "
            f"queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"log_offset={self.log_offset}, due_ms={self.due_ms}, duplicate={self.duplicate})"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallerIds:
    """The ids that a caller gave to `put_many`, by message. An empty id means that the store made
    one.
    """

    ids: Sequence[str]
    queue_ids: Int64Array
    duplicate: npt.NDArray[np.bool_]
    cancelled: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"CallerIds(<{len(self.ids)} ids>)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PutBatch:
    """The result of `put_many`: receipts as arrays. Indexing and iteration return PutReceipt
    objects.

    `queue_offsets` is -1 for pending messages, `timer_ids` is -1 for messages that are not delayed.
    The id of message k has the number `counter_begin + k`.
    """

    origin: ReceiptOrigin
    counter_begin: int
    queue_id: int
    log_offsets: Int64Array
    queue_offsets: Int64Array
    due_ms: Int64Array
    timer_ids: Int64Array
    given: CallerIds | None = None

    def __repr__(self) -> str:
        return (
            f"PutBatch(topic={self.origin.topic!r}, queue_id={self.queue_id}, "
            f"<{len(self)} receipts>)"
        )

    def __len__(self) -> int:
        return len(self.log_offsets)

    @overload
    def __getitem__(self, at: int) -> PutReceipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[PutReceipt]: ...
    def __getitem__(self, at: int | slice) -> PutReceipt | list[PutReceipt]:
        if isinstance(at, slice):
            return [self._receipt(k) for k in range(*at.indices(len(self)))]
        return self._receipt(checked_index(at, len(self)))

    def __iter__(self) -> Iterator[PutReceipt]:
        return map(self._receipt, range(len(self)))

    def _receipt(self, k: int) -> PutReceipt:
        queue_offset, given = int(self.queue_offsets[k]), self.given
        receipt = PutReceipt(
            self.origin,
            self.counter_begin + k,
            int(self.timer_ids[k]),
            self.queue_id,
            None if queue_offset < 0 else queue_offset,
            int(self.log_offsets[k]),
            int(self.due_ms[k]),
        )
        if given is None:
            return receipt
        origin = self.origin
        if given.ids[k]:
            receipt = receipt._replace(origin=origin.keeping(given.ids[k]), counter=0)
        return receipt._replace(
            queue_id=int(given.queue_ids[k]),
            duplicate=bool(given.duplicate[k]),
            cancelled=bool(given.cancelled[k]),
        )

    @property
    def message_ids(self) -> list[str]:
        """The id of each message, in the order of the put."""
        begin = self.counter_begin
        made = [self.origin.message_id(n) for n in range(begin, begin + len(self))]
        if self.given is None:
            return made
        return [given or one for given, one in zip(self.given.ids, made, strict=True)]

    @property
    def handles(self) -> list[str]:
        """The handle of each message, in the order of the put."""
        return [receipt.handle for receipt in self]


def checked_index(at: int, size: int) -> int:
    """Return an index of a sequence as a number from 0 on. Raise IndexError if out of range."""
    if not -size <= at < size:
        raise IndexError(f"index {at} is outside a batch of {size}")
    return at % size
