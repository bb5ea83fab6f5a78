"""One file of the index: a hash table of message keys with a fixed number of entries.

Entries are written as they are added. Slots and header stay in memory, and are written when the
file is full and at close. After a crash, the slots are rebuilt from the entries.

Thread safety: a thread that appends or saves holds the index's lock. Any thread may read entries
    below `written`.
Invariants:
    1. An entry below `written` is in the file and never changes.
    2. Space is reserved before entries are linked, so that linked entries can be written.
Raises: CorruptError if the file differs from its saved state. FullError can be retried.
On-disk format: native/format/index_file.h.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.index_position import IndexFileState
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import CorruptError

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
_PAGE_BYTES = 4096
_RESERVE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_FOUND = 1024  # log offsets in one answer

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Geometry(NamedTuple):
    """The size of every index file of a store."""

    slot_count: int
    entry_count: int

    @property
    def entries_at(self) -> int:
        """Byte offset of entry 0, which is never used."""
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    @property
    def file_bytes(self) -> int:
        """Length of a file in bytes."""
        return self.entries_at + ENTRY_BYTES * self.entry_count

    def entry_at(self, number: int) -> int:
        """Return the byte offset of an entry."""
        return self.entries_at + ENTRY_BYTES * number


class IndexFile(NotCopyable):
    """One index file. Create it with `make` or `load`."""

    def __init__(self, path: Path, file: File, geometry: Geometry) -> None:
        self.path = path
        self._file = file
        self.geometry = geometry
        self.native: Any = ffi.new(
            "ts_index *",
            {
                "slot_count": geometry.slot_count,
                "entry_count": geometry.entry_count,
                "next_entry": 1,
            },
        )
        self.written = 1  # entries below are in the file
        self.entries_crc = 0
        self.slots_crc: int | None = None  # of the slots in the file; None if they are out of date
        self._slots: Bytes | None = None  # None: only in the file
        self._dirty = np.zeros(0, np.uint8)
        self._linked: Bytes | None = None  # the last entries that were linked, from `written` on
        self._unchecked: tuple[int, int] | None = None  # number of entries, and their CRC
        self._reserved_end = 0
        self._is_dirty = False
        self._maps: list[Any] = []  # the first one is used: others came at the same time

    # --- making ---

    @classmethod
    def make(
        cls, disk: Disk, path: Path, geometry: Geometry, before: "IndexFile | None"
    ) -> "IndexFile":
        """Create a file, with a durable name. Its header begins where the last file's ends."""
        file = disk.open(path, create=True)
        file.resize(geometry.file_bytes)
        file.reserve(0, geometry.entries_at)  # so that closing needs no space
        disk.sync_directory(path.parent)
        one = cls(path, file, geometry)
        one._reserved_end = geometry.entries_at
        one._set_slots(np.zeros(SLOT_BYTES * geometry.slot_count, np.uint8))
        if before is not None:
            native = before.native
            one.native.begin_ms = one.native.end_ms = native.end_ms
            one.native.begin_offset = one.native.end_offset = native.end_offset
        return one

    @classmethod
    def load(cls, disk: Disk, path: Path, geometry: Geometry, state: IndexFileState) -> "IndexFile":
        """Open a file with a saved state.

        Raises CorruptError if its size or header differ. The entries are checked at the first query
        (`check`).
        """
        one = cls(path, disk.open(path), geometry)
        if one._file.size() != geometry.file_bytes:
            raise one._damaged("its size", geometry.file_bytes, one._file.size())
        native = one.native
        native.begin_ms, native.end_ms = state.begin_ms, state.end_ms
        native.begin_offset, native.end_offset = state.begin_offset, state.end_offset
        native.slots_used, native.next_entry = state.slots_used, state.next_entry
        one.written = state.next_entry
        one.entries_crc, one.slots_crc = state.entries_crc, state.slots_crc
        one._unchecked = state.next_entry, state.entries_crc
        if state.slots_crc is not None and one.read_header() != one.header():
            raise one._damaged("its header", one.header().hex(), one.read_header().hex())
        return one

    def take_over(self) -> bool:
        """Prepare a file that is not full for more entries; return whether it was relinked.

        Loads its slots into memory, or rebuilds them from the entries if they are out of date.
        Zeros the file after the entries.
        """
        end = self.geometry.entry_at(self.written)
        self._reserved_end = end // _PAGE_BYTES * _PAGE_BYTES
        is_linked = self.slots_crc is not None and self._load_slots()
        if not is_linked:
            self._relink()
        self._cut(end)
        return not is_linked

    def _cut(self, at: int) -> None:
        for begin, data in self._data(at, self.geometry.file_bytes):
            if data.strip(b"\0"):
                self._file.zero(begin, len(data))
                self._is_dirty = True

    def _data(self, at: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of [at, end) with their offsets, in parts and without holes."""
        while at < end and (found := self._file.next_data(at)) is not None and found < end:
            data = self._file.read(found, min(_READ_BYTES, end - found))
            yield found, data
            at = found + len(data)

    def _set_slots(self, slots: Bytes) -> None:
        self._slots = slots
        self._dirty = np.zeros((len(slots) + _PAGE_BYTES - 1) // _PAGE_BYTES, np.uint8)
        self.native.slots = address(slots)
        self.native.dirty_pages = address(self._dirty)

    def _load_slots(self) -> bool:
        """Read the slots; return False if their CRC differs from the saved one."""
        slots = np.zeros(SLOT_BYTES * self.geometry.slot_count, np.uint8)
        for at, data in self._data(HEADER_BYTES, self.geometry.entries_at):
            begin = at - HEADER_BYTES  # holes are skipped, so that they take no memory
            slots[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
        if lib.ts_crc32(0, address(slots), len(slots)) != self.slots_crc:
            return False
        self._set_slots(slots)
        return True

    def _relink(self) -> None:
        """Rebuild the slots from the entries, and check the entries' CRC."""
        count, used = self.written - 1, int(self.native.slots_used)
        self._set_slots(np.zeros(SLOT_BYTES * self.geometry.slot_count, np.uint8))
        self._dirty[:] = 1  # the slots in the file are unknown
        self.native.next_entry, self.native.slots_used, crc = 1, 0, 0
        for data in self._entries(1, count):
            crc = lib.ts_crc32(crc, data, len(data))
            if lib.ts_index_relink(self.native, data, len(data) // ENTRY_BYTES) < 0:
                raise self._damaged("its entries", "chains", "none")
        if crc != self.entries_crc or int(self.native.slots_used) != used:
            raise self._damaged("its entries' CRC", self.entries_crc, crc)
        self._unchecked = None

    def _entries(self, first: int, count: int) -> Iterator[bytes]:
        at, end = self.geometry.entry_at(first), self.geometry.entry_at(first + count)
        while at < end:
            data = self._file.read(at, min(_READ_BYTES // ENTRY_BYTES * ENTRY_BYTES, end - at))
            yield data
            at += len(data)

    # --- adding ---

    @property
    def is_full(self) -> bool:
        """Whether the file has no space for another entry."""
        return bool(self.native.next_entry >= self.native.entry_count)

    def append(self, keys: Any, count: int, buffer: Bytes) -> int:
        """Link as many keys as fit, and return their number. `finish` writes them from `buffer`.

        If a signal handler raises in it, `linked_count` says how many were linked.
        """
        first = int(self.native.next_entry)
        assert first == self.written, "linked entries were not written"
        end = min(first + count, self.geometry.entry_count)
        reserved = self.geometry.entry_at(end)
        if reserved > self._reserved_end:
            size = max(reserved - self._reserved_end, _RESERVE_BYTES)
            size = min(size, self.geometry.file_bytes - self._reserved_end)
            self._file.reserve(self._reserved_end, size)
            self._reserved_end += size
        self._linked = buffer
        self.slots_crc = None
        return int(lib.ts_index_append(self.native, keys, count, address(buffer)))

    @property
    def linked_count(self) -> int:
        """How many entries are linked and not in the file yet."""
        return int(self.native.next_entry) - self.written

    def finish(self) -> None:
        """Write the linked entries, which makes them visible to readers."""
        count = self.linked_count
        if count:
            assert self._linked is not None, "append sets it before it links"
            rest = self._linked[: count * ENTRY_BYTES].data
            self._file.write(rest, self.geometry.entry_at(self.written))
            crc = lib.ts_crc32(self.entries_crc, ffi.from_buffer("uint8_t[]", rest), len(rest))
            # Without a call in between: a signal handler that raises leaves all of them or none.
            self._is_dirty = True
            self.entries_crc = crc
            self.written += count

    def write_slots(self) -> None:
        """Write the present slots and header, so that a broker can read the file."""
        if self.slots_crc is not None:
            return
        assert self._slots is not None, "a file that is not full has its slots in memory"
        pages = np.flatnonzero(self._dirty)
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1) if len(pages) else ():
            begin, end = int(run[0]) * _PAGE_BYTES, (int(run[-1]) + 1) * _PAGE_BYTES
            self._file.write(self._slots[begin:end].data, HEADER_BYTES + begin)
        self._file.write(self.header(), 0)
        self._is_dirty = True
        self._dirty[:] = 0
        self.slots_crc = int(lib.ts_crc32(0, address(self._slots), len(self._slots)))

    def seal(self) -> None:
        """Write the slots of a full file, and release their memory."""
        if self._slots is not None:
            self.write_slots()
            self._slots, self._dirty = None, np.zeros(0, np.uint8)
            self.native.slots = self.native.dirty_pages = ffi.NULL

    def sync(self) -> None:
        """Make everything durable that was written before this call."""
        if self._is_dirty:
            self._is_dirty = False
            self._file.sync()

    # --- reading ---

    def header(self) -> bytes:
        """Return the present header."""
        return self.header_of(self.state())

    def read_header(self) -> bytes:
        """Read the header from the file."""
        return self._file.read(0, HEADER_BYTES)

    def header_of(self, state: IndexFileState) -> bytes:
        """Return the header of the file in a given state."""
        native = ffi.new(
            "ts_index *",
            {
                "begin_ms": state.begin_ms,
                "end_ms": state.end_ms,
                "begin_offset": state.begin_offset,
                "end_offset": state.end_offset,
                "slots_used": state.slots_used,
                "next_entry": state.next_entry,
            },
        )
        out = ffi.new("uint8_t[]", HEADER_BYTES)
        lib.ts_index_header_put(native, out)
        return bytes(ffi.buffer(out))

    def state(self) -> IndexFileState:
        """Return the state for the position file. All linked entries must have been written."""
        native = self.native
        return IndexFileState(
            name=self.path.name,
            begin_ms=int(native.begin_ms),
            end_ms=int(native.end_ms),
            begin_offset=int(native.begin_offset),
            end_offset=int(native.end_offset),
            slots_used=int(native.slots_used),
            next_entry=self.written,
            entries_crc=int(self.entries_crc),
            slots_crc=self.slots_crc,
        )

    def copy_slots(self) -> Bytes:
        """Return a copy of the present slots."""
        if self._slots is not None:
            return self._slots.copy()
        size = SLOT_BYTES * self.geometry.slot_count
        return np.frombuffer(self._file.read(HEADER_BYTES, size), np.uint8)

    def read_entries(self, first: int, count: int) -> bytes:
        """Return the bytes of some entries."""
        return self._file.read(self.geometry.entry_at(first), ENTRY_BYTES * count)

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest entry of a hash's chain, 0 without one.

        The caller holds the index's lock.
        """
        slots = address(self._slots) if self._slots is not None else self._map() + HEADER_BYTES
        number = int(lib.ts_index_slot(slots, self.geometry.slot_count, key_hash))
        return number if 0 < number < self.written else 0

    def walk(
        self, number: int, key_hash: int, limit: int, begin_ms: int, end_ms: int
    ) -> Iterator[Int64Array]:
        """Yield log offsets of a hash's entries that may lie in the time range, newest first.

        number: the entry to begin with.
        limit: the value of `written` when `number` was looked up.
        begin_ms, end_ms: store times in ms since 1970.
        """
        at = ffi.new("int64_t *", number)
        entries = self._map() + self.geometry.entries_at
        size = 16
        while at[0]:
            found = np.empty(size, np.int64)
            count = lib.ts_index_find(
                entries,
                self.geometry.slot_count,
                limit,
                key_hash,
                self.native.begin_ms,
                begin_ms,
                end_ms,
                at,
                ffi.from_buffer("int64_t[]", found),
                size,
            )
            if count < 0:
                raise self._damaged(f"entry {at[0]}", "one that fits its chain", "none")
            yield found[:count]
            size = min(4 * size, _FOUND)

    def check(self) -> None:
        """Check the CRCs of entries and slots, once, before the first query.

        Raises CorruptError if they differ from the saved ones.
        """
        unchecked = self._unchecked  # another thread may check, too
        if unchecked is None:
            return
        limit, expected = unchecked
        base = self._map() + self.geometry.entry_at(1)
        crc = lib.ts_crc32(0, base, ENTRY_BYTES * (limit - 1))
        if crc != expected:
            raise self._damaged("its entries' CRC", expected, crc)
        if self._slots is None:
            size = SLOT_BYTES * self.geometry.slot_count
            crc = lib.ts_crc32(0, self._map() + HEADER_BYTES, size)
            if crc != self.slots_crc:
                raise self._damaged("its slots' CRC", self.slots_crc, crc)
        self._unchecked = None

    def _map(self) -> Any:
        """Return the map of the file, which stays as long as this object."""
        if not self._maps:
            memory = self._file.map_read(self.geometry.file_bytes)
            self._maps.append(ffi.from_buffer("uint8_t[]", memory))
        return self._maps[0]

    def _damaged(self, what: str, wanted: object, got: object) -> CorruptError:
        return CorruptError(f"index: {what}", where=self.path, wanted=wanted, got=got)
