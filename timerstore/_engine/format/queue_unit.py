"""Units of a consume queue as an array, for checks. Everywhere else C reads and writes them.

On-disk format: native/format/queue_unit.h, field by field; big-endian.
"""

import numpy as np
import numpy.typing as npt

QUEUE_UNIT = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
UNIT_BYTES = QUEUE_UNIT.itemsize
assert UNIT_BYTES == 20

Units = npt.NDArray[np.void]


def read(data: bytes) -> Units:
    """Return the consecutive units in `data`."""
    return np.frombuffer(data, QUEUE_UNIT)


def text(unit: np.void) -> str:
    """Describe one unit for an error text."""
    return f"log offset {unit['log_offset']}, {unit['size']} bytes, tags code {unit['tags_code']}"
