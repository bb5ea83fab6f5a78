"""`Windows`: copies of parts of a log's files, one part at a time.

The point reader maps whole segments instead (snapshot_log.py). A Spark worker cannot: the
option spark.executor.pyspark.memory limits its address space.

Thread safety: one thread for each `Windows`.
Invariants:
    1. Bytes are copied. C finds the same bytes when it looks twice, and a file that another process
       cuts is an error instead of a signal.
    2. Nothing past `end` is read.
Raises: CorruptError if a segment is missing or short. ConfigError if there is no memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import filler_record
from timerstore._engine.format.store_paths import segment_name
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import ConfigError, CorruptError, FailedError

# --- log windows ---


WINDOW_BYTES = 8 << 20


class Windows(NotCopyable):
    """The bytes of one log below `end`, as a `ts_window` that moves."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        end: int,
        *,
        verify: bool = True,
        window_bytes: int | None = None,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.end = end
        self._window_bytes = window_bytes or WINDOW_BYTES
        self._disk = Disk()
        self._file: File | None = None
        self._number = -1
        self._buffer = bytearray(0)
        self._view: Any = None
        self.native: Any = ffi.new("ts_window *")
        self.native.segment_bytes = segment_bytes
        self.native.end = end
        self.native.verify = verify

    def path(self, offset: int) -> Path:
        """Return the file that holds an offset."""
        return self.directory / segment_name(offset - offset % self.segment_bytes)

    def load(self, offset: int, need: int = 0, *, only: bool = False) -> Any:
        """Load a window that begins at an offset. It has at least `need` bytes, or exactly so many
        with `only`.
        """
        left = min(self.segment_bytes - offset % self.segment_bytes, self.end - offset)
        size = min(need if only else max(need, self._window_bytes), left)
        self._grow(size)
        file = self._open(offset)
        view = memoryview(self._buffer)[:size]
        got = file.read_into(view, offset % self.segment_bytes)
        view.release()
        if got < size:
            raise CorruptError(
                "a segment is short",
                where=self.path(offset),
                wanted=f"{self.segment_bytes} bytes",
                got=offset % self.segment_bytes + got,
            )
        self.native.bytes = self._view
        self.native.offset = offset
        self.native.size = size
        return self.native

    def _open(self, offset: int) -> File:
        number = offset // self.segment_bytes
        if self._file is None or number != self._number:
            self._file = None  # close its descriptor before the next one is opened
            path = self.path(offset)
            if not self._disk.exists(path):
                raise CorruptError(
                    "a segment is missing: retention removed it, or it was lost", where=path
                )
            self._file = self._disk.open(path, read_only=True)
            self._number = number
        return self._file

    def _grow(self, size: int) -> None:
        if size <= len(self._buffer):
            return
        try:
            grown = bytearray(size)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for {size} bytes of {self.directory}: in Spark, "
                "spark.executor.pyspark.memory limits the address space of a Python worker; "
                "give it more"
            ) from error
        self._buffer = grown
        self._view = ffi.from_buffer("uint8_t[]", grown)

    def read(self, offset: int, size: int) -> memoryview:
        """Return bytes without a check. They are valid until the next call."""
        self.load(offset, size, only=True)
        return memoryview(self._buffer)[: int(self.native.size)]

    def step(self, call: Any, offset: int, what: str) -> int:
        """Run `call(window)` at an offset, with more bytes each time that C asks for them, and
        return its result.

        Raises:
            CorruptError: C found damage.
        """
        need, native = 0, self.native
        while True:
            if need or not native.offset <= offset < native.offset + native.size:
                self.load(offset, need)
            got = int(call(native))
            if got == lib.TS_CORRUPT:
                at, why = int(native.fault_offset), FAULTS.get(int(native.fault), "damaged")
                raise CorruptError(f"{what}: {why}", where=f"{self.path(at)} offset {at}")
            if got != lib.TS_NEED_SPACE:
                return got
            asked = int(native.need)
            if not asked and int(native.offset) == offset:
                raise FailedError(f"{what}: nothing can be read", where=self.path(offset))
            need = max(asked, 1)


# --- row types ---
# The numpy types of the rows that C fills (native/api).


RowArray = npt.NDArray[np.void]


def dtype_of(name: str) -> np.dtype[np.void]:
    """Return the numpy type of a C struct of whole numbers and of arrays of them."""
    fields = ffi.typeof(name).fields
    return np.dtype(
        {
            "names": [field_name for field_name, _ in fields],
            "formats": [_format_of(about.type) for _, about in fields],
            "offsets": [about.offset for _, about in fields],
            "itemsize": ffi.sizeof(name),
        }
    )


def _format_of(kind: Any) -> str:
    if kind.kind == "array":
        return f"({kind.length},)i{ffi.sizeof(kind.item)}"
    return f"i{ffi.sizeof(kind)}"


ROW = dtype_of("ts_table_row")
UNIT_ROW = dtype_of("ts_unit_row")
SLOT_ROW = dtype_of("ts_slot_row")


# --- log walk ---
# Walk a log in windows: where it ends, and whether a record begins at an offset.
#
# Invariants: an offset that is returned as the end of records was checked record by record.


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
