"""Append timer units, which are chained backwards within each slot.

Thread safety: enqueue-put and dequeue-put append under the wheel's lock; dequeue-get reads units
    below `end`; flush syncs.
Invariants:
    1. A unit's previous position is below its own.
    2. A unit's space is reserved before a slot points at it.
Raises: CorruptError if a unit is not valid. FullError if the disk is full.
On-disk format: native/format/timer_unit.h; segments in timerlog/
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import timer_unit
from timerstore._engine.format.timer_unit import BLANK_BYTES, UNIT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError

_PIECE_UNITS = 16_384


def pieces(segments: Segments, end: int) -> Iterator[tuple[int, int]]:
    """Yield (position, count) of contiguous units, for all units below `end`."""
    per_segment = timer_unit.units_per_segment(segments.segment_bytes)
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        count = min(per_segment, max(0, end - begin) // UNIT_BYTES)
        for at in range(0, count, _PIECE_UNITS):
            yield begin + at * UNIT_BYTES, min(_PIECE_UNITS, count - at)


class TimerLog(NotCopyable):
    """The timer log of one store."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, reserve_bytes: int) -> None:
        self.segments = Segments(disk, directory, segment_bytes, reserve_bytes, keeps_reserved=True)
        self.end = 0
        # Queue offset in the timer topic of the next record to be linked. It changes together with
        # `end` under the wheel's lock. Checkpoints and `pending` read both under that lock, because
        # the two must belong together. Statistics read it without the lock.
        self.linked_offset = 0

    def load(self, end: int) -> None:
        """Find the files of the log, which ends at `end`. Check with `is_whole` afterwards."""
        self.segments.load(is_derived=True)
        self.end = end
        self.segments.reserve_from(end)

    def is_whole(self, begin: int) -> bool:
        """Return whether every file from the one of `begin` to the end exists and is complete."""
        if self.segments.has_incompatible_files:
            return False
        first = begin // self.segments.segment_bytes
        last = (self.end - 1) // self.segments.segment_bytes
        return self.segments.numbers[: last + 1 - first] == list(range(first, last + 1))

    def units(self, pos: int, count: int) -> timer_unit.Units:
        """Read contiguous units.

        Raises:
            CorruptError: a unit is not valid.
        """
        data = self.segments.read(pos, count * UNIT_BYTES)
        is_sound = timer_unit.are_valid(data, pos)
        if not is_sound.all():
            at = pos + int(np.argmin(is_sound)) * UNIT_BYTES
            file = self.segments.path(at // self.segments.segment_bytes)
            raise CorruptError(
                "timer log: a unit",
                where=f"{file} offset {at}",
                wanted="52 bytes with a valid unit checksum",
                got=data[at - pos : at - pos + UNIT_BYTES].hex(),
            )
        return timer_unit.read(data)

    def check(self) -> None:
        """Check every unit.

        Raises:
            CorruptError: a unit is not valid.
        """
        for pos, count in pieces(self.segments, self.end):
            self.units(pos, count)

    def reserve(self, count: int) -> None:
        """Reserve disk space for `count` more units, but not past the current segment."""
        size = self.segments.segment_bytes
        segment_end = self.end - self.end % size + size
        self.segments.reserve(min(self.end + count * UNIT_BYTES + BLANK_BYTES, segment_end))

    def linked_through(self, queue_offset: int) -> None:
        """Note that the records of the timer topic up to this queue offset are linked."""
        self.linked_offset = queue_offset + 1

    def append(self, units: memoryview, end: int) -> None:
        """Write linked units. `end` follows them, or is the next segment's begin after a blank."""
        self.segments.write(self.end, units)
        self.end = end

    def cut(self, end: int) -> None:
        """Cut the log at `end` and fill the rest with zeros; durable on return."""
        self.segments.cut(end)
        self.end = end

    def remove_all(self) -> None:
        """Remove all files and begin again at 0."""
        self.segments.remove_all()
        self.end = 0

    def sync(self) -> None:
        """Sync the appended units."""
        self.segments.sync()
