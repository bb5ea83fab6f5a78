"""The tables of message ids in memory, and their side file.

The file is a cache of the log: if it does not fit, the log is read. For messages that retention has
removed, the file is the only record. An id takes 64 bytes of memory, and at most `dedupe_ids_max`
ids are remembered.

Thread safety: any thread may put. The thread that makes a checkpoint takes and saves ids.
Locking: the append lock for the tables. A thread that adds a table takes `_grow_lock` before it.
Invariants:
    1. All ids within the window, of records below a completed checkpoint, are in the file.
    2. An id is forgotten only after it has left the window. The clock is read when a table is
       dropped.
Raises: BusyError if more ids would be needed. Puts succeed again when ids have left the window.
On-disk format: timerstore/ids-<n> has entries (ts_id of native/api, little-endian) one after
    another. For each watermark, timerstore/counts names the file, its valid bytes and their CRC-32.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.counts_json import NO_IDS, IdsMark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.segments import Segments
from timerstore.errors import BusyError, FailedError
from timerstore.types.clock import Clock
from timerstore.types.messages import Int64Array

# --- message ids ---


ENTRY_DTYPE = np.dtype([("hash", "<u8"), ("log_offset", "<i8"), ("store_ms", "<i8")])
assert ENTRY_DTYPE.itemsize == ffi.sizeof("ts_id"), "api.h and the side file disagree"

_CAPACITY_MIN = 4096
_CAPACITY_MAX = 1 << 20
_TABLES_MAX = 32
_SCAN_COUNT = 4096
_FILE_BYTES_MIN = 1 << 20  # a smaller file is not replaced

Entries = npt.NDArray[np.void]


class IdsCopy(NamedTuple):
    """The entries that a checkpoint has to write."""

    entries: Entries
    end: int  # number of ids that were ever added
    is_whole: bool  # whether these are all remembered ids, for a new file


class _Table(NamedTuple):
    begin: int  # number of ids that were ever added before it
    entries: Any
    slots: Any


class Ids(NotCopyable):
    """The message ids of one store."""

    def __init__(
        self,
        disk: Disk,
        tree: Tree,
        clock: Clock,
        window_ms: int,
        ids_max: int,
        append_lock: Any,
    ) -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self._ids_max = ids_max
        self._append_lock = append_lock
        self._grow_lock = Lock()
        self.native: Any = ffi.new("ts_ids *", {"window_ms": window_ms})
        self._tables: list[_Table] = []
        self._mark: IdsMark = NO_IDS
        self._forgotten = 0  # number of ids that were added and are forgotten
        self._saved = 0  # number of ids that were added and are in the file
        self._file: File | None = None
        self._only_file = -1  # number of the file if all others were removed

    @property
    def is_on(self) -> bool:
        """Whether ids are remembered at all."""
        return bool(self.native.window_ms)

    # --- opening ---

    def load(self, mark: IdsMark) -> bool:
        """Load the side file as of a watermark; return False if it does not fit."""
        entries = read_ids(self._disk, self._tree, mark)
        if entries is None:
            return False
        self._mark = mark
        self._add(entries)
        self._saved = self._count
        return True

    def scan(self, segments: Segments, store_id: int, begin: int, end: int) -> None:
        """Add the ids of records in [begin, end) of the log."""
        found = np.empty(_SCAN_COUNT, ENTRY_DTYPE)
        following = ffi.new("int64_t *", begin)
        with segments.view(end) as view:
            while following[0] < end:
                count = lib.ts_ids_scan(
                    view,
                    store_id,
                    following[0],
                    following,
                    len(found),
                    ffi.from_buffer("ts_id[]", found),
                )
                if count < 0:  # C may have passed records without ids: repeat from `following`
                    segments.provide(view, count, "message ids")
                    continue
                self._add(found[:count])

    def build(self, marks: list[IdsMark], segments: Segments, store_id: int, end: int) -> None:
        """Add the ids of the whole log, and those of removed messages from a side file.

        marks: the side file's marks at all known watermarks, the newest first.

        The whole log is read regardless of its age: if the clock was set back, a younger message
        can precede an older one.
        """
        entries = read_newest(self._disk, self._tree, marks)
        if entries is not None:
            self._add(entries[entries["log_offset"] < segments.begin])
        # Write a new file: until the next watermark, the old ones are needed.
        self._mark = IdsMark(max((mark.number for mark in marks), default=0) + 1, 0, 0)
        self.scan(segments, store_id, segments.begin, end)

    def _add(self, entries: Entries) -> None:
        """Add the entries that are within the window, in the order of the log."""
        young = self._clock.now_ms - entries["store_ms"] < int(self.native.window_ms)
        left = np.ascontiguousarray(entries[young])
        while len(left):
            done = lib.ts_ids_load(self.native, ffi.from_buffer("ts_id[]", left), len(left))
            left = np.ascontiguousarray(left[done:])
            if len(left):
                self._grow(len(left))

    # --- putting ---

    def ensure(self, count: int = 1) -> None:
        """Make space for `count` more ids, at most `_CAPACITY_MAX`. The caller holds no lock.

        Raises:
            BusyError: too many ids are within the window.
        """
        if not self.is_on:
            return
        with self._grow_lock:
            self._drop_old()
            if self._room >= count:
                return
            if self._kept + count > self._ids_max:
                raise BusyError(
                    "message ids: too many within dedupe_window_ms",
                    wanted=f"at most {self._ids_max} (dedupe_ids_max)",
                    got=f"{self._kept} and {count} more",
                )
            self._grow(count, self._ids_max - self._kept)

    def has_room(self, count: int) -> bool:
        """Return whether `count` more ids fit. The caller holds the append lock."""
        return self._room >= count

    @property
    def can_move(self) -> bool:
        """Whether `move` has space for the id that it may add. The caller holds the append lock."""
        return not self._tables or self.has_room(1)

    def is_young(self, once_ms: int | None) -> bool:
        """Return whether an id that was first put at `once_ms` is still within the window."""
        return once_ms is not None and self._clock.now_ms - once_ms < int(self.native.window_ms)

    def move(self, topic: str, message_id: str, log_offset: int) -> None:
        """Set the log offset of the newest record of a message.

        The caller holds the append lock and has checked `can_move`.
        """
        name, raw_id = topic.encode(), message_id.encode()
        if self._tables:
            lib.ts_ids_move(
                self.native, name, len(name), raw_id, len(raw_id), log_offset, self._clock.now_ms
            )

    @property
    def _room(self) -> int:
        count = int(self.native.table_count)
        if not count:
            return 0
        last = self.native.tables[count - 1]
        return int(last.limit - last.count)

    @property
    def _kept(self) -> int:
        return sum(int(self.native.tables[k].count) for k in range(int(self.native.table_count)))

    @property
    def _count(self) -> int:
        """Number of ids that were ever added."""
        if not self._tables:
            return self._forgotten
        count = int(self.native.table_count)
        return self._tables[-1].begin + int(self.native.tables[count - 1].count)

    def _grow(self, count: int, limit: int = _CAPACITY_MAX) -> None:
        """Add a table, twice as large as the last, that takes at most `limit` ids."""
        last = int(self.native.tables[len(self._tables) - 1].capacity) if self._tables else 0
        capacity = max(_CAPACITY_MIN, min(2 * last, _CAPACITY_MAX))
        while capacity < min(count, _CAPACITY_MAX):
            capacity *= 2
        if len(self._tables) == _TABLES_MAX:
            raise BusyError("message ids: too many within dedupe_window_ms")
        entries = ffi.new("ts_id[]", capacity)
        slots = ffi.new("uint32_t[]", 2 * capacity)
        with self._append_lock:
            self._tables.append(_Table(self._count, entries, slots))
            table = self.native.tables[len(self._tables) - 1]
            table.entries, table.slots, table.capacity = entries, slots, capacity
            table.limit = min(limit, capacity)
            table.count, table.newest_ms = 0, -(2**62)
            self.native.table_count = len(self._tables)

    def _drop_old(self) -> None:
        """Drop the tables whose ids have all left the window and are saved."""
        now_ms, window_ms = self._clock.now_ms, int(self.native.window_ms)
        with self._append_lock:
            while self._tables:
                first = self.native.tables[0]
                begin = self._tables[0].begin
                if now_ms - first.newest_ms < window_ms or self._saved < begin + first.count:
                    return
                if len(self._tables) == 1 and not first.count:
                    return
                self._forgotten = begin + int(first.count)
                del self._tables[0]
                for k in range(len(self._tables)):
                    self.native.tables[k] = self.native.tables[k + 1]
                self.native.table_count = len(self._tables)

    # --- the side file ---

    def take(self) -> IdsCopy:
        """Copy the ids that are not in the file yet. The caller holds the append lock."""
        end = self._count
        is_whole = self._mark.bytes > _FILE_BYTES_MIN and self._mark.bytes > 4 * (
            ENTRY_DTYPE.itemsize * self._kept
        )
        parts = [np.empty(0, ENTRY_DTYPE)]
        for k, table in enumerate(self._tables):
            count = int(self.native.tables[k].count)
            skip = 0 if is_whole else max(0, self._saved - table.begin)
            if skip < count:
                raw = ffi.buffer(table.entries, count * ENTRY_DTYPE.itemsize)
                parts.append(np.frombuffer(raw, ENTRY_DTYPE)[skip:].copy())
        return IdsCopy(np.concatenate(parts), end, is_whole)

    def save(self, taken: IdsCopy) -> IdsMark:
        """Write entries, durably. Return the mark of the file for the next watermark."""
        mark = self._mark
        if taken.is_whole:
            mark = IdsMark(mark.number + 1, 0, 0)
        if not len(taken.entries):
            return mark
        if self._file is None or mark.number != self._mark.number or not mark.bytes:
            self._file = self._disk.open(self._tree.ids(mark.number), create=True)
            self._disk.sync_directory(self._tree.side)
        data = taken.entries.tobytes()
        self._file.write(data, mark.bytes)
        self._file.sync()
        reach("checkpoint_ids_written")
        return IdsMark(mark.number, mark.bytes + len(data), zlib.crc32(data, mark.crc))

    def completed(self, taken: IdsCopy, mark: IdsMark) -> None:
        """Use the new mark and remove other files: the watermark that names it is durable."""
        with self._append_lock:
            self._mark, self._saved = mark, taken.end
        if self._only_file != mark.number:
            remove_ids(self._disk, self._tree, but=mark.number)
            self._only_file = mark.number


def read_ids(disk: Disk, tree: Tree, mark: IdsMark) -> Entries | None:
    """Return the valid entries of a file, in the order of the log; None if the CRC differs."""
    data = b""
    if mark.bytes:
        path = tree.ids(mark.number)
        try:
            file = disk.open(path, read_only=True)
        except FailedError:
            if disk.file_bytes(path) is not None:
                raise
            return None  # it does not exist, or was removed concurrently
        if file.size() < mark.bytes:
            return None
        data = file.read(0, mark.bytes)
    if zlib.crc32(data) != mark.crc:
        return None
    return np.frombuffer(data, ENTRY_DTYPE)


def read_newest(disk: Disk, tree: Tree, marks: Iterable[IdsMark]) -> Entries | None:
    """Return the entries of the first mark that fits its file, None without one."""
    found = (read_ids(disk, tree, mark) for mark in marks)
    return next((entries for entries in found if entries is not None), None)


def write_ids(disk: Disk, tree: Tree, number: int, entries: Entries) -> IdsMark:
    """Write entries to a new file, durably, and return its mark. No entries make no file."""
    if not len(entries):
        return NO_IDS
    disk.make_directory(tree.side)
    file = disk.open(tree.ids(number), create=True)
    data = entries.tobytes()
    file.write(data, 0)
    file.sync()
    disk.sync_directory(tree.side)
    return IdsMark(number, len(data), zlib.crc32(data))


def remove_ids(disk: Disk, tree: Tree, *, but: int) -> None:
    """Remove all files of ids except one."""
    for name in disk.list(tree.side):
        path = tree.side / name
        if name.startswith(tree.ids(0).name[:-1]) and path != tree.ids(but):
            disk.unlink(path)


# --- first messages ---
# Find the message that was put first with a message id, and read it from the log.
#
# Thread safety: any thread.
# Locking: the append lock, to look up ids.
# Invariants:
#     1. A returned message is durable.
#     2. Topic and id of a returned message are compared, not only their hash.
# Raises: CorruptError if the log cannot be read.


FIRST_DTYPE = np.dtype(
    [
        ("log_offset", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("timer_id", np.int64),
        ("queue_offset", np.int64),
        ("queue_id", np.int32),
        ("level", np.int32),
        ("is_same", np.int32),
        ("is_cancelled", np.int32),
        ("is_moved", np.int32),
        ("has_body", np.int32),
        ("has_properties", np.int32),
        ("body_size", np.int32),
        ("body_crc", np.int32),
        ("unused", np.int32),
    ]
)
assert FIRST_DTYPE.itemsize == ffi.sizeof("ts_first_message"), (
    "native/api and message_ids.py disagree"
)

OriginalRows = npt.NDArray[np.void]


class DedupeLookup(NamedTuple):
    """Parameters for putting the rows of one call at most once."""

    topic: bytes
    topic_hash: int
    once_ms: int  # the time from which the window counts
    below: Int64Array  # by row: a first message is searched below this log offset

    @property
    def text(self) -> bytes:
        """Property text from which the id is remembered again when the log is read."""
        return b"TS_ONCE\x01%d\x02" % self.once_ms


class OriginalMessages:
    """Finds first messages by id in one store."""

    def __init__(
        self,
        log: CommitLog,
        ids: Ids,
        states: Any,
        store_id: int,
        precision_ms: int,
        deleted_below: Mapping[str, int],
    ) -> None:
        """`deleted_below`: as in Routes."""
        self._deleted_below = deleted_below
        self._log = log
        self.ids = ids
        self._states = states
        self._store_id = store_id
        self._precision_ms = precision_ms

    def once(self, topic: bytes, count: int, now_ms: int) -> DedupeLookup | None:
        """Return the parameters for rows with ids, None if ids are not remembered."""
        if not self.ids.is_on:
            return None
        topic_hash = int(lib.ts_identity(topic, len(topic)))
        return DedupeLookup(topic, topic_hash, now_ms, np.full(count, 2**63 - 1, np.int64))

    def known(self, rows: ColumnBatch, once: DedupeLookup, now_ms: int) -> Int64Array:
        """Return the log offset of each row's first message, -1 if it is unknown."""
        found = np.empty(rows.count, np.int64)
        with self._log.lock:
            self.look(rows, once, now_ms, found)
        return found

    def look(self, rows: ColumnBatch, once: DedupeLookup, now_ms: int, found: Int64Array) -> int:
        """Write these log offsets to `found`, and return the number of known ones.

        The caller holds the append lock.
        """
        return int(
            lib.ts_ids_look(
                self.ids.native,
                once.topic_hash,
                rows.native,
                0,
                rows.count,
                ffi.from_buffer("int64_t[]", once.below),
                now_ms,
                ffi.from_buffer("int64_t[]", found),
            )
        )

    def add(self, rows: ColumnBatch, once: DedupeLookup, log_offsets: Int64Array) -> None:
        """Remember all rows. The caller holds the append lock and has checked the space."""
        lib.ts_ids_add(
            self.ids.native,
            once.topic_hash,
            rows.native,
            0,
            rows.count,
            ffi.from_buffer("int64_t[]", log_offsets),
            once.once_ms,
        )

    def read(
        self,
        rows: ColumnBatch,
        once: DedupeLookup,
        which: npt.NDArray[np.intp],
        log_offsets: Int64Array,
    ) -> OriginalRows:
        """Return the first messages at these log offsets, which `known` returned for these rows.

        They are durable on return. `is_same` is 0 for a message with another id of the same hash,
        and for one that was deleted with its topic.
        `has_body` and `has_properties` compare a message with its row. For a message that retention
        removed, only the log offset is known, and its contents count as those of the row.
        """
        firsts = np.zeros(len(which), FIRST_DTYPE)
        firsts["log_offset"] = log_offsets[which]
        firsts["timer_id"] = firsts["queue_offset"] = -1
        for name in ("is_same", "is_moved", "has_body", "has_properties"):
            firsts[name] = 1
        firsts["due_ms"] = firsts["store_ms"] = once.once_ms
        there = np.flatnonzero(firsts["log_offset"] >= self._log.segments.begin)
        if len(there):
            self._log.sync_through(int(firsts["log_offset"].max()) + 1)
            found = np.ascontiguousarray(firsts[there])
            self._read(rows, once, which[there].astype(np.int32), found)
            firsts[there] = found
        deleted_below = self._deleted_below.get(once.topic.decode(), 0)
        firsts["is_same"][firsts["log_offset"] < deleted_below] = 0
        if firsts["is_cancelled"].any():
            self._log.sync_through(self._log.end)  # so that the delete record is durable too
        return firsts

    def _read(
        self, rows: ColumnBatch, once: DedupeLookup, which: Any, firsts: OriginalRows
    ) -> None:
        done = 0
        with self._log.segments.view(self._log.written) as view:
            while done < len(which):
                done += self._log.segments.call(
                    view,
                    "message ids",
                    lib.ts_first_messages,
                    self._states,
                    self._store_id,
                    self._precision_ms,
                    once.topic,
                    len(once.topic),
                    rows.native,
                    ffi.from_buffer("int32_t[]", which[done:]),
                    len(which) - done,
                    ffi.cast("ts_first_message *", address(firsts[done:])),
                    at_least=1,
                )
