"""Wheel slots as an array: for those who check them; C reads and writes them everywhere else.

Data:     native/format/wheel_slot.h, field by field; big-endian.
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
"""Of a wheel that a broker makes, whatever its precision; it takes no other."""

Slots = npt.NDArray[np.void]


def read(data: bytes | memoryview) -> Slots:
    """Give the slots that lie side by side in `data`."""
    return np.frombuffer(data, WHEEL_SLOT)
