"""Flatten columns of lists and of maps: the entries of all rows in one array, and offsets into it.

A NULL row may cover entries that are not its own. They are left out.

Thread safety: any thread; the functions have no side effects.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore.shards.arrow_import import pyarrow
from timerstore.types.messages import Int64Array


def flat_of(column: Any, entries: Sequence[Any]) -> tuple[list[Any], Int64Array]:
    """Return the entries of all rows, and row count + 1 offsets into them.

    `entries`: the arrays that the column's own offsets point into: a list's values, a map's names.
    """
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    parts = [one.slice(begin, end - begin) for one in entries]
    lengths = np.diff(offsets)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    if lengths[is_null].any():
        is_kept = pyarrow().array(np.repeat(~is_null, lengths))
        parts = [one.filter(is_kept) for one in parts]
        lengths[is_null] = 0
    return parts, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def spans_of_kept(spans: Int64Array, is_kept: npt.NDArray[np.bool_]) -> Int64Array:
    """Return the offsets of the rows after the entries that are not kept are left out."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_kept)])
    left: Int64Array = before[spans]
    return left


def rows_with(entries: npt.NDArray[np.bool_], spans: Int64Array) -> npt.NDArray[np.bool_]:
    """Return which rows have at least one of these entries."""
    before = np.concatenate([[0], np.cumsum(entries)])
    found: npt.NDArray[np.bool_] = before[spans[1:]] > before[spans[:-1]]
    return found
