"""Read due slots, and pass their units to dequeue-get-message.

This is the third of the six timer services. A slot with a burst is read before it is due, with all
slots before it, so that all of it is loaded in time.

Thread safety: runs on the dequeue-get thread only.
Locking: holds the wheel's lock for one batch of units.
Invariants:
    1. Slots are read in order of time, each once while the store is open, unless the clock is set
       back.
    2. A slot counts as read as soon as its reading begins. A message that is linked into it later
       is late, and is also put into the open slot.
    3. No slot is begun while a message of that slot or an earlier one is on the far wheel, so that
       no message overtakes it.
    4. The open slot receives a `loaded_slot` together with the last unit below it.
    5. Units that were read before an error are passed on by the next step.
Raises: CorruptError if a chain does not belong to its slot.
See also: docs/decisions/0004-fair-delivery.md
"""

from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import IDLE_S_MAX, Handoff, Service
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot, by_slot
from timerstore._engine.timer.timer_arrays import CHAINED, Loaded
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel

_BATCH = 16_384
_SLOTS = 16  # slots that are read concurrently when many are due
_CONCURRENT_UNITS_MAX = 262_144  # in these slots together; a single slot may have more
_LOADED_MAX = 16_384  # entries in the open slot above which no further slot is begun,
_LOADED_AHEAD_MAX = 1 << 20  # or more if the next slots have more, up to this
_HELD_MAX = 1 << 24  # entries in the open slot with bursts, which delay no other topic
_BURST_UNITS = 65_536  # units for which a slot is begun before it is due
_BURST_UNITS_PER_S = 1_000_000  # reading is at least this fast
_LEAD_S = 1.0  # added to the time that reading takes
_BLOCKED_S_MIN = 0.05  # until the next look at a slot that the far wheel or a full slot blocks
_BURST_CHECK_S = 0.5  # between two checks whether a burst must be read now
_AHEAD_MS = 60_000
_AHEAD_SLOTS = 4096


