"""Walking a log: where it ends, where records begin, how many a part has.

Holds:    what is answered is a record's edge, for certain: each was read and checked there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import filler_record, queue_unit
from timerstore._engine.format.store_paths import Tree, queue_number, segment_name
from timerstore._engine.storage.disk import Disk
from timerstore._engine.tables.windows import Windows
from timerstore.errors import CorruptError

_COUNT_MAX = 2**62
_QUEUES_LOOKED_AT = 8
_FILLER_SIZE = 0x7FFFFFFF  # of units that a broker puts where a queue does not begin at 0


def segments_of(directory: Path, segment_bytes: int) -> list[int]:
    """Give the first offsets of a log's files, ascending; names that are none are left out."""
    names = Disk().list(directory)
    offsets = (int(name) for name in names if len(name) == 20 and name.isdecimal())
    return [offset for offset in offsets if offset % segment_bytes == 0]


def records_end(windows: Windows, begin: int) -> int:
    """Where the log that begins a record at `begin` ends: at the first that is none."""
    return skip_records(windows, begin, _COUNT_MAX, stops_at_damage=True)[1]


def units_end(windows: Windows, begin: int) -> int:
    """Where a timer log ends that has a unit at `begin`."""
    following = ffi.new("int64_t *", begin)
    rows = ffi.new("ts_unit_row[]", 4096)

    def scan(window: Any) -> int:
        return int(lib.ts_units_scan(window, following[0], following, 4096, rows))

    while following[0] < windows.end:
        try:
            windows.step(scan, int(following[0]), "timer log")
        except CorruptError:
            break
    return min(int(following[0]), windows.end)


def skip_records(
    windows: Windows, begin: int, limit: int, *, stops_at_damage: bool = False
) -> tuple[int, int]:
    """Go over at most `limit` records: (how many, where the next begins)."""
    following = ffi.new("int64_t *", begin)
    left = limit

    def scan(window: Any) -> int:
        return int(lib.ts_window_count(window, following[0], following, left))

    while following[0] < windows.end and left:
        try:
            left -= windows.step(scan, int(following[0]), "commit log")
        except CorruptError:
            if not stops_at_damage:
                raise
            break
    return limit - left, min(int(following[0]), windows.end)


def is_record(windows: Windows, offset: int) -> bool:
    """Whether a record begins there."""
    if not 0 <= offset < windows.end:
        return False
    following = ffi.new("int64_t *", offset)

    def scan(window: Any) -> int:
        return int(lib.ts_window_count(window, offset, following, 1))

    try:
        windows.load(offset, _HEAD_BYTES, only=True)
        return windows.step(scan, offset, "record") == 1
    except CorruptError:
        return False


def goes_on(windows: Windows, offset: int) -> bool:
    """Whether a record begins there, or a blank that ends the segment, as the next record did not
    fit into it.
    """
    return is_record(windows, offset) or _is_blank(windows, offset)


def _is_blank(windows: Windows, offset: int) -> bool:
    if not 0 <= offset < windows.end:
        return False
    left = -offset % windows.segment_bytes or windows.segment_bytes
    try:
        return filler_record.is_blank(bytes(windows.read(offset, _BLANK_BYTES)), left)
    except CorruptError:
        return False


_HEAD_BYTES = 1024
_BLANK_BYTES = 8


class QueueUnits(Owner):
    """The units of one consume queue, by number; read where they are asked for."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._disk = Disk()
        self._begins = segments_of(directory, segment_bytes)
        self.begin = self._begins[0] // queue_unit.UNIT_BYTES if self._begins else 0
        stop = self._begins[-1] + segment_bytes if self._begins else 0
        self.end = self._find_end(stop // queue_unit.UNIT_BYTES)

    @property
    def bytes(self) -> int:
        """How long its files are."""
        return len(self._begins) * self._segment_bytes

    def at(self, number: int) -> tuple[int, int]:
        """Give a unit's log offset and size; (0, 0) where there is none."""
        begin = number * queue_unit.UNIT_BYTES
        in_file = begin % self._segment_bytes
        path = self._directory / segment_name(begin - in_file)
        if not self._disk.exists(path):
            return 0, 0
        buffer = bytearray(queue_unit.UNIT_BYTES)
        got = self._disk.open(path, read_only=True).read_into(memoryview(buffer), in_file)
        if got < len(buffer):
            return 0, 0
        [unit] = queue_unit.read(bytes(buffer))
        return int(unit["log_offset"]), int(unit["size"])

    def _find_end(self, stop: int) -> int:
        low, high = self.begin, stop
        while low < high:  # units lie side by side, and behind them zeros
            middle = (low + high) // 2
            if self.at(middle)[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def first_from(self, log_offset: int) -> int | None:
        """Give the first log offset of a unit that is not below this one."""
        number = self._search(log_offset)
        return self.at(number)[0] if number < self.end else None

    def _search(self, log_offset: int) -> int:
        """Give the number of the first unit that points there or behind."""
        low, high = self.begin, self.end
        while low < high:
            middle = (low + high) // 2
            at, size = self.at(middle)
            if size == _FILLER_SIZE or at < log_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def range_within(self, begin: int, end: int) -> tuple[int, int]:
        """Give the log offsets that units between two offsets span; an empty range without any."""
        low = self._search(begin)
        high = self._search(end)
        if low >= high:
            return end, end
        last, size = self.at(high - 1)
        return self.at(low)[0], min(end, last + size)


def queues_of(tree: Tree) -> Iterator[tuple[str, int, Path]]:
    """Give (topic, queue, folder) of each consume queue that has files."""
    disk = Disk()
    for topic in disk.list(tree.queues):
        folder = tree.queues / topic
        for name in disk.list(folder) if disk.is_directory(folder) else ():
            number = queue_number(name)
            if number is not None and disk.is_directory(folder / name):
                yield topic, number, folder / name


class Edges:
    """Where records begin in one commit log, found by its queues and its segments' starts."""

    def __init__(self, tree: Tree, queue_segment_bytes: int, windows: Windows) -> None:
        self._windows = windows
        queues = (QueueUnits(folder, queue_segment_bytes) for _, _, folder in queues_of(tree))
        longest = sorted(queues, key=lambda one: one.end - one.begin, reverse=True)
        self._queues = longest[:_QUEUES_LOOKED_AT]

    def first_from(self, offset: int, segment_bytes: int) -> int:
        """Give the first known edge that is not below an offset; the log's end where none is."""
        end = self._windows.end
        following = offset + -offset % segment_bytes
        found = [following] if following < end else []
        for queue in self._queues:
            at = queue.first_from(offset)
            if at is not None and offset <= at < end and is_record(self._windows, at):
                found.append(at)
        return min(found, default=end)
