"""Hold the messages of one pull: C writes rows and bytes, a filter removes some of them.

Rows are ts_pulled of native/api; bodies and encoded properties are stored in the order of the
rows.

Thread safety: one page belongs to one pull.
Invariants:
    1. The first `count` rows and their bytes are complete; everything after them is free.
"""

import sys
from typing import Any

import numpy as np

from timerstore._engine.base.native import Lock, address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.read.filter import Mask
from timerstore.types.messages import Int64Array

# --- page buffers ---
# Keep the memory of released pages and reuse it for new ones.
#
# Memory that is returned to the system comes back zeroed, one page at a time. For a pull of 10,000
# messages this takes as long as reading them. At most `_KEPT_BYTES_MAX` bytes are kept.
#
# Thread safety: any thread.
# Invariants:
#     1. No other array or memoryview refers to a buffer that `take` returns.


_SMALL_BYTES = 1 << 16  # smaller buffers are fast to allocate
_KEPT_MAX = 8  # rows, bodies and properties of the last two pages, and two more
_KEPT_BYTES_MAX = 32 << 20


class Buffers(NotCopyable):
    """The buffers of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[Any] = []

    def take(self, size: int) -> Any:
        """Return an array of at least `size` bytes with arbitrary content."""
        if not _SMALL_BYTES <= size <= _KEPT_BYTES_MAX // 2:
            return np.empty(size, np.uint8)
        with self._lock:
            free = [at for at in range(len(self._kept)) if self._is_free(at)]
            fitting = [at for at in free if len(self._kept[at]) >= size]
            if fitting:
                return self._kept[min(fitting, key=lambda at: len(self._kept[at]))]
            for at in reversed(free):
                del self._kept[at]
            made = np.empty(size + size // 4, np.uint8)  # the next page may be a little larger
            kept_bytes = sum(map(len, self._kept))
            if len(self._kept) < _KEPT_MAX and kept_bytes + len(made) <= _KEPT_BYTES_MAX:
                self._kept.append(made)
            return made

    def _is_free(self, at: int) -> bool:
        # Two references are the list's and this call's; every array or memoryview adds one.
        return sys.getrefcount(self._kept[at]) == 2


# --- page ---


PULLED = np.dtype(
    [
        ("queue_offset", np.int64),
        ("log_offset", np.int64),
        ("born_ms", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("delivered_ms", np.int64),
        ("body_at", np.int64),
        ("properties_at", np.int64),
        ("body_size", np.int32),
        ("properties_size", np.int32),
        ("size", np.int32),
        ("queue_id", np.int32),
        ("flag", np.int32),
        ("sys_flag", np.int32),
        ("reconsume_times", np.int32),
        ("body_crc", np.int32),
        ("born_host", np.uint8, (20,)),
        ("store_host", np.uint8, (20,)),
        ("born_host_size", np.int32),
        ("store_host_size", np.int32),
    ]
)
assert PULLED.itemsize == ffi.sizeof("ts_pulled"), "page.py and native/api disagree"


class Page(NotCopyable):
    """A page of up to `rows_max` messages."""

    def __init__(self, rows_max: int, buffers: Buffers) -> None:
        self._buffers = buffers
        self.rows_max = rows_max
        size = rows_max * PULLED.itemsize
        self._rows = buffers.take(size)[:size].view(PULLED)
        self._native_rows = ffi.from_buffer("ts_pulled[]", self._rows)
        self._bodies: Any = np.empty(0, np.uint8)
        self._properties: Any = np.empty(0, np.uint8)
        self._native_bodies = self._native_properties = ffi.NULL
        self.count = 0
        self._bodies_end = 0
        self._properties_end = 0

    @property
    def used(self) -> int:
        """Return how many bytes are used, of bodies or of properties, whichever is more."""
        return max(self._bodies_end, self._properties_end)

    def reserve(self, need: int, room_max: int) -> bool:
        """Make room for `need` more bytes of each kind; return False if it exceeds `room_max`."""
        have = min(len(self._bodies), len(self._properties))  # one may be larger than requested
        room = max(self._bodies_end, self._properties_end) + need
        if room > room_max:
            return False
        if room > have:
            room = max(room, min(2 * have, room_max))  # doubling keeps the number of copies low
            bodies, properties = self._buffers.take(room), self._buffers.take(room)
            bodies[: self._bodies_end] = self._bodies[: self._bodies_end]
            properties[: self._properties_end] = self._properties[: self._properties_end]
            self._bodies, self._properties = bodies, properties
            self._native_bodies = ffi.from_buffer("uint8_t[]", bodies)
            self._native_properties = ffi.from_buffer("uint8_t[]", properties)
        return True

    def add(
        self,
        view: Any,
        route: Any,
        units: Any,
        positions: Any,
        count: int,
        offset: int,
        visible_end: int,
        precision_ms: int,
    ) -> int:
        """Append the messages of some units; return how many, or a status code of C.

        positions: which of the units, where unit 0 has queue offset `offset`; NULL: the first
            `count` units.
        """
        assert self.count + count <= self.rows_max
        count_read = int(
            lib.ts_pull(
                view,
                route,
                units,
                positions,
                count,
                offset,
                visible_end,
                precision_ms,
                self._native_rows + self.count,
                self._native_bodies + self._bodies_end,
                len(self._bodies) - self._bodies_end,
                self._native_properties + self._properties_end,
                len(self._properties) - self._properties_end,
            )
        )
        if count_read > 0:
            self.count += count_read
            last = self._native_rows[self.count - 1]
            self._bodies_end += last.body_at + last.body_size
            self._properties_end += last.properties_at + last.properties_size
        return count_read

    def last_properties(self, count: int) -> tuple[Any, Int64Array]:
        """Return the encoded properties of the last `count` messages as a string column."""
        offsets = _offsets(self._rows["properties_size"][self.count - count : self.count])
        begin = self._properties_end - int(offsets[-1])
        return self._properties[begin : self._properties_end], offsets

    def thin(self, keep: Mask) -> None:
        """Remove those of the last len(keep) messages whose mask is 0."""
        if keep.all():
            return
        begin = self.count - len(keep)
        rows = self._rows[begin : self.count]
        bodies_begin = self._bodies_end - int(rows["body_size"].sum(dtype=np.int64))
        properties_begin = self._properties_end - int(rows["properties_size"].sum(dtype=np.int64))
        kept = lib.ts_pulled_keep(
            ffi.from_buffer("ts_pulled[]", rows),
            len(keep),
            address(keep),
            address(self._bodies[bodies_begin:]),
            address(self._properties[properties_begin:]),
        )
        rows = rows[:kept]
        self.count = begin + kept
        self._bodies_end = bodies_begin + int(rows["body_size"].sum(dtype=np.int64))
        self._properties_end = properties_begin + int(rows["properties_size"].sum(dtype=np.int64))

    def columns(self) -> dict[str, Any]:
        """Return the fields of the messages, with the names of MessageBatch."""
        rows = self._rows[: self.count]
        return {
            "queue_offset": rows["queue_offset"],
            "log_offset": rows["log_offset"],
            "born_ms": rows["born_ms"],
            "store_ms": rows["store_ms"],
            "due_ms": rows["due_ms"],
            "delivered_ms": rows["delivered_ms"],
            "bodies": memoryview(self._bodies)[: self._bodies_end],
            "body_offsets": _offsets(rows["body_size"]),
            "properties": memoryview(self._properties)[: self._properties_end],
            "properties_offsets": _offsets(rows["properties_size"]),
            "flag": rows["flag"],
            "sys_flag": rows["sys_flag"],
            "reconsume_times": rows["reconsume_times"],
            "body_crc": rows["body_crc"],
            "store_bytes": rows["size"],
            "born_hosts": rows["born_host"],
            "store_hosts": rows["store_host"],
        }


def _offsets(sizes: Any) -> Int64Array:
    out = np.zeros(len(sizes) + 1, np.int64)
    np.add.accumulate(sizes, out=out[1:])
    return out
