"""`SnapshotTimers`: the pending messages of a read-only store, at one position.

    a store of ours        states and levels of the watermark's side files, then the log after it
    without such files,    a fold of the whole log (log/fold.py)
    or after a broker

The first call reads the state file (2 bits a timer), later calls the new part of the log. A fold of
the whole log reads 1 GB/s and needs 100 bytes of memory for each record. For a broker's store it is
repeated each time that the log has grown.

Thread safety: one thread at a time.
Invariants: states, cursors of levels and pending counts are those of the log up to `_at`.
"""

from collections.abc import Iterator

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.fold import fold, has_foreign_records
from timerstore._engine.log.scanned_records import (
    SCAN_DTYPE,
    Scan,
    delivered_level_places,
    has_impossible_offset,
)
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes, scan_batches
from timerstore._engine.snapshot.position import SnapshotPosition
from timerstore._engine.snapshot.snapshot_log import SettledQueues
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer import level_delivery, timer_recovery
from timerstore._engine.timer.level_pending import LevelPending
from timerstore._engine.timer.pending import PendingCounts, PendingReader
from timerstore._engine.timer.timer_arrays import Int64Array, Records, due_within
from timerstore.errors import CorruptError, GoneError
from timerstore.types.clock import Clock
from timerstore.types.reports import PendingTimer

_TRIES = 5


