"""Consume queue: units of 20 bytes that point into the commit log.

Data:     native/format/queue_unit.h; segments in consumequeue/<topic>/<queue>/.
Threads:  dispatch appends; any read units below `count`; flush syncs.
Holds:    unit k stands at byte 20 k; `count` passes a unit when it is in its file.
Fails:    CorruptError on stray files.
"""

from collections.abc import Callable
from pathlib import Path

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments

UNIT_BYTES = 20
_BLANK_UNIT_SIZE = (0x7FFFFFFF).to_bytes(4, "big")
_RESERVE_BYTES = 1 << 18
_APPENDS_KEPT = 8
_BLOCK_UNITS = 1024  # read at a time where they are looked through


class ConsumeQueue(Owner):
    """One queue of one topic."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._segments = Segments(disk, directory, segment_bytes, _RESERVE_BYTES)
        self.count = 0  # queue offset behind the last unit
        self.min_offset = 0
        self.old_count = 0  # behind the last unit that was there at opening: see old_units.py
        # Of the last look: the log's end, the units below it, and whether the next was not.
        self._seen = 0, 0, False
        # Of the last appends, each: where its last record ends in the log, and the units up to it.
        self._appends: tuple[tuple[int, int], ...] = ()
        # By block of units: the latest store time of a message in it (read/time_seek.py).
        self.latest_store_ms: dict[int, int] = {}

    def load(self) -> None:
        """Look at the files; `recover` finds out how far they count, where they are whole."""
        self._segments.load(is_derived=True)

    @property
    def has_files(self) -> bool:
        """Whether there is any file."""
        return bool(self._segments.numbers)

    @property
    def has_incompatible_files(self) -> bool:
        """Whether a file has another length: none may be read then, `restart` makes them anew."""
        return self._segments.has_incompatible_files

    def is_whole(self, log_begin: int) -> bool:
        """Whether no file is missing that must be there: none between two, and none in front while
        the log has lost nothing there; nor has one another length.
        """
        numbers = self._segments.numbers
        if self._segments.has_incompatible_files:
            return False
        if not numbers:
            return True
        return numbers[-1] - numbers[0] + 1 == len(numbers) and not (numbers[0] and not log_begin)

    def recover(self, log_end: int, log_begin: int) -> None:
        """Count the units that point below log_end; what lies behind them is cut.

        Units are in order of the log, so those that count are a prefix; blanks at the front stand
        for messages that are gone.
        """
        begin = self._segments.begin // UNIT_BYTES
        self.count = self._bisect(begin, self._segments.extent // UNIT_BYTES, log_end)
        self.min_offset = self._first_at(begin, self.count, log_begin)
        self.old_count = self.count

    def cut(self) -> None:
        """Zero what lies behind `count`; durable on return."""
        if self._segments.numbers and self.count * UNIT_BYTES < self._segments.extent:
            self._segments.cut(self.count * UNIT_BYTES)

    def restart(self, offset: int) -> None:
        """Begin anew, at a queue offset: everything is dispatched again."""
        self._segments.remove_all()
        self.old_count = 0
        self._seen = 0, 0, False
        self._appends = ()
        self.latest_store_ms = {}
        self.count = self.min_offset = offset
        if offset:
            # What a broker writes before the first unit of a queue that does not start at 0.
            first = offset * UNIT_BYTES // self._segments.segment_bytes
            begin = first * self._segments.segment_bytes
            self._segments.reserve_from(begin)
            missing = offset - begin // UNIT_BYTES
            if missing:
                self._place(begin // UNIT_BYTES, (bytes(8) + _BLANK_UNIT_SIZE + bytes(8)) * missing)
            else:
                self._segments.create(first)  # its name says where the queue goes on
        else:
            self._segments.reserve_from(0)

    def reserve_from_end(self) -> None:
        """Begin reserving space at the present end."""
        self._segments.reserve_from(self.count * UNIT_BYTES)

    def append(self, offset: int, units: bytes | memoryview) -> None:
        """Add units, one at least, the first of them with queue offset `offset`: the present count,
        or below it where they are written once more.
        """
        end = offset + len(units) // UNIT_BYTES
        assert offset <= self.count, "a gap in a queue"
        assert offset < end, "no unit"
        self._place(offset, units)
        self.count = max(self.count, end)
        last = bytes(units[-UNIT_BYTES:])
        record_end = int.from_bytes(last[:8], "big") + int.from_bytes(last[8:12], "big")
        self._appends = (*self._appends[1 - _APPENDS_KEPT :], (record_end, end))

    def _place(self, offset: int, units: bytes | memoryview) -> None:
        at, end = offset * UNIT_BYTES, offset * UNIT_BYTES + len(units)
        size = self._segments.segment_bytes
        reached = at
        while reached < end:  # each segment that is touched, then its space
            reached = min(end, (reached // size + 1) * size)
            self._segments.reserve(reached)
        self._segments.write(at, units)

    def read(self, offset: int, count: int) -> bytes:
        """Give the units [offset, offset + count), fewer where there are fewer."""
        count = min(count, self.count - offset)
        return self._segments.read(offset * UNIT_BYTES, count * UNIT_BYTES) if count > 0 else b""

    def read_tail(self, offset: int, size: int) -> tuple[int, bytes]:
        """Give bytes that lie behind the last unit, from byte `offset` on: where they begin, and at
        most `size` of them. Nobody may append meanwhile (Dispatch.still).
        """
        return self._segments.read_data(max(offset, self.count * UNIT_BYTES), size)

    def after_gap(self, offset: int) -> int:
        """Give `offset`, or where its file is missing, the first offset of the next file."""
        numbers = self._segments.numbers
        if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
            return offset
        units = self._segments.segment_bytes // UNIT_BYTES
        number = offset // units
        return offset if number in numbers else (number + 1) * units

    def first_kept(self, offset: int, end: int, log_begin: int) -> int:
        """Give the first offset in [offset, end) whose message lies at log_begin or behind, else
        end.
        """
        if not log_begin:
            return offset
        unit = self._unit(offset)
        if int.from_bytes(unit[:8], "big") >= log_begin:
            return offset
        return self._first_at(offset, end, log_begin)

    def first_at(self, log_offset: int) -> int:
        """Give the queue offset of the first message at log_offset or behind; the end else."""
        return self._first_at(self.min_offset, self.count, log_offset)

    def drop_below(self, log_begin: int) -> bool:
        """Raise the minimum to the first message at log_begin or behind, and drop one file that has
        only units below it; whether there was one. The last file stays, as at a broker.
        """
        self.min_offset = self.first_at(log_begin)
        self._segments.retire(self.min_offset * UNIT_BYTES)
        return self._segments.unlink_retired()

    def last_record_end(self) -> int:
        """Where the record of the last unit ends, by what the files say; 0 without any, and where
        they say nothing.
        """
        if self._segments.has_incompatible_files:
            return 0
        count = self._bisect(
            self._segments.begin // UNIT_BYTES, self._segments.extent // UNIT_BYTES, 2**62
        )
        if count == self._segments.begin // UNIT_BYTES:
            return 0
        unit = self._unit(count - 1)
        if unit[8:12] == _BLANK_UNIT_SIZE:
            return 0
        return int.from_bytes(unit[:8], "big") + int.from_bytes(unit[8:12], "big")

    def visible(self, log_end: int) -> int:
        """Queue offset behind the last unit whose message lies below log_end. It is asked for with
        each pull, of a log end that grows: so the search begins at the last answer, is most often
        answered by where the last appends ended, and else its last steps are one read.
        """
        count, (seen_end, seen, is_final) = self.count, self._seen
        if is_final and seen_end == log_end:
            return max(self.min_offset, seen)
        low = max(self.min_offset, seen) if seen_end <= log_end else self.min_offset
        high = count
        for record_end, behind in self._appends:
            if record_end > log_end:
                high = min(high, behind)
                break
            low = max(low, behind)
        else:
            if low < count and _is_below(self._unit(count - 1), log_end):
                low = count
        if low < high:
            low, high = self._narrow(
                low, high, lambda unit: _is_below(unit, log_end), width=_BLOCK_UNITS
            )
            units = self._segments.read(low * UNIT_BYTES, (high - low) * UNIT_BYTES)
            low += int(lib.ts_units_below(units, high - low, log_end))
        self._seen = log_end, low, low < count
        return low

    def _unit(self, offset: int) -> bytes:
        return self._segments.read(offset * UNIT_BYTES, UNIT_BYTES)

    def _bisect(self, low: int, high: int, log_end: int) -> int:
        """The first unit in [low, high) that does not point below log_end, else high."""
        return self._search(low, high, lambda unit: _is_below(unit, log_end))

    def _first_at(self, low: int, high: int, log_begin: int) -> int:
        """The first unit in [low, high) that points to log_begin or behind it, else high."""
        return self._search(low, high, lambda unit: int.from_bytes(unit[:8], "big") < log_begin)

    def _search(self, low: int, high: int, is_before: Callable[[bytes], bool]) -> int:
        """The first unit that is not before what is looked for."""
        return self._narrow(low, high, is_before, width=0)[0]

    def _narrow(
        self, low: int, high: int, is_before: Callable[[bytes], bool], *, width: int
    ) -> tuple[int, int]:
        """`width` units at most, or as many as there are, among which that one is, or behind which;
        blanks at the front always are before it.
        """
        while high - low > width:
            middle = (low + high) // 2
            unit = self._unit(middle)
            is_blank = unit[8:12] == _BLANK_UNIT_SIZE and not any(unit[:8])
            if is_blank or is_before(unit):
                low = middle + 1
            else:
                high = middle
        return low, high

    def where(self, offset: int) -> str:
        """Say where a unit lies: file, and offset in it."""
        number, at = divmod(offset * UNIT_BYTES, self._segments.segment_bytes)
        return f"{self._segments.path(number)} offset {at}"

    def wrong_files(self) -> list[tuple[Path, int | None]]:
        """Give the files that are missing (None) or of another size."""
        return self._segments.wrong_files()

    def sync(self) -> None:
        """Make durable what was written."""
        self._segments.sync()

    def mark_dirty(self) -> None:
        """Trust nothing of the cache to be on the disk."""
        self._segments.mark_dirty()

    def close(self) -> None:
        """Let go of the files."""
        self._segments.close()


def _is_below(unit: bytes, log_end: int) -> bool:
    """Whether a unit points below: as ts_units_below, for one."""
    log_offset = int.from_bytes(unit[:8], "big", signed=True)
    size = int.from_bytes(unit[8:12], "big", signed=True)
    return size > 0 and 0 <= log_offset <= log_end - size
