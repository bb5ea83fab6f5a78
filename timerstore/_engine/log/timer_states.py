"""Keep the state of each timer id: pending, delivered or cancelled; in memory and as a side file.

Thread safety: states change under the append lock; the thread that writes a checkpoint writes the
    file.
Invariants:
    1. Ids below `native.end` have memory. A record with a new id is appended only if it has.
    2. A chunk has two sectors on disk. The one of the last completed checkpoint is not overwritten,
       even if checkpoints fail in between.
    3. A chunk is expired if none of its ids is pending and retention has removed their records. The
       file keeps nothing of it, and it reads as having no state.
Raises: a damaged side file raises no error: `read` returns False, and the log is folded again.
On-disk format: format/state_sector.py; native/timer/states.h in memory
See also: docs/decisions/0001-crash-safety.md
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import state_sector
from timerstore._engine.format.state_sector import CHUNK_IDS, PAYLOAD_BYTES, SECTOR_BYTES, Bytes
from timerstore._engine.log.fold import is_uncertain
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.storage.disk import Disk, File
from timerstore.types.messages import Int64Array

BLOCK_CHUNKS = 128
BLOCK_IDS = CHUNK_IDS * BLOCK_CHUNKS
BLOCK_BYTES = (PAYLOAD_BYTES + 1) * BLOCK_CHUNKS
_TABLE_SIZE = 64
_UNWRITTEN = -1
_EXPIRED = -2
_LOOK_BLOCKS = 8  # checked in one critical section
_EMPTY_AT_ONCE = 4096  # sectors, 2 MB
_RANGES_MAX = 256  # of expired chunks; with more ranges, no further chunk expires


class DirtyChunks(NamedTuple):
    """Copies of the chunks that changed since the last checkpoint."""

    chunks: Int64Array
    payloads: Bytes


def which_wait(native: Any, timer_ids: Int64Array) -> npt.NDArray[np.bool_]:
    """Return whether each id is pending; `native` is the table's ts_states."""
    waits = np.empty(len(timer_ids), np.bool_)
    ids = np.ascontiguousarray(timer_ids)
    lib.ts_states_wait(
        native,
        ffi.from_buffer("int64_t[]", ids),
        len(ids),
        ffi.from_buffer("uint8_t[]", waits, require_writable=True),
    )
    return waits