class SnapshotTimers(NotCopyable):
    """The timers of one store."""

    def __init__(self, view: SnapshotView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._position: SnapshotPosition | None = None
        self._pending: Int64Array | None = None
        self._reset()

    def _reset(self) -> None:
        view = self._view
        self.states, self.cursors = TimerStates(), LevelCursors()
        self._at = -1
        self.dispatch = SettledQueues()
        self.level_pending = LevelPending(
            view.config, view.log, view.routes, self.dispatch, self.cursors
        )
        self._read_ids_of(view.position.store.store_id or 0)

    def _read_ids_of(self, store_id: int) -> None:
        """Use the timer ids of this store."""
        self.store_id = store_id
        self.pending = SnapshotPending(self, self._view)
        self.counts = PendingCounts(
            self._clock, self._view.config.precision_ms, self.pending, self.level_pending.due_ms
        )

    def catch_up(self) -> None:
        """Move everything to the position of the view."""
        view, position = self._view, self._view.position
        view.settle_all()
        if position == self._position:
            return
        last, self._position = self._position, None
        self._pending = None
        if not self._goes_on(last, position):
            self._reset()
            if not self._from_files(position) or not self._fold_in(position.mark, position):
                self._reset()
                self._from_log(position)
        for route in view.routes.by_index:
            if route.native.kind == lib.TS_ROUTE_LEVELS:
                self.cursors.begin_at(route.queue_id, route.queue.min_offset)
        self._position = position

    def _goes_on(self, last: SnapshotPosition | None, position: SnapshotPosition) -> bool:
        """Fold the records since the last position; False if everything must be read again."""
        if last is None or last.mark is None or position.mark is None:
            return False
        if not position.store.log_begin <= self._at <= position.log_end:
            return False
        return self._fold_in(last.mark, position)

    def _fold_in(self, mark: Watermark | None, position: SnapshotPosition) -> bool:
        """Fold the records past `_at`, of a store with a watermark. Return False, and fold nothing,
        if a broker wrote some of them.
        """
        assert mark is not None, "side files belong to a watermark"
        if self._at == position.log_end:
            return True
        scanned = self._scan(self._at, position.log_end)
        if has_foreign_records(scanned, self.store_id, is_clean=bool(mark.is_clean)):
            return False
        routes = self._view.routes
        timer_recovery.fold_forward(self.states, routes, scanned, self.store_id)
        level_delivery.fold_forward(routes, self.cursors, scanned, self.store_id)
        self.cursors.done(delivered_level_places(scanned, self.store_id))
        self._at = position.log_end
        return True

    def pending_ids(self) -> Int64Array:
        """Return every pending timer id, ascending."""
        if self._pending is None:
            self._pending = timer_recovery.pending_ids(self.states)
        return self._pending

    def entries(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> tuple[Records, Records]:
        """Return the pending messages due in [begin_ms, end_ms), of a topic or all: timers, and
        messages on fixed levels that can be delivered. Both are in order of their due times.
        """
        timers = due_within(self.pending.entries(), begin_ms, end_ms)
        on_level = due_within(self.level_pending.entries(), begin_ms, end_ms)
        routes, log = self._view.routes, self._view.log
        if topic is not None and len(timers):
            real = real_routes(log, routes, timers["log_offset"], timers["size"], is_level=False)
            timers = timers[is_of_topic(routes, real, topic)]
        if len(on_level):
            real = real_routes(log, routes, on_level["log_offset"], on_level["size"], is_level=True)
            is_right = real >= 0 if topic is None else is_of_topic(routes, real, topic)
            on_level = on_level[is_right]
        return timers, on_level

    def describe(self, entry: Records, *, is_level: bool) -> PendingTimer | None:
        """Describe one message. If retention moved it, use its new copy; None without one."""
        for is_last in (*[False] * _TRIES, True):
            try:
                if is_level:
                    return self.level_pending.describe(entry)
                return self.pending.describe(entry)
            except GoneError:
                if is_last:
                    raise
                self._view.advance()
                self.catch_up()
                name = "place" if is_level else "id"
                now = self.level_pending.entries() if is_level else self.pending.entries()
                found = now[now[name] == entry[name]]
                if not len(found):
                    return None
                entry = found[0]
        raise AssertionError("the last try raises")

    def _from_files(self, position: SnapshotPosition) -> bool:
        """Load the side files of the watermark. Return False if they do not belong to it."""
        mark, counts, view = position.mark, position.counts, self._view
        if mark is None or counts is None or mark.is_bootstrap:
            return False
        if not view.disk.exists(view.tree.state):
            return False
        self.states.read_from(view.disk.open(view.tree.state))
        try:
            fits = self.states.read(
                mark.state_chunk_count, mark.state_digest, mark.log_end, counts.past
            )
        finally:
            self.states.close()
        if not fits:
            return False
        view.routes.clear_counts()
        timer_recovery.set_pending(view.routes, counts, 0)
        self.cursors.add(counts.levels)
        self._at = mark.log_end
        return True

    def _from_log(self, position: SnapshotPosition) -> None:
        """Fold the whole log."""
        view = self._view
        scanned = self._scan(position.store.log_begin, position.log_end)
        wild = has_impossible_offset(scanned)
        if wild.any():
            at = int(scanned["log_offset"][np.argmax(wild)])
            raise CorruptError(
                "the commit log is damaged: a record says a timer id that none can have had",
                where=f"{view.tree.commit_log} offset {at}",
            )
        found = fold(scanned, known_id=self.store_id or None)
        if not self.store_id and found.store_id:  # a broker took over a store of ours
            self._read_ids_of(found.store_id)
        view.routes.clear_counts()
        timer_recovery.fold_from_empty(self.states, view.routes, scanned, found)
        self.cursors.done(found.level_places_done)
        self._at = position.log_end

    def _scan(self, begin: int, end: int) -> Scan:
        view = self._view
        segments, parts = view.log.segments, [np.empty(0, SCAN_DTYPE)]
        reached = begin
        for part, reached, _ in scan_batches(  # noqa: B007 - the last one counts
            segments,
            view.routes,
            self._clock,
            view.config.precision_ms,
            begin,
            end,
        ):
            parts.append(part.copy())
        if reached < end:
            number = reached // segments.segment_bytes
            raise CorruptError(
                "the commit log is damaged",
                where=f"{segments.path(number)} offset {reached}",
                wanted=f"records up to {end}, which is durable",
            )
        view.settle_all()  # a record may have named a new queue
        return np.concatenate(parts)


class SnapshotPending(PendingReader):
    """Reads pending messages from the timer topic's queue, every copy of each."""

    def __init__(self, timers: SnapshotTimers, view: SnapshotView) -> None:
        super().__init__(
            view.config,
            view.log,
            timers.states,
            view.routes,
            timers.dispatch,
            timer_recovery.timer_route(view.routes),
            timers.store_id,
        )
        self._timers = timers

    def parts(self) -> Iterator[Records]:
        """Yield every copy of a pending message as a due entry, in the order of the queue."""
        return self._backlog(self._timer_route.queue.min_offset)

    def entries(self) -> Records:
        """Return every pending message as a due entry, in order of (due, id).

        Raises:
            CorruptError: the record of a pending message is missing.
        """
        found = super().entries()
        lost = np.setdiff1d(self._timers.pending_ids(), found["id"])
        if len(lost):
            raise CorruptError(
                "the record of a pending message is missing",
                where=self._place(int(lost[0])),
                wanted=f"a record of timer id {int(lost[0])}",
            )
        return found

    def _place(self, timer_id: int) -> str:
        """Return where the queue says that its record is, unless the message rolled."""
        queue, segments = self._timer_route.queue, self._log.segments
        if not queue.min_offset <= timer_id < queue.count:
            return f"{segments.directory}"
        at = int(queue_unit.read(queue.read(timer_id, 1))["log_offset"][0])
        return f"{segments.path(at // segments.segment_bytes)} offset {at}"
