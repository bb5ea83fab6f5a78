"""A batch of messages to put, as columns that C reads without a copy (ts_rows in native/api).

Invariants:
    1. The memory of the columns lives as long as the batch.
Raises: AssertionError if a column has another length; callers have checked it.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.native import ffi, lib, pointer

_INT64 = "int64_t[]"
_OFFSETS = {
    "extra": "extra_offsets",
    "tags": "tag_offsets",
    "keys": "key_offsets",
    "ids": "id_offsets",
}


def joined_column(parts: Sequence[bytes]) -> tuple[bytes, Int64Array]:
    """Return the parts one after another, and the offsets of each: their number + 1."""
    return b"".join(parts), np.array([0, *accumulate(map(len, parts))], np.int64)


class BatchPart(NamedTuple):
    """A range of rows that is appended as one group."""

    begin: int
    row_count: int
    bytes: int
    timers: int  # number of rows with a delay
    now_ms: int  # the time for which the range was measured


class ColumnBatch:
    """The columns of one call."""

    __slots__ = ("_kept", "count", "native")

    def __init__(
        self, bodies: Any, body_offsets: Any, due_ms: Any, text: bytes, *, first: int = 0
    ) -> None:
        native: Any = ffi.new("ts_column_batch *")
        self.native = native
        self._kept: list[Any] = []  # keeps alive the memory to which C has addresses
        self.count = len(body_offsets) - 1
        native.count = self.count
        native.first_unique = first
        native.properties_size = len(text)
        native.properties = self._address("uint8_t[]", text)
        native.due_ms = self._address(_INT64, due_ms)
        native.bodies = self._address("uint8_t[]", bodies)
        native.body_offsets = self._address(_INT64, body_offsets)

    def with_texts(self, name: str, texts: Any, offsets: Any) -> "ColumnBatch":
        """Set the texts of tags, keys or ids, or as `extra` the encoded properties of each row.

        texts: None for no texts.
        """
        if texts is not None:
            assert len(offsets) == self.count + 1
            setattr(self.native, name, self._address("uint8_t[]", texts))
            setattr(self.native, _OFFSETS[name], self._address(_INT64, offsets))
        return self

    def measure(
        self, log: Any, route: Any, begin: int, most: int, limit: int, now_ms: int
    ) -> BatchPart:
        """Return the rows from `begin` on, at most `most`, that fit a group of `limit` bytes."""
        size, timers = ffi.new("int64_t *"), ffi.new("int32_t *")
        count = lib.ts_batch_measure(
            log, route, self.native, begin, most, limit, now_ms, size, timers
        )
        return BatchPart(begin, int(count), int(size[0]), int(timers[0]), now_ms)

    def _address(self, kind: str, column: Any) -> Any:
        if kind == _INT64:
            column = np.ascontiguousarray(column, np.int64)
        view = pointer(kind, column)
        self._kept += [column, view]
        return view
