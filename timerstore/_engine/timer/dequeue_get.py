"""dequeue-get: reads slots whose time has come and gives their units to dequeue-get-message.

Threads:  dequeue-get.
Locks:    the wheel's, for one batch.
Holds:    (1) slots are read in order of time, each once in one opening; one that holds a crowd, and
          those before it, ahead of their time, so that it is read when it comes
          (docs/decisions/0004-fair-delivery.md);
          (2) a slot counts as read from the moment its reading starts: what is linked into it after
          that is late, and goes to the open slot by itself; (3) no slot is begun while something of
          it, or of an earlier one, waits on the far wheel: so nothing overtakes that; (4) the open
          slot hears of a frontier only with the last unit below it; (5) what was read before an
          error is given on by the next step.
Fails:    CorruptError on a chain that does not belong to its slot.
"""

from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import IDLE_S_MAX, Handoff, Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import CHAINED, Int64Array, Loaded
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.clock import Clock
from timerstore.config import StoreConfig

_BATCH = 16_384
_SLOTS = 16  # read side by side when there are many to catch up on
_SIDE_BY_SIDE = 262_144  # units that these hold at most; one alone may hold more
_LOADED_MAX = 16_384  # entries in the open slot beyond which no further slot is begun
_LOADED_AHEAD_MAX = 1 << 20  # and no slot that holds as much as that again
_HELD_MAX = 1 << 24  # those of crowds, which are in nobody's way, among them
_CROWD = 65_536  # units for which a slot is begun ahead of its time
_CROWD_PER_S = 1_000_000  # so many are surely read in a second
_LEAD_S = 1.0  # before that
_HELD_S_MIN = 0.05  # where something else keeps it, as the far wheel, it is looked at again
_LOOK_S = 0.5  # how often it is looked whether a crowd is to be read by now
_AHEAD_MS = 60_000
_AHEAD_SLOTS = 4096


