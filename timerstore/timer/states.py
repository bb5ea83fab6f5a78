"""States: waiting, handed or cancelled, for every timer id; in memory and as a side file.

Data:     native/src/states.h in memory, layout/state_sector.py on disk.
Threads:  changed under the append lock; written by whoever checkpoints.
Holds:    (1) ids below `native.end` have memory; a record with a new id is appended only then;
          (2) of a chunk's two sectors the one of the last completed checkpoint is not written to,
          however often a checkpoint fails in between.
Fails:    the side file never: what does not fit is answered with None, and the log is folded anew.
"""

import threading
from typing import Any, NamedTuple

import numpy as np

from timerstore.files.disk import Disk, File
from timerstore.layout import state_sector
from timerstore.layout.state_sector import CHUNK_IDS, PAYLOAD_BYTES, SECTOR_BYTES
from timerstore.native import ffi, lib
from timerstore.timer.request import Bytes, Int64Array

BLOCK_CHUNKS = 128
BLOCK_IDS = CHUNK_IDS * BLOCK_CHUNKS
BLOCK_BYTES = (PAYLOAD_BYTES + 1) * BLOCK_CHUNKS
_TABLE_SIZE = 64
_UNWRITTEN = -1


class DirtyChunks(NamedTuple):
    """Copies of the chunks that changed since the last checkpoint."""

    chunks: Int64Array
    payloads: Bytes


class States:
    """The table of one store."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._tables: list[Any] = []  # every one that a reader may still walk
        self.native: Any = ffi.new("ts_states *")
        self._table: Any = None
        self._size = 0
        self._lock = threading.Lock()
        self._which = np.zeros(0, np.int8)  # of a chunk's sectors: the one that counts
        self._crcs = np.zeros(0, np.uint64)
        self._completed = self._which  # `_which` as of the last completed checkpoint
        self._file: File | None = None

    def ensure(self, timer_id: int) -> None:
        """Have memory for ids up to this one."""
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
        """Give an id's state."""
        return int(lib.ts_state_get(self.native, timer_id))

    def copy_dirty(self) -> DirtyChunks:
        """Copy what changed; under the append lock."""
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
        """Copy every state, two bits each, as they lie in the side file; under the append lock."""
        size = PAYLOAD_BYTES * BLOCK_CHUNKS
        return b"".join(bytes(ffi.buffer(block, size)) for block in self._blocks)

    def mark_dirty(self, dirty: DirtyChunks) -> None:
        """Take back copies that could not be written."""
        for chunk in dirty.chunks:
            block, at = divmod(int(chunk), BLOCK_CHUNKS)
            self._blocks[block][PAYLOAD_BYTES * BLOCK_CHUNKS + at] = 1

    # --- the side file ---

    def open_file(self, disk: Disk, path: Any, *, anew: bool) -> None:
        """Open the side file; `anew` empties it."""
        self._file = disk.open(path, create=True)
        if anew:
            self._file.resize(0)
            self._which = self._completed = np.zeros(0, np.int8)
            self._crcs = np.zeros(0, np.uint64)
        disk.sync_directory(path.parent)

    def write(self, dirty: DirtyChunks, log_end: int) -> tuple[int, int]:
        """Write the chunks' other sectors, durably; (chunk count, digest) for the watermark."""
        assert self._file is not None
        if len(dirty.chunks):
            self._extend(dirty.chunks, log_end)
        for chunk, payload in zip(dirty.chunks.tolist(), dirty.payloads, strict=True):
            self._write_one(chunk, log_end, payload)
        self._file.sync()
        return len(self._crcs), state_sector.digest(self._crcs)

    def completed(self) -> None:
        """The watermark that speaks of what was written is durable."""
        self._completed = self._which.copy()

    def _extend(self, chunks: Int64Array, log_end: int) -> None:
        more = int(chunks.max()) + 1 - len(self._crcs)
        if more > 0:
            self._which = np.concatenate([self._which, np.full(more, _UNWRITTEN, np.int8)])
            self._crcs = np.concatenate([self._crcs, np.zeros(more, np.uint64)])
        empty = np.zeros(PAYLOAD_BYTES, np.uint8)
        changed = set(chunks.tolist())
        for chunk in np.flatnonzero(self._which == _UNWRITTEN).tolist():
            if chunk not in changed:  # only one of a chunk's sectors may carry this log end
                self._write_one(chunk, log_end, empty)

    def _write_one(self, chunk: int, log_end: int, payload: Bytes) -> None:
        assert self._file is not None
        raw, crc = state_sector.make(chunk, log_end, payload)
        is_new = chunk >= len(self._completed) or self._completed[chunk] == _UNWRITTEN
        which = 0 if is_new else 1 - int(self._completed[chunk])
        self._file.write(raw, (2 * chunk + which) * SECTOR_BYTES)
        self._which[chunk] = which
        self._crcs[chunk] = crc

    def read(self, chunk_count: int, digest: int, log_end: int) -> bool:
        """Load the side file as it was at a watermark; False where it does not fit."""
        assert self._file is not None
        size = min(self._file.size(), 2 * chunk_count * SECTOR_BYTES)
        raw = self._file.read(0, size)
        which = np.zeros(chunk_count, np.int8)
        crcs = np.zeros(chunk_count, np.uint64)
        if chunk_count:
            self.ensure(chunk_count * CHUNK_IDS - 1)
        waiting = 0
        for chunk in range(chunk_count):
            pair = raw[2 * chunk * SECTOR_BYTES : 2 * (chunk + 1) * SECTOR_BYTES]
            found = state_sector.pick(pair, chunk, log_end)
            if found is None:
                return False
            which[chunk], crcs[chunk] = found.which, found.crc
            block, at = divmod(chunk, BLOCK_CHUNKS)
            ffi.memmove(self._blocks[block] + at * PAYLOAD_BYTES, found.payload, PAYLOAD_BYTES)
            if found.has_later:  # of a checkpoint that was never completed: must not count later
                self._blocks[block][PAYLOAD_BYTES * BLOCK_CHUNKS + at] = 1
            states = np.frombuffer(found.payload, np.uint8)
            waiting += int(np.unpackbits(states & np.uint8(0x55) & ~(states >> np.uint8(1))).sum())
        if state_sector.digest(crcs) != digest:
            return False
        self._which, self._crcs = which, crcs
        self._completed = which.copy()
        self.native.waiting = waiting
        return True

    def close(self) -> None:
        """Let go of the file."""
        self._file = None
