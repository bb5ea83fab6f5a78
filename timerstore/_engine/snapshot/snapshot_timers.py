"""Timers: which messages wait, as of a moment; from the side files of a checkpoint, or the log.

    ours: states and levels of the watermark, then the log behind it, as far as we wrote it
    what has no such files, or others' : a fold of the whole log (log/fold.py)

Threads:  one at a time.
Holds:    states, levels' cursors and pending counts are those of the log up to `at`.
Cost:     the first call reads the state file (2 bits a timer), a later one what the log grew by.
          Without side files, and of a broker's store each time it grew, 100 bytes of memory a
          record, and 1 GB/s.
"""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import queue_unit
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.levels import pending_counts
from timerstore._engine.levels.level_pending import LevelPending
from timerstore._engine.log.fold import fold
from timerstore._engine.log.fold_ownership import has_foreign_records
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.log.scanned_records import (
    SCAN_DTYPE,
    Scan,
    delivered_level_places,
    has_impossible_offset,
)
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes, route_needed
from timerstore._engine.snapshot.position import SnapshotPosition
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer import timer_recovery
from timerstore._engine.timer.backlog import Backlog
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import Int64Array, Records
from timerstore._engine.timer.timer_states import TimerStates
from timerstore.clock import Clock
from timerstore.errors import CorruptError, GoneError
from timerstore.reports import PendingTimer

_TRIES = 5


NOTHING: Any = None
"""Of a part that a snapshot does not have, and that its readers do not use."""


