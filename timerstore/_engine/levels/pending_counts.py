"""Count the pending messages on delay levels of each real queue.

Thread safety: `ts_route.level_pending` has the count, under the append lock.
Invariants:
    1. The count is the fold of the log: +1 for a message on a level, -1 for its delivered copy.
On-disk format: timerstore/counts, as of each checkpoint
See also: docs/decisions/0007-delay-levels.md
"""

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.format.counts_json import Pending
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, Scan
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.routes import Routes

Counted = npt.NDArray[np.int32]


def set_at(routes: Routes, pending: Pending, now_ms: int) -> None:
    """Set the counts to those of the watermark."""
    for topic, queues in pending.items():
        for queue_id, count in queues.items():
            routes.make(topic, queue_id, now_ms).native.level_pending = count


def fold_forward(routes: Routes, cursors: LevelCursors, scanned: Scan, store_id: int) -> None:
    """Count the records after the watermark. `cursors` are those of the watermark."""
    kind = scanned["kind"]
    _count(routes, scanned["route"][kind == lib.TS_KIND_LEVEL], 1)
    named = scanned[
        (kind == lib.TS_KIND_LEVEL_DELIVERED)
        & (scanned["timer_id"] >= 0)
        & (scanned["store_id"] == store_id)
    ]
    places, first = np.unique(named["timer_id"], return_index=True)
    waited = np.array([not _is_done(cursors, place) for place in places.tolist()], bool)
    _count(routes, named["route"][first[waited]], -1)


def _is_done(cursors: LevelCursors, place: int) -> bool:
    return cursors.is_done(place >> PLACE_OFFSET_BITS, place & ((1 << PLACE_OFFSET_BITS) - 1))


def fold_from_empty(routes: Routes, waiting: Counted) -> None:
    """Set the counts from a fold of the whole log; `waiting` has the route of each message."""
    _count(routes, waiting, 1)


def _count(routes: Routes, indexes: Counted, sign: int) -> None:
    for index, count in zip(*np.unique(indexes, return_counts=True), strict=True):
        routes.by_index[int(index)].native.level_pending += sign * int(count)


def pending_by_topic(routes: Routes) -> tuple[dict[str, int], dict[str, int]]:
    """Return the pending timers and the pending messages on delay levels of each topic.

    Topics without any are left out. The caller holds the append lock.
    """
    timers: dict[str, int] = {}
    on_level: dict[str, int] = {}
    for route in list(routes.by_index):
        if count := int(route.native.pending):
            timers[route.topic] = timers.get(route.topic, 0) + count
        if count := int(route.native.level_pending):
            on_level[route.topic] = on_level.get(route.topic, 0) + count
    return timers, on_level
