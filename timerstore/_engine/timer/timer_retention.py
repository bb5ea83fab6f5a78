"""Keep the timer, the queues and the index consistent with retention (log_retention.py).

Thread safety: runs on the retention thread only.
Invariants:
    1. The points from which the last completed checkpoint continues are not below the log's
       beginning: its log end, the next record to link, and the next slot to read.
"""

from collections import deque
from contextlib import ExitStack
from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit, timer_unit
from timerstore._engine.log.scanned_records import IN_TIMER_TOPIC, SCAN_DTYPE, Scan
from timerstore._engine.log.timer_states import which_wait
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import route_needed, scan_into
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DRAFT, DUE, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import CorruptError, FullError

# --- relocation ---
# Move pending messages out of a part of the log that is to be removed, by appending copies.
#
# A copy that has rolled must not be moved, because a newer copy exists. The copy's unit tells:
# units are in the timer log in the order of the timer topic's queue. A copy has rolled if the slot
# of its unit was read and has no undelivered message. If its id is still pending, another copy is
# the newest one. In two cases this test is not possible, and the copy is moved: its unit precedes
# the last unit that was linked again (far_wheel.py), or any message is on the far wheel, whose
# units name no slot. Moving an older copy next to the newest is harmless, except that both may roll
# later. Therefore `ordered_from` is kept in the far wheel's table, so that each copy is moved like
# this only once. Messages in the overflow have not rolled.
#
# Thread safety: runs on the retention thread only.
# Locking: the wheel's lock, to read which slots were read; the append lock for at most 256 records.
# Invariants:
#     1. A copy is placed only in a critical section in which its id is pending, so that every
#        record that ends the id comes after all of its copies.
#     2. A copy carries the timer id and the store id (TS_PLACE), as rolled copies do, because the
#        original record may be removed.
#     3. A message that rolled is moved only from its newest copy, with the exceptions above.
# Raises: FullError; the next step continues. CorruptError if a record is damaged, or if a broker's
#     message has no space for our id; the part of the log cannot be removed then.
# See also: docs/exactly-once.md, docs/decisions/0012-snapshots-and-retention.md


_BATCH = 4096  # records read in one step
_HOLD = 256  # records placed in one critical section
_SCRATCH_BYTES = 1 << 16


