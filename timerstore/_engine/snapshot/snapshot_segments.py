"""`SnapshotSegments`: mapped segment files that another process writes, read up to a limit.

C functions that walk records for a point read need a `ts_view` of whole mapped segments. Columnar
scans use log_windows.py instead.

Thread safety: one thread at a time.
Invariants:
    1. Nothing outside [begin, end) is read.
    2. A map stays as long as its segment lies within that range. So a file that the owner unlinks
       can be read to its end.
Raises: GoneError if a file was removed. CorruptError if a file has another size.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from timerstore._engine.snapshot.log_walk import is_segment_name
from timerstore._engine.storage.disk import File
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, FailedError, GoneError


class SnapshotSegments(Segments):
    """The files of one space, up to a limit."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes, segment_bytes)
        self._begin = 0

    @property
    def begin(self) -> int:
        """The first offset that is read."""
        return self._begin

    def show(self, begin: int, end: int) -> None:
        """Read [begin, end) from now on, and close all other files. No view may be held."""
        size = self.segment_bytes
        self._begin = begin
        self.numbers = list(range(begin // size, -(-end // size))) if begin < end else []
        kept = set(self.numbers)
        with self._lock:
            for number in [one for one in self._maps if one not in kept]:
                self._unmap(number)
            for number in [one for one in self._open if one not in kept]:
                del self._open[number]

    def start_over(self) -> None:
        """Close all files and maps. No view may be held."""
        self.close()

    def _file(self, number: int) -> File:
        is_new = number not in self._open
        try:
            file = super()._file(number)
        except FailedError as error:
            if self._disk.exists(self.path(number)):
                raise
            raise GoneError(
                "a file was removed while it was read", where=self.path(number)
            ) from error
        if is_new and (size := file.size()) != self.segment_bytes:
            with self._lock:
                self._open.pop(number, None)
            raise CorruptError(
                "a segment of another size",
                where=self.path(number),
                wanted=f"{self.segment_bytes} bytes",
                got=size,
            )
        return file

    def sync_range(self, begin: int, end: int) -> None:
        """Make these bytes durable, with one sync for each file. A file that was removed needs
        none.
        """
        size = self.segment_bytes
        for number in range(begin // size, -(-end // size)):
            with suppress(GoneError):
                self._file(number).sync()


class SnapshotUnits(SnapshotSegments):
    """The files of a queue, followed by units in memory that its owner has not written."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes)
        self._tail = bytearray()
        self.tail_begin: int | None = None
        """The offset in bytes from which on units are in memory; None: all are in files."""

    def load(self, **_how: Any) -> None:
        """Find the files. A last file that is just being made is left out."""
        size, found = self.segment_bytes, []
        self.has_incompatible_files, self.tail_begin = False, None
        self._tail = bytearray()
        names = [name for name in self._disk.list(self.directory) if is_segment_name(name)]
        for name in names:
            bytes_there = self._disk.file_bytes(self.directory / name)
            if int(name) % size == 0 and bytes_there == size:
                found.append(int(name) // size)
            elif name != names[-1]:
                self.has_incompatible_files = True
        self.show(0, 0)
        self.numbers = found
        self._begin = found[0] * size if found else 0

    def go_on(self, offset: int, units: bytes | memoryview) -> None:
        """Put units into memory from an offset on, in place of those there."""
        if self.tail_begin is None:
            self.tail_begin = offset
        assert self.tail_begin <= offset <= self.tail_begin + len(self._tail), "a gap in a queue"
        self._tail[offset - self.tail_begin :] = units

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes from files and memory."""
        if self.tail_begin is None or offset + size <= self.tail_begin:
            return super().read(offset, size)
        head = b""
        if offset < self.tail_begin:
            head = super().read(offset, self.tail_begin - offset)
        at = max(0, offset - self.tail_begin)
        return head + bytes(self._tail[at : at + size - len(head)])
