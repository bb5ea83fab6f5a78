"""The files of one space: created, reserved, read, written, synced and cut.

A space is a sequence of bytes, such as the commit log or one queue. It is stored in segments: files
of equal size, each named by the offset of its first byte.

Thread safety: one writer and any number of readers. Any thread may sync.
Locking: `_sync_lock` during a sync; `_lock` protects the open files. Neither is held while a file
    is opened.
Invariants:
    1. A file's name is durable before its first byte is written.
    2. Files written since the last sync are in `_dirty`.
    3. With `keeps_reserved`, the files of reserved space stay open: a write there opens none, so it
       cannot fail for a lack of descriptors.
Raises: CorruptError on a name or length that does not belong in the directory. FullError if no
    space is left on the disk.
On-disk format: <directory>/<20 digits>; every file has the length of a segment, holes included.
"""

import re
from pathlib import Path

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import store_paths
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import CorruptError, FailedError, GoneError

_OPEN_MAX = 16
_PAGE_BYTES = 4096
_REWRITE_BYTES = 1 << 20
_NAME = re.compile(r"\d{20}")


class SegmentFiles(NotCopyable):
    """The files of one space. Offsets are bytes from the start of the space."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        reserve_bytes: int,
        *,
        keeps_reserved: bool = False,
    ) -> None:
        self._disk = disk
        self._keeps_reserved = keeps_reserved
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._reserve_bytes = max(4096, min(reserve_bytes, segment_bytes))
        self.numbers: list[int] = []  # of the files, ascending
        self.has_incompatible_files = False
        self._open: dict[int, File] = {}
        self._reserved: dict[int, File] = {}  # since the last sync, and the two last ones
        self._dirty: dict[int, File] = {}
        self._syncing: dict[int, File] = {}  # taken out of `_dirty`, and not durable yet
        self._reserved_end = 0
        self._lock = Lock()
        self._forgotten = 0  # how often all files were forgotten
        self._sync_lock = Lock()
        disk.add_cache(self)

    # --- names ---

    def load(self, *, needed: int = 0, is_derived: bool = False) -> None:
        """Read which files are there.

        An empty last file is a leftover of its creation: it is removed, unless the offset
        `needed`, up to which the space is known to exist, lies in it or after it. If the space
        `is_derived`, a file of another size sets `has_incompatible_files`, and the space must not
        be read. Otherwise such a file raises CorruptError.
        """
        found = []
        self.has_incompatible_files = False
        names = self._disk.list(self.directory)
        for name in names:
            path = self.directory / name
            if self._disk.is_directory(path):
                continue
            if not _NAME.fullmatch(name) or int(name) % self.segment_bytes:
                raise CorruptError(
                    "a file that does not belong here",
                    where=path,
                    wanted=f"20 digits, a multiple of {self.segment_bytes}",
                )
            size = self._disk.file_bytes(path)
            if size != self.segment_bytes:
                if name == names[-1] and size == 0 and int(name) >= needed:
                    self._disk.unlink(path)
                    continue
                if not is_derived or size is None:
                    raise CorruptError(
                        "a segment of another size",
                        where=path,
                        wanted=f"{self.segment_bytes} bytes",
                        got=size,
                    )
                self.has_incompatible_files = True
            found.append(int(name) // self.segment_bytes)
        self.numbers = found

    @property
    def begin(self) -> int:
        """First offset that a file has; 0 without files."""
        return self.numbers[0] * self.segment_bytes if self.numbers else 0

    @property
    def extent(self) -> int:
        """Offset after the last file."""
        return (self.numbers[-1] + 1) * self.segment_bytes if self.numbers else 0

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.directory / store_paths.segment_name(number * self.segment_bytes)

    def create(self, number: int) -> None:
        """Create a segment's file unless it exists; its name is durable on return."""
        if number in self.numbers:
            return
        self._disk.make_directory(self.directory)
        file = self._disk.open(self.path(number), create=True)
        file.resize(self.segment_bytes)
        file.sync()
        self._disk.sync_directory(self.directory)
        reach("segment_created")
        with self._lock:
            self.numbers = sorted([*self.numbers, number])

    def wrong_files(self) -> list[tuple[Path, int | None]]:
        """Return files that are missing (None) or have another size, with their sizes.

        Maps of the space must not be read if there are any. No file between the first and the last
        may be missing.
        """
        wrong: list[tuple[Path, int | None]] = []
        numbers = list(self.numbers)
        for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
            path = self.path(number)
            size = self._disk.file_bytes(path) if number in numbers else None
            if size != self.segment_bytes:
                wrong.append((path, size))
        return wrong

    # --- reserved space ---

    def reserve(self, offset: int) -> int:
        """Allocate disk space up to `offset` or more; return how far it is allocated.

        That is at most the end of the segment of `offset`. Files of other programs may be sparse,
        so reserving starts again after `load`.
        """
        if offset <= self._reserved_end:
            return self._reserved_end
        number = (offset - 1) // self.segment_bytes
        self.create(number)
        begin = max(self._reserved_end, number * self.segment_bytes)
        end = min(max(offset, begin + self._reserve_bytes), (number + 1) * self.segment_bytes)
        file = self._file(number)
        file.reserve(begin - number * self.segment_bytes, end - begin)
        if self._keeps_reserved:
            self._reserved[number] = file
        self._reserved_end = end
        return end

    def reserve_edges(self, offset: int) -> None:
        """Allocate the first page that has no block, in every segment from `offset` on.

        A search for the end of the space reads it through a map. On a full tmpfs a hole there would
        cause SIGBUS.
        """
        for number in self.numbers:
            begin = max(offset - number * self.segment_bytes, 0)
            if begin < self.segment_bytes:
                file = self._file(number)
                hole = file.first_hole(begin)
                if hole < self.segment_bytes:
                    file.reserve(hole, min(_PAGE_BYTES, self.segment_bytes - hole))

    def reserve_from(self, offset: int) -> None:
        """Set where reserving starts: the current end of the written bytes."""
        self._reserved_end = offset // 4096 * 4096

    # --- bytes ---

    def _file(self, number: int) -> File:
        file = self._open.get(number) or self._reserved.get(number)
        if file is None:
            forgotten = self._forgotten
            try:
                file = self._disk.open(self.path(number))
            except FailedError as error:
                if number not in self.numbers:
                    raise GoneError("it was removed", where=self.path(number)) from error
                raise
            with self._lock:
                if forgotten == self._forgotten:  # else another file may get its name
                    if len(self._open) >= _OPEN_MAX:
                        self._open.pop(next(iter(self._open)))
                    self._open[number] = file
        return file

    def release_descriptors(self) -> bool:
        """Close the open files, and sync them before; return whether there were any.

        With `keeps_reserved`, a file that has bytes to be synced stays open.
        """
        if not self._keeps_reserved:
            self.sync()
        with self._lock:
            idle = [number for number in self._open if number not in self._dirty]
            for number in idle:
                del self._open[number]
        return bool(idle)

    def _pieces(self, offset: int, size: int) -> list[tuple[int, int, int]]:
        """Return the segment, the offset in it and the size of each piece of a range."""
        pieces = []
        while size > 0:
            number, at = divmod(offset, self.segment_bytes)
            part = min(size, self.segment_bytes - at)
            pieces.append((number, at, part))
            offset += part
            size -= part
        return pieces

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes into one or more segments, whose files must exist."""
        view = memoryview(data)
        done = 0
        for number, at, part in self._pieces(offset, len(view)):
            file = self._file(number)
            file.write(view[done : done + part], at)
            # Only after the write: a concurrent sync may have run before it, and removed the file.
            self._dirty[number] = file
            done += part

    def start_writing(self, offset: int, size: int) -> None:
        """Start writing a range to the disk; durable only after `sync`."""
        for number, at, part in self._pieces(offset, size):
            self._file(number).start_writing(at, part)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes from one or more segments."""
        number, at = divmod(offset, self.segment_bytes)
        if 0 < size <= self.segment_bytes - at:
            return self._file(number).read(at, size)
        return b"".join(
            self._file(number).read(at, part) for number, at, part in self._pieces(offset, size)
        )

    def read_data(self, offset: int, size: int) -> tuple[int, bytes]:
        """Return the first bytes from `offset` on that are no hole, with their offset.

        At most `size` bytes, all of one segment; no bytes at the end of the extent.
        """
        while offset < self.extent:
            number, at = divmod(offset, self.segment_bytes)
            found = self._file(number).next_data(at)
            if found is not None:
                begin = offset - at + found
                return begin, self.read(begin, min(size, self.segment_bytes - found))
            offset += self.segment_bytes - at
        return offset, b""

    # --- durability ---

    def sync(self) -> None:
        """Make everything durable that was written before this call. From any thread."""
        with self._sync_lock:  # what another thread took out of `_dirty` is not durable yet
            for number in sorted({*self._dirty, *self._syncing}):
                file = self._dirty.get(number)  # None: retention may have removed it since
                if file is not None:
                    self._syncing[number] = file  # until it is synced: a signal handler may raise
                    self._dirty.pop(number, None)
                file = self._syncing.get(number)
                if file is not None:
                    file.sync()
                    if number in self.numbers:
                        file.check_in_place(self.segment_bytes)
                self._syncing.pop(number, None)
            for number in sorted(self._reserved)[:-2]:
                self._reserved.pop(number, None)

    def check_files_in_place(self) -> None:
        """Raise FailedError if an open file is no longer the one that has its name."""
        with self._lock:
            files = {
                n: file for n, file in (self._open | self._reserved).items() if n in self.numbers
            }
        if not files:
            return
        names = [file.path.name for file in files.values()]
        try:
            found = self._disk.identities(self.directory, names)
        except FailedError:  # the folder is gone
            found = [None] * len(names)
        for (number, file), identity in zip(files.items(), found, strict=True):
            # Retention may have removed it since.
            if identity != file.identity() and number in self.numbers:
                raise FailedError(
                    "the file was moved, or replaced by another, while it was open", where=file.path
                )

    def rewrite(self, begin: int, end: int) -> None:
        """Write the bytes of [begin, end) again; durable only after `sync`.

        After a failed sync the page cache can show bytes that the disk does not have. The next sync
        does not write them, because their pages count as clean.
        """
        for number, at, part in self._pieces(begin, end - begin):
            if number in self.numbers:
                offset = number * self.segment_bytes + at
                for done in range(0, part, _REWRITE_BYTES):
                    size = min(_REWRITE_BYTES, part - done)
                    self.write(offset + done, self.read(offset + done, size))

    def mark_dirty(self) -> None:
        """Make the next `sync` sync every file."""
        for number in self.numbers:
            self._dirty[number] = self._file(number)

    # --- removal ---

    def cut(self, offset: int) -> None:
        """End the space at an offset: zeros follow it, later files are removed; durable on return.

        If the space begins at this offset, its first file stays: it shows where the space begins.
        """
        number, at = divmod(offset, self.segment_bytes)
        is_only = number > 0 and self.numbers[:1] == [number]
        self._remove(
            [n for n in self.numbers if n > number or (n == number and at == 0 and not is_only)]
        )
        if number in self.numbers:
            file = self._file(number)
            file.zero(at, self.segment_bytes - at)
            self._dirty.pop(number, None)
            self._syncing.pop(number, None)
            file.sync()
        if self._disk.is_directory(self.directory):
            self._disk.sync_directory(self.directory)
        self.reserve_from(offset)

    def remove_all(self) -> None:
        """Remove every file; durable on return."""
        self._remove(self.numbers)
        self._reserved_end = 0
        self.has_incompatible_files = False

    def forget_all(self) -> None:
        """Close and forget every file; a read of a removed one then raises GoneError.

        Call it before and after the files are removed: in between a reader may open one.
        """
        with self._sync_lock, self._lock:
            numbers, self.numbers = {*self.numbers, *self._open}, []
            self._forgotten += 1
            self._reserved_end = 0
            for number in numbers:
                self._close_file(number)

    def _remove(self, numbers: list[int]) -> None:
        """Remove files, the last one first, each durably before the next.

        An interruption then leaves no gap, which would prevent every later opening.
        """
        for number in sorted(numbers, reverse=True):
            with self._lock:
                self._close_file(number)
            self._disk.remove(self.path(number))
            self.numbers = [n for n in self.numbers if n != number]

    def _close_file(self, number: int) -> None:
        """Close a file; the caller holds the lock."""
        for files in (self._open, self._reserved, self._dirty, self._syncing):
            files.pop(number, None)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for files in (self._open, self._reserved, self._dirty, self._syncing):
                files.clear()
