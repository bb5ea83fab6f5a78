"""Import the compiled modules, and turn their status codes into exceptions.

No other module imports timerstore._native or timerstore._fastpath, except
timerstore.types.messages.

Raises:
    ImportError: the extensions were not built for this Python.
"""

from typing import Any, NoReturn

import numpy as np

try:
    from timerstore._fastpath import AppendLock as _AppendLock
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error.name}: not compiled for this Python in the folder from which timerstore was "
        "imported. If it is a checkout, run Python in another folder, or type: pip install -e ."
    ) from error
from timerstore._fastpath import GroupCommit as _GroupCommit
from timerstore._fastpath import Lock as _Lock
from timerstore._fastpath import Putter as _Putter
from timerstore._fastpath import join as _join
from timerstore._fastpath import read_handles as _read_handles
from timerstore._fastpath import set_reentrant_error as _set_reentrant_error
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
NativeGroupCommit: Any = _GroupCommit  # native/fastpath/group_commit.c
Lock: Any = _Lock  # native/fastpath/lock.c: the lock that every part of a store uses
Putter: Any = _Putter
join: Any = _join  # native/fastpath/lists.h
read_handles: Any = _read_handles
split: Any = _split

_set_reentrant_error(reentrant_call)

FAULTS = {
    _lib.TS_FAULT_END: "nothing was written there",
    _lib.TS_FAULT_SHORT: "a length reaches past the segment",
    _lib.TS_FAULT_MAGIC: "the magic number is unknown",
    _lib.TS_FAULT_LENGTHS: "its lengths do not add up, or its queue offset is invalid",
    _lib.TS_FAULT_POSITION: "the stored position is not that of the record",
    _lib.TS_FAULT_BODY_CRC: "the body's CRC does not match",
    _lib.TS_FAULT_PROPERTY_CRC: "the record's CRC does not match",
    _lib.TS_FAULT_TOPIC: "the record is not the one that was pointed at",
    _lib.TS_FAULT_PROPERTIES: "a timer property is missing or does not parse",
    _lib.TS_FAULT_CHAIN: "a timer unit does not fit its slot's chain",
    _lib.TS_FAULT_GONE: "retention removed it",
}

assert CorruptError.code == _lib.TS_CORRUPT, "errors.py and native/api disagree"


def raise_status(status: int, what: str, where: object = None) -> NoReturn:
    """Raise the exception class of a negative status."""
    cls = CLASS_OF_CODE.get(status, FailedError)
    raise cls(what, where=where, got=f"status {status}")


def raise_fault(view: Any, what: str, path: object) -> NoReturn:
    """Raise CorruptError for a view's fault, or GoneError if retention removed the place."""
    cls = GoneError if view.fault == _lib.TS_FAULT_GONE else CorruptError
    raise cls(
        f"{what}: {FAULTS.get(view.fault, 'damaged')}", where=f"{path} offset {view.fault_offset}"
    )


def pointer(kind: str, buffer: Any) -> Any:
    """Return a buffer's bytes as a C array of a kind, and keep the buffer alive.

    Use it for every address that outlives one call: in a variable, an object, a list. Python before
    3.11.8 and 3.12.2 crashes when it collects a memoryview in a reference cycle with its exporter
    (gh-77894). The traceback of an error makes such a cycle of a function's variables. An array
    between the two is the exporter instead, and is in no cycle.
    """
    return ffi.from_buffer(kind, np.asarray(buffer) if type(buffer) is memoryview else buffer)


def address(buffer: Any) -> Any:
    """Return the address of a numpy array or other buffer as `uint8_t *`; keep it alive."""
    return pointer("uint8_t[]", buffer)
