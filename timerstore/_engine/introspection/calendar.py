"""Calendar: how many messages wait, by topic and second, kept up to date as they come and go.

Data:     ts_calendar (native/timer/calendar.h), in memory alone: 16 bytes a cell, and four cells at
          most a message: its second and its hour, of its topic and of all. It counts from the first
          call of `read` on; before that it costs nothing.
Threads:  any.
Locks:    _fill_lock, while what waits is read; the append lock, for a moment of it; _grow_lock.
Holds:    (1) once `read` has answered, what it says is what waits at that moment: each change of a
          count lies in the hold of the append lock that changes the message's state; (2) never more
          than `histogram_bytes_max`: where that is not enough the counters are let go, and `read`
          reads what waits instead; (3) nothing of it is on disk: after a crash the first call
          counts what recovery found.
Fails:    CorruptError where a message waits of which no record is found.
Source:   docs/decisions/0006-index-and-queries.md.

How it is filled while the store runs: in one hold the counters begin, empty, and the table of
states is copied. From then on a message that is put counts. One that was there counts when it is
found, and is crossed off the copy; one that leaves before it is found is crossed off only.
"""

import logging
from typing import Any

import numpy as np

from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.introspection.due_buckets import Buckets
from timerstore._engine.levels.level_pending import Gaps, LevelPending
from timerstore._engine.levels.level_runs import Entries
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.retention import Retention
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.directory import Directory
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import Int64Array, Records
from timerstore._engine.timer.timer_states import BLOCK_BYTES, BLOCK_IDS, TimerStates
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError
from timerstore.reports import Histogram

CELL = np.dtype([("key", np.uint64), ("count", np.int64)])
_CELLS_MIN = 1 << 14
_TABLE = 3  # of what C points at: the table itself
_FILL_HOLD = 1024  # messages that are added in one hold
_RECORD_BYTES_MIN = 160  # of a timer: as many as fit a group need room at once


