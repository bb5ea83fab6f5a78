"""Read the properties of the delayed messages of some topics from a part of the log.

This costs nothing if no such topic exists. Otherwise it scans that part of the log, and reads each
such record.

Thread safety: used while a store is opened.
"""

from collections.abc import Callable, Iterator

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.queues.record_lookup import record_fields, route_needed
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments


def timer_properties(
    segments: Segments,
    routes: Routes,
    precision_ms: int,
    now_ms: int,
    begin: int,
    end: int,
    is_wanted: Callable[[str], bool],
) -> Iterator[tuple[str, bytes]]:
    """Yield topic and property text of the timers in [begin, end) of the log, in its order.

    Includes timers that were delivered or cancelled since.
    is_wanted: returns whether messages for a topic are to be yielded.
    """
    if begin >= end or not any(is_wanted(route.topic) for route in routes.by_index):
        return
    for part, _, _ in scan_batches(
        segments,
        lambda: routes.native,
        lambda view: route_needed(segments, view, routes, now_ms),
        precision_ms,
        begin,
        end,
    ):
        wanted = [k for k, route in enumerate(routes.by_index) if is_wanted(route.topic)]
        rows = part[(part["kind"] == lib.TS_KIND_TIMER) & np.isin(part["route"], wanted)]
        with segments.view(end) as view:
            for row in rows[["route", "log_offset"]].tolist():
                _, _, text = record_fields(segments, view, row[1])
                yield routes.by_index[row[0]].topic, text
