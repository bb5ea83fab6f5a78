"""timerstore/far-0, far-1: the slots of the far wheel at a checkpoint.

Far slot s holds the messages of the wheel's slots [s * width, (s + 1) * width). The last possible
far slot also holds every later message.

Invariants:
    1. Everything a table refers to was durable before the watermark that names it was written.
On-disk format: two files, written alternately and only by this package; big-endian:

     0  magic "TSFAR002"
     8  number of the table, which the watermark names; it is in file far-(number mod 2)
    16  begin: units below this number no longer count
    24  end: number of the next unit
    32  width: wheel slots in a far slot
    40  ordered_from: units of the timer log from this position on have the order of the timer
        topic's queue
    48  number of chains, then 32 bytes for each: far slot, ascending; number of its newest unit; of
        its oldest unit; number of units. Far slots below 0 hold the overflow.
     .  CRC-32 of all bytes before, u32

    A slot may have two chains while one is being copied to the other (Linker.tidy_far).
See also: native/format/far_unit.h for the units, in timerstore/far/.
"""

import struct
import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MAGIC = b"TSFAR002"
_HEAD = struct.Struct(">8s6q")
_CRC = struct.Struct(">I")
ROW = np.dtype([("slot", ">i8"), ("newest", ">i8"), ("oldest", ">i8"), ("count", ">i8")])
UNIT_BYTES = 52


class FarTable(NamedTuple):
    """One table; fields as in the module docstring."""

    number: int
    begin: int
    end: int
    width: int
    ordered_from: int
    rows: npt.NDArray[np.void]


def write(table: FarTable) -> bytes:
    """Return the file's bytes."""
    head = _HEAD.pack(_MAGIC, *table[:-1], len(table.rows))
    data = head + table.rows.astype(ROW).tobytes()
    return data + _CRC.pack(zlib.crc32(data))


def read(data: bytes | None, number: int) -> FarTable | None:
    """Return the table with this number; None if the file has another one, or is not valid."""
    if data is None or len(data) < _HEAD.size + _CRC.size:
        return None
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if _CRC.unpack(crc)[0] != zlib.crc32(body):
        return None
    magic, found, begin, end, width, ordered_from, count = _HEAD.unpack(body[: _HEAD.size])
    if magic != _MAGIC or found != number or len(body) != _HEAD.size + count * ROW.itemsize:
        return None
    rows = np.frombuffer(body, ROW, count, _HEAD.size)
    return FarTable(found, begin, end, width, ordered_from, rows)
