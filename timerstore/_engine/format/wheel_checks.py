"""timerstore/wheel: checksums of the sectors of the wheel's file.

Invariants:
    1. An entry is durable before its sector is written. So the sector matches `now`. If the write
       is not known to be complete, it may match `before` instead. The watermark has the number of
       the last complete write.
On-disk format: 512 bytes of header, then an entry of 16 bytes for each sector of 512 bytes (16
    slots). Written only by Python; little-endian:

    header   0  magic "TSWHEEL1"
             8  number of entries
    entry    0  before
             4  now
             8  number of the write that made it

    `before` and `now` are CRC-32s of the sector, XOR the CRC-32 of 512 zeros, so an empty sector
    has 0. The last sector counts as padded with zeros.
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


def compute(raw: Any) -> Checks:
    """Return the checksum of each sector of these bytes."""
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
    """Return the length of the file for `count` sectors, bytes."""
    return SECTOR_BYTES + count * ENTRY_BYTES


def write(entries: Entries) -> bytes:
    """Return the file's bytes."""
    return _HEAD.pack(MAGIC, len(entries)).ljust(SECTOR_BYTES, b"\0") + entries.tobytes()


def read(data: bytes, count: int) -> Entries | None:
    """Return the entries of `count` sectors; None if the bytes are not a valid file of them."""
    if data[:SECTOR_BYTES] != _HEAD.pack(MAGIC, count).ljust(SECTOR_BYTES, b"\0"):
        return None
    if len(data) != file_bytes(count):
        return None
    entries = np.frombuffer(data, ENTRY, offset=SECTOR_BYTES).copy()
    return None if (entries["number"] > NUMBER_MAX).any() else entries


def match(entries: Entries, found: Checks, completed: int) -> npt.NDArray[np.bool_]:
    """Return for each sector whether its checksum matches its entry.

    completed: the number of the last write that is known to be complete.
    """
    is_incomplete = entries["number"] > completed
    matches: npt.NDArray[np.bool_] = (entries["now"] == found) | (
        is_incomplete & (entries["before"] == found)
    )
    return matches