class TimerStates(NotCopyable):
    """The timer states of one store."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._tables: list[Any] = []  # all of them, as a reader may still use an old one
        self.native: Any = ffi.new("ts_states *")
        self._table: Any = None
        self._size = 0
        self._lock = Lock()
        self._which = np.zeros(0, np.int8)  # the valid one of each chunk's two sectors
        self._crcs = np.zeros(0, np.uint64)
        self._completed = self._which  # `_which` as of the last completed checkpoint
        self._look_at = 0  # the next block for `expired` to check
        self._file: File | None = None

    def ensure(self, timer_id: int) -> None:
        """Allocate memory for ids up to this one."""
        with self._lock:
            while int(self.native.end) <= timer_id:
                if len(self._blocks) >= self._size:
                    self._grow()
                block = ffi.new("uint8_t[]", BLOCK_BYTES)
                self._table[len(self._blocks)] = block
                self._blocks.append(block)
                self.native.end = len(self._blocks) * BLOCK_IDS

    def _grow(self) -> None:
        self._size = max(_TABLE_SIZE, 4 * self._size)
        table = ffi.new("uint8_t *[]", self._size)
        for i, block in enumerate(self._blocks):
            table[i] = block
        self._tables.append(table)
        self._table = table
        self.native.blocks = table

    def get(self, timer_id: int) -> int:
        """Return the state of an id."""
        return int(lib.ts_state_get(self.native, timer_id))

    def id_of(self, record: Any, store_id: int) -> int:
        """Return the timer id of a record of the timer topic."""
        return int(self.ids_of(np.atleast_1d(record), store_id)[0])

    def ids_of(self, records: Scan, store_id: int) -> Int64Array:
        """Return the timer id of each record of the timer topic, as C does (ts_marks_id)."""
        places = records["queue_offset"]
        own = (records["timer_id"] >= 0) & (records["timer_id"] <= places)
        own &= records["store_id"] == store_id
        maybe_left = np.flatnonzero(own & is_uncertain(records))
        for row in maybe_left.tolist():
            own[row] = self.get(int(places[row])) == lib.TS_NONE
        ids: Int64Array = np.where(own, records["timer_id"], places)
        return ids

    def copy_dirty(self) -> DirtyChunks:
        """Copy the chunks that changed. The caller holds the append lock."""
        flags = sum(
            bytes(ffi.buffer(block + PAYLOAD_BYTES * BLOCK_CHUNKS, BLOCK_CHUNKS)).count(1)
            for block in self._blocks
        )
        capacity = max(1, flags)
        chunks = np.empty(capacity, np.int64)
        payloads = np.empty((capacity, PAYLOAD_BYTES), np.uint8)
        count = lib.ts_states_copy_dirty(
            self.native,
            ffi.from_buffer("int64_t[]", chunks),
            ffi.from_buffer("uint8_t[]", payloads),
            capacity,
        )
        return DirtyChunks(chunks[:count], payloads[:count])

    def copy_all(self) -> bytes:
        """Copy every state, two bits each, in the side file's format.

        The caller holds the append lock.
        """
        size = PAYLOAD_BYTES * BLOCK_CHUNKS
        return b"".join(bytes(ffi.buffer(block, size)) for block in self._blocks)

    def expired(self, floor: int) -> Int64Array:
        """Return chunks that have expired and are not recorded as expired yet.

        All ids of such a chunk are below `floor`, so retention has removed their records, and none
        is pending. Each call checks some blocks; later calls check the others. The caller holds the
        append lock.
        """
        found: list[Int64Array] = [np.empty(0, np.int64)]
        end = min(floor // CHUNK_IDS, len(self._blocks) * BLOCK_CHUNKS)
        count = -(-end // BLOCK_CHUNKS)
        for _ in range(min(_LOOK_BLOCKS, count)):
            self._look_at %= count
            first = self._look_at * BLOCK_CHUNKS
            known = self._which[first : first + BLOCK_CHUNKS]
            self._look_at += 1
            if len(known) == BLOCK_CHUNKS and (known == _EXPIRED).all():
                continue
            size = PAYLOAD_BYTES * BLOCK_CHUNKS
            block = np.frombuffer(ffi.buffer(self._blocks[first // BLOCK_CHUNKS], size), np.uint8)
            waits = block & np.uint8(0x55) & ~(block >> np.uint8(1))
            each = waits.reshape(BLOCK_CHUNKS, PAYLOAD_BYTES).max(axis=1)
            each[: len(known)][known == _EXPIRED] = 1
            chunks = first + np.flatnonzero(each == 0)
            found.append(chunks[chunks < end])
        return np.concatenate(found)

    def mark_dirty(self, dirty: DirtyChunks) -> None:
        """Mark chunks as changed, because their copies could not be written."""
        for chunk in dirty.chunks:
            block, at = divmod(int(chunk), BLOCK_CHUNKS)
            self._blocks[block][PAYLOAD_BYTES * BLOCK_CHUNKS + at] = 1

    # --- the side file ---

    def open_file(self, disk: Disk, path: Any, *, is_new: bool) -> None:
        """Open the side file, and empty it if `is_new`."""
        self._file = disk.open(path, create=True)
        if is_new:
            self._file.resize(0)
        disk.sync_directory(path.parent)

    def read_from(self, file: File) -> None:
        """Use a file that another process writes, for reading only."""
        self._file = file

    def write(self, dirty: DirtyChunks, past: Int64Array, log_end: int) -> tuple[int, int]:
        """Write each chunk into the sector that is not in use, durably.

        Return (chunk count, digest) for the watermark. Expired chunks have no state from that
        watermark on.
        """
        assert self._file is not None
        more = int(max(dirty.chunks.max(initial=-1), past.max(initial=-1))) + 1 - len(self._crcs)
        if more > 0:
            self._which = np.concatenate([self._which, np.full(more, _UNWRITTEN, np.int8)])
            self._crcs = np.concatenate([self._crcs, np.zeros(more, np.uint64)])
        stays = np.ones(len(dirty.chunks), np.bool_)
        if len(past):
            self._set_expired(past)
            stays = np.isin(dirty.chunks, past[self._which[past] == _EXPIRED], invert=True)
        if len(dirty.chunks):
            self._extend(dirty.chunks, log_end)
        self._write_sectors(dirty.chunks[stays], dirty.payloads[stays], log_end)
        self._file.sync()
        return len(self._crcs), state_sector.digest(self._crcs)

    def _set_expired(self, past: Int64Array) -> None:
        which = self._which.copy()
        which[past] = _EXPIRED
        if len(_ranges(which)) <= _RANGES_MAX:
            self._which, self._crcs[past] = which, 0

    @property
    def expired_ranges(self) -> tuple[tuple[int, int], ...]:
        """Ranges [begin, end) of chunks that were expired at the last `write`."""
        return _ranges(self._which)

    def completed(self) -> None:
        """Note that the watermark of the last `write` is durable, and free unused space."""
        assert self._file is not None
        news = (self._which == _EXPIRED).copy()
        news[: len(self._completed)] &= self._completed != _EXPIRED
        self._completed = self._which.copy()
        for begin, end in self.expired_ranges if news.any() else ():
            if news[begin:end].any():
                self._file.punch(2 * begin * SECTOR_BYTES, 2 * (end - begin) * SECTOR_BYTES)

    def _extend(self, chunks: Int64Array, log_end: int) -> None:
        # Only one sector of a chunk may have this log end. Changed chunks get theirs elsewhere.
        unwritten = self._which == _UNWRITTEN
        unwritten[chunks] = False
        empty = np.flatnonzero(unwritten)
        for begin in range(0, len(empty), _EMPTY_AT_ONCE):
            part = empty[begin : begin + _EMPTY_AT_ONCE]
            self._write_sectors(part, np.zeros((len(part), PAYLOAD_BYTES), np.uint8), log_end)

    def _write_sectors(self, chunks: Int64Array, payloads: Bytes, log_end: int) -> None:
        assert self._file is not None
        raw, crcs = state_sector.make(chunks, log_end, payloads)
        completed = np.full(len(chunks), _UNWRITTEN, np.int8)
        has_one = chunks < len(self._completed)
        completed[has_one] = self._completed[chunks[has_one]]
        which = np.where(completed < 0, 0, 1 - completed).astype(np.int8)
        places: list[int] = ((2 * chunks + which) * SECTOR_BYTES).tolist()
        self._file.write_each(raw, SECTOR_BYTES, places)
        self._which[chunks] = which
        self._crcs[chunks] = crcs

    def read(
        self,
        chunk_count: int,
        digest: int,
        log_end: int,
        past: tuple[tuple[int, int], ...] = (),
    ) -> bool:
        """Load the side file as of a watermark, except for expired chunks.

        Return False if the file does not match the watermark.
        """
        assert self._file is not None
        size = min(self._file.size(), 2 * chunk_count * SECTOR_BYTES)
        raw = self._file.read(0, size)
        which = np.zeros(chunk_count, np.int8)
        for begin, end in past:
            which[begin:end] = _EXPIRED
        crcs = np.zeros(chunk_count, np.uint64)
        if chunk_count:
            self.ensure(chunk_count * CHUNK_IDS - 1)
        waiting = 0
        for chunk in np.flatnonzero(which != _EXPIRED).tolist():
            pair = raw[2 * chunk * SECTOR_BYTES : 2 * (chunk + 1) * SECTOR_BYTES]
            found = state_sector.pick(pair, chunk, log_end)
            if found is None:
                return False
            which[chunk], crcs[chunk] = found.which, found.crc
            block, at = divmod(chunk, BLOCK_CHUNKS)
            ffi.memmove(self._blocks[block] + at * PAYLOAD_BYTES, found.payload, PAYLOAD_BYTES)
            if found.has_later:  # by a checkpoint that was not completed; it must be overwritten
                self._blocks[block][PAYLOAD_BYTES * BLOCK_CHUNKS + at] = 1
            states = np.frombuffer(found.payload, np.uint8)
            waiting += int(np.unpackbits(states & np.uint8(0x55) & ~(states >> np.uint8(1))).sum())
        if state_sector.digest(crcs) != digest:
            return False
        self._which, self._crcs = which, crcs
        self._completed = which.copy()
        self.native.pending = waiting
        return True

    def close(self) -> None:
        """Release the file."""
        self._file = None


def _ranges(which: "np.ndarray[tuple[int], np.dtype[np.int8]]") -> tuple[tuple[int, int], ...]:
    """Return the ranges of expired chunks."""
    if not (which == _EXPIRED).any():
        return ()
    edges = np.flatnonzero(np.diff(np.concatenate(([0], which == _EXPIRED, [0])).astype(np.int8)))
    return tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
