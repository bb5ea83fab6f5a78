"""Calendar: counts of pending messages by topic and second, updated as messages come and go.

The counters (ts_calendar, native/timer/calendar.h) are in memory: 16 bytes a cell, and at most four
cells a message (its second and its hour, for its topic and for all topics). Counting starts with
the first call of `read`, and costs nothing before that.

The counters are filled while the store runs. In one critical section they start empty, and the
table of states is copied. From then on each new message is counted. A message that was pending
before is counted when it is found, and removed from the copy. A message that leaves before it is
found is only removed from the copy.

Thread safety: any thread.
Locking: `_fill_lock` while the pending messages are read; the append lock for short parts of that;
`_grow_lock` while the table grows.
Invariants:
    1. `read` returns the exact counts of one point in time: each count changes in the critical
       section of the append lock that changes the message's state.
    2. The counters use at most `histogram_bytes_max`. If they need more they are dropped, and
       `read` reads the pending messages instead.
    3. Nothing is stored on disk: after a crash the first call counts again.
Raises: CorruptError if no record is found for a pending message.
See also: docs/decisions/0006-index-and-queries.md.
"""

import logging
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.argument_types import whole
from timerstore._engine.base.due_times import moment_ms
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.log.timer_states import BLOCK_BYTES, BLOCK_IDS
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes
from timerstore._engine.storage.directory import Directory
from timerstore._engine.timer.level_pending import Entries, Gaps, LevelPending
from timerstore._engine.timer.log_retention import Retention
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import Int64Array, Records
from timerstore.errors import CorruptError, MessageError, quoted
from timerstore.types.reports import Histogram

# --- due buckets ---
# The time arguments of `histogram`, and the buckets that they span.


UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
BUCKETS_MAX = 1_000_000
_DAY_MS = 86_400_000
_MS_MAX = 253_402_300_800_000  # the year 10000


class Buckets(NamedTuple):
    """Consecutive seconds, minutes, hours or days of UTC.

    first: number of the first bucket since 1970. size: number of buckets.
    """

    unit_s: int
    first: int
    size: int

    def edges(self) -> Int64Array:
        """Return the begin of each bucket and the end of the last one, ms since 1970."""
        numbers = np.arange(self.first, self.first + self.size + 1, dtype=np.int64)
        return numbers * (1000 * self.unit_s)

    def counts_of(self, due_ms: Int64Array) -> Int64Array:
        """Return how many of these times lie in each bucket."""
        places = due_ms // (1000 * self.unit_s) - self.first
        places = places[(places >= 0) & (places < self.size)]
        return np.bincount(places, minlength=self.size).astype(np.int64)


def buckets_of(now_ms: int, begin: object, end: object, by: object) -> Buckets:
    """Return the buckets that [begin, end) touches. Default: the 24 hours from now on.

    Raises:
        MessageError: with all problems of the arguments.
    """
    problems: list[str] = []
    begin_ms = now_ms if begin is None else _epoch_ms("begin", begin, problems)
    end_ms = begin_ms + _DAY_MS if end is None else _epoch_ms("end", end, problems)
    unit_s = UNIT_S.get(by) if isinstance(by, str) else None
    if unit_s is None:
        problems.append(f"by: wanted one of {', '.join(UNIT_S)}, got {quoted(by)}")
    if not problems and end_ms < begin_ms:
        problems.append(f"end: wanted a time not before begin ({begin_ms}), got {end_ms}")
    if problems or unit_s is None:
        raise MessageError(problems)
    unit_ms = 1000 * unit_s
    first, last = begin_ms // unit_ms, -(-end_ms // unit_ms)
    count = last - first if end_ms > begin_ms else 0
    if count > BUCKETS_MAX:
        raise MessageError(f"by: wanted at most {BUCKETS_MAX} buckets, got {count} by {by}")
    return Buckets(unit_s, first, count)


def _epoch_ms(name: str, given: object, problems: list[str]) -> int:
    if isinstance(given, datetime):
        try:
            number: int | None = moment_ms(name, given)
        except MessageError as error:
            problems.extend(error.problems)
            return 0
    else:
        number = whole(given)
    if number is None or not 0 <= number <= _MS_MAX:
        problems.append(f"{name}: wanted ms since 1970 or an aware datetime, got {quoted(given)}")
        return 0
    return number


# --- calendar ---


CELL = np.dtype([("key", np.uint64), ("count", np.int64)])
_CELLS_MIN = 1 << 14
_TABLE = 3  # objects in `_kept` that belong to the table itself
_FILL_BATCH = 1024  # messages counted in one critical section, at most
_RECORD_BYTES_MIN = 160  # of a timer; so one group can add this many messages at once


