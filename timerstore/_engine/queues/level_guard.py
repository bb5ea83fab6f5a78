"""Find the part of the log that pending messages of the delay levels need."""

from timerstore._engine.base.native import lib
from timerstore._engine.format import queue_unit
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.routes import Routes

_NOTHING = 2**62


def lowest_pending(log: CommitLog, routes: Routes, cursors: LevelCursors) -> int:
    """Return the lowest log offset of a level message that is dispatched and not delivered."""
    found = _NOTHING
    for route in list(routes.by_index):
        if route.native.kind != lib.TS_ROUTE_LEVELS:
            continue
        with log.lock:
            at = cursors.cursor(route.queue_id)
        units = queue_unit.read(route.queue.read(max(at, route.queue.min_offset), 1))
        if len(units):
            found = min(found, int(units["log_offset"][0]))
    return found
