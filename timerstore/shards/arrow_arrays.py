"""Convert Arrow columns: to numpy, to bytes and offsets, to text, to milliseconds.

Thread safety: any thread; the functions have no side effects.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore.shards.arrow_import import compute, pyarrow
from timerstore.types.messages import Int64Array

Mask = npt.NDArray[np.bool_]


def plain(column: Any, kind: str) -> Any:
    """Return the column as one of the plain types. Text becomes its bytes."""
    arrow = pyarrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(getattr(arrow, kind)())


def numpy_of(column: Any) -> Any:
    """Return the column as a numpy array."""
    return column.to_numpy(zero_copy_only=False)


def sizes_of(column: Any) -> Int64Array:
    """Return the size of each row of a large_binary column, bytes."""
    sizes: Int64Array = np.diff(offsets_of(column))
    return sizes


def offsets_of(column: Any) -> Int64Array:
    """Return the offsets of a large_binary column, count + 1 of them, into its third buffer."""
    if not len(column):
        return np.zeros(1, np.int64)
    raw: Int64Array = np.frombuffer(column.buffers()[1], np.int64)
    spans: Int64Array = raw[column.offset : column.offset + len(column) + 1]
    return spans


def bytes_of(column: Any) -> Any:
    """Return the buffer that the offsets of a large_binary column point into."""
    data = column.buffers()[2] if len(column) else None
    return memoryview(data) if data is not None else b""


def milliseconds_of(column: Any) -> Int64Array:
    """Return milliseconds since 1970, rounded up: never early."""
    arrow = pyarrow()
    unit = getattr(column.type, "unit", "ms")
    whole: Int64Array = numpy_of(column.cast(arrow.int64()).fill_null(0)).astype(np.int64)
    if unit == "s":
        bounded = np.clip(whole, -(2**62) // 1000, 2**62 // 1000)
        return np.asarray(bounded * 1000, np.int64)
    if unit == "ms":
        return whole
    # Not -(-whole // parts): the smallest int64 cannot be negated.
    parts = 1000 if unit == "us" else 1_000_000
    return np.asarray(whole // parts + (whole % parts != 0), np.int64)


def is_plain_ascii(raw: Any) -> bool:
    """Return whether all bytes are visible ASCII, which no check rejects."""
    spans = offsets_of(raw)
    used = np.frombuffer(bytes_of(raw), np.uint8)[spans[0] : spans[-1]]
    return not len(used) or (int(used.min()) > 0x20 and int(used.max()) < 0x7F)


def as_text(raw: Any) -> tuple[Any, Mask]:
    """Return a large_binary column without nulls as text, and which rows are not UTF-8. Those
    become "".
    """
    bad = _not_utf8(raw)
    if bad.any():
        raw = compute().if_else(pyarrow().array(bad), b"", raw)
    return raw.cast(pyarrow().large_string()), bad


def joined(spans: Int64Array, text: Any, separator: str) -> Any:
    """Join the texts of each row; "" for a row without any."""
    arrow = pyarrow()
    lists = arrow.LargeListArray.from_arrays(arrow.array(spans), text)
    return compute().binary_join(lists, arrow.scalar(separator, arrow.large_string()))


def _not_utf8(raw: Any) -> Mask:
    """Return which rows are not UTF-8: a producer may have cast any bytes to a string."""
    mask = np.zeros(len(raw), bool)
    arrow = pyarrow()
    try:
        raw.cast(arrow.large_string()).validate(full=True)
    except arrow.ArrowInvalid:
        for k, one in enumerate(raw.to_pylist()):  # row by row, as this is rare
            mask[k] = not _is_utf8(one)
    return mask


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
