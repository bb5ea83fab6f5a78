"""Sources against deliveries as a multiset, in groups of equal keys, in log order.

Threads:  none; pure functions on arrays.
Holds:    rows of a group stand together and ascend; groups are numbered from 0 without gaps.
Source:   what fold.py needs; the rules are told there.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]


def find(wanted: Int64, values: Int64) -> Rows:
    """Place in `values` of each of `wanted`, -1 where it is not there."""
    if not len(values):
        return np.full(len(wanted), -1, np.intp)
    order = np.argsort(values, kind="stable")
    at = np.minimum(np.searchsorted(values, wanted, sorter=order), len(values) - 1)
    return np.where(values[order[at]] == wanted, order[at], -1)


def numbered(values: Int64) -> tuple[Int64, Rows]:
    """Distinct values, ascending, and the place of each entry's value among them.

    Sorts, because ids in log order are nearly sorted; numpy's unique hashes, ten times slower here.
    """
    order = np.argsort(values, kind="stable")
    changes = np.ones(len(values), bool)
    changes[1:] = values[order[1:]] != values[order[:-1]]
    place = np.empty(len(values), np.intp)
    place[order] = np.cumsum(changes, dtype=np.intp) - 1
    return values[order[changes]], place


class Group(NamedTuple):
    """Rows sorted by key, within a key in log order; `number` of each row's group, from 0."""

    rows: Rows
    number: Rows
    group_count: int


def grouped(records: Records, rows: Rows, *fields: str) -> Group:
    """Group ascending rows by the values of some fields."""
    keys = [records[name][rows] for name in fields]
    order = np.lexsort(keys)
    changes = np.zeros(len(rows), bool)
    for key in keys:
        changes[1:] |= key[order[1:]] != key[order[:-1]]
    number = np.cumsum(changes, dtype=np.intp)
    return Group(rows[order], number, int(number[-1]) + 1 if len(number) else 0)


def rank(number: Rows) -> Rows:
    """Place of each entry within its group; groups stand together."""
    at = np.arange(len(number))
    starts = np.ones(len(number), bool)
    starts[1:] = number[1:] != number[:-1]
    return at - np.maximum.accumulate(np.where(starts, at, 0))


class Walk(NamedTuple):
    """Which deliveries found no source; split by whether the group had any source before them."""

    handed: Int64
    """Deliveries that found one, by group."""
    doubled: Mask
    orphan: Mask


def walk(group: Group, gives: Mask, takes: Mask, known: Mask) -> Walk:
    """Walk each group in log order: a source gives one, a delivery takes one if there is one.

    Worked example: gives g, takes t, in the order t g t t g. The running sum is -1 0 -1 -2 -1; a
    take is in excess where the sum goes below every value so far (and below 0): the first, and
    the third. The second found the first source; the last source keeps waiting. The groups are
    set apart by a step down that is larger than any sum, so that one running minimum serves all.
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
    handed = np.bincount(group.number[takes & ~excess], minlength=group.group_count)
    return Walk(handed, excess & any_before, excess & ~any_before)
