"""`Facts`: what the rows of a table depend on besides their own record or unit.

They are found once for each store, before its parts are read.
"""

from typing import NamedTuple

from timerstore._engine.snapshot.columns.cancelled import cancelled_offsets
from timerstore._engine.snapshot.columns.pending_set import (
    PendingSet,
    newest_pending_set,
    pending_set,
)
from timerstore._engine.snapshot.columns.table_scan import Wanted
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore.messages import Int64Array


class Facts(NamedTuple):
    """The facts of one store, or of one part of it."""

    cancelled: Int64Array | None = None
    """For timer_units.cancelled: the log offsets of all copies of cancelled messages, ascending."""
    pending: PendingSet | None = None
    """For the table timers."""


NO_FACTS = Facts()


def facts_for(
    store: Snapshot, wanted: Wanted, shard: int = 0, *, is_pinned: bool
) -> tuple[Snapshot, Facts]:
    """Return what a scan of a store needs, and the snapshot that it is true for.

    `is_pinned`: the snapshot must stay as it is. Otherwise a newer one may be returned.

    Raises:
        CorruptError: the log is damaged and the scan's `on_corrupt` is "fail".
    """
    if wanted.table == "timers":
        if is_pinned:
            return store, Facts(pending=pending_set(store, shard, wanted.on_corrupt))
        store, pending = newest_pending_set(store, shard, wanted.on_corrupt)
        return store, Facts(pending=pending)
    if "cancelled" in wanted.columns:
        return store, Facts(cancelled_offsets(store, shard, wanted.on_corrupt))
    return store, NO_FACTS
