"""Match sources with deliveries as a multiset, in groups of equal keys and in log order.

These are pure functions on arrays. fold.py states the rules that they serve.

Invariants:
    1. The rows of a group are adjacent and ascend.
    2. Groups are numbered from 0 without gaps.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]


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


def grouped(records: Records, rows: Rows, *fields: str) -> MultisetGroup:
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
