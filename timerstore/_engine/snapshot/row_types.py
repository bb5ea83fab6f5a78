"""The numpy types of the rows that C fills (native/api)."""

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi

RowArray = npt.NDArray[np.void]


def dtype_of(name: str) -> np.dtype[np.void]:
    """Return the numpy type of a C struct of whole numbers and of arrays of them."""
    names, formats, offsets = [], [], []
    for field_name, about in ffi.typeof(name).fields:
        kind = about.type
        shape: tuple[int, ...] = ()
        if kind.kind == "array":
            shape, kind = (kind.length,), kind.item
        names.append(field_name)
        formats.append((f"i{ffi.sizeof(kind)}", shape))
        offsets.append(about.offset)
    size = ffi.sizeof(name)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


ROW = dtype_of("ts_table_row")
UNIT_ROW = dtype_of("ts_unit_row")
SLOT_ROW = dtype_of("ts_slot_row")
