"""Slots of the timing wheel as an array, for checks. Everywhere else C reads and writes them.

On-disk format: native/format/wheel_slot.h, field by field; big-endian.
"""

import numpy as np
import numpy.typing as npt

WHEEL_SLOT = np.dtype(
    [
        ("time", ">i8"),
        ("first_pos", ">i8"),
        ("last_pos", ">i8"),
        ("count", ">i4"),
        ("magic", ">i4"),
    ]
)
SLOT_BYTES = WHEEL_SLOT.itemsize
assert SLOT_BYTES == 32
BROKER_SLOT_COUNT = 1_209_600
"""Of a broker's wheel, for every precision. A broker rejects a wheel of another size."""

Slots = npt.NDArray[np.void]


def read(data: bytes | memoryview) -> Slots:
    """Return the consecutive slots in `data`."""
    return np.frombuffer(data, WHEEL_SLOT)
