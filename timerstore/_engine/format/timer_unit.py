"""Units of the timer log as an array, for checks. Everywhere else C reads and writes them.

On-disk format: native/format/timer_unit.h, field by field; big-endian.
"""

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib

TIMER_UNIT = np.dtype(
    [
        ("unit_size", ">i4"),
        ("prev_pos", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("log_offset", ">i8"),
        ("size", ">i4"),
        ("topic_hash", ">i4"),
        ("seal", ">i8"),
    ]
)
UNIT_BYTES = TIMER_UNIT.itemsize
BLANK_BYTES = 16
assert UNIT_BYTES == 52

MAGIC_DELETE = 4
MAGIC_AGAIN = 8
MAGIC_MAX = 15
_BLANK_MAGIC = 0xCBD43194

Units = npt.NDArray[np.void]


def read(data: bytes) -> Units:
    """Return the consecutive units in `data`."""
    return np.frombuffer(data, TIMER_UNIT)


def are_valid(data: bytes, pos: int) -> npt.NDArray[np.bool_]:
    """Return for each of the consecutive units in `data` whether it is valid.

    A unit with a checksum must also match it. `pos` is the position of the first unit.
    """
    valid = np.zeros(len(data) // UNIT_BYTES, np.uint8)
    lib.ts_units_check(data, len(valid), pos, ffi.from_buffer("uint8_t[]", valid))
    return valid.view(np.bool_)


def is_blank(data: bytes, remaining: int) -> bool:
    """Return whether these bytes begin a blank that fills the `remaining` bytes of a segment."""
    expected = remaining.to_bytes(4, "big") + bytes(8) + _BLANK_MAGIC.to_bytes(4, "big")
    return data[:BLANK_BYTES] == expected


def units_per_segment(segment_bytes: int) -> int:
    """Return how many units a full segment has before its blank."""
    return (segment_bytes - BLANK_BYTES) // UNIT_BYTES


def count_below(end: int, segment_bytes: int) -> int:
    """Return how many units are before a position of the timer log."""
    segment, at = divmod(end, segment_bytes)
    return segment * units_per_segment(segment_bytes) + at // UNIT_BYTES


def position_of(number: int, segment_bytes: int) -> int:
    """Return the position of the unit with this number, counted from position 0."""
    segment, at = divmod(number, units_per_segment(segment_bytes))
    return segment * segment_bytes + at * UNIT_BYTES
