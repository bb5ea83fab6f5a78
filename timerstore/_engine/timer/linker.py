"""Linker: gives messages their place: a slot of the wheel, the far wheel, or the open slot.

    link        records of the timer topic, in queue order                       enqueue-put
    move_down   units of a far slot that comes near                              enqueue-put
    tidy        live units among many dead ones, to the far log's end            enqueue-put
    relink      what was read from the wheel and is due in a later slot          dequeue-put
    hand_over   all of the far wheel to the wheel, as a broker has it            close

Threads:  any, one at a time under `_lock`.
Locks:    _lock, then the wheel's, then the open slot's.
Holds:    (1) the timer log's `end`, `linked_offset`, the wheel and the far wheel change together in
          one hold of the wheel's lock; (2) what is given another place leaves the old one in that
          same hold; the wheel's old slot stays as it is until a checkpoint covers that
          (`Wheel.moved_on`); (3) a far slot is moved down when its first slot comes into the roll
          window: a window before anything in it is due; (4) what no slot takes is parked: it goes
          to the open slot, and a unit of the far wheel keeps it for a recovery.
Fails:    FullError before anything is linked; FailedError where units could not be written.
Source:   docs/decisions/0003-timing-wheel.md.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock, ffi, lib, raise_status
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import queue_unit, timer_unit
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer import far_wheel
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot, by_slot
from timerstore._engine.timer.timer_arrays import DUE, FAR, REQUEST, Int64Array, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import FailedError, FullError, TimerStoreError

_BATCH = 8192
BLOCKED = -1
"""Every slot that could take the first one holds what may be needed yet."""


class Linker(Owner):
    """Links the messages of one store."""

    def __init__(
        self,
        metrics: Metrics,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        states: TimerStates,
        open_slot: OpenSlot,
        store_id: int,
    ) -> None:
        self._metrics = metrics
        self._config = config
        self._clock = clock
        self._log: CommitLog = log
        self._wheel = wheel
        self._timer_log = timer_log
        self._far = far
        self._states = states
        self._open_slot = open_slot
        self._store_id = store_id
        self._has_far = config.far_wheel != "off"
        self._lock = Lock()
        self.refused: TimerStoreError | None = None
        """The error that kept closing from linking everything."""
        self._link: Any = ffi.new("ts_link *")
        self._units = np.empty((_BATCH + 1) * UNIT_BYTES, np.uint8)
        self._late = np.empty(_BATCH, DUE)
        self._away = np.empty(_BATCH, FAR)

    @property
    def relinks(self) -> bool:
        """Whether what rolls keeps its body where it is."""
        return self._has_far

    @property
    def far_was_used(self) -> bool:
        """Whether the far log holds something, be it only what was parked, or has held it."""
        return self._far.was_used

    # --- from the timer topic ---

    def refuse(self, error: TimerStoreError) -> None:
        """Keep the error that kept closing from linking everything; raise it unless retryable."""
        if not error.retryable:
            raise error
        self.refused = error

    @property
    def linked_offset(self) -> int:
        """The queue offset after the last linked record; what is late is in the open slot then."""
        with self._wheel.lock:
            return self._timer_log.linked_offset

    def link(self, requests: Records, *, parks: bool = False) -> int:
        """How many were linked; 0 where only a segment was finished; BLOCKED where none can be, and
        none is to be parked.
        """
        with self._lock:
            requests = requests[:_BATCH]
            self._reserve(len(requests), parks=parks)
            with self._wheel.lock:
                count = self._place(requests, self._now_slot(), parks=parks)
                if count > 0:
                    self._timer_log.linked_through(int(requests["queue_offset"][count - 1]))
            if count < 0:
                return BLOCKED
            late = int(self._link.late_count)
        unusable = int(np.count_nonzero(requests["flags"][:count] & lib.TS_FLAG_UNUSABLE))
        self._metrics.add("enqueue_put_messages", count)
        self._metrics.add("enqueue_put_late_messages", late)
        self._metrics.add("enqueue_put_unusable_messages", unusable)
        return count

    def _now_slot(self) -> int:
        return self._clock.now_ms // self._config.precision_ms

    def _reserve(self, count: int, *, parks: bool = False) -> None:
        self._timer_log.reserve(count)
        if self._has_far or parks:
            self._far.reserve(count)

    def _place(
        self, requests: Records, now_slot: int, *, is_again: bool = False,
        for_broker: bool = False, parks: bool = False,
    ) -> int:  # fmt: skip
        """Link requests whose space is reserved; under both locks. As `link`."""
        if not len(requests):
            return 0
        link, wheel, config = self._link, self._wheel, self._config
        link.pos = self._timer_log.end
        link.segment_bytes = self._timer_log.segments.segment_bytes
        link.write_slot = now_slot
        if wheel.follow_back(max(1, now_slot), self._open_slot.outstanding):
            self._open_slot.follow_back(wheel.frontier, wheel.back_count)
        link.read_slot = wheel.frontier
        link.reuse_below = min(
            wheel.completed_read_slot, self._open_slot.lowest_slot(wheel.frontier)
        )
        link.read_below = min(wheel.reading.frontier, wheel.frontier)
        kept = wheel.kept()
        link.kept, link.kept_count = ffi.from_buffer("int64_t[]", kept), len(kept)
        link.overflows, link.overflow_slot = parks, self._far.overflow_slot
        link.roll_slots = config.roll_slots
        link.near_slots = link.far_width = link.spread_slots = 0
        if for_broker:
            link.spread_slots = max(1, config.roll_slots // 2)
        elif self._has_far:
            link.near_slots = link.far_width = self._far.width
            # Counted from the window's end: what is moved down out of the last one finds another.
            first_far = (now_slot + config.roll_slots) // self._far.width
            link.far_last = first_far + far_wheel.SLOTS_MAX - 1
        elif is_again:
            link.near_slots = self._far.width
        link.far = ffi.from_buffer("ts_far_unit[]", self._away)
        count = lib.ts_timer_link(
            wheel.native,
            link,
            self._states.native,
            ffi.from_buffer("ts_request[]", requests),
            len(requests),
            ffi.from_buffer("uint8_t[]", self._units),
            len(self._units),
            ffi.from_buffer("ts_due[]", self._late),
        )
        if count == lib.TS_BLOCKED:
            return BLOCKED
        if count < 0:
            raise_status(count, "link", self._timer_log.segments.directory)
        reach("enqueue_slots_linked")
        self._append(int(link.bytes), int(link.pos), int(link.far_count))
        if is_again and link.bytes:
            self._far.note_linked_again(self._timer_log.end)
        reach("enqueue_units_written")
        wheel.note_used(int(link.first_slot))
        if link.late_count:
            late = self._late[: link.late_count]
            wheel.took_late([slot for slot, _ in by_slot(late["slot"]) if slot >= 0])
            self._open_slot.expect_and_push(late)
            self._metrics.add("overflow_messages", int(np.count_nonzero(late["slot"] < 0)))
        return int(count)

    def _append(self, size: int, end: int, far_count: int) -> None:
        """Write the units that slots point at by now: without them the wheel is wrong, so that what
        fails here is final, a full disk too. Their space was reserved before.
        """
        where = self._timer_log.segments.directory
        try:
            self._timer_log.append(self._units.data[:size], end)
            if far_count:
                where = self._far.segments.directory
                self._far.add(self._away[:far_count])
                reach("enqueue_far_written")
                self._metrics.add("far_added_messages", far_count)
        except FullError as error:
            raise FailedError(
                f"units of linked slots could not be written: {error}", where=where
            ) from error

    # --- from the far wheel ---

    def move_down(self, *, parks: bool = False) -> int:
        """Move some of a far slot that comes near. How many; 0: none does; or BLOCKED."""
        with self._lock:
            with self._wheel.lock:
                now_slot = self._now_slot()
                if self._far.first_wheel_slot >= now_slot + self._config.roll_slots:
                    return 0
            return self._take_down(now_slot, parks=parks)

    def due_down_ms(self) -> int | None:
        """When there is something to move down next; None: nothing is there."""
        with self._wheel.lock:
            first = self._far.first_wheel_slot
        if first == NO_SLOT:
            return None
        return (first - self._config.roll_slots + 1) * self._config.precision_ms

    def whole_until_ms(self) -> int:
        """What is due by then does not wait on the far wheel. What was parked before an opening may
        be due whenever: until it came down, that is 0.
        """
        with self._wheel.lock:
            first = self._far.first_wheel_slot
        return max(first, 0) * self._config.precision_ms

    def _take_down(
        self, now_slot: int, *, for_broker: bool = False, parks: bool = False
    ) -> int:  # fmt: skip
        """Some of the lowest far slot; under `_lock`. `now_slot`: when that came near; by a clock
        that was set back since, it would be far again, and be put where it is taken from.
        """
        far = self._far
        slot = far.lowest
        units = far.first_of(slot)
        rows = np.flatnonzero(units["log_offset"] >= self._log.segments.begin)
        requests = np.zeros(len(rows), REQUEST)
        for name in ("id", "log_offset", "due_ms", "size", "topic_hash"):
            requests[name] = units[name][rows]
        requests["flags"] = lib.TS_FLAG_AGAIN
        self._reserve(len(requests), parks=parks)
        with self._wheel.lock:
            count = self._place(
                requests, now_slot, is_again=True, for_broker=for_broker, parks=parks
            )
            if count == BLOCKED:
                return BLOCKED
            taken = int(rows[count]) if count < len(rows) else len(units)
            if taken:
                far.take_off(slot, units[:taken])
        reach("far_moved_down")
        self._metrics.add("far_moved_messages", count)
        return max(1, taken)

    def hand_over(self) -> bool:
        """Give all of it the slots that a broker would: the wheel alone holds what waits then.
        Whether that is so. Nothing else runs.
        """
        with self._lock:
            with self._wheel.lock:
                self._far.release_overflow()
            while self._far.count:
                if self._take_down(self._now_slot(), for_broker=True) == BLOCKED:
                    return False
                reach("far_handed_over")
        return True

    def tidy(self) -> bool:
        """Where most of the far log is dead, copy some of the rest to its end; unlink a file that
        is not needed. Whether anything was done.
        """
        far = self._far
        self.drop_overflow()
        if far.unlink():
            reach("far_unlinked")
            return True
        with self._lock:
            with self._wheel.lock:
                slot = far.next_to_copy(self._open_slot.overflow_count)
            if slot is None:
                return False
            units = far.first_of(slot)
            alive = units.copy()
            out = ffi.from_buffer("ts_far_unit[]", alive)
            begin = self._log.segments.begin
            count = lib.ts_far_waiting(self._states.native, begin, out, len(alive))
            far.reserve(count)
            with self._wheel.lock:
                far.take_off(slot, units)
                if count:
                    self._copy(alive[:count])
        reach("far_tidied")
        return True

    def drop_overflow(self) -> None:
        """Let go of what was parked, where none of it waits any more."""
        if not self._far.has_overflow:
            return
        with self._wheel.lock:
            if not self._open_slot.overflow_count:
                self._far.drop_overflow()

    def _copy(self, units: Records) -> None:
        try:
            self._far.add(units)
        except FullError as error:
            raise FailedError(
                f"far units could not be written: {error}", where=self._far.segments.directory
            ) from error

    # --- from the open slot ---

    def relink(self, entries: Records) -> int:
        """Give entries that are due in a later slot their place there, and be done with them in
        theirs. How many were dealt with; 0 where none can be.
        """
        entries = entries[:_BATCH]
        requests, rows = self._requests(entries)
        dealt = 0
        with self._lock:
            while dealt == 0 and len(entries):  # where it only finishes a segment, once more
                self._reserve(len(requests))
                with self._wheel.lock:
                    count = self._place(requests, self._now_slot(), is_again=True)
                    if count == BLOCKED:
                        return 0
                    dealt = int(rows[count]) if count < len(rows) else len(entries)
                    self._leave(entries["slot"][:dealt])
        reach("far_relinked")
        self._metrics.add("dequeue_put_relinked_messages", count)
        return dealt

    def _leave(self, slots: Int64Array) -> None:
        """Entries have their place elsewhere; under the wheel's lock."""
        each, counts = np.unique(slots, return_counts=True)
        self._wheel.moved_on.update(each.tolist())
        self._open_slot.done(zip(each.tolist(), counts.tolist(), strict=True))

    def _requests(self, entries: Records) -> tuple[Records, Int64Array]:
        """Read what linking needs of entries; and which of them are there, not moved meanwhile."""
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            rows = np.flatnonzero(entries["log_offset"] >= view.begin)
            living = np.ascontiguousarray(entries[rows])
            requests = np.empty(len(living), REQUEST)
            done = 0
            while done < len(living):
                got = lib.ts_due_requests(
                    view,
                    ffi.from_buffer("ts_due[]", living) + done,
                    len(living) - done,
                    self._states.native,
                    self._store_id,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_request[]", requests) + done,
                )
                if got < 0:
                    segments.serve(view, got, "relink")
                else:
                    done += got
        requests["flags"] = lib.TS_FLAG_AGAIN
        return requests, rows

    # --- for a broker ---

    def end_log(self, timer_route: Route) -> None:
        """Have the timer log's last unit be that of the timer topic's last record: a broker goes on
        behind that. Nothing else runs.
        """
        queue, timer_log = timer_route.queue, self._timer_log
        if not self._far.was_used or queue.count == queue.min_offset or timer_log.end == 0:
            return
        last = queue_unit.read(queue.read(queue.count - 1, 1))
        size = timer_log.segments.segment_bytes
        number = timer_unit.count_below(timer_log.end, size) - 1
        unit = timer_log.units(timer_unit.position_of(number, size), 1)
        if int(unit["log_offset"][0]) == int(last["log_offset"][0]):
            return
        request = np.zeros(1, REQUEST)
        request["log_offset"], request["size"] = last["log_offset"], last["size"]
        # It has its place: this unit is linked nowhere.
        request["flags"] = lib.TS_FLAG_AGAIN | lib.TS_FLAG_UNUSABLE
        with self._lock:
            is_done = False
            while not is_done:  # the first time it may just finish a segment
                self._reserve(1)
                with self._wheel.lock:
                    is_done = self._place(request, self._now_slot(), is_again=True) > 0