class SnapshotTimers(Owner):
    """What waits in one store."""

    def __init__(self, room: SnapshotView, clock: Clock) -> None:
        self._room = room
        self._clock = clock
        self._moment: SnapshotPosition | None = None
        self._waiting: Int64Array | None = None
        self._read_anew()

    def _read_anew(self) -> None:
        room = self._room
        self.states, self.cursors = TimerStates(), LevelCursors()
        self.store_id = room.moment.store.store_id or 0
        self._at = -1
        timer_route = timer_recovery.timer_route(room.routes)
        # A snapshot's queues do not move, and it has no index.
        self.dispatch = cast("Any", SimpleNamespace(through=lambda _offset: None, index=None))
        self.pending = SnapshotPending(self, room, timer_route, self.store_id)
        log: Any = room.log
        self._log = log
        self.level_pending = LevelPending(
            room.config, log, room.routes, self.dispatch, self.cursors
        )
        self.backlog = Backlog(
            room.config,
            self._clock,
            self.states,
            NOTHING,
            NOTHING,
            self.dispatch,
            log,
            room.routes,
            timer_route,
            self.pending,
            NOTHING,
            self.level_pending.due_ms,
        )

    def catch_up(self) -> None:
        """Have all as of the room's moment."""
        room, moment = self._room, self._room.moment
        room.settle_all()
        if moment == self._moment:
            return
        last, self._moment = self._moment, None
        self._waiting = None
        if not self._goes_on(last, moment):
            self._read_anew()
            if not self._from_files(moment) or not self._fold_in(moment.mark, moment):
                self._read_anew()
                self._from_log(moment)
        for route in room.routes.by_index:
            if route.native.kind == lib.TS_ROUTE_LEVELS:
                self.cursors.begin_at(route.queue_id, route.queue.min_offset)
        self._moment = moment

    def _goes_on(self, last: SnapshotPosition | None, moment: SnapshotPosition) -> bool:
        """Have what came since the last moment; False where all is to be read anew."""
        if last is None or last.mark is None or moment.mark is None:
            return False
        if not moment.store.log_begin <= self._at <= moment.log_end:
            return False
        return self._fold_in(last.mark, moment)

    def _fold_in(self, mark: Watermark | None, moment: SnapshotPosition) -> bool:
        """Fold what lies behind `at`, which was read from a watermark on; False, and nothing is
        folded, where somebody else wrote of it, too: a broker who had the store meanwhile.
        """
        assert mark is not None, "there are no files of none"
        if self._at == moment.log_end:
            return True
        scanned = self._scan(self._at, moment.log_end)
        if has_foreign_records(scanned, self.store_id, is_clean=bool(mark.is_clean)):
            return False
        routes = self._room.routes
        timer_recovery.fold_forward(self.states, routes, scanned, self.store_id)
        pending_counts.fold_forward(routes, self.cursors, scanned, self.store_id)
        self.cursors.done(delivered_level_places(scanned, self.store_id))
        self._at = moment.log_end
        return True

    def waiting_ids(self) -> Int64Array:
        """Give every timer id that waits, ascending."""
        if self._waiting is None:
            self._waiting = timer_recovery.waiting_ids(self.states)
        return self._waiting

    def entries(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> tuple[Records, Records]:
        """Give what waits and is due in [begin_ms, end_ms), for a topic or all: timers, and what
        waits for a fixed level and can be delivered; each in order of when it is due.
        """
        timers = _within(self.pending.entries(), begin_ms, end_ms)
        on_level = _within(self.level_pending.entries(), begin_ms, end_ms)
        routes, log = self._room.routes, self._log
        if topic is not None and len(timers):
            real = real_routes(log, routes, timers["log_offset"], timers["size"], is_level=False)
            timers = timers[is_of_topic(routes, real, topic)]
        if len(on_level):
            real = real_routes(log, routes, on_level["log_offset"], on_level["size"], is_level=True)
            is_right = real >= 0 if topic is None else is_of_topic(routes, real, topic)
            on_level = on_level[is_right]
        return timers, on_level

    def describe(self, entry: Records, *, is_level: bool) -> PendingTimer | None:
        """Describe one; from the copy that waits now where retention has moved it meanwhile; None
        where none does.
        """
        for is_last in (*[False] * _TRIES, True):
            try:
                if is_level:
                    return self.level_pending.describe(entry)
                return self.pending.describe(entry)
            except GoneError:
                if is_last:
                    raise
                self._room.advance()
                self.catch_up()
                name = "place" if is_level else "id"
                now = self.level_pending.entries() if is_level else self.pending.entries()
                found = now[now[name] == entry[name]]
                if not len(found):
                    return None
                entry = found[0]
        raise AssertionError("the last try raises")

    def _from_files(self, moment: SnapshotPosition) -> bool:
        """Take the side files of the watermark; False where they do not fit it."""
        mark, counts, room = moment.mark, moment.counts, self._room
        if mark is None or counts is None or mark.is_bootstrap:
            return False
        if not room.disk.exists(room.tree.state):
            return False
        self.states.look_into(room.disk.open(room.tree.state))
        try:
            fits = self.states.read(
                mark.state_chunk_count, mark.state_digest, mark.log_end, counts.past
            )
        finally:
            self.states.close()
        if not fits:
            return False
        room.routes.clear_counts()
        timer_recovery.set_pending(room.routes, counts.pending, 0)
        pending_counts.set_at(room.routes, counts.level_pending, 0)
        self.cursors.add(counts.levels)
        self._at = mark.log_end
        return True

    def _from_log(self, moment: SnapshotPosition) -> None:
        """Fold all there is."""
        room = self._room
        scanned = self._scan(moment.store.log_begin, moment.log_end)
        wild = has_impossible_offset(scanned)
        if wild.any():
            at = int(scanned["log_offset"][np.argmax(wild)])
            raise CorruptError(
                "the commit log is damaged: a record has an impossible timer id",
                where=f"{room.tree.commit_log} offset {at}",
            )
        found = fold(scanned, known_id=self.store_id or None)
        if not self.store_id and found.store_id:  # ours once, and a broker's since
            self.store_id = found.store_id
            self.pending.store_id = found.store_id
        room.routes.clear_counts()
        timer_recovery.fold_from_empty(self.states, room.routes, scanned, found)
        pending_counts.fold_from_empty(room.routes, scanned["route"][found.level_rows_pending])
        self.cursors.done(found.level_places_done)
        self._at = moment.log_end

    def _scan(self, begin: int, end: int) -> Scan:
        room = self._room
        segments, parts = room.log.segments, [np.empty(0, SCAN_DTYPE)]
        reached = begin
        for part, reached, _ in scan_batches(  # noqa: B007 - the last one counts
            segments,
            lambda: room.routes.native,
            lambda view: route_needed(segments, view, room.routes, self._clock.now_ms),
            room.config.precision_ms,
            begin,
            end,
        ):
            parts.append(part.copy())
        if reached < end:
            number = reached // segments.segment_bytes
            raise CorruptError(
                "the commit log is damaged",
                where=f"{segments.path(number)} offset {reached}",
                wanted=f"records up to {end}, which were durable",
            )
        room.settle_all()  # a record may have named a queue that was not known
        return np.concatenate(parts)


class SnapshotPending(PendingReader):
    """Reads what waits from the timer topic's queue: each copy there is of a message."""

    def __init__(
        self, timers: SnapshotTimers, room: SnapshotView, timer_route: Any, store_id: int
    ) -> None:
        log: Any = room.log
        super().__init__(
            room.config,
            NOTHING,
            NOTHING,
            NOTHING,
            log,
            timers.states,
            room.routes,
            NOTHING,
            timers.dispatch,
            timer_route,
            store_id,
        )
        self._timers = timers
        self._queue = timer_route.queue

    @property
    def store_id(self) -> int:
        """Whose ids count."""
        return self._store_id

    @store_id.setter
    def store_id(self, store_id: int) -> None:
        self._store_id = store_id

    def parts(self) -> Any:
        """Give every copy of a waiting message as a due entry, in the order of the queue."""
        return self._backlog(self._queue.min_offset)

    def entries(self) -> Records:
        """Give every waiting message as a due entry, in order of (due, id). CorruptError where one
        waits whose record cannot be made out.
        """
        found = super().entries()
        lost = np.setdiff1d(self._timers.waiting_ids(), found["id"])
        if len(lost):
            raise CorruptError(
                "a message waits that is not to be found",
                where=self._place(int(lost[0])),
                wanted=f"a record of timer id {int(lost[0])}",
            )
        return found

    def _place(self, timer_id: int) -> str:
        """Where its record should be, as far as the queue tells: it lies there, or rolled on."""
        queue, segments = self._queue, self._log.segments
        if not queue.min_offset <= timer_id < queue.count:
            return f"{segments.directory}"
        at = int(queue_unit.read(queue.read(timer_id, 1))["log_offset"][0])
        return f"{segments.path(at // segments.segment_bytes)} offset {at}"


def _within(entries: Records, begin_ms: int | None, end_ms: int | None) -> Records:
    if begin_ms is not None:
        entries = entries[entries["due_ms"] >= begin_ms]
    if end_ms is not None:
        entries = entries[entries["due_ms"] < end_ms]
    return entries
