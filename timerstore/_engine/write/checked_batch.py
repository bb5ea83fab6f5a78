"""The arguments of a batch after their checks, as columns for C, and ids as receipts give them."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import message_bodies
from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.write.string_columns import Column
from timerstore.errors import MessageError
from timerstore.messages import Int64Array
from timerstore.receipts import CallerIds

_ONCE_BYTES = len("TS_ONCE") + 2 + 19
_GENERATED_ID_BYTES = 32


class CheckedBatch(NamedTuple):
    """Messages of one call. Everything is checked except their sizes."""

    topic: str
    name: bytes
    spans: message_bodies.Spans
    due: Int64Array
    """Epoch ms; 0: now."""
    now_ms: int
    text: bytes
    """Property text that all messages share."""
    extra: tuple[Any, Any]
    """Property texts by row, and their offsets; None twice if there are none."""
    ids: Column | None
    level: int | None
    queue_id: int | None
    is_sync: bool
    is_fixed: bool = False
    """Whether a repeated call has the same due times."""

    @property
    def row_count(self) -> int:
        """Number of messages."""
        return len(self.due)

    def rows(self, text: bytes, first: int) -> ColumnBatch:
        """Return the columns with this shared property text, and ids generated from `first` on."""
        data, offsets, _ = self.spans
        rows = ColumnBatch(data, offsets, self.due, text, first=first).with_extra(*self.extra)
        return rows if self.ids is None else rows.with_ids(*self.ids)

    def body(self, row: int) -> Any:
        """Return the body of a message."""
        offsets = self.spans.offsets
        return memoryview(self.spans.data)[int(offsets[row]) : int(offsets[row + 1])]

    def own_properties(self, row: int) -> bytes:
        """Return the property text of a message, as the caller gave it."""
        texts, offsets = self.extra
        if texts is None:
            return self.text
        return self.text + bytes(texts[int(offsets[row]) : int(offsets[row + 1])])

    def message_id(self, row: int) -> str:
        """Return the message id that the caller gave, or an empty text."""
        if self.ids is None:
            return ""
        data, offsets = self.ids
        return bytes(data[int(offsets[row]) : int(offsets[row + 1])]).decode()

    def part(self, begin: int, end: int) -> "CheckedBatch":
        """Return a batch of the messages from `begin` to before `end`."""
        data, offsets = _cut(self.spans.data, self.spans.offsets, begin, end)
        spans = message_bodies.Spans(data, offsets, self.spans.largest)
        extra = self.extra
        if extra[1] is not None:
            extra = _cut(*extra, begin, end)
        ids = None if self.ids is None else _cut(*self.ids, begin, end)
        return self._replace(spans=spans, due=self.due[begin:end], extra=extra, ids=ids)


def _cut(data: Any, offsets: Int64Array, begin: int, end: int) -> tuple[bytes, Int64Array]:
    first, last = int(offsets[begin]), int(offsets[end])
    return bytes(memoryview(data)[first:last]), offsets[begin : end + 1] - first


def id_bytes(ids: Column, *, is_remembered: bool) -> Int64Array:
    """Return the bytes that each id adds to a record, beyond those of a generated id."""
    own: Int64Array = np.maximum(np.diff(ids[1]) - _GENERATED_ID_BYTES, 0)
    return own + (_ONCE_BYTES if is_remembered else 0)


def id_extra_bytes(size: int, *, is_remembered: bool) -> int:
    """As id_bytes, for one id of a size."""
    return max(size - _GENERATED_ID_BYTES, 0) + (_ONCE_BYTES if is_remembered else 0)


def caller_ids(ids: Column, count: int, queue_id: int) -> CallerIds:
    """Return the ids of a batch, none of them marked as a duplicate, for its receipts."""
    return CallerIds(
        _id_texts(ids),
        np.full(count, queue_id, np.int64),
        np.zeros(count, bool),
        np.zeros(count, bool),
    )


def check_unique(ids: Column | None) -> None:
    """Raise MessageError if an atomic batch has the same id twice."""
    if ids is None:
        return
    given = [one for one in _id_texts(ids) if one]
    if len(set(given)) < len(given):
        raise MessageError("message_ids: one stands twice in an atomic batch")


def _id_texts(ids: Column) -> list[str]:
    data, offsets = ids
    whole, spans = bytes(data), offsets.tolist()
    if whole.isascii():
        text = whole.decode()
        return [text[a:b] for a, b in pairwise(spans)]
    return [whole[a:b].decode() for a, b in pairwise(spans)]
