"""Timer log: appended units, chained backwards per slot.

Data:     native/format/timer_unit.h; segments in timerlog/.
Threads:  enqueue-put appends under the wheel's lock; dequeue-get reads below `end`; flush syncs.
Holds:    (1) a unit's previous position is below its own; (2) its space is reserved before a slot
          points at it.
Fails:    CorruptError on a unit that breaks its format; FullError when the disk is.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit
from timerstore._engine.format.timer_unit import BLANK_BYTES, UNIT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError

_PIECE_UNITS = 16_384


def pieces(segments: Segments, end: int) -> Iterator[tuple[int, int]]:
    """Give all units below `end` as positions and how many lie there side by side."""
    per_segment = timer_unit.units_per_segment(segments.segment_bytes)
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        count = min(per_segment, max(0, end - begin) // UNIT_BYTES)
        for at in range(0, count, _PIECE_UNITS):
            yield begin + at * UNIT_BYTES, min(_PIECE_UNITS, count - at)


class TimerLog(Owner):
    """The timer log of one store."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, reserve_bytes: int) -> None:
        self.segments = Segments(disk, directory, segment_bytes, reserve_bytes)
        self.end = 0
        # Queue offset in the timer topic of the next record to get a unit. Written by enqueue-put
        # with `end`, under the wheel's lock; checkpoints and `pending` read it under that lock,
        # because the two must belong together; who only measures reads it without.
        self.linked_offset = 0

    def load(self, end: int) -> None:
        """Look at the files; the log ends at `end`, where `is_whole` says so."""
        self.segments.load(is_derived=True)
        self.end = end
        self.segments.reserve_from(end)

    def is_whole(self, begin: int) -> bool:
        """Whether every file from the one with `begin` up to the end is there, and whole."""
        if self.segments.has_incompatible_files:
            return False
        first = begin // self.segments.segment_bytes
        last = (self.end - 1) // self.segments.segment_bytes
        return self.segments.numbers[: last + 1 - first] == list(range(first, last + 1))

    def units(self, pos: int, count: int) -> timer_unit.Units:
        """Read units that lie side by side; CorruptError where one is not valid."""
        data = self.segments.read(pos, count * UNIT_BYTES)
        is_sound = timer_unit.are_valid(data, pos)
        if not is_sound.all():
            at = pos + int(np.argmin(is_sound)) * UNIT_BYTES
            file = self.segments.path(at // self.segments.segment_bytes)
            raise CorruptError(
                "timer log: a unit",
                where=f"{file} offset {at}",
                wanted="52 bytes whose seal holds",
                got=data[at - pos : at - pos + UNIT_BYTES].hex(),
            )
        return timer_unit.read(data)

    def check(self) -> None:
        """Look at every unit; CorruptError where one is not valid."""
        for pos, count in pieces(self.segments, self.end):
            self.units(pos, count)

    def reserve(self, count: int) -> None:
        """Take the space of `count` more units, as far as the present segment goes."""
        size = self.segments.segment_bytes
        segment_end = self.end - self.end % size + size
        self.segments.reserve(min(self.end + count * UNIT_BYTES + BLANK_BYTES, segment_end))

    def linked_through(self, queue_offset: int) -> None:
        """Note that the record of the timer topic at this queue offset has its unit."""
        self.linked_offset = queue_offset + 1

    def append(self, units: memoryview, end: int) -> None:
        """Write what was linked; `end` is behind it, at the next segment after a blank."""
        self.segments.write(self.end, units)
        self.end = end

    def cut(self, end: int) -> None:
        """End the log at `end`, zeros behind it; durable."""
        self.segments.cut(end)
        self.end = end

    def remove_all(self) -> None:
        """Begin anew at 0."""
        self.segments.remove_all()
        self.end = 0

    def sync(self) -> None:
        """Make durable what was appended."""
        self.segments.sync()
