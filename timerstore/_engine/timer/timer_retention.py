"""Retain: ties retention (log/retention.py) to the timer, the queues and the index.

Threads:  retention.
Holds:    nothing that the last completed checkpoint goes on from lies below the log's beginning:
          its end, the records that are linked next, the slots that are read next.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.log.retention import Retention, Seams
from timerstore._engine.queues.level_guard import lowest_waiting
from timerstore._engine.queues.routes import Route
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.checkpoint import Checkpoint, Rooms
from timerstore._engine.timer.expired_segments import PastUnits
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.relocation import Mover
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import FullError

_QUEUES = 64  # that are looked at in one step


class _Derived:
    """Drops what is derived from the part of the log that is gone."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._at = 0  # index of route
        self.on_dropped: list[Callable[[Route, int, int], None]] = []  # queue offsets [begin, end)
        self.to_tell: deque[Callable[[], None]] = deque()  # retention's

    def drop(self, log_begin: int) -> bool:
        """Some of it; whether there may be more."""
        routes = self._rooms.routes.by_index
        for route in routes[self._at : self._at + _QUEUES]:
            before = route.queue.min_offset
            while route.queue.drop_below(log_begin):
                reach("retention_queue_dropped")
            end = route.queue.min_offset
            if end > before:
                self.to_tell += [partial(tell, route, before, end) for tell in self.on_dropped]
        self._at += _QUEUES
        if self._at < len(routes):
            return True
        self._at = 0
        index = self._rooms.dispatch.index
        try:
            while index is not None and index.drop_below(log_begin):
                pass
        except FullError:
            pass  # noting it takes space: it goes with the next file of the log
        return False


class Retained(Retention):
    """Retention, and who is told of what it dropped."""

    on_dropped: list[Callable[[Route, int, int], None]]


def make_retention(
    metrics: Metrics,
    config: StoreConfig,
    clock: Clock,
    disk: Disk,
    rooms: Rooms,
    timer_route: Route,
    checkpoint: Checkpoint,
    flush: Flush,
    store_id: int,
) -> Retained:
    """Make the service; it is woken when a checkpoint is completed."""
    mover = Mover(metrics, clock, rooms, timer_route, store_id, config.precision_ms)
    past = PastUnits(rooms, checkpoint, config.precision_ms)
    derived = _Derived(rooms)

    def move(begin: int, end: int) -> bool:
        moved = mover.step(begin, end)
        if moved:
            rooms.dispatch.wake()
            flush.note()
        return moved

    def is_past(end: int) -> bool:
        mark = checkpoint.completed
        if mark is None or not mover.is_linked:
            return False  # linking comes with a checkpoint, which wakes
        if mark.log_end >= end:
            first = timer_route.queue.first_at(end)
            if mark.timer_queue_offset >= first:
                return True
            if rooms.timer_log.linked_offset < first:
                return False
        flush.request_checkpoint()
        return False

    def unlink_timer_log() -> bool:
        segments = rooms.timer_log.segments
        if segments.has_retired:
            checkpoint.raise_begins()  # once more: the disk may have been full
        return segments.unlink_retired()

    seams = Seams(
        move, is_past, checkpoint.raise_begins, derived.drop, past.retire, unlink_timer_log
    )
    retention = Retained(metrics, config, clock, disk, rooms.log, seams)
    retention.on_dropped, derived.to_tell = derived.on_dropped, retention.to_tell
    retention.guards.append(lambda: lowest_waiting(rooms.log, rooms.routes, rooms.levels))
    checkpoint.on_completed.append(retention.wake)
    return retention
