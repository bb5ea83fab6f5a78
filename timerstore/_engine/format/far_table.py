"""timerstore/far-0, far-1: the slots of the far wheel, as of a checkpoint. Our own; Python alone.

Data:     written in turn; big-endian:
              0 magic "TSFAR002"   8 number of the table: the watermark names it; far-(number mod 2)
             16 begin: units below count no more       24 end: number of the next unit
             32 width: wheel slots to a far slot       40 ordered_from: the timer log's units from
             this position on stand in the order of the timer topic's queue
             48 how many chains follow, 32 bytes each: far slot, ascending; number of its newest
                  unit, of its oldest; how many it has. Far slots below 0: of what is parked
             then CRC-32 of all before, u32
          A slot may have two chains: one of them is being copied to the other (Linker.tidy).
          Units: native/format/far_unit.h, in timerstore/far/.
Holds:    what a table speaks of was durable before the watermark that names it was written.

A far slot s holds what is due in the wheel's slots from s * width on, width of them; the last one
there may be, so many ahead, holds what is later as well.
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
    """One table."""

    number: int
    begin: int
    end: int
    width: int
    ordered_from: int
    rows: npt.NDArray[np.void]


def write(table: FarTable) -> bytes:
    """Give the file's bytes."""
    head = _HEAD.pack(_MAGIC, *table[:-1], len(table.rows))
    data = head + table.rows.astype(ROW).tobytes()
    return data + _CRC.pack(zlib.crc32(data))


def read(data: bytes | None, number: int) -> FarTable | None:
    """Give the table with this number; None where the file holds another, or nothing that holds."""
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
