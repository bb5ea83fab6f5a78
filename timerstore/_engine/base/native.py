"""The C part: its door, and how a status of it becomes an exception.

Holds:    nothing else imports timerstore._native.
Fails:    ImportError where the extension was not built for this Python.
"""

from typing import Any, NoReturn

import numpy as np

from timerstore._fastpath import AppendLock as _AppendLock
from timerstore._fastpath import Lock as _Lock
from timerstore._fastpath import Putter as _Putter
from timerstore._fastpath import join as _join
from timerstore._fastpath import read_handles as _read_named
from timerstore._fastpath import set_reentrant_error as _refuse_by
from timerstore._fastpath import split as _split
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
AppendLock: Any = _AppendLock  # native/fastpath/append_lock.c
Lock: Any = _Lock  # native/fastpath/lock.c: the lock that every part of a store uses
Putter: Any = _Putter
join: Any = _join  # native/fastpath/lists.h
read_handles: Any = _read_named
split: Any = _split

_refuse_by(reentrant_call)

FAULTS = {
    _lib.TS_FAULT_END: "nothing is there",
    _lib.TS_FAULT_SHORT: "a length reaches beyond the segment",
    _lib.TS_FAULT_MAGIC: "the magic number is unknown",
    _lib.TS_FAULT_LENGTHS: "its lengths do not add up, or its queue offset is none",
    _lib.TS_FAULT_POSITION: "the stored position is not the record's own",
    _lib.TS_FAULT_BODY_CRC: "the body's CRC does not match",
    _lib.TS_FAULT_PROPERTY_CRC: "the record's CRC does not match",
    _lib.TS_FAULT_TOPIC: "the record is not the one that was pointed at",
    _lib.TS_FAULT_PROPERTIES: "a timer property is missing or does not parse",
    _lib.TS_FAULT_CHAIN: "a timer unit does not fit its slot's chain",
    _lib.TS_FAULT_GONE: "retention removed it",
}

assert CorruptError.code == _lib.TS_CORRUPT, "errors.py and native/api disagree"


def raise_status(status: int, what: str, where: object = None) -> NoReturn:
    """Raise the class of a negative status."""
    cls = CLASS_OF_CODE.get(status, FailedError)
    raise cls(what, where=where, got=f"status {status}")


def raise_fault(view: Any, what: str, path: object) -> NoReturn:
    """Raise CorruptError for the place that a view's fault names, GoneError below its beginning."""
    cls = GoneError if view.fault == _lib.TS_FAULT_GONE else CorruptError
    raise cls(
        f"{what}: {FAULTS.get(view.fault, 'damaged')}", where=f"{path} offset {view.fault_offset}"
    )


def pointer(kind: str, buffer: Any) -> Any:
    """Give where a buffer's bytes lie, as a C array of a kind; keeps the buffer alive.

    For every address that outlives one call: in a variable, an object, a list. Python before 3.11.8
    and 3.12.2 crashes when it collects a memoryview in a cycle with somebody who exports it
    (gh-77894), and an error's traceback makes such a cycle of what a function holds. An array
    between the two exports in its place and is no part of cycles.
    """
    return ffi.from_buffer(kind, np.asarray(buffer) if type(buffer) is memoryview else buffer)


def address(buffer: Any) -> Any:
    """Give the address of a numpy array or other buffer as `uint8_t *`; keeps the buffer alive."""
    return pointer("uint8_t[]", buffer)
