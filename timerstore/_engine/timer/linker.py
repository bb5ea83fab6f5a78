"""Link messages: into a slot of the wheel, a slot of the far wheel, or the overflow.

    method            messages                                                       thread
    link              records of the timer topic, in queue order                     enqueue-put
    move_down         messages of a far slot that comes near                         enqueue-put
    relink            messages read from the wheel that are due in a later slot      dequeue-put
    empty_far_wheel   all messages of the far wheel, linked as a broker links them   close
    tidy_far          units that stay on the far wheel, so that old files can go       enqueue-put

Thread safety: any thread may call it; `_lock` admits one at a time.
Locking: `_lock`, then the wheel's lock, then the open slot's.
Invariants:
    1. The timer log's `end` and `linked_offset`, the wheel and the far wheel change together under
       the wheel's lock.
    2. A message that is linked again leaves its old place under the same lock. Its old slot of the
       wheel stays unchanged until a checkpoint covers the new place (`Wheel.moved_on`).
    3. A far slot is moved down when its first wheel slot enters the roll window, so one roll window
       before any of its messages is due.
    4. A message that finds no slot goes to the overflow: it waits in the open slot, and a unit of
       the far wheel keeps it for a recovery.
Raises: FullError before anything is linked. FailedError if units could not be written.
See also: docs/decisions/0003-timing-wheel.md
"""

from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib, raise_status
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit, timer_unit
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer import far_wheel
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot, by_slot
from timerstore._engine.timer.timer_arrays import DUE, FAR, REQUEST, Int64Array, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.errors import FailedError, FullError, TimerStoreError

# --- link requests ---
# Make requests for the linker, from due entries and from units of the far wheel.
#
# The messages of these requests are linked again: their record in the log stays where it is.
#
# Thread safety: any thread may call it.


def requests_of_far_units(units: Records, log_begin: int) -> tuple[Records, Int64Array]:
    """Return requests for units of the far wheel, and their rows.

    Units whose record retention has moved are left out.
    """
    rows = np.flatnonzero(units["log_offset"] >= log_begin)
    requests = np.zeros(len(rows), REQUEST)
    for name in ("id", "log_offset", "due_ms", "size", "topic_hash"):
        requests[name] = units[name][rows]
    requests["flags"] = lib.TS_FLAG_AGAIN
    return requests, rows


def requests_of_due_entries(
    log: CommitLog, states: TimerStates, store_id: int, precision_ms: int, entries: Records
) -> tuple[Records, Int64Array]:
    """Return requests for due entries, and their rows.

    Entries whose record retention has moved are left out.
    """
    segments = log.segments
    with segments.view(log.written) as view:
        rows = np.flatnonzero(entries["log_offset"] >= view.begin)
        living = np.ascontiguousarray(entries[rows])
        requests = np.empty(len(living), REQUEST)
        done = 0
        while done < len(living):
            done += segments.call(
                view,
                "relink",
                lib.ts_due_requests,
                ffi.from_buffer("ts_due[]", living) + done,
                len(living) - done,
                states.native,
                store_id,
                precision_ms,
                ffi.from_buffer("ts_request[]", requests) + done,
            )
    requests["flags"] = lib.TS_FLAG_AGAIN
    return requests, rows


# --- linker ---


_BATCH = 8192
BLOCKED = -1
"""No slot is free for the first message: each may still be needed."""


