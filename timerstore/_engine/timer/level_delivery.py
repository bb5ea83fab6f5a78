"""Deliver due messages of delay levels to their topics.

Thread safety: runs on the schedule-deliver thread only; other threads may call `arrived` and
    `durable`.
Locking: holds the commit log's append lock for at most 256 records at a time.
Invariants:
    1. A message counts as delivered from the critical section that places its copy. The copy names
       its place, which is its level and queue offset.
    2. Nothing is delivered early: C refuses to encode a message that is not due.
    3. The messages of a level are delivered in order of (due time, put order). With `level_async`
       off, this order holds across all levels.
    4. No message is left out: one that could not be placed is tried again.
Raises: FullError is retried and changes nothing. CorruptError if a source record fails its
    checksum.
See also: docs/file-format.md, docs/decisions/0007-delay-levels.md
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib, raise_status
from timerstore._engine.base.service import IDLE_S_MAX, Service, idle_until
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, Scan
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.level_cursors import QUEUE_MAX, LevelCursors
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import LevelUnits, Routes
from timerstore._engine.timer.level_pending import LEVEL_DUE, Entries, LevelRun, Runs
from timerstore.errors import TimerStoreError

# --- deliver ---


_BATCH = 4096
_HOLD = 256  # records placed in one critical section
_SCRATCH_BYTES = 2 << 20
_RESEND_MS = 100
_RESEND_MS_MAX = 60_000
_MS = 1_000_000
_DRAFT = np.dtype(
    [
        ("at", np.int64),
        ("placed", np.int64),
        ("due_ms", np.int64),
        ("route", np.uintp),
        ("size", np.int32),
        ("unusable", np.int32),
    ]
)
assert _DRAFT.itemsize == ffi.sizeof("ts_level_draft"), "level_delivery.py and native/api disagree"


class _Sent(NamedTuple):
    """Messages of one level that were placed together."""

    log_end: int
    message_count: int


class ScheduleDeliver(Service):
    """Delivers due messages of delay levels as records."""

    name = "schedule-deliver"

    def __init__(self, core: Core, cursors: LevelCursors) -> None:
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._cursors = cursors
        self._units = LevelUnits(core.log, parse_level_delays(core.config.level_delays))
        self._start_ns = core.clock.monotonic_ns + core.config.start_delay_ms * _MS
        self._routes_seen = 0
        self._queues: list[Runs] = []
        self._scratch = np.empty(_SCRATCH_BYTES, np.uint8)
        self._drafts = np.empty(_BATCH, _DRAFT)
        self._sent: dict[int, deque[_Sent]] = {}  # by queue, placed but not durable yet
        self._next_ms: int | None = None  # due time of the first message
        self._resends = 0
        self._retry_ns = 0

    # --- waking ---

    def arrived(self, touched: set[int]) -> None:
        """Wake the service if queues of levels have grown; `touched` has indexes of routes."""
        by_index = self._routes.by_index
        if any(by_index[index].native.kind == lib.TS_ROUTE_LEVELS for index in touched):
            self.wake()

    def durable(self) -> None:
        """Wake the service, as more of the log is durable, if it waits for that."""
        if self._sent:
            self.wake()

    # --- one step ---

    def step(self) -> bool:
        """Deliver due messages, at most one batch."""
        self._log.check_alive()
        self._next_ms = None
        now_ns = self._clock.monotonic_ns
        if self._config.stop_dequeue:
            return False
        if now_ns < max(self._start_ns, self._retry_ns):
            self._next_ms = 0  # the pause may be over when `idle_s` is called
            return False
        now_ms = self._clock.now_ms
        self._look()
        entries, runs = self._collect(now_ms)
        if not len(entries):
            return False
        try:
            self._log.wait_for_checkpoint()
            done = 0
            while done < len(entries):
                done += self._deliver(entries[done:], runs)
        except TimerStoreError as error:
            if error.retryable:
                self._resends += 1
                wait_ms = _RESEND_MS * (self._resends if self._config.level_async else 1)
                self._retry_ns = now_ns + min(wait_ms, _RESEND_MS_MAX) * _MS
                self.metrics.add("schedule_deliver_resends", 1)
            raise
        finally:
            self._signals.records_placed()
        self._resends = 0
        return True

    def _look(self) -> None:
        """Read the units that dispatch has added."""
        routes = self._routes.by_index
        while self._routes_seen < len(routes):
            route = routes[self._routes_seen]
            if route.native.kind == lib.TS_ROUTE_LEVELS and route.queue_id <= QUEUE_MAX:
                self._queues.append(Runs(route, self._cursors, self._units))
            self._routes_seen += 1
        for queue in self._queues:
            queue.look()

    # --- due messages ---

    def _collect(self, now_ms: int) -> tuple[Entries, list[tuple[Runs, LevelRun]]]:
        """Return the entries that may be delivered now, in order, and the runs they belong to."""
        parts: list[Entries] = []
        runs: list[tuple[Runs, LevelRun]] = []
        for queue in self._queues:
            capacity = min(self._capacity_of(queue.route.queue_id), _BATCH)
            found: list[Entries] = []
            unsorted, last_ms = 0, now_ms
            for run in sorted(queue.runs, key=queue.head_ms):
                head_ms = queue.head_ms(run)
                if head_ms > now_ms:
                    self._next_ms = min(head_ms, self._next_ms or head_ms)
                    break
                if capacity < 1:
                    break  # `durable` wakes the service
                if head_ms > last_ms:
                    break  # enough entries are due earlier
                # Take up to `capacity` of each run: the first of all are among the first of each.
                found.append(queue.due(run, last_ms, capacity))
                found[-1]["run"] = len(runs)
                runs.append((queue, run))
                unsorted += len(found[-1])
                if unsorted >= capacity:  # drop entries that are later than the first `capacity`
                    found, unsorted = [_first_of(found, capacity)], 0
                    last_ms = int(found[0]["due_ms"][-1])
            if found:
                parts.append(_first_of(found, capacity))
        return _first_of(parts, _BATCH) if parts else np.empty(0, LEVEL_DUE), runs

    def _capacity_of(self, queue_id: int) -> int:
        """Return how many messages of a queue may be placed before earlier ones are durable.

        With `level_async` off, none may be placed while any is not durable. With it on, each level
        has a limit of `level_pending_max`.
        """
        durable = self._log.durable
        for number, sent in list(self._sent.items()):
            while sent and sent[0].log_end <= durable:
                sent.popleft()
            if not sent:
                del self._sent[number]
        if not self._config.level_async:
            return 0 if self._sent else _BATCH
        waiting = self._sent.get(queue_id, ())
        return self._config.level_pending_max - sum(one.message_count for one in waiting)

    # --- delivery ---

    def _deliver(self, entries: Entries, runs: list[tuple[Runs, LevelRun]]) -> int:
        """Deliver the first of these entries, and return how many are finished."""
        now_ms = self._clock.now_ms
        if now_ms < int(entries["due_ms"].max()):
            return len(entries)  # the clock was set back: they are collected again later
        newest = int((entries["log_offset"] + entries["size"]).max())
        with self._log.segments.view(self._log.written_through(newest)) as view:
            count = self._encode(view, entries, now_ms)
        reach("schedule_encoded")
        self._place(entries[:count], runs, now_ms)
        reach("schedule_placed")
        return count

    def _encode(self, view: Any, entries: Entries, now_ms: int) -> int:
        while True:
            count = lib.ts_level_encode(
                view,
                self._routes.native,
                self._log.native,
                ffi.from_buffer("ts_level_due[]", entries),
                len(entries),
                now_ms,
                ffi.from_buffer("uint8_t[]", self._scratch),
                len(self._scratch),
                ffi.from_buffer("ts_level_draft[]", self._drafts),
            )
            if count > 0:
                return int(count)
            if count == lib.TS_NEED_ROUTE:
                route_needed(self._log.segments, view, self._routes, now_ms)
            elif count == lib.TS_NEED_SPACE:
                self._scratch = np.empty(2 * int(view.need), np.uint8)
            elif count == lib.TS_INVALID:
                raise_status(count, "a level message was released before it was due")
            else:
                self._log.segments.provide(view, count, self.name)

    def _place(self, entries: Entries, runs: list[tuple[Runs, LevelRun]], now_ms: int) -> None:
        """Append the copies, and mark their places as delivered in the same critical section."""
        count, placed = len(entries), 0
        drafts = self._drafts[:count]
        # A broker's message may have no space for the property that marks it as delivered. Without
        # that property recovery could not know, so the message is not delivered.
        is_final = (drafts["size"] > 0) | (drafts["unusable"] != 0)
        try:
            while placed < count:
                with self._log.lock:
                    got = lib.ts_level_place(
                        self._log.native,
                        ffi.from_buffer("uint8_t[]", self._scratch),
                        ffi.from_buffer("ts_level_draft[]", self._drafts),
                        placed,
                        min(count, placed + _HOLD),
                        now_ms,
                    )
                    need = int(self._log.native.need)
                    if got > 0:
                        part = slice(placed, placed + got)
                        self._cursors.done(entries["place"][part][is_final[part]])
                if got < 0:
                    self._log.provide_in_batch(got, need, self.name)
                else:
                    placed += got
        finally:
            self._record(entries[:placed], runs)
        late_ms = now_ms - entries["due_ms"][drafts["size"] > 0]
        self.metrics.observe("lateness_ms", late_ms)
        unusable = int(np.count_nonzero(drafts["unusable"]))
        self.metrics.add("schedule_deliver_messages", int(np.count_nonzero(drafts["size"])))
        self.metrics.add("schedule_deliver_unusable_messages", unusable)

    def _record(self, entries: Entries, runs: list[tuple[Runs, LevelRun]]) -> None:
        """Advance the runs past finished entries, which are the first of each run."""
        log_end = self._log.end
        for number, count in zip(*np.unique(entries["run"], return_counts=True), strict=True):
            queue, run = runs[int(number)]
            queue.advance(run, int(count))
            sent = self._sent.setdefault(queue.route.queue_id, deque())
            sent.append(_Sent(log_end, int(count)))

    def idle_s(self) -> float | None:
        """Return the time until the first message is due, or None to wait until woken."""
        if self._config.stop_dequeue:
            return None
        now_ns = self._clock.monotonic_ns
        held_ns = max(self._start_ns, self._retry_ns) - now_ns
        if held_ns > 0:
            return min(held_ns / 1e9, IDLE_S_MAX)
        if self._next_ms is None:
            return None
        return idle_until(self._clock, self._next_ms)


def _first_of(parts: list[Entries], count: int) -> Entries:
    """Return the first entries of several ordered parts, in order of (due time, put order)."""
    if len(parts) == 1:
        return parts[0][:count]
    entries = np.concatenate(parts)
    first: Entries = entries[np.lexsort((entries["log_offset"], entries["due_ms"]))][:count]
    return first


# --- pending counts ---
# Count the pending messages on delay levels of each real queue.
#
# Thread safety: `ts_route.level_pending` has the count, under the append lock.
# Invariants:
#     1. The count is the fold of the log: +1 for a message on a level, -1 for its delivered copy.
# On-disk format: timerstore/counts, as of each checkpoint
# See also: docs/decisions/0007-delay-levels.md


Counted = npt.NDArray[np.int32]


def fold_forward(routes: Routes, cursors: LevelCursors, scanned: Scan, store_id: int) -> None:
    """Count the records after the watermark. `cursors` are those of the watermark."""
    kind = scanned["kind"]
    _count(routes, scanned["route"][kind == lib.TS_KIND_LEVEL], 1)
    named = scanned[
        (kind == lib.TS_KIND_LEVEL_DELIVERED)
        & (scanned["timer_id"] >= 0)
        & (scanned["store_id"] == store_id)
    ]
    places, first = np.unique(named["timer_id"], return_index=True)
    waited = np.array([not _is_done(cursors, place) for place in places.tolist()], bool)
    _count(routes, named["route"][first[waited]], -1)


def _is_done(cursors: LevelCursors, place: int) -> bool:
    return cursors.is_done(place >> PLACE_OFFSET_BITS, place & ((1 << PLACE_OFFSET_BITS) - 1))


def _count(routes: Routes, indexes: Counted, sign: int) -> None:
    for index, count in zip(*np.unique(indexes, return_counts=True), strict=True):
        routes.by_index[int(index)].native.level_pending += sign * int(count)


def pending_by_topic(routes: Routes) -> tuple[dict[str, int], dict[str, int]]:
    """Return the pending timers and the pending messages on delay levels of each topic.

    Topics without any are left out. The caller holds the append lock.
    """
    timers: dict[str, int] = {}
    on_level: dict[str, int] = {}
    for route in list(routes.by_index):
        if count := int(route.native.pending):
            timers[route.topic] = timers.get(route.topic, 0) + count
        if count := int(route.native.level_pending):
            on_level[route.topic] = on_level.get(route.topic, 0) + count
    return timers, on_level
