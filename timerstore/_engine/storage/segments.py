"""Segments: one append-only space in files of one size, named by their first offset.

Data:     <directory>/<20 digits>; every file is as long as a segment, holes included.
Threads:  one writer; any number of readers, who hold a view while C walks the maps.
Holds:    (1) a file's name is durable before its first byte is written; (2) a view's maps stay
          until it is let go; (3) what is written since the last sync is in `_dirty`.
Fails:    CorruptError on names and lengths that do not belong there, FullError on a full disk.
"""

import re
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib, raise_fault, raise_status
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import store_paths
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.epochs import Epochs
from timerstore._engine.storage.guarded_map import CutWatch
from timerstore.errors import CorruptError, FailedError, GoneError

_MAPS_MAX = 512
_OPEN_MAX = 16
_PAGE_BYTES = 4096
_REWRITE_BYTES = 1 << 20
_NAME = re.compile(r"\d{20}")


class _Map(NamedTuple):
    memory: mmap
    view: Any


class View(Owner):
    """A held view. A class of its own, since a generator costs a microsecond more each time."""

    __slots__ = ("_segments", "end", "epoch")

    def __init__(self, segments: "Segments", end: int) -> None:
        self._segments = segments
        self.end = end
        self.epoch: int | None = None  # while it is held

    def __enter__(self) -> Any:
        return self._segments.hold(self)

    def __exit__(self, *_error: object) -> None:
        self._segments.let_go(self)

    def __del__(self) -> None:
        # An error from outside, as Ctrl-C or a time limit's, came before `with` knew of it, or amid
        # its end.
        epoch = getattr(self, "epoch", None)
        if epoch is not None:
            self._segments.forget(epoch)


