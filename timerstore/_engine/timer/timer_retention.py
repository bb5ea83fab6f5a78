"""Keep the timer, the queues and the index consistent with retention (log/retention.py).

Thread safety: runs on the retention thread only.
Invariants:
    1. The points from which the last completed checkpoint continues are not below the log's
       beginning: its log end, the next record to link, and the next slot to read.
"""

from collections import deque

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.signal import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.level_guard import lowest_pending
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.expired_segments import ExpiredSegments
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.relocation import Relocator
from timerstore._engine.timer.timer_log import TimerLog
from timerstore.errors import FullError

_QUEUES = 64  # queues that are checked in one step


class TimerRetention:
    """Implements retention's `Dependents` for one store."""

    def __init__(
        self,
        log: CommitLog,
        routes: Routes,
        dispatch: Dispatch,
        levels: LevelCursors,
        timer_log: TimerLog,
        timer_route: Route,
        checkpoint: Checkpoint,
        flush: Flush,
        mover: Relocator,
        past: ExpiredSegments,
        signals: Signals,
    ) -> None:
        self._log = log
        self._routes = routes
        self._dispatch = dispatch
        self._levels = levels
        self._timer_log = timer_log
        self._timer_route = timer_route
        self._checkpoint = checkpoint
        self._flush = flush
        self._mover = mover
        self._past = past
        self._signals = signals
        self._at = 0  # index of the next route to drop units of
        self._dropped: deque[tuple[Route, int, int]] = deque()  # queue offsets [begin, end)

    def move(self, begin: int, end: int) -> bool:
        """As Dependents.move."""
        moved = self._mover.step(begin, end)
        if moved:
            self._dispatch.wake()
            self._flush.note()
        return moved

    def is_past(self, end: int) -> bool:
        """As Dependents.is_past."""
        mark = self._checkpoint.completed
        if mark is None or not self._mover.is_linked:
            return False  # a checkpoint after linking wakes retention
        if mark.log_end >= end:
            first = self._timer_route.queue.first_at(end)
            if mark.timer_queue_offset >= first:
                return True
            if self._timer_log.linked_offset < first:
                return False
        self._flush.request_checkpoint()
        return False

    def raise_begins(self) -> None:
        """As Dependents.raise_begins."""
        self._checkpoint.raise_begins()

    def lowest_needed(self) -> int:
        """As Dependents.lowest_needed, by pending messages on delay levels."""
        return lowest_pending(self._log, self._routes, self._levels)

    def drop_derived(self, log_begin: int) -> bool:
        """As Dependents.drop_derived: units of some queues, then of the index."""
        routes = self._routes.by_index
        for route in routes[self._at : self._at + _QUEUES]:
            before = route.queue.min_offset
            while route.queue.drop_below(log_begin):
                reach("retention_queue_dropped")
            end = route.queue.min_offset
            if end > before:
                self._dropped.append((route, before, end))
        self._at += _QUEUES
        if self._at < len(routes):
            return True
        self._at = 0
        index = self._dispatch.index
        try:
            while index is not None and index.drop_below(log_begin):
                pass
        except FullError:
            pass  # recording it needs disk space; the next call tries again
        return False

    def send_notices(self) -> None:
        """As Dependents.send_notices."""
        while self._dropped:
            self._signals.queue_dropped(*self._dropped.popleft())

    def retire_timer_log(self) -> bool:
        """As Dependents.retire_timer_log."""
        return self._past.retire()

    def unlink_timer_log(self) -> bool:
        """As Dependents.unlink_timer_log."""
        segments = self._timer_log.segments
        if segments.has_retired:
            self._checkpoint.raise_begins()  # once more: the disk may have been full
        return segments.unlink_retired()
