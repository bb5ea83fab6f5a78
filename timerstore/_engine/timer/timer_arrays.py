"""Arrays of C structs (native/api) that the six timer services pass to one another."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi

REQUEST = np.dtype(
    [
        ("id", np.int64),
        ("log_offset", np.int64),
        ("due_ms", np.int64),
        ("out_ms", np.int64),
        ("queue_offset", np.int64),
        ("size", np.int32),
        ("topic_hash", np.int32),
        ("flags", np.int32),
        ("roll_times", np.int32),
    ]
)
CHAINED = np.dtype(
    [
        ("log_offset", np.int64),
        ("slot", np.int64),
        ("write_ms", np.int64),
        ("size", np.int32),
        ("magic", np.int32),
        ("topic_hash", np.int32),
        ("unused", np.int32),
    ]
)
DUE = np.dtype(
    [
        ("wake_ms", np.int64),
        ("id", np.int64),
        ("due_ms", np.int64),
        ("log_offset", np.int64),
        ("slot", np.int64),
        ("write_ms", np.int64),
        ("size", np.int32),
        ("flags", np.int32),
        ("topic_hash", np.int32),
        ("unused", np.int32),
    ]
)
KEY = np.dtype([("wake_ms", np.int64), ("id", np.int64), ("at", np.int64)])
DRAFT = np.dtype(
    [
        ("id", np.int64),
        ("at", np.int64),
        ("slot", np.int64),
        ("due_ms", np.int64),
        ("write_ms", np.int64),
        ("placed", np.int64),
        ("route", np.uintp),
        ("real", np.uintp),
        ("source", np.uintp),
        ("body_size", np.int32),
        ("plain_size", np.int32),
        ("size", np.int32),
        ("flags", np.int32),
        ("has_hint", np.int32),
        ("tags", np.int32),
        ("has_tags", np.int32),
        ("key_hash", np.int32),
    ]
)
FAR = np.dtype(
    [
        ("number", np.int64),
        ("previous", np.int64),
        ("id", np.int64),
        ("log_offset", np.int64),
        ("due_ms", np.int64),
        ("slot", np.int64),
        ("size", np.int32),
        ("topic_hash", np.int32),
    ]
)
for _dtype, _name in (
    (REQUEST, "ts_request"),
    (CHAINED, "ts_chained"),
    (DUE, "ts_due"),
    (KEY, "ts_heap_key"),
    (DRAFT, "ts_draft"),
    (FAR, "ts_far_unit"),
):
    assert _dtype.itemsize == ffi.sizeof(_name), f"{_name}: timer_arrays.py and native/api disagree"

Records = npt.NDArray[np.void]
Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def slots_of(due_ms: Int64Array, precision_ms: int) -> Int64Array:
    """Return the slots of due times: the last slot that ends at that time or before it."""
    slots: Int64Array = (due_ms - 1) // precision_ms
    return slots


class Loaded(NamedTuple):
    """Units read from slots.

    Once these units are in the open slot, every slot below `loaded_slot` is completely loaded,
    unless the clock was set back after the units were read. `back_count` is the wheel's count when
    they were read, so that the open slot can tell.
    """

    chained: Records
    loaded_slot: int
    back_count: int


def due_within(rows: Records, begin_ms: int | None, end_ms: int | None) -> Records:
    """Return the rows that are due in [begin_ms, end_ms); None is no bound."""
    if begin_ms is not None:
        rows = rows[rows["due_ms"] >= begin_ms]
    if end_ms is not None:
        rows = rows[rows["due_ms"] < end_ms]
    return rows
