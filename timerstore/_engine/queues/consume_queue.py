"""A consume queue: units of 20 bytes that point into the commit log.

Thread safety: the dispatch thread appends, and flush syncs. Any thread may read units below
    `count`.
Invariants:
    1. The unit of queue offset k is at byte 20 k.
    2. `count` passes a unit only when the unit is in its file.
Raises: CorruptError on stray files.
On-disk format: native/format/queue_unit.h, in the segments of consumequeue/<topic>/<queue>/.
"""

from collections.abc import Callable
from pathlib import Path

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments

UNIT_BYTES = 20
_BLANK_UNIT_SIZE = (0x7FFFFFFF).to_bytes(4, "big")
_RESERVE_BYTES = 1 << 18
_APPENDS_KEPT = 8
_BLOCK_UNITS = 1024  # a search that has narrowed to so many units reads them at once


class ConsumeQueue(NotCopyable):
    """One queue of one topic.

    A *blank* unit fills the begin of a file whose first messages are gone.
    """

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._segments = Segments(disk, directory, segment_bytes, _RESERVE_BYTES)
        self.count = 0  # queue offset of the next unit
        self.min_offset = 0
        self._forget_units()

    def load(self) -> None:
        """List the files. `recover` then finds the end of the valid units."""
        self._segments.load(is_derived=True)

    @property
    def has_incompatible_files(self) -> bool:
        """Whether a file has another length. Then no file may be read; `restart` replaces them."""
        return self._segments.has_incompatible_files

    def is_whole(self, log_begin: int) -> bool:
        """Return whether all files are present and have the right length.

        Files may be missing at the front only if the log has lost records there.
        """
        numbers = self._segments.numbers
        if self._segments.has_incompatible_files:
            return False
        if not numbers:
            return True
        return numbers[-1] - numbers[0] + 1 == len(numbers) and not (numbers[0] and not log_begin)

    def recover(self, log_end: int, log_begin: int) -> None:
        """Set `count` and `min_offset` from the units that point into [log_begin, log_end).

        Units are in the order of the log, so the units below log_end are a prefix. The caller cuts
        the others off.
        """
        begin = self._segments.begin // UNIT_BYTES
        self.count = self._bisect(begin, self._segments.extent // UNIT_BYTES, log_end)
        self.min_offset = self._first_at(begin, self.count, log_begin)
        self.old_count = self.count

    def cut(self) -> None:
        """Zero the files after the last unit. Durable on return."""
        if self._segments.numbers and self.count * UNIT_BYTES < self._segments.extent:
            self._segments.cut(self.count * UNIT_BYTES)

    def restart(self, offset: int) -> None:
        """Remove all units and continue at a queue offset. All records are dispatched again."""
        self._segments.remove_all()
        self._forget_units()
        self.count = self.min_offset = offset
        if offset:
            # A broker writes blanks before the first unit of a queue that does not start at 0.
            first = offset * UNIT_BYTES // self._segments.segment_bytes
            begin = first * self._segments.segment_bytes
            self._segments.reserve_from(begin)
            missing = offset - begin // UNIT_BYTES
            if missing:
                self._place(begin // UNIT_BYTES, (bytes(8) + _BLANK_UNIT_SIZE + bytes(8)) * missing)
            else:
                self._segments.create(first)  # the file name holds the queue offset
        else:
            self._segments.reserve_from(0)

    def empty(self) -> None:
        """Forget all units, while other threads read them; the caller removes the files."""
        self.count = self.min_offset = 0
        self._segments.forget_all()
        self._forget_units()

    def _forget_units(self) -> None:
        self.old_count = 0  # the count when the store was opened; see routes.py
        # The last result of `visible`: log end, queue offset, and whether a unit past it existed.
        self._seen = 0, 0, False
        # For each of the last appends: log offset of the end of its last record, and the count.
        self._appends: tuple[tuple[int, int], ...] = ()
        # By block of units: the latest store time of a message in it (read/queue_reader.py).
        self.latest_store_ms: dict[int, int] = {}

    def reserve_from_end(self) -> None:
        """Reserve space for new units from the present end."""
        self._segments.reserve_from(self.count * UNIT_BYTES)

    def append(self, offset: int, units: bytes | memoryview) -> None:
        """Append one or more units, the first at queue offset `offset`.

        `offset` is the present count, or lower if units are written again.
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
        while reached < end:  # segment by segment
            reached = min(end, (reached // size + 1) * size)
            self._segments.reserve(reached)
        self._segments.write(at, units)

    def read(self, offset: int, count: int) -> bytes:
        """Return the units [offset, offset + count), fewer at the end of the queue."""
        count = min(count, self.count - offset)
        return self._segments.read(offset * UNIT_BYTES, count * UNIT_BYTES) if count > 0 else b""

    def read_tail(self, offset: int, size: int) -> tuple[int, bytes]:
        """Read bytes at or after byte `offset` that lie past the last unit.

        Returns their byte offset and at most `size` bytes. The caller must exclude appends
        (`Dispatch.still`).
        """
        return self._segments.read_data(max(offset, self.count * UNIT_BYTES), size)

    def after_gap(self, offset: int) -> int:
        """Return `offset`, or the first queue offset of the next file if its file is missing."""
        numbers = self._segments.numbers
        if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
            return offset
        units = self._segments.segment_bytes // UNIT_BYTES
        number = offset // units
        return offset if number in numbers else (number + 1) * units

    def first_kept(self, offset: int, end: int, log_begin: int) -> int:
        """Return the first queue offset in [offset, end) of a message at or after log_begin.

        Returns `end` without such a message.
        """
        if not log_begin:
            return offset
        unit = self._unit(offset)
        if int.from_bytes(unit[:8], "big") >= log_begin:
            return offset
        return self._first_at(offset, end, log_begin)

    def first_at(self, log_offset: int) -> int:
        """Return the queue offset of the first message at or after log_offset, else `count`."""
        return self._first_at(self.min_offset, self.count, log_offset)

    def drop_below(self, log_begin: int) -> bool:
        """Raise `min_offset` to the first message at or after log_begin, and remove one old file.

        A file is old if all its units are below `min_offset`. The last file stays, as in RocketMQ.
        Returns whether a file was removed.
        """
        self.min_offset = self.first_at(log_begin)
        self._segments.retire(self.min_offset * UNIT_BYTES)
        return self._segments.unlink_retired()

    def last_record_end(self) -> int:
        """Return the log offset of the end of the last unit's record, as read from the files.

        Returns 0 if there is no unit or the files cannot be read.
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
        """Return the queue offset after the last unit whose message lies below log_end.

        Every pull calls this with a log end that grows. So the search begins at the last result,
        and mostly the ends of the last appends decide it. Otherwise its last steps are one read.
        """
        count, (seen_end, seen, is_final) = self.count, self._seen
        seen = min(seen, count)  # a thread may have written it after `empty`
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
        """Return the first unit in [low, high) that does not point below log_end, else high."""
        return self._narrow(low, high, lambda unit: _is_below(unit, log_end))[0]

    def _first_at(self, low: int, high: int, log_begin: int) -> int:
        """Return the first unit in [low, high) that points to log_begin or past it, else high."""
        return self._narrow(low, high, lambda unit: int.from_bytes(unit[:8], "big") < log_begin)[0]

    def _narrow(
        self, low: int, high: int, is_before: Callable[[bytes], bool], *, width: int = 0
    ) -> tuple[int, int]:
        """Narrow [low, high) to at most `width` units, and find the first that is not before.

        That unit is in the returned range, or at its end. Blanks at the front count as before.
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
        """Describe the place of a unit, for an error: its file, and the byte offset in it."""
        number, at = divmod(offset * UNIT_BYTES, self._segments.segment_bytes)
        return f"{self._segments.path(number)} offset {at}"

    def wrong_files(self) -> list[tuple[Path, int | None]]:
        """Return the files that are missing (size None) or have another size."""
        return self._segments.wrong_files()

    def sync(self) -> None:
        """Make all written units durable."""
        self._segments.sync()

    def mark_dirty(self) -> None:
        """Have the next sync cover all files: the page cache may hold bytes that never synced."""
        self._segments.mark_dirty()

    def close(self) -> None:
        """Close the files."""
        self._segments.close()


def _is_below(unit: bytes, log_end: int) -> bool:
    """Return whether a unit's record lies below log_end; like ts_units_below for one unit."""
    log_offset = int.from_bytes(unit[:8], "big", signed=True)
    size = int.from_bytes(unit[8:12], "big", signed=True)
    return size > 0 and 0 <= log_offset <= log_end - size