class DequeueGet(Service):
    """From slots to units."""

    name = "dequeue-get"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        config: StoreConfig,
        clock: Clock,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        open_slot: OpenSlot,
        out: Handoff[Loaded],
        start_ns: int,
    ) -> None:
        super().__init__(metrics, signals)
        self._config = config
        self._clock = clock
        self._wheel = wheel
        self._timer_log = timer_log
        self._far = far
        self._open_slot = open_slot
        self._out = out
        self._slots = np.empty(0, np.int64)  # being read
        self._positions = np.empty(0, np.int64)  # and how far
        self._chained = np.empty(_BATCH, CHAINED)
        self._count = 0  # of units in it that were read and not given on
        self._unread = 0  # units of the slots being read, as those say: a hint
        self._finished: list[int] = []  # slots that were read to their end since
        # Frontier that downstream was told, and how often it had followed the clock back by then.
        self._passed = open_slot.frontier, 0
        self._ahead_slots = min(
            _AHEAD_MS // config.precision_ms, _AHEAD_SLOTS, wheel.slot_count // 8
        )
        # Whoever sleeps no longer than this looks at each slot before its time.
        reach_s = self._ahead_slots * config.precision_ms / 1000
        self._idle_s_max = min(IDLE_S_MAX, max(_LOOK_S, reach_s / 2))
        self._start_ns = start_ns + config.start_delay_ms * 1_000_000

    @property
    def is_waiting(self) -> bool:
        """Whether every slot that may be read now has been, and was taken over downstream."""
        if len(self._slots) or self._count or len(self._out):
            return False
        with self._wheel.lock:
            now_slot = self._clock.now_ms // self._config.precision_ms
            last_slot = self._last_slot(self._ahead(now_slot))
            return self._wheel.frontier > last_slot or self._has_enough(self._next(last_slot)[1])

    def _last_slot(self, now_slot: int) -> int:
        """The last slot that may be begun; under the wheel's lock."""
        return min(now_slot, self._far.first_wheel_slot - 1)

    def _next(self, last_slot: int) -> tuple[Int64Array, Int64Array]:
        """The next slots to begin, as many as there is room for, and how many units each says it
        holds.
        """
        room = _SLOTS - len(self._slots)
        return self._wheel.next_used_many(self._wheel.frontier, last_slot + 1, room)

    def _has_enough(self, units: Int64Array) -> bool:
        """Whether so much is loaded that no further slot is begun; the next ones hold so many. They
        are begun while what comes before them leaves, or who hands over would wait for them. And
        where what is loaded waits for slots that are not, as after a clock that was set back,
        reading is what lets it go.
        """
        open_slot = self._open_slot
        count_max = max(_LOADED_MAX, min(int(units.sum()), _LOADED_AHEAD_MAX))
        is_much = open_slot.rest_count > count_max or len(open_slot) > _HELD_MAX
        return is_much and open_slot.next_wake_ms() is not None

    def _may_have_enough(self) -> bool:
        """Whether it is worth to look what the next slots hold."""
        return self._open_slot.rest_count > _LOADED_MAX or len(self._open_slot) > _HELD_MAX

    def _ahead(self, now_slot: int) -> int:
        """The last slot to begin by now: the present one, or one with a crowd that comes soon."""
        wheel, precision_ms = self._wheel, self._config.precision_ms
        last, at = now_slot, max(now_slot + 1, wheel.frontier)
        end = now_slot + 1 + self._ahead_slots
        while (burst := wheel.next_burst(at, end, _CROWD)) is not None:
            slot, count = burst
            lead_s = count / _CROWD_PER_S + _LEAD_S
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
        # Slot 1 is read at once: it holds what is due in slot 0, where nothing is ever linked.
        now_slot = max(1, self._clock.now_ms // self._config.precision_ms)
        with self._wheel.lock:
            if self._wheel.follow_back(now_slot, self._open_slot.outstanding):
                self._open_slot.follow_back(self._wheel.frontier, self._wheel.back_count)
            before = self._wheel.frontier
            last_slot = self._last_slot(self._ahead(now_slot))
            if self._begin_slots(last_slot):
                with self._timer_log.segments.view(self._timer_log.end) as view:
                    while self._count < _BATCH and self._begin_slots(last_slot):
                        self._count += self._read(view)
                        self._finished += self._drop_finished()
            if self._wheel.frontier > max(before, now_slot + 1):
                self._wheel.read_ahead(now_slot, self._ahead_slots)
            frontier = int(self._slots.min(initial=self._wheel.frontier))
            back_count = self._wheel.back_count
        chained, count = self._chained, self._count
        if not count and (frontier, back_count) == self._passed and not self._finished:
            return False
        reach("dequeue_units_read")
        self._open_slot.expect_entries(chained["slot"][:count])
        if 2 * count > len(chained):  # given away rather than copied
            self._chained = np.empty(_BATCH, CHAINED)
        else:
            chained = chained[:count].copy()
        self._out.put(Loaded(chained[:count], frontier, back_count))
        finished, self._count, self._finished = self._finished, 0, []
        self._passed = frontier, back_count
        self._open_slot.done((slot, 1) for slot in finished)
        self.metrics.add("dequeue_get_units", count)
        self._signals.units_ready()
        return True

    def _begin_slots(self, last_slot: int) -> bool:
        """Have slots to read, as far as there are any up to this one."""
        wheel, room = self._wheel, _SLOTS - len(self._slots)
        if not room or wheel.frontier > last_slot:
            return len(self._slots) > 0
        found, units = self._next(last_slot)
        if self._has_enough(units):
            return len(self._slots) > 0
        # All that are read side by side are through at about the same time: with a crowd, late.
        fitting = np.cumsum(units) <= _SIDE_BY_SIDE - self._unread
        fitting[:1] |= not len(self._slots)
        begun = found[fitting]
        if len(begun) == len(found) < room:
            wheel.read_through(last_slot)
        elif len(begun):
            wheel.read_through(int(begun[-1]))
        self._open_slot.expect((slot, 1) for slot in begun.tolist())  # while they are read
        if len(begun):
            reach("dequeue_slot_begun")
            self._slots = np.append(self._slots, begun)
            self._positions = np.append(self._positions, np.full(len(begun), -2, np.int64))
            self._unread += int(units[fitting].sum())
        return len(self._slots) > 0

    def _read(self, view: Any) -> int:
        while True:
            got = lib.ts_wheel_load_many(
                view,
                self._wheel.native,
                ffi.from_buffer("int64_t[]", self._slots),
                ffi.from_buffer("int64_t[]", self._positions),
                len(self._slots),
                _BATCH - self._count,
                ffi.from_buffer("ts_chained[]", self._chained) + self._count,
            )
            if got >= 0:
                self._unread = max(0, self._unread - got)
                return int(got)
            self._timer_log.segments.serve(view, got, "timer log")

    def _drop_finished(self) -> list[int]:
        """Let go of slots that are read to their end; which."""
        is_finished = self._positions == -1
        if not is_finished.any():
            return []
        finished: list[int] = self._slots[is_finished].tolist()
        self._slots = self._slots[~is_finished]
        self._positions = self._positions[~is_finished]
        if not len(self._slots):
            self._unread = 0
        return finished

    def idle_s(self) -> float | None:
        """Until the next used slot's time."""
        if self._config.stop_dequeue or self._out.is_full:
            return None
        wheel = self._wheel
        with wheel.lock:
            now_slot = self._clock.now_ms // self._config.precision_ms
            at, end = max(wheel.frontier, now_slot + 1), now_slot + 1 + self._ahead_slots
            has_burst = wheel.next_burst(at, end, _CROWD) is not None
            if self._may_have_enough():
                last_slot = self._last_slot(self._ahead(now_slot) if has_burst else now_slot)
                if self._has_enough(self._next(last_slot)[1]):
                    return None
            earliest = wheel.earliest_used()
            is_held_up = self._last_slot(earliest) < earliest  # who moves that down wakes
        held_s = self._held_s()
        if earliest == NO_SLOT or is_held_up:
            return held_s
        wait_s = (earliest * self._config.precision_ms - self._clock.now_ms) / 1000
        wait_s = max(wait_s, (self._start_ns - self._clock.monotonic_ns) / 1e9)
        wait_s = min(max(wait_s, 0.0), _LOOK_S if has_burst else self._idle_s_max)
        return wait_s if held_s is None else min(wait_s, held_s)

    def _held_s(self) -> float | None:
        """Until the slot has come of what waits in the open slot without having been read from it,
        as where no slot was free (place_early of link.c): it goes once that slot was begun.
        """
        wake_ms = self._open_slot.blocked_wake_ms()
        if wake_ms is None:
            return None
        slot_ms = wake_ms // self._config.precision_ms * self._config.precision_ms
        return min(max((slot_ms - self._clock.now_ms) / 1000, _HELD_S_MIN), IDLE_S_MAX)