class Relocator(NotCopyable):
    """Moves pending messages out of parts of one store's log."""

    def __init__(
        self, core: Core, timer_log: TimerLog, wheel: Wheel, open_slot: OpenSlot, far: FarWheel
    ) -> None:
        self._metrics = core.metrics
        self._clock = core.clock
        self._log = core.log
        self._timer_route = core.timer_route
        self._store_id = core.store_id
        self._precision_ms = core.config.precision_ms
        self._part = (-1, -1)
        self._at = -1  # the part's records below this offset were read
        self._rest: Records = np.empty(0, DUE)  # pending, and not moved yet
        self._queue_end = 0  # queue offset after the last copy in the timer topic
        self._scanned = np.empty(_BATCH, SCAN_DTYPE)
        self._drafts = np.empty(_BATCH, DRAFT)
        self._scratch = ffi.new("uint8_t[]", _SCRATCH_BYTES)
        self._slots = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
        self._timer_log = timer_log
        self._routes = core.routes
        self._states = core.states
        self._wheel = wheel
        self._open_slot = open_slot
        self._far = far

    def step(self, begin: int, end: int) -> bool:
        """Move some pending messages of [begin, end). Return whether there was anything to do."""
        if self._part != (begin, end):
            self._part, self._at = (begin, end), begin
            self._rest = self._rest[:0]
        if not len(self._rest) and self._at < end:
            found, following = self._scan(end)
            self._rest = self._pending(found)
            self._at = following  # set last, in case an error is raised before
            if not len(self._rest):
                return True
        if not len(self._rest):
            return False
        self._log.wait_for_checkpoint()
        with self._log.segments.view(self._log.written) as view:
            count = self._plan(view)
            reach("retention_move_encoded")
            self._place(count)
        reach("retention_moved")
        return True

    @property
    def is_linked(self) -> bool:
        """Whether every copy is linked, so that no other message overtakes it."""
        return self._timer_log.linked_offset >= self._queue_end

    # --- finding pending messages ---

    def _scan(self, end: int) -> tuple[Scan, int]:
        """Read the next records. Return them, and the log offset after them."""
        segments = self._log.segments
        with segments.view(end) as view:
            found, following = scan_into(
                self._scanned,
                segments,
                view,
                self._routes,
                self._clock,
                self._precision_ms,
                self._at,
                "retention",
            )
        if view.fault != lib.TS_FAULT_NONE and following < end:
            fault = FAULTS.get(view.fault, "damaged")
            raise CorruptError(
                f"retention: {fault}, so the pending messages here are unknown",
                where=f"{segments.directory} offset {following}",
            )
        return found, following

    def _pending(self, found: Scan) -> Records:
        """Return those of these records that are the newest copies of pending messages."""
        found = found[np.isin(found["kind"], IN_TIMER_TOPIC)]
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
        _, last = np.unique(due["id"][::-1], return_index=True)  # one copy of each id
        newest: Records = due[np.sort(len(due) - 1 - last)]
        return newest

    def _is_newest(self, records: Scan) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return which of these records of the timer topic are not known to have rolled."""
        segments = self._timer_log.segments
        size = segments.segment_bytes
        newest = np.ones(len(records), bool)  # a record that is not linked yet has not rolled
        with ExitStack() as held:
            with self._wheel.lock:
                end, linked = self._timer_log.end, self._timer_log.linked_offset
                read_slot, open_slots = self._wheel.read_slot, self._open_slot.outstanding()
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
            newest[run] = (slots >= read_slot) | np.isin(slots, open_slots) | ~is_its_own
            newest[run] |= ~timer_unit.are_valid(data, position)  # a damaged unit proves nothing
        return newest

    # --- moving them ---

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
            elif count == lib.TS_NEED_SPACE:
                self._scratch = ffi.new("uint8_t[]", 2 * int(view.need))
            else:
                self._log.segments.provide(view, count, "retention")

    def _place(self, count: int) -> None:
        """Append each copy whose id is still pending."""
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
                    self._log.provide_in_batch(got, need, "retention")
                else:
                    placed += got
        finally:
            unroutable = self._rest[:placed][self._drafts[:placed]["size"] == 0]
            self._rest = self._rest[placed:]
            self._metrics.add("retention_moved_messages", int(tally.moved))
        if len(unroutable):
            self._part = (-1, -1)  # the part must be read again
            raise CorruptError(
                "retention: a pending message has no space for its id",
                where=f"{self._log.segments.directory} offset {unroutable['log_offset'][0]}",
            )


# --- expired segments ---
# Find timer log files that can be removed, because all of their slots have been read.
#
# Thread safety: runs on the retention thread only.
# Invariants:
#     1. A file is removed if the slots of all its units are below the replay slot, both of the last
#        completed checkpoint and of now. Files are removed oldest first, and never the last one.
#     2. A chain has only units of its own slot, so no chain that is read again leads into a removed
#        file.
# See also: docs/decisions/0012-snapshots-and-retention.md


_PIECE_UNITS = 16_384


class ExpiredSegments:
    """Checks and retires the first timer log file of one store."""

    def __init__(
        self,
        core: Core,
        timer_log: TimerLog,
        wheel: Wheel,
        open_slot: OpenSlot,
        checkpoint: Checkpoint,
    ) -> None:
        self._checkpoint = checkpoint
        self._precision_ms = core.config.precision_ms
        self._number = -1
        self._at = 0  # units of the file that were checked
        self._highest = 0  # the highest slot of these
        self._timer_log = timer_log
        self._wheel = wheel
        self._open_slot = open_slot

    def retire(self) -> bool:
        """Retire the first file if it has expired, or check a part of it.

        Return whether there may be more to do.
        """
        segments = self._timer_log.segments
        if len(segments.numbers) < 2:
            return False
        number = segments.numbers[0]
        end = (number + 1) * segments.segment_bytes
        mark = self._checkpoint.completed
        if mark is None or mark.timer_log_end <= end:  # the last file must stay
            return False
        if self._number != number:
            self._number, self._at, self._highest = number, 0, 0
        with self._wheel.lock:
            limit = min(mark.replay_slot, self._open_slot.replay_slot(self._wheel.read_slot))
        if self._highest >= limit:
            return False
        count = timer_unit.units_per_segment(segments.segment_bytes)
        if self._at < count:
            self._look(number * segments.segment_bytes, count)
            return self._highest < limit
        return segments.retire(end)

    def _look(self, begin: int, count: int) -> None:
        size = min(_PIECE_UNITS, count - self._at)
        units = self._timer_log.units(begin + self._at * timer_unit.UNIT_BYTES, size)
        slots = (units["write_ms"] + units["delay_ms"]) // self._precision_ms
        self._highest = max(self._highest, int(np.max(slots, initial=0)))
        self._at += size


# --- timer retention ---


_QUEUES = 64  # queues that are checked in one step
NOTHING = 2**62
"""Returned by `lowest_needed` if no part of the log is needed."""


class TimerRetention:
    """The state of one store that is derived from the log and follows its begin.

    Each call does a bounded amount of work. A call that returns True is repeated.
    """

    def __init__(
        self,
        core: Core,
        dispatch: Dispatch,
        levels: LevelCursors,
        timer_log: TimerLog,
        checkpoint: Checkpoint,
        flush: Flush,
        mover: Relocator,
        past: ExpiredSegments,
    ) -> None:
        self._log = core.log
        self._routes = core.routes
        self._dispatch = dispatch
        self._levels = levels
        self._timer_log = timer_log
        self._timer_route = core.timer_route
        self.checkpoint = checkpoint
        self._flush = flush
        self._mover = mover
        self.past = past
        self._signals = core.signals
        self._at = 0  # index of the next route to drop units of
        self._dropped: deque[tuple[Route, int, int]] = deque()  # queue offsets [begin, end)

    def move(self, begin: int, end: int) -> bool:
        """Copy some of the pending messages in [begin, end) of the log to its end."""
        moved = self._mover.step(begin, end)
        if moved:
            self._dispatch.wake()
            self._flush.note()
        return moved

    def is_past(self, end: int, moved_end: int) -> bool:
        """Return whether no service, no recovery and no reader of the last checkpoint reads below
        `end`. For a reader that checkpoint must have the log up to `moved_end`; on a full disk,
        which has no space for a checkpoint, this is not required.

        If it is not so yet, start the work that makes it so.
        """
        mark = self.checkpoint.completed
        if mark is None or not self._mover.is_linked:
            return False  # a checkpoint after linking wakes retention
        if mark.log_end >= (end if self.checkpoint.has_no_space else moved_end):
            first = self._timer_route.queue.first_at(end)
            if mark.timer_queue_offset >= first:
                return True
            if self._timer_log.linked_offset < first:
                return False
        self._flush.request_checkpoint()
        return False

    def lowest_needed(self) -> int:
        """Return the lowest log offset that is needed regardless of the limits.

        It is that of the first message on a delay level that is dispatched and not delivered.
        """
        found = NOTHING
        for route in list(self._routes.by_index):
            if route.native.kind != lib.TS_ROUTE_LEVELS:
                continue
            with self._log.lock:
                at = self._levels.cursor(route.queue_id)
            units = queue_unit.read(route.queue.read(max(at, route.queue.min_offset), 1))
            if len(units):
                found = min(found, int(units["log_offset"][0]))
        return found

    def drop_derived(self, log_begin: int) -> bool:
        """Drop some units of records below `log_begin`, of some queues, then of the index."""
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
        """Notify subscribers of dropped messages. Called without a lock."""
        while self._dropped:
            self._signals.queue_dropped(*self._dropped.popleft())

    def unlink_timer_log(self) -> bool:
        """Remove a retired timer log file."""
        segments = self._timer_log.segments
        if segments.has_retired:
            self.checkpoint.raise_begins()  # once more: the disk may have been full
        return segments.unlink_retired()
