"""Counting what waits by when it is due, from the times themselves.

Threads:  none; a pure function.
"""

from collections.abc import Sequence

import numpy as np

from timerstore._engine.introspection.due_buckets import Buckets
from timerstore.messages import Int64Array
from timerstore.reports import Histogram


def histogram(buckets: Buckets, due_ms: Sequence[Int64Array]) -> Histogram:
    """Give how many of these times lie in each bucket."""
    unit_ms = 1000 * buckets.unit_s
    edges = np.arange(buckets.first, buckets.first + buckets.size + 1, dtype=np.int64) * unit_ms
    places = np.concatenate([np.empty(0, np.int64), *due_ms]) // unit_ms - buckets.first
    within = places[(places >= 0) & (places < buckets.size)]
    return Histogram(edges, np.bincount(within, minlength=buckets.size).astype(np.int64))
