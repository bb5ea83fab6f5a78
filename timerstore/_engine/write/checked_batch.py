"""The arguments of a batch after their checks, as columns for C, and ids as receipts give them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import message_fields
from timerstore._engine.base.column_batch import ColumnBatch, joined_column
from timerstore.errors import MessageError, kind_of, quoted, typed
from timerstore.types.messages import Int64Array
from timerstore.types.receipts import CallerIds

# --- string columns ---
# String columns: a buffer of UTF-8 and offsets into it, for keys, tags and ids of a batch.
#
# Checks run over the whole column. Python looks at single rows only if the caller passed a
# sequence.
#
# Raises: MessageError, with the column and the first invalid row.


Column = tuple[Any, Int64Array]

_SPACE, _STAR, _BAR = b" *|"
_NAME_END, _VALUE_END = b"\x01\x02"


def string_column(what: str, texts: object, row_offsets: object, count: int) -> Column | None:
    """Return a column of valid UTF-8 without control characters; None if there is no column."""
    column = _gathered(what, texts, row_offsets, count)
    if column is not None:
        used = np.frombuffer(column[0], np.uint8)
        _refuse(what, used < _SPACE, column, "no control characters")
        _check_utf8(what, column)
    return column


def property_column(texts: object, row_offsets: object, count: int) -> Column | None:
    """Return a column of encoded properties (name 0x01 value 0x02, repeated), or None.

    Names are not checked against the reserved ones.
    """
    what = "properties"
    column = _gathered(what, texts, row_offsets, count)
    if column is None:
        return None
    text, spans = column
    used = np.frombuffer(text, np.uint8)
    # A separator follows at least one other byte of its row, is the other one than the separator
    # before it, and a row ends with the second one.
    is_separator = (used == _NAME_END) | (used == _VALUE_END)
    at = np.flatnonzero(is_separator)
    starts = spans[:-1][np.diff(spans) > 0]
    ends = spans[1:][np.diff(spans) > 0] - 1
    wrong = (used < _SPACE) & ~is_separator
    wrong[starts] |= is_separator[starts]
    wrong[1:] |= is_separator[1:] & is_separator[:-1]
    wrong[at[::2]] |= used[at[::2]] != _NAME_END
    wrong[at[1::2]] |= used[at[1::2]] != _VALUE_END
    wrong[ends] |= used[ends] != _VALUE_END
    _refuse(what, wrong, column, "names and values with their separators")
    _check_utf8(what, column)
    return column


def _gathered(what: str, texts: object, row_offsets: object, count: int) -> Column | None:
    """Return a copy of a column, which the caller cannot change after the checks."""
    if texts is None and row_offsets is None:
        return None
    if texts is None or row_offsets is None:
        raise MessageError(f"{what}: wanted texts and offsets, got one without the other")
    try:
        offsets = np.asarray(row_offsets)
    except (TypeError, ValueError) as error:
        raise MessageError(
            f"{what}: wanted {count + 1} whole offsets, got {typed(row_offsets)}"
        ) from error
    if offsets.shape != (count + 1,) or offsets.dtype.kind not in "iu":
        raise MessageError(
            f"{what}: wanted {count + 1} whole offsets, got {offsets.dtype} of shape "
            f"{offsets.shape}"
        )
    data, spans, _ = message_fields.gather_bodies(
        (texts, offsets), message_fields.PROPERTY_VALUE_BYTES_MAX
    )
    return bytes(memoryview(data)[spans[0] : spans[-1]]), spans - spans[0]


def _check_utf8(what: str, column: Column) -> None:
    """Check that each row is UTF-8 by itself."""
    text, spans = column
    used = np.frombuffer(text, np.uint8)
    starts = spans[:-1][np.diff(spans) > 0]
    split = np.zeros(len(used), bool)
    split[starts] = used[starts] & 0xC0 == 0x80
    _refuse(what, split, column, "whole characters of UTF-8")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise MessageError(
            f"{what}: wanted UTF-8, got {error.reason} in row {_row(spans, error.start)}"
        ) from error


def check_tags(column: Column) -> None:
    """Check that a filter can name each tag, as `message_fields.tags_problems` does for one."""
    data, spans = column
    used, sizes = np.frombuffer(data, np.uint8), np.diff(spans)
    first, last = spans[:-1][sizes > 0], spans[1:][sizes > 0] - 1
    wrong = np.zeros(len(used), bool)
    wrong[first[used[first] == _SPACE]] = True
    wrong[last[used[last] == _SPACE]] = True
    wrong[first[(used[first] == _STAR) & (first == last)]] = True
    is_second = (used[1:] == _BAR) & (used[:-1] == _BAR)
    is_second[first[first > 0] - 1] = False  # of another row
    wrong[1:] |= is_second
    _refuse("tags", wrong, column, message_fields.UNFILTERED.removeprefix("wanted "))


def check_ids(column: Column) -> None:
    """Check that every text is a valid message id."""
    data, spans = column
    used = np.frombuffer(data, np.uint8)
    _refuse("message_ids", (used == 0x20) | (used == 0x7F), column, "no spaces")
    long = np.flatnonzero(np.diff(spans) > message_fields.MESSAGE_ID_BYTES_MAX)
    if len(long):
        raise MessageError(
            f"message_ids: wanted at most {message_fields.MESSAGE_ID_BYTES_MAX} bytes, got "
            f"{np.diff(spans)[long[0]]} in row {long[0]}"
        )


def gather_ids(message_ids: object, count: int) -> Column | None:
    """Return the ids of a batch as a column; None if there are none.

    The argument is a sequence, with None or "" for messages without an id, or a pair of buffer and
    offsets.
    """
    if message_ids is None:
        return None
    if isinstance(message_ids, tuple) and len(message_ids) == 2:
        data, offsets = message_ids
        if not isinstance(data, str | None):
            column = string_column("message_ids", data, offsets, count)
            assert column is not None
            check_ids(column)
            return column
    if isinstance(message_ids, str | bytes) or not isinstance(message_ids, Sequence):
        raise MessageError(
            f"message_ids: wanted one entry for each of {count} bodies, or (buffer, offsets), got "
            f"{kind_of(message_ids)}"
        )
    if len(message_ids) != count:
        raise MessageError(
            f"message_ids: wanted one entry for each of {count} bodies, got {len(message_ids)}"
        )
    raw = [
        b""
        if one is None or (type(one) is str and not one)
        else message_fields.check_message_id(one)
        for one in message_ids
    ]
    return joined_column(raw)


def encode_keys(keys: Any, count: int) -> tuple[Any, Any]:
    """Return the keys of a batch as property texts and offsets; None twice if there are none."""
    if keys is None:
        return None, None
    is_row = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
    is_row |= isinstance(keys, np.ndarray) and keys.ndim > 0
    if not is_row or len(keys) != count:
        got = str(len(keys)) if is_row else kind_of(keys)
        raise MessageError(f"keys: wanted one entry for each of {count} bodies, got {got}")
    return joined_column([message_fields.encode_properties(None, one, None) for one in keys])


def _refuse(what: str, wrong: npt.NDArray[np.bool_], column: Column, wanted: str) -> None:
    if wrong.any():
        data, spans = column
        row = _row(spans, int(np.argmax(wrong)))
        text = bytes(data[spans[row] : spans[row + 1]]).decode("utf-8", "replace")
        raise MessageError(f"{what}: wanted {wanted}, row {row} has {quoted(text)}")


def _row(spans: Int64Array, at: int) -> int:
    """Return the row of the byte `at`."""
    return int(np.searchsorted(spans, at, side="right")) - 1


# --- checked batch ---


_ONCE_BYTES = len("TS_ONCE") + 2 + 19
_GENERATED_ID_BYTES = 32


class CheckedBatch(NamedTuple):
    """Messages of one call. Everything is checked except their sizes."""

    topic: str
    name: bytes
    spans: message_fields.Spans
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
        rows = ColumnBatch(data, offsets, self.due, text, first=first)
        rows.with_texts("extra", *self.extra)
        return rows if self.ids is None else rows.with_texts("ids", *self.ids)

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
        spans = message_fields.Spans(data, offsets, self.spans.largest)
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
