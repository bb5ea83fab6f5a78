"""Staging: appended records before they are written to their segment.

Data:     <root>/timerstore/staging, our own: one page of head, then two halves, mapped shared, so
          that what a put acknowledged outlives the process. One half takes appends while the other
          is written out. Head, native byte order (it never leaves this boot of this machine):
              0 magic "TSSTAGE1"   8 boot id, 16 bytes   24 bytes of a half
             32 base 0   40 filled 0   48 base 1   56 filled 1      (log offset; bytes)
Threads:  swap under the append lock; the inactive half belongs to whoever writes it out.
Holds:    (1) `filled` passes a record only when it is complete; (2) a half's range is whole: where
          it says [base, base + filled), those bytes are the log's, however often they are copied.
Fails:    FullError where its blocks cannot be had: taken at opening, so that no store into it
          faults.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from timerstore.files.directory import boot_id
from timerstore.files.disk import Disk
from timerstore.native import ffi
from timerstore.owner import Owner

Staged = list[tuple[int, bytes]]
"""Log offset and bytes, by offset."""

_HEAD_BYTES = 4096
_MAGIC = b"TSSTAGE1"


class Staging(Owner):
    """Two halves and their head."""

    def __init__(self, disk: Disk, path: Path, half_bytes: int) -> None:
        self.half_bytes = (half_bytes + 4095) // 4096 * 4096
        size = _HEAD_BYTES + 2 * self.half_bytes
        new = not disk.exists(path)
        self._file = disk.open(path, create=True)
        self._file.resize(size)
        self._file.reserve(0, size)
        if new:
            disk.sync_directory(path.parent)
        self._memory = self._file.map_shared(size)
        self._memory.madvise(_MADV_DONTFORK)
        self._view = ffi.from_buffer("uint8_t[]", self._memory, require_writable=True)
        self._marks = np.frombuffer(self._memory, np.int64, 4, 32)
        self.active = 0

    def start(self, base: int) -> None:
        """Empty both halves; the next record goes to log offset `base`."""
        self._marks[:] = (base, 0, base, 0)
        self._memory[:8] = _MAGIC
        self._memory[8:24] = boot_id()
        self._memory[24:32] = self.half_bytes.to_bytes(8, "little")
        self.active = 0

    def half(self, which: int) -> Any:
        """Give the address of a half."""
        return self._view + _HEAD_BYTES + which * self.half_bytes

    def mark(self, which: int) -> Any:
        """Give the address of a half's filled mark."""
        return ffi.cast("int64_t *", self._view + 32 + 16 * which + 8)

    def swap(self, base: int) -> int:
        """Make the other half the active one, from log offset `base`; the old one's number."""
        old = self.active
        new = 1 - old
        self._marks[2 * new + 1] = 0  # before the base: a range is never claimed at a wrong place
        self._marks[2 * new] = base
        self.active = new
        return old

    def bytes_of(self, which: int, size: int) -> memoryview:
        """Give the first `size` bytes of a half."""
        begin = _HEAD_BYTES + which * self.half_bytes
        return memoryview(self._memory)[begin : begin + size]

    def close(self) -> None:
        """Unmap."""
        del self._marks
        ffi.release(self._view)
        with suppress(BufferError):  # a write that failed: its error, which is kept, still has it
            self._memory.close()
        del self._file


_MADV_DONTFORK = 10


def leftovers(disk: Disk, path: Path) -> Staged:
    """Give what an unclean stop of this same boot left."""
    if not disk.exists(path):
        return []
    file = disk.open(path, read_only=True)
    size = file.size()
    if size < _HEAD_BYTES:
        return []
    head = file.read(0, 64)
    half_bytes = int.from_bytes(head[24:32], "little")
    if head[:8] != _MAGIC or head[8:24] != boot_id() or size != _HEAD_BYTES + 2 * half_bytes:
        return []
    found = []
    marks = np.frombuffer(head, np.int64, 4, 32)
    for which in (0, 1):
        base, filled = int(marks[2 * which]), int(marks[2 * which + 1])
        if 0 < filled <= half_bytes and base >= 0:
            found.append((base, file.read(_HEAD_BYTES + which * half_bytes, filled)))
    return sorted(found)


def goes_on(staged: Staged, read: Callable[[int, int], bytes | bytearray]) -> bool:
    """Whether the log has these bytes where it has any: else somebody who knows nothing of them, a
    broker, went on without them. `read`: of the log, (offset, size).
    """
    for base, data in staged:
        there = np.frombuffer(read(base, len(data)), np.uint8)
        if ((there != np.frombuffer(data, np.uint8)) & (there != 0)).any():
            return False
    return True
