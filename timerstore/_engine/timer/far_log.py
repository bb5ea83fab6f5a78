"""Store the units of the far wheel as a log, and read them by number.

Thread safety: the linker appends under the wheel's lock; any thread reads, without a lock.
Invariants:
    1. A unit is never changed.
Raises: FullError if the disk is full. CorruptError if a unit's CRC is wrong.
On-disk format: files in timerstore/far/; native/format/far_unit.h
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.far_table import UNIT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments, View
from timerstore._engine.timer.timer_arrays import FAR, Int64Array, Records


class FarLog(NotCopyable):
    """The far log of one store."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        reserve_bytes: int,
        segments: Segments | None = None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self.segments = segments or Segments(
            disk, directory, segment_bytes, reserve_bytes, keeps_reserved=True
        )
        self.units_per_segment = segment_bytes // UNIT_BYTES

    def forget_files(self) -> None:
        """Forget all files, which the caller has removed.

        A view may still map them. Files with the same names are new ones.
        """
        size = self.segments.segment_bytes
        self.segments = Segments(
            self._disk, self._directory, size, self._reserve_bytes, keeps_reserved=True
        )

    def offset_of(self, number: int) -> int:
        """Return the position of a unit in the log, in bytes."""
        segment, at = divmod(number, self.units_per_segment)
        return segment * self.segments.segment_bytes + at * UNIT_BYTES

    # --- writing ---

    def reserve(self, number: int, count: int) -> None:
        """Reserve disk space for `count` units, beginning with this number."""
        last = number + count
        while number < last:
            upto = min(last, (number // self.units_per_segment + 1) * self.units_per_segment)
            self.segments.reserve(self.offset_of(upto - 1) + UNIT_BYTES)
            number = upto

    def append(
        self,
        number: int,
        units: Records,
        chains: "np.ndarray[tuple[int], np.dtype[np.int32]]",
        newest: Int64Array,
    ) -> None:
        """Link units into chains and write them; their space is reserved.

        number: that of the first unit.
        chains: for each unit, the index of its chain in `newest`.
        newest: the number of the newest unit of each chain, or -1; updated.
        """
        data = np.empty(len(units) * UNIT_BYTES, np.uint8)
        lib.ts_far_link(
            ffi.from_buffer("ts_far_unit[]", units),
            ffi.from_buffer("int32_t[]", chains),
            len(units),
            number,
            ffi.from_buffer("int64_t[]", newest),
            ffi.from_buffer("uint8_t[]", data),
        )
        done = 0
        while done < len(units):
            at = number + done
            left = self.units_per_segment - at % self.units_per_segment
            part = data[done * UNIT_BYTES : (done + left) * UNIT_BYTES]
            self.segments.write(self.offset_of(at), part.data)
            done += left

    # --- reading ---

    def view(self, end: int) -> View:
        """Return a view of the units below `end`; it keeps files that are removed later."""
        return self.segments.view(self.offset_of(end))

    def walk(self, view: Any, slot: int, newest: int, batch: int) -> Iterator[Records]:
        """Yield the units of a chain, newest first, in parts of at most `batch`."""
        number = ffi.new("int64_t *", newest)
        while number[0] >= 0:
            part = np.empty(batch, FAR)
            native = ffi.from_buffer("ts_far_unit[]", part)
            count = self.segments.call(
                view, "far wheel", lib.ts_far_walk, slot, number, batch, native
            )
            yield part[:count]


class Chain(NamedTuple):
    """The units of a far slot. Units are added at the newest end and taken from there.

    Each unit has the number of the one before it; the oldest has -1.
    """

    newest: int = -1
    oldest: int = -1
    size: int = 0
