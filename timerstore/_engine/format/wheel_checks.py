"""timerstore/wheel: what each sector of the wheel's file holds. Our own; only Python touches it.

Data:     512 bytes of head, then an entry of 16 bytes for each sector of 512 bytes (16 slots);
          little-endian:
              head    0 magic "TSWHEEL1"   8 how many entries
              entry   0 before   4 now   8 number of the write that made it
          `before` and `now` are CRC-32s of the sector, XOR that of 512 zeros: an empty one has 0.
          The last sector counts as filled with zeros.
Holds:    an entry is durable before its sector is written. So the sector is as `now` says; or as
          `before` says, where that write is not known to be complete: the watermark has the number
          of the last one that is.
"""

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import address, ffi, lib

SECTOR_BYTES = 512
MAGIC = b"TSWHEEL1"
ENTRY = np.dtype([("before", "<u4"), ("now", "<u4"), ("number", "<i8")])
ENTRY_BYTES = ENTRY.itemsize
assert ENTRY_BYTES == 16
NUMBER_MAX = 2**62
_HEAD = struct.Struct("<8sq")
_OF_ZEROS = np.uint32(zlib.crc32(bytes(SECTOR_BYTES)))

Checks = npt.NDArray[np.uint32]
Entries = npt.NDArray[np.void]


def of(raw: Any) -> Checks:
    """Give the check of each sector of these bytes."""
    size = len(raw)
    if size % SECTOR_BYTES:
        raw = bytes(raw).ljust(size + -size % SECTOR_BYTES, b"\0")
    offsets = np.arange(0, len(raw) + 1, SECTOR_BYTES, dtype=np.int64)
    checks = np.zeros(len(offsets) - 1, np.uint32)
    status = lib.ts_crc32_rows(
        address(raw),
        len(raw),
        ffi.from_buffer("int64_t[]", offsets),
        len(checks),
        ffi.from_buffer("uint32_t[]", checks),
    )
    assert status == lib.TS_OK, "whole sectors"
    return checks ^ _OF_ZEROS


def file_bytes(count: int) -> int:
    """How long the file is for so many sectors."""
    return SECTOR_BYTES + count * ENTRY_BYTES


def write(entries: Entries) -> bytes:
    """Give the whole file's bytes."""
    return _HEAD.pack(MAGIC, len(entries)).ljust(SECTOR_BYTES, b"\0") + entries.tobytes()


def read(data: bytes, count: int) -> Entries | None:
    """Give the entries of so many sectors; None where these bytes are none."""
    if data[:SECTOR_BYTES] != _HEAD.pack(MAGIC, count).ljust(SECTOR_BYTES, b"\0"):
        return None
    if len(data) != file_bytes(count):
        return None
    entries = np.frombuffer(data, ENTRY, offset=SECTOR_BYTES).copy()
    return None if (entries["number"] > NUMBER_MAX).any() else entries


def fits(entries: Entries, held: Checks, completed: int) -> npt.NDArray[np.bool_]:
    """Tell of each sector whether it may hold what it holds, after so many complete writes."""
    is_underway = entries["number"] > completed
    sound: npt.NDArray[np.bool_] = (entries["now"] == held) | (
        is_underway & (entries["before"] == held)
    )
    return sound
