"""Rows: messages to put, as columns that C reads where they lie.

Data:     ts_column_batch (native/api/batch.h).
Holds:    what its columns point to lives as long as it does.
Fails:    AssertionError where a column has another length: callers have checked.
"""

from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib, pointer

_INT64 = "int64_t[]"


class Part(NamedTuple):
    """Some of the rows, as they make a group."""

    begin: int
    row_count: int
    bytes: int
    timers: int  # how many of them wait
    now_ms: int  # for which this was found out


class Rows:
    """Columns of one call."""

    __slots__ = ("_kept", "count", "native")

    def __init__(
        self, bodies: Any, body_offsets: Any, due_ms: Any, text: bytes, *, first: int = 0
    ) -> None:
        native: Any = ffi.new("ts_column_batch *")
        self.native = native
        self._kept: list[Any] = []  # C sees addresses only
        self.count = len(body_offsets) - 1
        native.count = self.count
        native.first_unique = first
        native.properties_size = len(text)
        native.properties = self._address("uint8_t[]", text)
        native.due_ms = self._address(_INT64, due_ms)
        native.bodies = self._address("uint8_t[]", bodies)
        native.body_offsets = self._address(_INT64, body_offsets)

    def with_extra(self, texts: Any, offsets: Any) -> "Rows":
        """Property text of each; None: none."""
        return self._set("extra", "extra_offsets", texts, offsets)

    def with_tags(self, texts: Any, offsets: Any) -> "Rows":
        """Values of TAGS."""
        return self._set("tags", "tag_offsets", texts, offsets)

    def with_keys(self, texts: Any, offsets: Any) -> "Rows":
        """Values of KEYS."""
        return self._set("keys", "key_offsets", texts, offsets)

    def with_ids(self, texts: Any, offsets: Any) -> "Rows":
        """Values of UNIQ_KEY."""
        return self._set("ids", "id_offsets", texts, offsets)

    def measure(self, log: Any, route: Any, begin: int, most: int, limit: int, now_ms: int) -> Part:
        """Give the rows from `begin` on, `most` at most, that make a group of `limit` bytes."""
        size, timers = ffi.new("int64_t *"), ffi.new("int32_t *")
        count = lib.ts_batch_measure(
            log, route, self.native, begin, most, limit, now_ms, size, timers
        )
        return Part(begin, int(count), int(size[0]), int(timers[0]), now_ms)

    def _set(self, name: str, offsets_name: str, texts: Any, offsets: Any) -> "Rows":
        if texts is not None:
            assert len(offsets) == self.count + 1
            setattr(self.native, name, self._address("uint8_t[]", texts))
            setattr(self.native, offsets_name, self._address(_INT64, offsets))
        return self

    def _address(self, kind: str, column: Any) -> Any:
        if kind == _INT64:
            column = np.ascontiguousarray(column, np.int64)
        view = pointer(kind, column)
        self._kept += [column, view]
        return view
