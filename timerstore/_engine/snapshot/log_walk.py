"""Walk a log in windows: where it ends, and whether a record begins at an offset.

Invariants: an offset that is returned as the end of records was checked record by record.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import filler_record
from timerstore._engine.snapshot.log_windows import Windows
from timerstore._engine.snapshot.row_types import UNIT_ROW, RowArray
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError

_COUNT_MAX = 2**62
_HEAD_BYTES = 1024
_BLANK_BYTES = 8
_UNIT_ROWS = 32_768


def is_segment_name(name: str) -> bool:
    """Return whether a file has the name of a segment: 20 digits."""
    return len(name) == 20 and name.isdecimal()


def segments_of(directory: Path, segment_bytes: int) -> list[int]:
    """Return the first offsets of a log's files, ascending. Other files are left out."""
    offsets = (int(name) for name in Disk().list(directory) if is_segment_name(name))
    return [offset for offset in offsets if offset % segment_bytes == 0]


def records_end(windows: Windows, begin: int) -> int:
    """Return where the log ends that has a record at `begin`: at the first bytes that are not a
    record.
    """
    return skip_records(windows, begin, _COUNT_MAX, stops_at_damage=True)[1]


def units_end(windows: Windows, begin: int) -> int:
    """Return where a timer log ends that has a unit at `begin`."""
    end = begin
    for _, end in whole_units(windows, begin):  # noqa: B007 - the last one counts
        pass
    return min(end, windows.end)


def whole_units(windows: Windows, begin: int) -> Iterator[tuple[RowArray, int]]:
    """Read timer units up to the first bytes that are not one: (units, the position after them)."""
    following = ffi.new("int64_t *", begin)
    while following[0] < windows.end:
        rows = np.empty(_UNIT_ROWS, UNIT_ROW)

        def scan(window: Any, rows: RowArray = rows) -> int:
            native = ffi.from_buffer("ts_unit_row[]", rows)
            return int(lib.ts_units_scan(window, following[0], following, len(rows), native))

        try:
            count = windows.step(scan, int(following[0]), "timer log")
        except CorruptError:
            return
        yield rows[:count], int(following[0])


def skip_records(
    windows: Windows, begin: int, limit: int, *, stops_at_damage: bool = False
) -> tuple[int, int]:
    """Read past at most `limit` records: (how many, where the next one begins)."""
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
    """Return whether a record begins at an offset."""
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
    """Return whether a record begins at an offset, or the blank that ends a segment whose rest was
    too small for the next record.
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
