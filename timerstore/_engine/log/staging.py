"""Hold appended records in a mapped file until they are written to their segment.

The file is `<root>/timerstore/staging`: a header page, then two halves. It is mapped shared, so
that acknowledged records survive the process. One half takes appends while the other is written to
the segments.

On-disk format of the header, little-endian on every supported platform:
     0 magic "TSSTAGE2"   8 unused, 16 bytes   24 bytes of a half
    32 base 0   40 filled 0   48 base 1   56 filled 1      (log offset; bytes)
    64 durable end of the log   72 CRC-32 of bytes 64 to 72

Thread safety: `swap` runs under the append lock; the inactive half belongs to the thread that
    writes it out; `note_durable` belongs to the leader of a sync round.
Invariants:
    1. `filled` passes a record only when the record is complete.
    2. The file is zeroed, and that is synced, before a store appends to it. So every record in it
       was appended by the store's latest owner, at the log offset that it names.
    3. The log was synced through `durable end` before that value was written. A stale page can only
       show an earlier end.
    After a power cut, or after its file system was mounted again, nothing else can be relied on:
    the pages are never synced and may be of any age. Recovery therefore accepts a staged record
    only where it continues the log (log_recovery.py).
Raises: FullError if its blocks cannot be allocated. They are allocated when a store opens, so that
    no write into the map faults.
"""

import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi
from timerstore._engine.base.owner import Owner
from timerstore._engine.storage.disk import Disk

_HEAD_BYTES = 4096
_MAGIC = b"TSSTAGE2"
_MARKS_AT, _DURABLE_AT = 32, 64
_OFFSET_BYTES, _CRC_BYTES = 8, 4


class StagedBytes(NamedTuple):
    """Contents of the staging file after an unclean stop. They need not be intact."""

    pieces: tuple[tuple[int, bytes], ...] = ()
    """Log offset and bytes, by offset."""
    durable_end: int = 0
    """The log was synced through this offset; 0 if that is unknown."""


class Staging(Owner):
    """The staging file of one store."""

    def __init__(self, disk: Disk, path: Path, half_bytes: int) -> None:
        self.half_bytes = (half_bytes + 4095) // 4096 * 4096
        size = _HEAD_BYTES + 2 * self.half_bytes
        new = not disk.exists(path)
        self._file = disk.open(path, create=True)
        self._file.resize(size)
        self._file.reserve(0, size)
        self._file.zero(0, size)
        self._file.sync()
        if new:
            disk.sync_directory(path.parent)
        self._memory = self._file.map_shared(size)
        self._memory.madvise(_MADV_DONTFORK)
        self._view = ffi.from_buffer("uint8_t[]", self._memory, require_writable=True)
        self._marks = np.frombuffer(self._memory, np.int64, 4, _MARKS_AT)
        self.active = 0

    def start(self, base: int) -> None:
        """Empty both halves. The next record goes to log offset `base`; all before is durable."""
        self._marks[:] = (base, 0, base, 0)
        self.note_durable(base)
        self._memory[24:32] = self.half_bytes.to_bytes(8, "little")
        self._memory[:8] = _MAGIC
        self.active = 0

    def note_durable(self, end: int) -> None:
        """Record that the log was synced through `end`.

        This does not sync. The value survives a kill; after a power cut the file may hold an
        earlier value, or none.
        """
        raw = end.to_bytes(_OFFSET_BYTES, "little")
        crc = zlib.crc32(raw).to_bytes(_CRC_BYTES, "little")
        self._memory[_DURABLE_AT : _DURABLE_AT + _OFFSET_BYTES + _CRC_BYTES] = raw + crc

    def half(self, which: int) -> Any:
        """Return the address of a half."""
        return self._view + _HEAD_BYTES + which * self.half_bytes

    def mark(self, which: int) -> Any:
        """Return the address of a half's `filled` field."""
        return ffi.cast("int64_t *", self._view + 32 + 16 * which + 8)

    def swap(self, base: int) -> int:
        """Make the other half active, from log offset `base`. Return the old half's number."""
        old = self.active
        new = 1 - old
        self._marks[2 * new + 1] = 0  # before the base: no bytes may appear at a wrong offset
        self._marks[2 * new] = base
        self.active = new
        return old

    def bytes_of(self, which: int, size: int) -> memoryview:
        """Return the first `size` bytes of a half."""
        begin = _HEAD_BYTES + which * self.half_bytes
        return memoryview(self._memory)[begin : begin + size]

    def close(self) -> None:
        """Unmap the file and close it."""
        del self._marks
        ffi.release(self._view)
        with suppress(BufferError):  # the stored error of a failed write still refers to the map
            self._memory.close()
        del self._file


_MADV_DONTFORK = 10


def read_staged(disk: Disk, path: Path) -> StagedBytes:
    """Read the file after an unclean stop. Empty if it is missing or its header is not valid."""
    if not disk.exists(path):
        return StagedBytes()
    file = disk.open(path, read_only=True)
    size = file.size()
    if size < _HEAD_BYTES:
        return StagedBytes()
    head = file.read(0, 128)
    half_bytes = int.from_bytes(head[24:32], "little")
    if head[:8] != _MAGIC or size != _HEAD_BYTES + 2 * half_bytes:
        return StagedBytes()
    found = []
    marks = np.frombuffer(head, np.int64, 4, _MARKS_AT)
    for which in (0, 1):
        base, filled = int(marks[2 * which]), int(marks[2 * which + 1])
        if 0 < filled <= half_bytes and base >= 0:
            found.append((base, file.read(_HEAD_BYTES + which * half_bytes, filled)))
    return StagedBytes(tuple(sorted(found)), _durable_end(head))


def _durable_end(head: bytes) -> int:
    raw = head[_DURABLE_AT : _DURABLE_AT + _OFFSET_BYTES]
    crc = head[_DURABLE_AT + _OFFSET_BYTES : _DURABLE_AT + _OFFSET_BYTES + _CRC_BYTES]
    is_intact = int.from_bytes(crc, "little") == zlib.crc32(raw)
    return int.from_bytes(raw, "little") if is_intact else 0
