"""Properties of the messages of some topics, as a part of the log has them.

Threads:  opening.
Holds:    every record of the part that goes to such a topic is given, in the order of the log.
Cost:     nothing where there is no such topic; else one scan of the part, and a read a record.
"""

from collections.abc import Callable, Iterator

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.queues.record_lookup import record_fields, route_needed
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments


def timer_texts(
    segments: Segments,
    routes: Routes,
    precision_ms: int,
    now_ms: int,
    begin: int,
    end: int,
    is_wanted: Callable[[str], bool],
) -> Iterator[tuple[str, bytes]]:
    """Give topic and properties of what waits, or waited, for such topics, in [begin, end)."""
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
