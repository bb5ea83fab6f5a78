"""Relocate pending messages from a part of the log that is to go: append copies at its end.

Threads:  retention.
Locks:    the wheel's, to learn what has been read; the append lock for at most 256 records.
Holds:    (1) a copy is placed only in a hold in which its id waits, so that all evidence of an id
          lies behind all its copies; (2) it carries the id, and vouches for the store's id
          (TS_PLACE: here I lie; rolls do, too), as no source may be left to do so; (3) what rolled
          on is not moved: its newest copy lies elsewhere.
Fails:    FullError: goes on where it stopped; CorruptError on damage, and on a foreign message that
          leaves no space for our id: the part cannot go.
Source:   docs/exactly-once.md; docs/decisions/0012-snapshots-and-retention.md.

Whether a copy has rolled on is what its unit tells: units stand in the timer log in the order of
the timer topic's queue. It has, if the slot that its unit lies in was read and nothing of that slot
is on its way any more: then an id that still waits does so in another copy. Copies of two kinds are
moved without that: those whose units lie before the last that was linked again (far_wheel.py), and
all, while anything waits on the far wheel, as a unit of that says no slot. An older copy that is
moved beside its newest does no harm, but that both roll, where messages do: so `ordered_from` is
kept with the far wheel's table, and each is moved so once. What is parked has not rolled.
"""

from contextlib import ExitStack
from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DRAFT, DUE, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates, which_wait
from timerstore._engine.timer.wheel import Wheel
from timerstore.clock import Clock
from timerstore.errors import CorruptError

_BATCH = 4096  # records looked at in one step
_HOLD = 256
_SCRATCH_BYTES = 1 << 16
_IN_TIMER_TOPIC = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)