class Calendar(NotCopyable):
    """The counters of one store."""

    def __init__(
        self,
        core: Core,
        retention: Retention,
        pending: PendingReader,
        level_pending: LevelPending,
        directory: Directory,
    ) -> None:
        self._config = core.config
        self._log = core.log
        self._routes = core.routes
        self._fill_lock = Lock()
        self._grow_lock = Lock()
        self._kept: tuple[Any, ...] = ()  # memory that C has pointers to
        self._is_filled = False
        self._batch_messages = self._log.group_bytes_max // _RECORD_BYTES_MIN + _FILL_BATCH
        begin_bytes = self._cells_for(self._batch_messages) * CELL.itemsize
        self._is_too_big = begin_bytes > core.config.histogram_bytes_max
        self._states = core.states
        self._retention = retention
        self._pending = pending
        self._level_pending = level_pending
        self._directory = directory

    @property
    def bytes(self) -> int:
        """Memory that the counters use."""
        native = self._log.native.calendar
        return (int(native.mask) + 1) * CELL.itemsize if native else 0

    def read(self, buckets: Buckets, topic: str | None) -> Histogram:
        """Return the number of pending messages in each bucket, for a topic or all."""
        edges = buckets.edges()
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
        """Count the pending messages by reading them."""
        with self._retention.still():
            timers, levels = self._pending.entries(), self._level_pending.entries()
            for entries, is_level in ((timers, False), (levels, True)):
                found = self._real_routes(entries, is_level=is_level)
                is_wanted = found >= 0 if topic is None else is_of_topic(self._routes, found, topic)
                counts += buckets.counts_of(entries["due_ms"][is_wanted])

    def _real_routes(self, entries: Records | Entries, *, is_level: bool) -> Any:
        return real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=is_level
        )

    # --- filling ---

    def _fill(self) -> None:
        """Fill the counters unless they are filled or too large."""
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
                self._drop()
                raise

    def _is_needed(self) -> bool:
        return not (self._is_filled or self._is_too_big)

    def _begin(self) -> tuple[Any, Gaps]:
        """Start counting changes, and copy the states, in one critical section."""
        states = self._states.native
        table = self._table(self._cells_for(self._batch_messages))
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
        """Count the timers that were pending at the start."""
        for part in self._pending.parts():
            routes = self._real_routes(part, is_level=False)
            self._in_batches(
                len(part),
                lambda table, at, to, part=part, routes=routes: lib.ts_calendar_fill(
                    table,
                    self._routes.native_by_index(),
                    ffi.from_buffer("ts_due[]", part) + at,
                    ffi.from_buffer("int32_t[]", routes) + at,
                    to - at,
                ),
            )
        if left.pending and not self._is_too_big:  # all others were found, or have left
            raise CorruptError(
                "histogram: no record is found for some pending messages",
                where=self._directory.root,
                got=int(left.pending),
            )

    def _add_levels(self, gaps: Gaps) -> None:
        """Count the messages on delay levels; those delivered since are subtracted already."""
        entries = self._level_pending.read_gaps(gaps)
        routes = self._real_routes(entries, is_level=True)
        due_ms, known = entries["due_ms"].tolist(), self._routes.by_index

        def add(_: Any, at: int, to: int) -> int:
            for k in range(at, to):
                if routes[k] >= 0:
                    native = known[routes[k]].native
                    lib.ts_calendar_count(self._log.native, native, due_ms[k], 1)
            return to - at

        self._in_batches(len(entries), add)

    def _in_batches(self, count: int, add: Any) -> None:
        """Call `add` to count messages [at, to), in several critical sections."""
        done = 0
        while done < count and not self._is_too_big:
            with self._log.lock:
                table = self._log.native.calendar
                got = 0
                if table and lib.ts_calendar_fits(self._log.native, _FILL_BATCH):
                    got = add(table, done, min(count, done + _FILL_BATCH))
            done += got
            if not got:
                self.ensure(0)

    def _end(self) -> None:
        with self._log.lock:
            native = self._log.native.calendar
            if native:
                native.left, self._kept = ffi.NULL, self._kept[:_TABLE]
                self._is_filled = True

    def _drop(self) -> None:
        with self._log.lock:
            self._log.native.calendar = ffi.NULL
            self._is_filled, self._kept = False, ()

    # --- memory ---

    def _cells_for(self, messages: int) -> int:
        """Return the table size for this many messages, a power of two."""
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

    def ensure(self, _timer_id: int) -> None:
        """Ensure space for all messages that one critical section may add."""
        has_space = True
        with self._grow_lock:
            native = self._log.native
            if native.calendar and not lib.ts_calendar_fits(native, self._batch_messages):
                has_space = self._grow(int(native.calendar.mask) + 1)
        if not has_space:  # outside `_grow_lock`, because a logging handler may put
            logging.getLogger("timerstore.introspection").warning(
                "calendar=off histogram_bytes_max=%d", self._config.histogram_bytes_max
            )

    def _grow(self, cells: int) -> bool:
        """Copy the nonzero cells to a table that is large enough; return False if it is too large.

        The counters are dropped in that case.
        """
        while cells * CELL.itemsize <= self._config.histogram_bytes_max:
            table = self._table(cells)
            with self._log.lock:
                old = self._log.native.calendar
                if not old:
                    return True
                used = lib.ts_calendar_move(table[0], old)
                if 4 * (used + 4 * self._batch_messages) <= 3 * int(table[0].limit):
                    table[0].left = old.left
                    self._kept = (*table, *self._kept[_TABLE:])
                    self._log.native.calendar = table[0]
                    return True
            cells *= 2
        self._is_too_big = True
        self._drop()
        return False