class DequeueGet(Service):
    """Reads units from due slots."""

    name = "dequeue-get"

    def __init__(
        self,
        core: Core,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        open_slot: OpenSlot,
        out: Handoff[Loaded],
    ) -> None:
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._clock = core.clock
        self._wheel = wheel
        self._timer_log = timer_log
        self._far = far
        self._open_slot = open_slot
        self._out = out
        self._slots: list[int] = []  # being read
        self._native_slots = ffi.new("int64_t[]", _SLOTS)  # the same
        self._positions = ffi.new("int64_t[]", _SLOTS)  # the next unit of each
        self._chained = np.empty(_BATCH, CHAINED)
        self._count = 0  # units in `_chained` that were not passed on yet
        self._unread = 0  # units left in the slots being read, by their counters: a hint
        self._awaits_less = False  # a further slot is begun only when the open slot has less
        self._finished: list[int] = []  # slots read completely since the last batch
        # The last `loaded_slot` that was passed on, and the wheel's `back_count` of that time.
        self._passed = open_slot.loaded_slot, 0
        self._ahead_slots = min(
            _AHEAD_MS // core.config.precision_ms, _AHEAD_SLOTS, wheel.slot_count // 8
        )
        # With sleeps of at most this length, each slot is checked for a burst before it is due.
        reach_s = self._ahead_slots * core.config.precision_ms / 1000
        self._idle_s_max = min(IDLE_S_MAX, max(_BURST_CHECK_S, reach_s / 2))
        self._start_ns = core.clock.monotonic_ns + core.config.start_delay_ms * 1_000_000

    @property
    def is_waiting(self) -> bool:
        """Whether every slot that may be read now was read, and its units were taken downstream."""
        if self._slots or self._count or len(self._out):
            return False
        with self._wheel.lock:
            now_slot = self._clock.now_ms // self._config.precision_ms
            last_slot = self._last_slot(self._ahead(now_slot))
            return self._wheel.read_slot > last_slot or self._has_enough(last_slot)

    def _last_slot(self, now_slot: int) -> int:
        """Return the last slot that may be begun. The caller holds the wheel's lock."""
        return min(now_slot, self._far.first_wheel_slot - 1)

    def _next(self, last_slot: int) -> list[tuple[int, int]]:
        """Return the next slots to begin, up to the free capacity, with their unit counters."""
        room = _SLOTS - len(self._slots)
        return self._wheel.next_used_many(self._wheel.read_slot, last_slot + 1, room)

    def _has_enough(self, last_slot: int) -> bool:
        """Return whether so many entries are loaded that no further slot should be begun.

        Large slots are begun earlier, while the entries before them are delivered, so that
        dequeue-put does not wait for them. If the loaded entries wait for slots that are not
        loaded, as after the clock was set back, reading must continue.
        """
        open_slot = self._open_slot
        self._awaits_less = True  # before the look: entries may leave during it
        self._awaits_less = self._may_have_enough()
        if not self._awaits_less:
            return False
        units = sum(count for _, count in self._next(last_slot))
        count_max = max(_LOADED_MAX, min(units, _LOADED_AHEAD_MAX))
        is_much = open_slot.rest_count > count_max or len(open_slot) > _HELD_MAX
        return is_much and open_slot.next_wake_ms() is not None

    def open_slot_has_less(self) -> None:
        """Wake the service if entries left the open slot and that may matter to it.

        It may have stopped because enough is loaded, or the first entry may now wait for its slot.
        """
        if self._awaits_less or self._open_slot.blocked_wake_ms() is not None:
            self.wake()

    def _may_have_enough(self) -> bool:
        """Return whether `_has_enough` could be true, without looking at the next slots."""
        return self._open_slot.rest_count > _LOADED_MAX or len(self._open_slot) > _HELD_MAX

    def _ahead(self, now_slot: int) -> int:
        """Return the last slot to begin now: the current slot, or one with a burst due soon."""
        wheel, precision_ms = self._wheel, self._config.precision_ms
        last, at = now_slot, max(now_slot + 1, wheel.read_slot)
        end = now_slot + 1 + self._ahead_slots
        while (burst := wheel.next_burst(at, end, _BURST_UNITS)) is not None:
            slot, count = burst
            lead_s = count / _BURST_UNITS_PER_S + _LEAD_S
            if (slot - now_slot) * precision_ms <= lead_s * 1000:
                last = slot
            at = slot + 1
        return last

    def step(self) -> bool:
        """Read up to one batch of units."""
        if self._config.stop_dequeue or self._out.is_full:
            return False
        if self._clock.monotonic_ns < self._start_ns:
            return False
        # Slot 1 is read at once: it has the messages due in slot 0, into which none is linked.
        now_slot = max(1, self._clock.now_ms // self._config.precision_ms)
        with self._wheel.lock:
            if self._wheel.follow_back(now_slot, self._open_slot.outstanding):
                self._open_slot.follow_back(self._wheel.read_slot, self._wheel.back_count)
            before = self._wheel.read_slot
            last_slot = self._last_slot(self._ahead(now_slot))
            if self._begin_slots(last_slot):
                with self._timer_log.segments.view(self._timer_log.end) as view:
                    while self._count < _BATCH and self._begin_slots(last_slot):
                        self._count += self._read(view)
                        self._finished += self._drop_finished()
            if self._wheel.read_slot > max(before, now_slot + 1):
                self._wheel.read_ahead(now_slot, self._ahead_slots)
            loaded_slot = min([self._wheel.read_slot, *self._slots])
            back_count = self._wheel.back_count
        chained, count = self._chained, self._count
        if not count and (loaded_slot, back_count) == self._passed and not self._finished:
            return False
        reach("dequeue_units_read")
        if count:
            self._open_slot.expect(by_slot(chained["slot"][:count]))
        if 2 * count > len(chained):  # passed on rather than copied
            self._chained = np.empty(_BATCH, CHAINED)
        else:
            chained = chained[:count].copy()
        self._out.put(Loaded(chained[:count], loaded_slot, back_count))
        finished, self._count, self._finished = self._finished, 0, []
        self._passed = loaded_slot, back_count
        self._open_slot.done((slot, 1) for slot in finished)
        self.metrics.add("dequeue_get_units", count)
        self._signals.units_ready()
        return True

    def _begin_slots(self, last_slot: int) -> bool:
        """Begin used slots up to this one. Return whether any slot is being read."""
        wheel, room = self._wheel, _SLOTS - len(self._slots)
        if not room or wheel.read_slot > last_slot or self._has_enough(last_slot):
            return bool(self._slots)
        found = self._next(last_slot)
        begun = found[: self._fitting_count(found)]
        if len(begun) == len(found) < room:
            wheel.read_through(last_slot)
        elif begun:
            wheel.read_through(begun[-1][0])
        if begun:
            # While a slot is read it counts as having an undelivered message.
            self._open_slot.expect((slot, 1) for slot, _ in begun)
            reach("dequeue_slot_begun")
            for slot, units in begun:
                self._keep(slot, -2)
                self._unread += units
        return bool(self._slots)

    def _fitting_count(self, found: list[tuple[int, int]]) -> int:
        """Return how many of the next slots may be begun.

        Slots that are read concurrently finish at about the same time: with a burst, late.
        """
        unread = self._unread
        for at, (_, units) in enumerate(found):
            unread += units
            if unread > _CONCURRENT_UNITS_MAX and (at or self._slots):
                return at
        return len(found)

    def _keep(self, slot: int, position: int) -> None:
        """Add a slot to those being read."""
        at = len(self._slots)
        self._slots.append(slot)
        self._native_slots[at], self._positions[at] = slot, position

    def _read(self, view: Any) -> int:
        count = self._timer_log.segments.call(
            view,
            "timer log",
            lib.ts_wheel_load_many,
            self._wheel.native,
            self._native_slots,
            self._positions,
            len(self._slots),
            _BATCH - self._count,
            ffi.from_buffer("ts_chained[]", self._chained) + self._count,
        )
        self._unread = max(0, self._unread - count)
        return count

    def _drop_finished(self) -> list[int]:
        """Remove and return the slots that are read completely."""
        before, self._slots = self._slots, []
        finished = []
        for at, slot in enumerate(before):
            position = self._positions[at]
            if position == -1:
                finished.append(slot)
            else:
                self._keep(slot, position)
        if not self._slots:
            self._unread = 0
        return finished

    def idle_s(self) -> float | None:
        """Return the time until the next used slot is due."""
        if self._config.stop_dequeue or self._out.is_full:
            return None
        wheel = self._wheel
        with wheel.lock:
            now_slot = self._clock.now_ms // self._config.precision_ms
            at, end = max(wheel.read_slot, now_slot + 1), now_slot + 1 + self._ahead_slots
            has_burst = wheel.next_burst(at, end, _BURST_UNITS) is not None
            if self._may_have_enough():
                last_slot = self._last_slot(self._ahead(now_slot) if has_burst else now_slot)
                if self._has_enough(last_slot):
                    return None
            earliest = wheel.earliest_used()
            # Then moving messages down from the far wheel wakes this service.
            is_blocked = self._last_slot(earliest) < earliest
        blocked_s = self._blocked_s()
        if earliest == NO_SLOT or is_blocked:
            return blocked_s
        wait_s = self._clock.seconds_until(earliest * self._config.precision_ms)
        wait_s = max(wait_s, (self._start_ns - self._clock.monotonic_ns) / 1e9)
        wait_s = min(max(wait_s, 0.0), _BURST_CHECK_S if has_burst else self._idle_s_max)
        return wait_s if blocked_s is None else min(wait_s, blocked_s)

    def _blocked_s(self) -> float | None:
        """Return the time until a blocked entry of the open slot may be released.

        Such an entry was put there because no slot was free (`place_early` in link.c). It is
        released once the slot of its due time was begun.
        """
        wake_ms = self._open_slot.blocked_wake_ms()
        if wake_ms is None:
            return None
        slot_ms = wake_ms // self._config.precision_ms * self._config.precision_ms
        return min(max(self._clock.seconds_until(slot_ms), _BLOCKED_S_MIN), IDLE_S_MAX)
