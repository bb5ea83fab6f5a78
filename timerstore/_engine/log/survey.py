"""Read every intact record of a commit log, also past damage. Nothing is changed.

At damaged bytes, reading continues at the next place that certainly holds a record: the magic
number, PHYSICALOFFSET equal to the place, lengths that add up, and the CRC must all fit. A blank
that ends exactly at the end of its segment counts too.

    0        300      640        1100               8192
    | record | record | ######## | record | zeros ...
                      damaged [640, 1100), then records again; the zeros after the last are the end

Known limitation: if a message is damaged and its body holds a whole record that was made for
exactly that place in the log, that record is returned.

Thread safety: not for concurrent use. Records that a live writer appends concurrently may be
    missing.
Invariants:
    1. Pieces are in the order of the log, and every byte between the begin of the first file and
       the end of the last is in one piece.
"""

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.store_paths import segment_name
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import FailedError

_ZEROS = bytes(1 << 20)
_BATCH = 16_384
_MAGICS = tuple(m.to_bytes(4, "big") for m in (0xDAA320A7, 0xDAA320AB))
_BLANK_MAGIC = (0xCBD43194).to_bytes(4, "big")
_SEARCH_BYTES_MIN = 4096  # a search doubles the piece that it copies, from this size
_SEARCH_BYTES_MAX = 1 << 20
_POSITION_AT = 28  # of PHYSICALOFFSET in a record; format/record.h


class SurveyedRecords(NamedTuple):
    """A readable piece of the log: adjacent records, and the blank after them."""

    begin: int
    end: int
    rows: Scan
    data: Any
    """The bytes of the whole segment. Valid until the next piece is read."""


class Gap(NamedTuple):
    """A piece of the log without a readable record."""

    begin: int
    end: int
    why: str
    is_zero: bool


class Files(NamedTuple):
    """The files of a log."""

    directory: Path
    segment_bytes: int
    sizes: dict[int, int]
    """File size by segment number."""
    strays: tuple[Path, ...]
    """Files that are not segments of this length."""
    staged: tuple[tuple[int, bytes], ...] = ()
    """Log offset and bytes that a killed process had not written out. They are read as written."""

    @property
    def begin(self) -> int:
        """First log offset of the first file."""
        return min(self.sizes, default=0) * self.segment_bytes

    @property
    def end(self) -> int:
        """Log offset of the end of the last file."""
        return (max(self.sizes) + 1) * self.segment_bytes if self.sizes else 0

    def read(self, disk: Disk, offset: int, size: int) -> bytearray:
        """Read bytes of the files, with zeros where a file is missing or too short."""
        data, done = bytearray(size), 0
        while done < size:
            number, at = divmod(offset + done, self.segment_bytes)
            part = min(size - done, self.segment_bytes - at)
            if number in self.sizes:
                file = disk.open(self.path(offset + done), read_only=True)
                file.read_into(memoryview(data)[done : done + part], at)
            done += part
        return data

    def overlay_staged(self, begin: int, data: Any) -> int:
        """Copy staged bytes into `data`, which begins at log offset `begin`.

        Returns the end of the last copied byte in `data`, 0 if none was copied.
        """
        last = 0
        for base, staged in self.staged:
            first, end = max(base, begin), min(base + len(staged), begin + len(data))
            if first < end:
                data[first - begin : end - begin] = staged[first - base : end - base]
                last = max(last, end - begin)
        return last

    def path(self, offset: int) -> Path:
        """Return the path of the segment that contains a log offset."""
        return self.directory / segment_name(offset - offset % self.segment_bytes)

    def place(self, begin: int, end: int) -> str:
        """Describe the place of bytes within one segment, for an error."""
        if not self.segment_bytes:  # unknown: there is no file
            return f"{self.directory} log offsets [{begin}, {end})"
        at = begin % self.segment_bytes
        return f"{self.path(begin)} bytes [{at}, {at + end - begin})"


