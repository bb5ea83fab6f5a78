"""Segments of a space that somebody else writes: read as far as they are known to count.

Data:     as storage/segments.py; nothing is made, and nothing removed but from memory.
Threads:  one at a time.
Holds:    (1) nothing outside [begin, end) is read; (2) a map stays while its segment lies within,
          so that what its owner unlinks meanwhile is read to the end.
Fails:    GoneError where a file was removed, CorruptError where one has another size.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from timerstore._engine.storage.disk import File
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, FailedError, GoneError


class SnapshotSegments(Segments):
    """The files of one space, as far as it is read."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes, segment_bytes)
        self._begin = 0

    @property
    def begin(self) -> int:
        """First offset that counts."""
        return self._begin

    def show(self, begin: int, end: int) -> None:
        """Have [begin, end) count; what lies in no file of it is let go of. Nobody holds a view."""
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
        """Let go of everything, to be looked at anew. Nobody holds a view."""
        self.close()

    def _file(self, number: int) -> File:
        is_new = number not in self._open
        try:
            file = super()._file(number)
        except FailedError as error:
            if self._disk.exists(self.path(number)):
                raise
            raise GoneError("a file was removed meanwhile", where=self.path(number)) from error
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
        """Have the disk hold these bytes for certain: one sync a file, which changes none. A file
        that is gone needs none.
        """
        size = self.segment_bytes
        for number in range(begin // size, -(-end // size)):
            with suppress(GoneError):
                self._file(number).sync()


class SnapshotUnits(SnapshotSegments):
    """The files of a queue, and behind them units that its owner has not written, in memory."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, segment_bytes: int) -> None:
        super().__init__(disk, directory, segment_bytes)
        self._tail = bytearray()
        self.tail_begin: int | None = None
        """Where memory begins, bytes; None: all is in files."""

    def load(self, **_how: Any) -> None:
        """Look at the files that are there. One that is being made at the end is left out."""
        size, found = self.segment_bytes, []
        self.has_incompatible_files, self.tail_begin = False, None
        self._tail = bytearray()
        names = [name for name in self._disk.list(self.directory) if _is_number(name)]
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
        """Have units in memory from a place on, instead of what is there."""
        if self.tail_begin is None:
            self.tail_begin = offset
        assert self.tail_begin <= offset <= self.tail_begin + len(self._tail), "a gap in a queue"
        self._tail[offset - self.tail_begin :] = units

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes, from files and memory."""
        if self.tail_begin is None or offset + size <= self.tail_begin:
            return super().read(offset, size)
        head = b""
        if offset < self.tail_begin:
            head = super().read(offset, self.tail_begin - offset)
        at = max(0, offset - self.tail_begin)
        return head + bytes(self._tail[at : at + size - len(head)])


def _is_number(name: str) -> bool:
    return len(name) == 20 and name.isdecimal()
