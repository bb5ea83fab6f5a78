"""Hold appended records in a mapped file until they are written to their segment.

The file is `<root>/timerstore/staging`: a header page, then two halves. It is mapped shared, so
that acknowledged records survive the process. One half takes appends while the other is written to
the segments.

On-disk format of the header, little-endian on every supported platform:
     0 magic "TSSTAGE3"   8 unused, 16 bytes   24 bytes of a half
    32 base 0   40 filled mark 0   48 base 1   56 filled mark 1
    64 durable end of the log   72 CRC-32 of bytes 64 to 72
A base is a log offset. A filled mark has the size of the records in its half, and their CRC-32 if
one of them has no CRC of its own (native/format/staging_mark.h).

Thread safety: `leave` runs under the append lock; the inactive half belongs to the thread that
    writes it out; `note_durable` belongs to the leader of a sync round.
Invariants:
    1. A filled mark passes a record only when the record is complete. It is written in one store,
       so it fits the half however the process ends.
    2. The file is zeroed, and that is synced, before a store appends to it. So every record in it
       was appended by the store's latest owner, at the log offset that it names.
    3. The log was synced through `durable end` before that value was written. A stale page can only
       show an earlier end.
    After a power cut, or after its file system was mounted again, nothing else can be relied on:
    the pages are never synced and their sectors may be of any age. Recovery therefore accepts a
    staged record only if a CRC covers all of it, and only where it continues the log
    (log_recovery.py).
Raises: FullError if its blocks cannot be allocated. They are allocated when a store opens, so that
    no write into the map faults. FormatVersionError on a file of a later version.
"""

import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.disk import Disk
from timerstore.errors import newer_format

_HEAD_BYTES = 4096
_MAGIC = b"TSSTAGE3"
_MAGIC_UNCHECKED = b"TSSTAGE2"  # a mark is a number of bytes only; read, not written
_LATER = frozenset(b"TSSTAGE%d" % version for version in range(4, 10))
_MARKS_AT, _DURABLE_AT = 32, 64
_OFFSET_BYTES, _CRC_BYTES = 8, 4
_HALF = struct.Struct("<qQ")  # base, filled mark


class StagedBytes(NamedTuple):
    """Contents of the staging file after an unclean stop."""

    pieces: tuple[tuple[int, bytes], ...] = ()
    """Log offset and bytes of each half, by offset. The bytes are as their process wrote them."""
    durable_end: int = 0
    """The log was synced through this offset; 0 if that is unknown."""


class Staging(NotCopyable):
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
        """Return the address of a half's filled mark."""
        return ffi.cast("uint64_t *", self._view + 32 + 16 * which + 8)

    def leave(self, old: int, base: int) -> None:
        """Make the other half than `old` active, from log offset `base`. May be repeated."""
        new = 1 - old
        self._marks[2 * new + 1] = 0  # before the base: no bytes may appear at a wrong offset
        self._marks[2 * new] = base
        self.active = new

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


def check_version(disk: Disk, path: Path) -> None:
    """Raise FormatVersionError if a later release wrote the file: only that one can read it.

    Call it after an unclean stop. After a clean one nothing in the file counts.
    """
    if not disk.exists(path):
        return
    file = disk.open(path, read_only=True)
    _check_head(file.read(0, min(len(_MAGIC), file.size())), path)


def _check_head(head: bytes, path: Path) -> None:
    magic = head[: len(_MAGIC)]
    if magic in _LATER:
        raise newer_format("staging", None, where=path, wanted=_MAGIC, got=magic)


def read_staged(disk: Disk, path: Path) -> StagedBytes:
    """Read the file after an unclean stop. Empty if it is missing or its header is not valid.

    Records that are damaged are left out, and so are the records after them. A kill leaves none.
    After a power cut, no record that only this file has is known to be durable.
    """
    if not disk.exists(path):
        return StagedBytes()
    file = disk.open(path, read_only=True)
    size = file.size()
    head = file.read(0, min(128, size))
    _check_head(head, path)
    if size < _HEAD_BYTES:
        return StagedBytes()
    half_bytes = int.from_bytes(head[24:32], "little")
    if head[:8] not in (_MAGIC, _MAGIC_UNCHECKED) or size != _HEAD_BYTES + 2 * half_bytes:
        return StagedBytes()
    found = []
    for which, (base, mark) in enumerate(_HALF.iter_unpack(head[_MARKS_AT:_DURABLE_AT])):
        if base < 0 or mark == 0:
            continue
        half = file.read(_HEAD_BYTES + which * half_bytes, half_bytes)
        is_checked = head[:8] == _MAGIC
        filled = lib.ts_staged_bytes(half, half_bytes, base, mark) if is_checked else mark
        if 0 < filled <= half_bytes:
            found.append((base, half[:filled]))
    return StagedBytes(tuple(sorted(found)), _durable_end(head))


def _durable_end(head: bytes) -> int:
    raw = head[_DURABLE_AT : _DURABLE_AT + _OFFSET_BYTES]
    crc = head[_DURABLE_AT + _OFFSET_BYTES : _DURABLE_AT + _OFFSET_BYTES + _CRC_BYTES]
    is_intact = int.from_bytes(crc, "little") == zlib.crc32(raw)
    return int.from_bytes(raw, "little") if is_intact else 0