def list_files(disk: Disk, directory: Path) -> Files:
    """List the segments, and find the length that they should have: that of most of them."""
    found: dict[int, int] = {}
    strays = []
    for name in disk.list(directory):
        path = directory / name
        size = disk.file_bytes(path)
        if size is None or len(name) != 20 or not name.isdecimal():
            if not disk.is_directory(path):
                strays.append(path)
        else:
            found[int(name)] = size
    counted = Counter(size for size in found.values() if size)
    fitting = {n: c for n, c in counted.items() if not any(name % n for name in found)}
    step = gcd(*found)  # all names are multiples of it
    likely = fitting or ({step: 1} if step else counted)
    segment_bytes = max(likely, key=lambda n: (likely[n], n), default=0)
    whole = {at: size for at, size in found.items() if segment_bytes and at % segment_bytes == 0}
    strays += [directory / segment_name(at) for at in found if at not in whole and found[at]]
    sizes = {at // segment_bytes: size for at, size in whole.items()}
    if sizes and sizes[max(sizes)] == 0:  # its creation was interrupted
        del sizes[max(sizes)]
    return Files(directory, segment_bytes, sizes, tuple(strays))


def survey(disk: Disk, files: Files, precision_ms: int) -> Iterator[SurveyedRecords | Gap]:
    """Read the whole log in order. A file that is missing between two others is a gap."""
    size = files.segment_bytes
    for number in range(min(files.sizes, default=0), max(files.sizes, default=-1) + 1):
        begin = number * size
        segment = None
        if number in files.sizes:
            try:
                segment = _Segment(disk, files, number, precision_ms)
            except FailedError:
                if disk.exists(files.path(begin)):  # else the owner removed it since
                    raise
        if segment is None:
            yield Gap(begin, begin + size, "the file is missing", is_zero=False)
        else:
            yield from segment.pieces()


def next_record(disk: Disk, directory: Path, offset: int, precision_ms: int) -> int | None:
    """Return the log offset of the first readable record or blank after `offset`, or None.

    Holes of the files are skipped, so unwritten space costs little.
    """
    files = list_files(disk, directory)
    size = files.segment_bytes
    for number in sorted(files.sizes):
        begin, end = max(number * size, offset + 1), (number + 1) * size
        if begin < end:
            found = _Segment(disk, files, number, precision_ms).next_whole(begin)
            if found < end:
                return found
    return None


class _Segment(NotCopyable):
    """The bytes of one segment, with zeros if the file is too short."""

    def __init__(self, disk: Disk, files: Files, number: int, precision_ms: int) -> None:
        self._begin = number * files.segment_bytes
        self._size = files.segment_bytes
        self._precision_ms = precision_ms
        file = disk.open(files.path(self._begin), read_only=True)
        self._there = min(files.sizes[number], self._size)
        data_end = _data_end(file, self._there)
        if self._there == self._size:
            map_ = file.map_private if files.staged else file.map_read
            self._data: Any = map_(self._size)
        else:
            self._data = mmap.mmap(-1, self._size)  # missing bytes take no memory
            file.read_into(memoryview(self._data)[: self._there], 0)
        self._data_end = max(data_end, files.overlay_staged(self._begin, self._data))
        self._view = ffi.from_buffer("uint8_t[]", self._data)
        self._window = ffi.new(
            "ts_window *",
            {
                "bytes": self._view,
                "size": self._size,
                "offset": self._begin,
                "end": self._begin + self._size,
                "segment_bytes": self._size,
                "verify": 1,
            },
        )

    def pieces(self) -> Iterator[SurveyedRecords | Gap]:
        """Yield the pieces of the segment."""
        offset, end = self._begin, self._begin + self._size
        while offset < end:
            following, rows = self._records(offset)
            if following > offset:
                yield SurveyedRecords(offset, following, rows, self._data)
                offset = following
            elif not len(rows) and offset < end:
                following = self.next_whole(offset + 1)
                yield Gap(offset, following, self._why(offset), self._is_zero(offset, following))
                offset = following
        ffi.release(self._view)

    def _why(self, offset: int) -> str:
        if offset - self._begin >= self._there:
            return f"the file ends after {self._there} bytes"
        return FAULTS.get(int(self._window.fault), "no record")

    def _records(self, offset: int, capacity: int = _BATCH) -> tuple[int, Scan]:
        rows = np.empty(capacity, SCAN_DTYPE)
        following = ffi.new("int64_t *")
        self._window.fault = 0
        count = lib.ts_window_scan(
            self._window,
            self._precision_ms,
            offset,
            following,
            capacity,
            ffi.from_buffer("ts_scanned[]", rows),
        )
        return int(following[0]), rows[: max(0, count)]

    def next_whole(self, offset: int) -> int:
        """Return the log offset of the first certain record or blank, else the segment's end."""
        if offset - self._begin >= self._data_end:
            return self._begin + self._size
        fault = int(self._window.fault)
        found = [self._next(offset, magic, self._is_record) for magic in _MAGICS]
        found.append(self._next(offset, _BLANK_MAGIC, self._is_blank))
        self._window.fault = fault
        return min(found)

    def _next(self, offset: int, magic: bytes, is_whole: Callable[[int], bool]) -> int:
        at = self._find(magic, offset - self._begin + 4)
        while at >= 0:
            if is_whole(at - 4):
                return self._begin + at - 4
            at = self._find(magic, at + 1)
        return self._begin + self._size

    def _is_record(self, at: int) -> bool:
        begin = self._begin + at
        position = bytes(self._data[at + _POSITION_AT : at + 8 + _POSITION_AT])
        return position == begin.to_bytes(8, "big") and len(self._records(begin, 1)[1]) == 1

    def _is_blank(self, at: int) -> bool:
        return bytes(self._data[at : at + 4]) == (self._size - at).to_bytes(4, "big")

    def _find(self, pattern: bytes, start: int) -> int:
        """Like `bytes.find`, but on copies of pieces.

        Before Python 3.11.5, `mmap.find` reads one byte past the map, which may not be mapped.
        """
        size = _SEARCH_BYTES_MIN
        while start + len(pattern) <= self._data_end:
            end = min(start + size, self._data_end)
            at: int = self._data[start:end].find(pattern)
            if at >= 0:
                return start + at
            start = end - len(pattern) + 1
            size = min(2 * size, _SEARCH_BYTES_MAX)
        return -1

    def _is_zero(self, begin: int, end: int) -> bool:
        last = min(end - self._begin, self._data_end)
        for at in range(begin - self._begin, last, len(_ZEROS)):
            piece = self._data[at : min(at + len(_ZEROS), last)]
            if piece != _ZEROS[: len(piece)]:
                return False
        return self._there >= end - self._begin


def _data_end(file: File, size: int) -> int:
    """Return the end of the data before the file's last hole, so that holes are not read."""
    end = 0
    while (begin := file.next_data(end)) is not None and begin < size:
        end = min(file.first_hole(begin), size)
        if end <= begin:
            return size
    return end
