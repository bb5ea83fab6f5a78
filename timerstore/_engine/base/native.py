"""Import the C extension, and turn its status codes into exceptions.

Invariants:
    1. No other module of the engine imports timerstore._native or timerstore._hot.
Raises: ImportError if the extension was not built for this Python.
"""

from typing import Any, NoReturn

import numpy as np

from timerstore._hot import AppendLock as _AppendLock
from timerstore._hot import Lock as _Lock
from timerstore._hot import Putter as _Putter
from timerstore._hot import join as _join
from timerstore._hot import read_named as _read_named
from timerstore._hot import refuse_by as _refuse_by
from timerstore._hot import split as _split
from timerstore._native import ffi as _ffi
from timerstore._native import lib as _lib
from timerstore.errors import (
    CLASS_OF_CODE,
    CorruptError,
    FailedError,
    GoneError,
    reentrant_call,
)

ffi: Any = _ffi
lib: Any = _lib
AppendLock: Any = _AppendLock  # native/hot/append_lock.c
Lock: Any = _Lock  # native/hot/lock.c: the lock of every component of a store
Putter: Any = _Putter
join: Any = _join  # native/hot/lists.h
read_named: Any = _read_named
split: Any = _split

_refuse_by(reentrant_call)

FAULTS = {
    _lib.TS_FAULT_END: "nothing is there",
    _lib.TS_FAULT_SHORT: "a length reaches past the end of the segment",
    _lib.TS_FAULT_MAGIC: "the magic number is unknown",
    _lib.TS_FAULT_LENGTHS: "its lengths do not add up, or its queue offset is not valid",
    _lib.TS_FAULT_POSITION: "the stored position is not that of the record",
    _lib.TS_FAULT_BODY_CRC: "the body's CRC does not match",
    _lib.TS_FAULT_PROPERTY_CRC: "the record's CRC does not match",
    _lib.TS_FAULT_TOPIC: "the record is not the one that was pointed at",
    _lib.TS_FAULT_PROPERTIES: "a timer property is missing or does not parse",
    _lib.TS_FAULT_CHAIN: "a timer unit does not fit its slot's chain",
    _lib.TS_FAULT_GONE: "retention removed it",
}

assert CorruptError.code == _lib.TS_CORRUPT, "errors.py and api.h disagree"


def raise_status(status: int, what: str, where: object = None) -> NoReturn:
    """Raise the class of a negative status."""
    cls = CLASS_OF_CODE.get(status, FailedError)
    raise cls(what, where=where, got=f"status {status}")


def raise_fault(view: Any, what: str, path: object) -> NoReturn:
    """Raise the error of a view's fault: GoneError if retention removed the place, else Corrupt."""
    cls = GoneError if view.fault == _lib.TS_FAULT_GONE else CorruptError
    raise cls(
        f"{what}: {FAULTS.get(view.fault, 'damaged')}", where=f"{path} offset {view.fault_offset}"
    )


def pointer(kind: str, buffer: Any) -> Any:
    """Return the memory of a buffer as a C array of type `kind`, which keeps the buffer alive.

    Use it for every address that outlives one call: in a variable, an object, a list. Python before
    3.11.8 and 3.12.2 crashes when it collects a memoryview in a cycle with its exporter (gh-77894),
    and the traceback of an error makes such a cycle of a function's variables. A numpy array
    between the two is the exporter, and is not part of cycles.
    """
    return ffi.from_buffer(kind, np.asarray(buffer) if type(buffer) is memoryview else buffer)


def address(buffer: Any) -> Any:
    """Return the memory of an array or other buffer as `uint8_t *`, which keeps it alive."""
    return pointer("uint8_t[]", buffer)
