"""Copy the counts of all queues for a checkpoint.

Locking: `copy_counts` is called in the critical section that notes the log's end.
"""

from typing import NamedTuple

from timerstore._engine.format.counts_json import Pending
from timerstore._engine.queues.routes import Route, Routes


class RouteCounts(NamedTuple):
    """The counts of one queue."""

    pending: int  # timers
    next_offset: int
    level_pending: int  # messages on delay levels


def copy_counts(routes: Routes) -> list[tuple[Route, RouteCounts]]:
    """Copy the counts of every queue. The caller holds the append lock."""
    return [
        (
            route,
            RouteCounts(
                int(route.native.pending),
                int(route.native.next_offset),
                int(route.native.level_pending),
            ),
        )
        for route in list(routes.by_index)
    ]


def counts_by_topic(counted: list[tuple[Route, RouteCounts]]) -> tuple[Pending, Pending, Pending]:
    """Return pending timers, next offsets and pending level messages, by topic and queue number.

    Counts of 0 are left out.
    """
    tables: tuple[Pending, Pending, Pending] = ({}, {}, {})
    for route, counts in counted:
        for table, count in zip(tables, counts, strict=True):
            if count:
                table.setdefault(route.topic, {})[route.queue_id] = count
    return tables