class Calendar(Owner):
    """The counters of one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        states: TimerStates,
        retention: Retention,
        pending: PendingReader,
        level_pending: LevelPending,
        directory: Directory,
        log: CommitLog,
        routes: Routes,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._routes = routes
        self._fill_lock = Lock()
        self._grow_lock = Lock()
        self._kept: tuple[Any, ...] = ()  # what C points at
        self._is_filled = False
        self._room = self._log.group_bytes_max // _RECORD_BYTES_MIN + _FILL_HOLD
        begin_bytes = self._cells_for(self._room) * CELL.itemsize
        self._is_too_big = begin_bytes > config.histogram_bytes_max
        self._states = states
        self._retention = retention
        self._pending = pending
        self._level_pending = level_pending
        self._directory = directory

    @property
    def bytes(self) -> int:
        """Memory that the counters take."""
        native = self._log.native.calendar
        return (int(native.mask) + 1) * CELL.itemsize if native else 0

    def read(self, buckets: Buckets, topic: str | None) -> Histogram:
        """Give how many wait in each bucket, for a topic or all."""
        unit_ms = 1000 * buckets.unit_s
        edges = np.arange(buckets.first, buckets.first + buckets.size + 1, dtype=np.int64)
        edges *= unit_ms
        counts = np.zeros(buckets.size, np.int64)
        number = 0 if topic is None else self._routes.topic_numbers.get(topic)
        if number is None or not buckets.size:
            return Histogram(edges, counts)
        self._fill()
        with self._log.lock:
            native = self._log.native.calendar
            if native:
                out = ffi.from_buffer("int64_t[]", counts)
                lib.ts_calendar_read(
                    native, number, buckets.unit_s, buckets.first, buckets.size, out
                )
                return Histogram(edges, counts)
        self._add_all(counts, buckets, topic)
        return Histogram(edges, counts)

    # --- without counters ---

    def _add_all(self, counts: Int64Array, buckets: Buckets, topic: str | None) -> None:
        """Count what waits by reading it."""
        with self._retention.still():
            timers, levels = self._pending.entries(), self._level_pending.entries()
            for entries, is_level in ((timers, False), (levels, True)):
                found = self._real_routes(entries, is_level=is_level)
                is_wanted = found >= 0 if topic is None else is_of_topic(self._routes, found, topic)
                places = entries["due_ms"][is_wanted] // (1000 * buckets.unit_s) - buckets.first
                places = places[(places >= 0) & (places < buckets.size)]
                counts += np.bincount(places, minlength=buckets.size)

    def _real_routes(self, entries: Records | Entries, *, is_level: bool) -> Any:
        return real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=is_level
        )

    # --- filling ---

    def _fill(self) -> None:
        """Have the counters, once."""
        if not self._is_needed():
            return
        with self._fill_lock:
            if not self._is_needed():
                return
            try:
                with self._retention.still():
                    left, gaps = self._begin()
                    self._add_levels(gaps)
                    self._add_timers(left)
                    self._end()
            except BaseException:
                self._let_go()
                raise

    def _is_needed(self) -> bool:
        return not (self._is_filled or self._is_too_big)

    def _begin(self) -> tuple[Any, Gaps]:
        """Begin to count what changes, and note what waits: in one hold."""
        states = self._states.native
        table = self._table(self._cells_for(self._room))
        while True:
            count = int(states.end) // BLOCK_IDS
            blocks = np.zeros((count, BLOCK_BYTES), np.uint8)
            views = [ffi.from_buffer("uint8_t[]", block) for block in blocks]
            pointers = ffi.new("uint8_t *[]", views) if views else ffi.new("uint8_t *[1]")
            left = ffi.new("ts_states *")
            with self._log.lock:
                if int(states.end) // BLOCK_IDS != count:
                    continue
                lib.ts_states_copy(states, pointers, left)
                table[0].left = left
                self._kept = (*table, left, pointers, views, blocks)
                self._log.native.calendar = table[0]
                return left, self._level_pending.gaps()

    def _add_timers(self, left: Any) -> None:
        """Count what is found of what waited."""
        for part in self._pending.parts():
            routes = self._real_routes(part, is_level=False)
            self._in_holds(
                len(part),
                lambda table, at, to, part=part, routes=routes: lib.ts_calendar_fill(
                    table,
                    self._routes.native_by_index(),
                    ffi.from_buffer("ts_due[]", part) + at,
                    ffi.from_buffer("int32_t[]", routes) + at,
                    to - at,
                ),
            )
        if left.waiting and not self._is_too_big:  # the rest was found, or has left
            raise CorruptError(
                "histogram: messages wait of which no record is found",
                where=self._directory.root,
                got=int(left.waiting),
            )

    def _add_levels(self, gaps: Gaps) -> None:
        """Count what waited for a level; what has come out since has been taken off already."""
        entries = self._level_pending.read_gaps(gaps)
        routes = self._real_routes(entries, is_level=True)
        due_ms, known = entries["due_ms"].tolist(), self._routes.by_index

        def add(_: Any, at: int, to: int) -> int:
            for k in range(at, to):
                if routes[k] >= 0:
                    native = known[routes[k]].native
                    lib.ts_calendar_count(self._log.native, native, due_ms[k], 1)
            return to - at

        self._in_holds(len(entries), add)

    def _in_holds(self, count: int, add: Any) -> None:
        """Let `add` add messages [at, to) to the counters, some in each hold."""
        done = 0
        while done < count and not self._is_too_big:
            with self._log.lock:
                table = self._log.native.calendar
                got = 0
                if table and lib.ts_calendar_fits(self._log.native, _FILL_HOLD):
                    got = add(table, done, min(count, done + _FILL_HOLD))
            done += got
            if not got:
                self.make_room(0)

    def _end(self) -> None:
        with self._log.lock:
            native = self._log.native.calendar
            if native:
                native.left, self._kept = ffi.NULL, self._kept[:_TABLE]
                self._is_filled = True

    def _let_go(self) -> None:
        with self._log.lock:
            self._log.native.calendar = ffi.NULL
            self._is_filled, self._kept = False, ()

    # --- room ---

    def _cells_for(self, messages: int) -> int:
        """A power of two, in which so many find room."""
        cells = _CELLS_MIN
        while 5 * cells < 8 * 4 * messages:
            cells *= 2
        return cells

    def _table(self, cells: int) -> tuple[Any, Any, Any]:
        memory = np.zeros(cells, CELL)
        native = ffi.new("ts_calendar *")
        view = ffi.from_buffer("ts_calendar_cell[]", memory)
        native.cells, native.mask, native.limit = view, cells - 1, 5 * cells // 8
        return native, view, memory

    def make_room(self, _timer_id: int) -> None:
        """Have room for what may be put in one critical section."""
        has_room = True
        with self._grow_lock:
            native = self._log.native
            if native.calendar and not lib.ts_calendar_fits(native, self._room):
                has_room = self._grow(int(native.calendar.mask) + 1)
        if not has_room:  # under no lock of growing: a handler of logging may put
            logging.getLogger("timerstore.introspection").warning(
                "calendar=off histogram_bytes_max=%d", self._config.histogram_bytes_max
            )

    def _grow(self, cells: int) -> bool:
        """Go on in a table without the cells that are 0, as large as it must be; or without any,
        where that is too large.
        """
        while cells * CELL.itemsize <= self._config.histogram_bytes_max:
            table = self._table(cells)
            with self._log.lock:
                old = self._log.native.calendar
                if not old:
                    return True
                used = lib.ts_calendar_move(table[0], old)
                if 4 * (used + 4 * self._room) <= 3 * int(table[0].limit):
                    table[0].left = old.left
                    self._kept = (*table, *self._kept[_TABLE:])
                    self._log.native.calendar = table[0]
                    return True
            cells *= 2
        self._is_too_big = True
        self._let_go()
        return False
