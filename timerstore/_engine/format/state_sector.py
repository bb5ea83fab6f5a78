"""timerstore/state: two bits per timer id. Our own file; a cache of a fold over the commit log.

Data:     chunk c (1920 ids) has two sectors of 512 bytes at 1024 c, written in turn; little-endian:
              0 magic   4 CRC-32 of bytes 8-511   8 chunk   16 log_end   24 zero
             32 480 bytes of states
          State of the chunk's id k: bits 2 (k mod 4) and the next of byte k / 4.
          Of a chunk that is past (format/counts_json.py) nothing counts; its place may be a hole.
Holds:    a sector counts when its CRC fits, its chunk is where it lies and its log_end is not
          beyond the watermark's; of two that count, the one with the greater log_end.
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
    """Give the sectors of chunks, 512 bytes each, and their CRCs; payloads: [n, 480]."""
    sectors = np.zeros(len(chunks), SECTOR)
    sectors["magic"], sectors["chunk"], sectors["log_end"] = MAGIC, chunks, log_end
    sectors["payload"] = payloads
    raw = sectors.view(np.uint8).data
    ends = range(SECTOR_BYTES, len(raw) + 1, SECTOR_BYTES)
    crcs = [zlib.crc32(raw[end - SECTOR_BYTES + 8 : end]) for end in ends]
    sectors["crc"] = crcs
    return raw, np.array(crcs, np.uint64)


class Picked(NamedTuple):
    """The sector of a pair that counts; `has_later`: the other one claims more than the log has."""

    which: int
    crc: int
    payload: bytes
    has_later: bool


def pick(pair: bytes, chunk: int, log_end: int) -> Picked | None:
    """Of a chunk's two sectors give the one that counts at a watermark, or None."""
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
    """Give one number for the CRCs of all chunks in order, 64 bits."""
    numbers = np.arange(1, len(crcs) + 1, dtype=np.uint64)
    return int((crcs * (2 * numbers + np.uint64(1))).sum(dtype=np.uint64))
