"""timerstore/state: two bits of state for each timer id.

The file is a cache, written only by this package: the same states follow from the commit log.

Invariants:
    1. A sector is valid if its CRC is correct, its chunk number matches its place, and its log_end
       is not greater than the watermark's. Of two valid sectors the greater log_end counts.
On-disk format: chunk c (1920 ids) has two sectors of 512 bytes at offset 1024 c, written
    alternately; little-endian:

     0  magic
     4  CRC-32 of bytes 8-511
     8  chunk
    16  log_end
    24  zero
    32  480 bytes of states: id k of the chunk has bits 2 (k mod 4) and the next of byte k / 4

    Chunks that are no longer needed (`past` in counts_json.py) are not read, and may be holes.
"""

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SECTOR_BYTES = 512
PAYLOAD_BYTES = 480
CHUNK_IDS = 1920
MAGIC = 0x31535354  # "TSS1"
SECTOR = np.dtype(
    [
        ("magic", "<u4"),
        ("crc", "<u4"),
        ("chunk", "<i8"),
        ("log_end", "<i8"),
        ("zero", "<i8"),
        ("payload", "u1", (PAYLOAD_BYTES,)),
    ]
)
assert SECTOR.itemsize == SECTOR_BYTES

Bytes = npt.NDArray[np.uint8]


def make(
    chunks: npt.NDArray[np.int64], log_end: int, payloads: Bytes
) -> tuple[memoryview, npt.NDArray[np.uint64]]:
    """Return the sectors of chunks, 512 bytes each, and their CRCs. Payloads: [n, 480]."""
    sectors = np.zeros(len(chunks), SECTOR)
    sectors["magic"], sectors["chunk"], sectors["log_end"] = MAGIC, chunks, log_end
    sectors["payload"] = payloads
    raw = sectors.view(np.uint8).data
    ends = range(SECTOR_BYTES, len(raw) + 1, SECTOR_BYTES)
    crcs = [zlib.crc32(raw[end - SECTOR_BYTES + 8 : end]) for end in ends]
    sectors["crc"] = crcs
    return raw, np.array(crcs, np.uint64)


class Picked(NamedTuple):
    """The sector of a pair that counts. `has_later`: the other one has a log_end past the log."""

    which: int
    crc: int
    payload: bytes
    has_later: bool


def pick(pair: bytes, chunk: int, log_end: int) -> Picked | None:
    """Return the sector of a chunk's pair that counts at a log end; None without one."""
    best: tuple[int, int, int, bytes] | None = None
    has_later = False
    for which in (0, 1):
        raw = pair[which * SECTOR_BYTES : (which + 1) * SECTOR_BYTES]
        if len(raw) < SECTOR_BYTES:
            continue
        head = np.frombuffer(raw, SECTOR)[0]
        if head["magic"] != MAGIC or head["chunk"] != chunk or zlib.crc32(raw[8:]) != head["crc"]:
            continue
        if head["log_end"] > log_end:
            has_later = True
        elif best is None or head["log_end"] > best[0]:
            best = (int(head["log_end"]), which, int(head["crc"]), raw[32:])
    return None if best is None else Picked(*best[1:], has_later)


def digest(crcs: npt.NDArray[np.uint64]) -> int:
    """Return a 64-bit digest of the CRCs of all chunks in order."""
    numbers = np.arange(1, len(crcs) + 1, dtype=np.uint64)
    return int((crcs * (2 * numbers + np.uint64(1))).sum(dtype=np.uint64))