class Relocator(Owner):
    """Empties parts of one store's log."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        timer_log: TimerLog,
        routes: Routes,
        states: TimerStates,
        wheel: Wheel,
        open_slot: OpenSlot,
        far: FarWheel,
        log: CommitLog,
        timer_route: Route,
        store_id: int,
        precision_ms: int,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._timer_route = timer_route
        self._store_id = store_id
        self._precision_ms = precision_ms
        self._part = (-1, -1)
        self._at = -1  # everything of the part below was looked at
        self._rest: Records = np.empty(0, DUE)  # found to wait, and not moved yet
        self._queue_end = 0  # behind the last copy in the timer topic's queue
        self._scanned = np.empty(_BATCH, SCAN_DTYPE)
        self._drafts = np.empty(_BATCH, DRAFT)
        self._scratch = ffi.new("uint8_t[]", _SCRATCH_BYTES)
        self._slots = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
        self._timer_log = timer_log
        self._routes = routes
        self._states = states
        self._wheel = wheel
        self._open_slot = open_slot
        self._far = far

    def step(self, begin: int, end: int) -> bool:
        """Move some of what waits in [begin, end); whether anything was left to look at."""
        if self._part != (begin, end):
            self._part, self._at = (begin, end), begin
            self._rest = self._rest[:0]
        if not len(self._rest) and self._at < end:
            found, following = self._scan(end)
            self._rest = self._waiting(found)
            self._at = following  # not before: what was not looked at may wait
            if not len(self._rest):
                return True
        if not len(self._rest):
            return False
        self._log.wait_for_checkpoint()
        self._move()
        return True

    @property
    def is_linked(self) -> bool:
        """Whether all that was moved is on the wheel: so that nothing overtakes it there."""
        return self._timer_log.linked_offset >= self._queue_end

    # --- what waits ---

    def _scan(self, end: int) -> tuple[Scan, int]:
        """Read the next records; where those behind them begin."""
        segments, following = self._log.segments, ffi.new("int64_t *")
        with segments.view(end) as view:
            while True:
                count = lib.ts_scan(
                    view,
                    self._routes.native,
                    self._precision_ms,
                    self._at,
                    following,
                    _BATCH,
                    ffi.from_buffer("ts_scanned[]", self._scanned),
                )
                if count == lib.TS_NEED_ROUTE:
                    route_needed(segments, view, self._routes, self._clock.now_ms)
                elif count < 0:
                    segments.serve(view, count, "retention")
                else:
                    break
        if view.fault != lib.TS_FAULT_NONE and following[0] < end:
            raise CorruptError(
                f"retention: {FAULTS.get(view.fault, 'damaged')}, so what waits here is not known",
                where=f"{segments.directory} offset {following[0]}",
            )
        return self._scanned[:count], int(following[0])

    def _waiting(self, found: Scan) -> Records:
        """Of these records the newest copies of what waits."""
        found = found[np.isin(found["kind"], _IN_TIMER_TOPIC)]
        is_timer = found["kind"] == lib.TS_KIND_TIMER
        states = self._states
        ids = states.ids_of(found, self._store_id)
        chosen = is_timer & which_wait(states.native, ids)
        if not chosen.any():
            return np.empty(0, DUE)
        chosen &= self._is_newest(found)
        due = np.zeros(int(np.count_nonzero(chosen)), DUE)
        due["id"] = ids[chosen]
        for name in ("due_ms", "log_offset", "size"):
            due[name] = found[name][chosen]
        due["flags"] = lib.TS_FLAG_MOVE
        _, last = np.unique(due["id"][::-1], return_index=True)  # moved twice: one goes on
        newest: Records = due[np.sort(len(due) - 1 - last)]
        return newest

    def _is_newest(self, records: Scan) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which of these records of the timer topic have not rolled on, as far as is known."""
        segments = self._timer_log.segments
        size = segments.segment_bytes
        newest = np.ones(len(records), bool)  # what is not linked yet has not rolled
        with ExitStack() as held:
            with self._wheel.lock:
                end, linked = self._timer_log.end, self._timer_log.linked_offset
                frontier, open_slots = self._wheel.frontier, self._open_slot.outstanding()
                if self._far.has_far:
                    return newest
                ordered_from, rows = self._far.ordered_from, self._far.table().rows
                view = held.enter_context(self._far.view())
            in_overflow = self._far.overflow_offsets(view, rows)
        numbers = records["queue_offset"] - (linked - timer_unit.count_below(end, size))
        is_known = numbers >= timer_unit.count_below(ordered_from, size)
        is_known &= ~np.isin(records["log_offset"], in_overflow)
        per_segment = timer_unit.units_per_segment(size)
        newest[is_known & (numbers < segments.begin // size * per_segment)] = False
        asked = np.flatnonzero(newest & is_known & (records["queue_offset"] < linked))
        gaps = (np.diff(numbers[asked]) != 1) | (np.diff(numbers[asked] // per_segment) != 0)
        for run in np.split(asked, np.flatnonzero(gaps) + 1) if len(asked) else ():
            position = timer_unit.position_of(int(numbers[run[0]]), size)
            data = segments.read(position, len(run) * timer_unit.UNIT_BYTES)
            units = timer_unit.read(data)
            slots = (units["write_ms"] + units["delay_ms"]) // self._precision_ms
            is_its_own = units["log_offset"] == records["log_offset"][run]
            newest[run] = (slots >= frontier) | np.isin(slots, open_slots) | ~is_its_own
            newest[run] |= ~timer_unit.is_sound(data, position)  # it tells nothing
        return newest

    # --- moving it ---

    def _move(self) -> None:
        with self._log.segments.view(self._log.written) as view:
            count = self._plan(view)
            reach("retention_move_encoded")
            self._place(count)
        reach("retention_moved")

    def _plan(self, view: Any) -> int:
        routes, now_ms = self._routes, self._clock.now_ms
        while True:
            count = lib.ts_deliver_plan(
                view,
                routes.native,
                self._log.native,
                self._timer_route.native,
                0,
                ffi.from_buffer("ts_due[]", self._rest),
                len(self._rest),
                now_ms,
                self._scratch,
                len(self._scratch),
                ffi.from_buffer("ts_draft[]", self._drafts),
            )
            if count > 0:
                return int(count)
            if count == lib.TS_NEED_ROUTE:
                route_needed(self._log.segments, view, routes, now_ms)
            elif count == lib.TS_NEED_ROOM:
                self._scratch = ffi.new("uint8_t[]", 2 * int(view.need))
            else:
                self._log.segments.serve(view, count, "retention")

    def _place(self, count: int) -> None:
        """Give each copy whose id still waits its place."""
        tally = ffi.new("ts_tally *")
        tally.slots, tally.counts = (ffi.from_buffer("int64_t[]", one) for one in self._slots)
        placed = 0
        try:
            while placed < count:
                with self._log.lock:
                    got = lib.ts_deliver_place(
                        self._log.native,
                        self._scratch,
                        ffi.from_buffer("ts_draft[]", self._drafts),
                        placed,
                        min(count, placed + _HOLD),
                        self._clock.now_ms,
                        tally,
                    )
                    need = int(self._log.native.need)
                    self._queue_end = int(self._timer_route.native.next_offset)
                if got < 0:
                    self._log.serve_in_batch(got, need, "retention")
                else:
                    placed += got
        finally:
            misfits = self._rest[:placed][self._drafts[:placed]["size"] == 0]
            self._rest = self._rest[placed:]
            self._metrics.add("retention_moved_messages", int(tally.moved))
        if len(misfits):
            self._part = (-1, -1)  # nothing of this part counts as emptied
            raise CorruptError(
                "retention: a waiting message leaves no space for its id",
                where=f"{self._log.segments.directory} offset {misfits['log_offset'][0]}",
            )
