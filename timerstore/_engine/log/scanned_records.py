"""The array of records that a scan of the commit log returns, and checks on it.

C fills it with `ts_scan` (native/api). A row has the fields that decide which message a record
belongs to; bodies and properties are not in it.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.format.filler_record import RECORD_FIXED_BYTES

# --- multiset ---
# Match sources with deliveries as a multiset, in groups of equal keys and in log order.
#
# These are pure functions on arrays. fold.py states the rules that they serve.
#
# Invariants:
#     1. The rows of a group are adjacent and ascend.
#     2. Groups are numbered from 0 without gaps.


Int64 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Scan = npt.NDArray[np.void]


def find(sought: Int64, values: Int64) -> Rows:
    """Return the index in `values` of each element of `sought`, -1 if it is missing."""
    if not len(values):
        return np.full(len(sought), -1, np.intp)
    order = np.argsort(values, kind="stable")
    at = np.minimum(np.searchsorted(values, sought, sorter=order), len(values) - 1)
    return np.where(values[order[at]] == sought, order[at], -1)


def numbered(values: Int64) -> tuple[Int64, Rows]:
    """Return the distinct values, ascending, and the index of each entry's value among them.

    This sorts, because ids in log order are nearly sorted. numpy's `unique` hashes, which is ten
    times slower here.
    """
    order = np.argsort(values, kind="stable")
    changes = np.ones(len(values), bool)
    changes[1:] = values[order[1:]] != values[order[:-1]]
    place = np.empty(len(values), np.intp)
    place[order] = np.cumsum(changes, dtype=np.intp) - 1
    return values[order[changes]], place


class MultisetGroup(NamedTuple):
    """Rows sorted by key, and within a key in log order."""

    rows: Rows
    number: Rows
    """Number of each row's group, from 0."""
    group_count: int


def grouped(records: Scan, rows: Rows, *fields: str) -> MultisetGroup:
    """Group ascending rows by the values of these fields."""
    keys = [records[name][rows] for name in fields]
    order = np.lexsort(keys)
    changes = np.zeros(len(rows), bool)
    for key in keys:
        changes[1:] |= key[order[1:]] != key[order[:-1]]
    number = np.cumsum(changes, dtype=np.intp)
    return MultisetGroup(rows[order], number, int(number[-1]) + 1 if len(number) else 0)


def rank(number: Rows) -> Rows:
    """Return the index of each entry within its group; the entries of a group are adjacent."""
    at = np.arange(len(number))
    starts = np.ones(len(number), bool)
    starts[1:] = number[1:] != number[:-1]
    return at - np.maximum.accumulate(np.where(starts, at, 0))


class MatchResult(NamedTuple):
    """The result of `match_in_order`."""

    delivered: Int64
    """By group: the number of deliveries that found a source."""
    duplicate: Mask
    """Deliveries that found no source, though their group has a source before them."""
    orphan: Mask
    """Deliveries without any source before them in their group."""


def match_in_order(group: MultisetGroup, gives: Mask, takes: Mask, known: Mask) -> MatchResult:
    """Match deliveries with sources in each group, in log order.

    `gives`: sources that a delivery may take. `takes`: deliveries, each of which takes the earliest
    source that is left. `known`: all sources, also those that are already delivered.

    Worked example: gives g and takes t in the order t g t t g. The running sum is -1 0 -1 -2 -1. A
    take is in excess where the sum falls below every earlier value and below 0: the first and the
    third take. The second take found the first source, and the last source remains pending. Between
    groups the sum steps down by more than any sum, so that one running minimum serves all groups.
    """
    size = len(group.rows)
    total = np.cumsum(gives.astype(np.int64) - takes)
    floor = -group.number.astype(np.int64) * (2 * size + 2)
    starts = np.flatnonzero(rank(group.number) == 0)
    step = (gives.astype(np.int64) - takes)[starts]
    level = total - (total[starts] - step)[group.number] + floor
    lowest = np.minimum.accumulate(level)
    before = np.minimum(np.concatenate([floor[:1], lowest[:-1]]), floor)
    excess = takes & (level < before)
    seen = np.cumsum(known)
    any_before: Mask = seen > (seen[starts] - known[starts])[group.number]
    delivered = np.bincount(group.number[takes & ~excess], minlength=group.group_count)
    return MatchResult(delivered, excess & any_before, excess & ~any_before)


# --- scanned records ---


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


IN_TIMER_TOPIC = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)
"""The kinds of the records of the timer topic."""

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
    is_queued = np.isin(scan["kind"], IN_TIMER_TOPIC)
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
    is_named = (records["kind"] == lib.TS_KIND_LEVEL_DELIVERED) & (records["timer_id"] >= 0)
    places: Int64 = records["timer_id"][is_named & (records["store_id"] == store_id)]
    return places