class Linker(NotCopyable):
    """Links the messages of one store."""

    def __init__(
        self, core: Core, wheel: Wheel, timer_log: TimerLog, far: FarWheel, open_slot: OpenSlot
    ) -> None:
        self._metrics = core.metrics
        self._config = core.config
        self._clock = core.clock
        self._log: CommitLog = core.log
        self._wheel = wheel
        self._timer_log = timer_log
        self._far = far
        self._states = core.states
        self._open_slot = open_slot
        self._store_id = core.store_id
        self.relinks = core.config.far_wheel != "off"
        """Whether messages roll by getting a new unit, without a new record in the log."""
        self._lock = Lock()
        self.refused: TimerStoreError | None = None
        """The error that kept closing from linking everything."""
        self._link: Any = ffi.new("ts_link *")
        self._units = np.empty((_BATCH + 1) * UNIT_BYTES, np.uint8)
        self._late = np.empty(_BATCH, DUE)
        self._away = np.empty(_BATCH, FAR)

    @property
    def far_was_used(self) -> bool:
        """Whether the far log has or had any units, including those of the overflow."""
        return self._far.was_used

    # --- from the timer topic ---

    def refuse(self, error: TimerStoreError) -> None:
        """Keep the error that prevented closing from linking everything.

        Raise it if it is not retryable.
        """
        if not error.retryable:
            raise error
        self.refused = error

    @property
    def linked_offset(self) -> int:
        """The queue offset after the last linked record. Late messages are in the open slot."""
        with self._wheel.lock:
            return self._timer_log.linked_offset

    def link(self, requests: Records, *, uses_overflow: bool = False) -> int:
        """Link records of the timer topic, which are in queue order.

        Return how many of the first were linked. 0 means that only a segment was finished. BLOCKED
        means that no slot is free for the first one.

        uses_overflow: put messages that find no slot into the overflow.

        Raises:
            FullError: the disk is full; nothing was linked.
            FailedError: units could not be written; the store has failed.
        """
        with self._lock:
            requests = requests[:_BATCH]
            self._reserve(len(requests), uses_overflow=uses_overflow)
            with self._wheel.lock:
                count = self._place(requests, self._now_slot(), uses_overflow=uses_overflow)
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

    def _reserve(self, count: int, *, uses_overflow: bool = False) -> None:
        self._timer_log.reserve(count)
        if self.relinks or uses_overflow:
            self._far.reserve(count)

    def _place(
        self, requests: Records, now_slot: int, *, is_again: bool = False,
        for_broker: bool = False, uses_overflow: bool = False,
    ) -> int:  # fmt: skip
        """Link requests as `link` does; their space is reserved, and the caller holds both locks.

        is_again: the messages were linked before.
        for_broker: link messages that are due after the roll window into the wheel, as a broker
            does, spread over half of the window.
        """
        if not len(requests):
            return 0
        link, wheel, config = self._link, self._wheel, self._config
        link.pos = self._timer_log.end
        link.segment_bytes = self._timer_log.segments.segment_bytes
        link.write_slot = now_slot
        if wheel.follow_back(max(1, now_slot), self._open_slot.outstanding):
            self._open_slot.follow_back(wheel.read_slot, wheel.back_count)
        link.read_slot = wheel.read_slot
        link.reuse_below = min(
            wheel.completed_replay_slot, self._open_slot.replay_slot(wheel.read_slot)
        )
        link.read_below = min(wheel.reading.read_slot, wheel.read_slot)
        kept = wheel.kept()
        link.kept, link.kept_count = ffi.from_buffer("int64_t[]", kept), len(kept)
        link.overflows, link.overflow_slot = uses_overflow, self._far.overflow_slot
        link.roll_slots = config.roll_slots
        link.near_slots = link.far_width = link.spread_slots = 0
        if for_broker:
            link.spread_slots = max(1, config.roll_slots // 2)
        elif self.relinks:
            link.near_slots = link.far_width = self._far.width
            # Counted from the window's end, so that a message moved down from the last far slot
            # finds a later one.
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
            slots = by_slot(late["slot"])
            wheel.note_late([slot for slot, _ in slots if slot >= 0])
            self._open_slot.expect(slots)  # no read of a slot has counted them
            self._open_slot.push(late)
            self._metrics.add("overflow_messages", int(np.count_nonzero(late["slot"] < 0)))
        return int(count)

    def _append(self, size: int, end: int, far_count: int) -> None:
        """Write the units that slots already point at; their space is reserved.

        Without them the wheel is wrong, so any error here is final, even a full disk.
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

    def move_down(self, *, uses_overflow: bool = False) -> int:
        """Link messages of the next far slot into the wheel if that slot comes near.

        Return how many units left the far slot; 0 if it is not near; BLOCKED if no slot is free.

        uses_overflow: put messages that find no slot into the overflow.

        Raises:
            FullError: the disk is full; nothing was linked.
            FailedError: units could not be written; the store has failed.
            CorruptError: a unit of the far wheel is damaged.
        """
        with self._lock:
            with self._wheel.lock:
                now_slot = self._now_slot()
                if self._far.first_wheel_slot >= now_slot + self._config.roll_slots:
                    return 0
            return self._move_down_slot(now_slot, uses_overflow=uses_overflow)

    def next_move_down_ms(self) -> int | None:
        """Return when the next message must be moved down, or None if the far wheel is empty."""
        with self._wheel.lock:
            first = self._far.first_wheel_slot
        if first == NO_SLOT:
            return None
        return (first - self._config.roll_slots + 1) * self._config.precision_ms

    def complete_until_ms(self) -> int:
        """Return the time up to which no message on the far wheel is due.

        Messages of an overflow from before the opening may be due at any time. Until they have come
        down, return 0.
        """
        with self._wheel.lock:
            first = self._far.first_wheel_slot
        return max(first, 0) * self._config.precision_ms

    def _move_down_slot(
        self, now_slot: int, *, for_broker: bool = False, uses_overflow: bool = False
    ) -> int:  # fmt: skip
        """Link messages of the lowest far slot into the wheel; the caller holds `_lock`.

        now_slot: the current slot when the far slot came near. If the clock was set back since, a
            later value would link the messages into the far slot from which they are taken.
        """
        far = self._far
        slot = far.lowest
        units = far.first_of(slot)
        requests, rows = requests_of_far_units(units, self._log.segments.begin)
        self._reserve(len(requests), uses_overflow=uses_overflow)
        with self._wheel.lock:
            count = self._place(
                requests,
                now_slot,
                is_again=True,
                for_broker=for_broker,
                uses_overflow=uses_overflow,
            )
            if count == BLOCKED:
                return BLOCKED
            taken = int(rows[count]) if count < len(rows) else len(units)
            if taken:
                far.take_off(slot, units[:taken])
        reach("far_moved_down")
        self._metrics.add("far_moved_messages", count)
        return max(1, taken)

    def empty_far_wheel(self) -> bool:
        """Link all messages of the far wheel into the slots that a broker would use.

        Return whether the far wheel is empty afterwards. No service may be running.

        Raises:
            FullError: the disk is full.
            FailedError: units could not be written; the store has failed.
            CorruptError: a unit of the far wheel is damaged.
        """
        with self._lock:
            with self._wheel.lock:
                self._far.release_overflow()
            while self._far.count:
                if self._move_down_slot(self._now_slot(), for_broker=True) == BLOCKED:
                    return False
                reach("far_handed_over")
        return True

    # --- from the open slot ---

    def relink(self, entries: Records) -> int:
        """Link due entries into the later slots in which they are due.

        Return how many of the first were linked or need no link; 0 if no slot is free. They count
        as done in their present slots.

        Raises:
            FullError: the disk is full; nothing was linked.
            FailedError: units could not be written; the store has failed.
        """
        entries = entries[:_BATCH]
        config = self._config
        requests, rows = requests_of_due_entries(
            self._log, self._states, self._store_id, config.precision_ms, entries
        )
        relinked = 0
        with self._lock:
            while relinked == 0 and len(entries):  # repeat if only a segment was finished
                self._reserve(len(requests))
                with self._wheel.lock:
                    count = self._place(requests, self._now_slot(), is_again=True)
                    if count == BLOCKED:
                        return 0
                    relinked = int(rows[count]) if count < len(rows) else len(entries)
                    left = by_slot(entries["slot"][:relinked])
                    self._wheel.moved_on.update(slot for slot, _ in left)
                    self._open_slot.done(left)
        reach("far_relinked")
        self._metrics.add("dequeue_put_relinked_messages", count)
        return relinked

    # --- dead units of the far wheel ---

    def tidy_far(self) -> bool:
        """Remove a far log file that is not needed, or copy live units if most units are dead.

        Without it the far log would grow without limit. Return whether there was anything to do.

        Raises:
            FullError: the disk is full; nothing was changed.
            FailedError: units could not be written; the store has failed.
            CorruptError: a unit of the far wheel is damaged.
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
            count = lib.ts_far_pending(self._states.native, begin, out, len(alive))
            far.reserve(count)
            with self._wheel.lock:
                far.take_off(slot, units)
                if count:
                    self._copy(alive[:count])
        reach("far_tidied")
        return True

    def drop_overflow(self) -> None:
        """Drop the overflow's units if none of its messages is pending."""
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

    # --- for a broker ---

    def end_log(self, timer_route: Route) -> None:
        """End the timer log with the unit of the timer topic's last record.

        A broker continues after the record of the last unit. No service may be running.

        Raises:
            FullError: the disk is full.
            FailedError: units could not be written; the store has failed.
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
        # The record is linked already: this unit is in no chain.
        request["flags"] = lib.TS_FLAG_AGAIN | lib.TS_FLAG_UNUSABLE
        with self._lock:
            is_done = False
            while not is_done:  # repeat if only a segment was finished
                self._reserve(1)
                with self._wheel.lock:
                    is_done = self._place(request, self._now_slot(), is_again=True) > 0
