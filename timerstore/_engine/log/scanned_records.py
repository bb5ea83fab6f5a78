"""The array of records that a scan of the commit log returns, and checks on it.

C fills it with `ts_scan` (native/api). A row has the fields that decide which message a record
belongs to; bodies and properties are not in it.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from timerstore._engine.format.filler_record import RECORD_FIXED_BYTES
from timerstore._engine.log.multiset import Int64, Mask

Scan = npt.NDArray[np.void]

SCAN_DTYPE: np.dtype[np.void] = np.dtype(
    [
        ("log_offset", np.int64),
        ("queue_offset", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("out_ms", np.int64),
        ("timer_id", np.int64),
        ("identity", np.uint64),
        ("bare_identity", np.uint64),
        ("size", np.int32),
        ("kind", np.int32),
        ("store_id", np.uint32),
        ("roll_times", np.int32),
        ("delay_level", np.int32),
        ("queue_id", np.int32),
        ("topic_hash", np.int32),
        ("route", np.int32),
        ("vouches", np.int32),
    ],
    align=True,
)


class RecordKind(IntEnum):
    """The kind of a scanned record, numbered as enum ts_kind of native/api."""

    ORDINARY = 0
    TIMER = 1
    DELETE = 2
    DELIVERED = 3
    LEVEL = 4
    LEVEL_DELIVERED = 5
    UNUSABLE = 6
    LEVEL_UNUSABLE = 7


_IDS_ALWAYS_ALLOWED = 1 << 24  # the states of so many timers take 4 MB

PLACE_OFFSET_BITS = 48  # native/format/level_mark.h


def timer_id_limits(scan: Scan) -> Int64:
    """Return the highest timer id that is possible at each record.

    A timer id is a queue offset of the timer topic, so that many records lie before it in the log.
    """
    limits: Int64 = np.maximum(scan["log_offset"] // RECORD_FIXED_BYTES, _IDS_ALWAYS_ALLOWED)
    return limits


def has_impossible_offset(scan: Scan) -> Mask:
    """Mark records of the timer topic whose queue offset is not possible at their log offset.

    Such a record is damaged, and a fold would take memory for all ids up to it. An impossible id in
    TS_ID is not damage: a client may send any id to a broker.
    """
    is_queued = np.isin(scan["kind"], (RecordKind.TIMER, RecordKind.DELETE, RecordKind.UNUSABLE))
    impossible: Mask = is_queued & (scan["queue_offset"] > timer_id_limits(scan))
    return impossible


def places_of(records: Scan) -> Int64:
    """Return the places of level messages: queue number << 48 | queue offset."""
    places: Int64 = records["queue_id"].astype(np.int64) << PLACE_OFFSET_BITS
    places |= records["queue_offset"]
    return places


def delivered_level_places(records: Scan, store_id: int) -> Int64:
    """Return the places that this store's level deliveries name.

    Use it only for a part of the log in which no broker wrote.
    """
    is_named = (records["kind"] == RecordKind.LEVEL_DELIVERED) & (records["timer_id"] >= 0)
    places: Int64 = records["timer_id"][is_named & (records["store_id"] == store_id)]
    return places