class Segments(Owner):
    """The files of one space. Offsets are bytes from the space's start."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, reserve_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._reserve_bytes = max(4096, min(reserve_bytes, segment_bytes))
        self.numbers: list[int] = []  # of the files, ascending
        self.has_incompatible_files = False
        self._retired: list[tuple[int, int]] = []  # files to be unlinked, ascending: number, epoch
        self._open: dict[int, File] = {}
        self._dirty: dict[int, File] = {}
        self._reserved_end = 0
        self._maps: dict[int, _Map] = {}
        self._tables: list[Any] = []  # all that were ever made: a reader may still walk an old one
        self._table: Any = None
        self._table_first = 0
        self._table_size = 0
        self._holders = Epochs()
        self._forgotten: list[int] = []  # epochs of holders that are no more
        self._lock = Lock()
        self._cuts = CutWatch(directory)

    # --- names ---

    def load(self, *, repair: bool = True, needed: int = 0, is_derived: bool = False) -> None:
        """Look at the files that are there. An empty last one is a leftover of its creation, unless
        what is known to be there, up to the offset `needed`, lay in it. Of a space that is derived
        a file of another size is noted in `has_misfits`, and nothing of it must be read.
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
                is_leftover = name == names[-1] and size == 0 and int(name) >= needed
                if repair and is_leftover:
                    self._disk.unlink(path)
                    continue
                if is_derived and size is not None:
                    self.has_incompatible_files = True
                    found.append(int(name) // self.segment_bytes)
                    continue
                raise CorruptError(
                    "a segment of another size",
                    where=path,
                    wanted=f"{self.segment_bytes} bytes",
                    got=size,
                )
            found.append(int(name) // self.segment_bytes)
        self.numbers = found

    @property
    def begin(self) -> int:
        """First offset that a file has; 0 where there is none."""
        return self.numbers[0] * self.segment_bytes if self.numbers else 0

    @property
    def extent(self) -> int:
        """Offset behind the last file."""
        return (self.numbers[-1] + 1) * self.segment_bytes if self.numbers else 0

    def path(self, number: int) -> Path:
        """Give a segment's file name."""
        return self.directory / store_paths.segment_name(number * self.segment_bytes)

    def create(self, number: int) -> None:
        """Make a segment's file, unless it is there; its name is durable on return."""
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

    def reserve(self, offset: int) -> int:
        """Take disk space up to beyond `offset`; the offset up to which it now is, at most the end
        of offset's segment. Files that others made may be sparse, so this starts anew after load.
        """
        if offset <= self._reserved_end:
            return self._reserved_end
        number = (offset - 1) // self.segment_bytes
        self.create(number)
        begin = max(self._reserved_end, number * self.segment_bytes)
        end = min(max(offset, begin + self._reserve_bytes), (number + 1) * self.segment_bytes)
        self._file(number).reserve(begin - number * self.segment_bytes, end - begin)
        self._reserved_end = end
        return end

    def reserve_edges(self, offset: int) -> None:
        """Take the first page of what is not reserved, in every segment from `offset` on: where a
        search for the end looks into it through a map, a full tmpfs answers a hole with SIGBUS.
        """
        for number in self.numbers:
            begin = max(offset - number * self.segment_bytes, 0)
            if begin < self.segment_bytes:
                file = self._file(number)
                hole = file.first_hole(begin)
                if hole < self.segment_bytes:
                    file.reserve(hole, min(_PAGE_BYTES, self.segment_bytes - hole))

    def reserve_from(self, offset: int) -> None:
        """Say where reserving starts: the present end of what is written."""
        self._reserved_end = offset // 4096 * 4096

    def wrong_files(self) -> list[tuple[Path, int | None]]:
        """Give the files that are missing (None) or of another size: maps of them must not be read.

        Between the first and the last there is no gap.
        """
        wrong: list[tuple[Path, int | None]] = []
        numbers = list(self.numbers)
        for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
            path = self.path(number)
            size = self._disk.file_bytes(path) if number in numbers else None
            if size != self.segment_bytes:
                wrong.append((path, size))
        return wrong

    # --- bytes ---

    def _file(self, number: int) -> File:
        file = self._open.get(number)
        if file is None:
            try:
                file = self._disk.open(self.path(number))
            except FailedError as error:
                if number * self.segment_bytes < self.begin:
                    raise GoneError("retention removed it", where=self.path(number)) from error
                raise
            with self._lock:
                if len(self._open) >= _OPEN_MAX:
                    self._open.pop(next(iter(self._open)))
                self._open[number] = file
        return file

    def _pieces(self, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
        while size > 0:
            number, at = divmod(offset, self.segment_bytes)
            part = min(size, self.segment_bytes - at)
            yield number, at, part
            offset += part
            size -= part

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes, in as many segments as they touch. Their files must be there."""
        view = memoryview(data)
        done = 0
        for number, at, part in self._pieces(offset, len(view)):
            file = self._file(number)
            file.write(view[done : done + part], at)
            self._dirty[number] = file  # after it: a sync that ran meanwhile may have missed it
            done += part

    def start_writing(self, offset: int, size: int) -> None:
        """Have the disk begin with bytes that were written; `sync` still has to follow."""
        for number, at, part in self._pieces(offset, size):
            self._file(number).start_writing(at, part)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes, from as many segments as they touch."""
        return b"".join(
            self._file(number).read(at, part) for number, at, part in self._pieces(offset, size)
        )

    def read_data(self, offset: int, size: int) -> tuple[int, bytes]:
        """Give the first bytes from `offset` on that are no hole: where they begin, and at most
        `size` of them, from one segment; none at the extent's end.
        """
        while offset < self.extent:
            number, at = divmod(offset, self.segment_bytes)
            found = self._file(number).next_data(at)
            if found is not None:
                begin = offset - at + found
                return begin, self.read(begin, min(size, self.segment_bytes - found))
            offset += self.segment_bytes - at
        return offset, b""

    def sync(self) -> None:
        """Make durable what was written before this call."""
        for number in sorted(self._dirty):
            file = self._dirty.pop(number, None)  # retention may have removed it meanwhile
            if file is not None:
                file.sync()
                if number in self.numbers:
                    file.refuse_stranger(self.segment_bytes)

    def refuse_strangers(self) -> None:
        """FailedError where a file that is open is no longer the one that has its name."""
        with self._lock:
            files = dict(self._open)
        for number, file in files.items():
            if number not in self.numbers:
                continue
            try:
                is_same = self._disk.identity(file.path) == file.identity()
            except FailedError:
                is_same = False
            if not is_same and number in self.numbers:  # retention may have removed it meanwhile
                raise FailedError(
                    "the file was moved, or replaced by another, while it was open", where=file.path
                )

    def rewrite(self, begin: int, end: int) -> None:
        """Write again what is in [begin, end); `sync` still has to follow.

        After a sync that failed the page cache can show bytes that the disk does not have, and that
        the next sync will not write, since their pages count as clean.
        """
        for number, at, part in self._pieces(begin, end - begin):
            if number in self.numbers:
                offset = number * self.segment_bytes + at
                for done in range(0, part, _REWRITE_BYTES):
                    size = min(_REWRITE_BYTES, part - done)
                    self.write(offset + done, self.read(offset + done, size))

    def mark_dirty(self) -> None:
        """Have the next `sync` sync every file."""
        for number in self.numbers:
            self._dirty[number] = self._file(number)

    def cut(self, offset: int) -> None:
        """End the space at offset: zeros behind it, later files gone; durable on return. Where all
        before was removed, the file that begins there stays: it says where the space begins.
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
            file.sync()
        if self._disk.is_directory(self.directory):
            self._disk.sync_directory(self.directory)
        self.reserve_from(offset)

    def remove_all(self) -> None:
        """Remove every file; durable on return."""
        self._remove(self.numbers)
        self._reserved_end = 0
        self.has_incompatible_files = False
        self._table, self._table_first, self._table_size = None, 0, 0  # it may begin at 0 now

    def _remove(self, numbers: list[int]) -> None:
        """Remove files, the last first and each durably before the next: wherever this ends, what
        is left has no gap, which no opening could get over.
        """
        for number in sorted(numbers, reverse=True):
            self._forget(number)
            self._disk.unlink(self.path(number))
            self._disk.sync_directory(self.directory)
            self.numbers = [n for n in self.numbers if n != number]

    def retire(self, offset: int) -> bool:
        """From here on what lies below `offset` is gone for who begins to read, by whole files;
        whether that is more than before. The last file stays. Memory only: `unlink_retired`.
        """
        with self._lock:
            gone = [n for n in self.numbers[:-1] if (n + 1) * self.segment_bytes <= offset]
            if gone:
                epoch = self._holders.turn()
                self._retired += [(number, epoch) for number in gone]
                self.numbers = self.numbers[len(gone) :]
            return bool(gone)

    @property
    def has_retired(self) -> bool:
        """Whether there are files that are to be unlinked."""
        return bool(self._retired)

    def unlink_retired(self) -> bool:
        """Unlink the first retired file, durably, once nobody can read it any more; whether it was.

        One after the other: so what a power cut brings back is the last one, never one amid others.
        """
        with self._lock:
            self._leave_forgotten()
            if not self._retired or not self._holders.is_over(self._retired[0][1]):
                return False
            number = self._retired[0][0]
            self._open.pop(number, None)
            self._dirty.pop(number, None)
            self._unmap(number)
        self._disk.unlink(self.path(number))
        self._disk.sync_directory(self.directory)
        with self._lock:
            del self._retired[0]
        return True

    def unlink_all_retired(self) -> None:
        """Unlink every retired file that no view holds; durable on return."""
        while self.unlink_retired():
            pass

    def remove_below(self, offset: int) -> None:
        """Retire and unlink what lies below `offset`, which a retention that died had begun. No
        view may be held.
        """
        self.retire(offset)
        self.unlink_all_retired()

    def _forget(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)
            self._dirty.pop(number, None)
            self._unmap(number)

    # --- maps ---

    def view(self, end: int) -> "View":
        """Give a `ts_view` of the bytes below `end`, for this caller alone; used with `with`."""
        return View(self, end)

    def hold(self, holder: View) -> Any:
        """Begin to use maps: none is let go of before `let_go`."""
        with self._lock:
            if self._table is None:
                self._grow_table(self.numbers[0] if self.numbers else 0, 64)
            view = ffi.new("ts_view *")
            view.segment_bytes = self.segment_bytes
            self._point(view)
            view.begin, view.end = self.begin, holder.end
            holder.epoch = self._holders.enter()
            return view

    def let_go(self, holder: View) -> None:
        """Maps are used no more by one of those who held them. FailedError where one was found cut:
        what was read of it was zeros.
        """
        with self._lock:
            epoch, holder.epoch = holder.epoch, None
            assert epoch is not None
            self._holders.leave(epoch)
        self._cuts.check()

    def forget(self, epoch: int) -> None:
        """The same for one who never said so; without a lock: a finalizer comes amid anything."""
        self._forgotten.append(epoch)

    def _leave_forgotten(self) -> None:
        while self._forgotten:
            self._holders.leave(self._forgotten.pop())

    def _point(self, view: Any) -> None:
        view.segments = self._table
        view.first_segment = self._table_first
        view.segment_count = self._table_size

    def serve(self, view: Any, status: int, what: str) -> None:
        """Map what a call asked for, so that it can go on; raise what it found otherwise."""
        if status == lib.TS_NEED_SEGMENT:
            self._map(int(view.need))
            with self._lock:
                self._point(view)
            return
        if status == lib.TS_CORRUPT:
            raise_fault(view, what, self.path(int(view.fault_offset) // self.segment_bytes))
        raise_status(status, what, self.directory)

    def _map(self, number: int) -> None:
        if number not in self.numbers and all(number != one for one, _ in self._retired):
            raise CorruptError("a segment is missing", where=self.path(number))
        file = self._file(number)
        with self._lock:
            if number in self._maps:
                return
            self._leave_forgotten()
            if len(self._maps) >= _MAPS_MAX and len(self._holders) == 1:
                for old in list(self._maps):
                    self._unmap(old)
            if not 0 <= number - self._table_first < self._table_size:
                self._grow_table(min(number, self._table_first), number + 1)
            memory = file.map_read(self.segment_bytes)
            view = ffi.from_buffer("uint8_t[]", memory)
            self._maps[number] = _Map(memory, view)
            self._table[number - self._table_first] = view

    def _grow_table(self, first: int, end: int) -> None:
        size = max(2 * self._table_size, end - first + 64)
        table = ffi.new("const uint8_t *[]", size)
        for number, one in self._maps.items():
            table[number - first] = one.view
        self._tables.append(table)
        self._table, self._table_first, self._table_size = table, first, size

    def _unmap(self, number: int) -> None:
        one = self._maps.pop(number, None)
        if one is not None:
            self._table[number - self._table_first] = ffi.NULL
            ffi.release(one.view)
            one.memory.close()

    def close(self) -> None:
        """Let go of files and maps. Nobody may hold a view."""
        with self._lock:
            for number in list(self._maps):
                self._unmap(number)
            self._open.clear()
            self._dirty.clear()
