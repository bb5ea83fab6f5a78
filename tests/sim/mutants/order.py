"""Plant bugs that make messages early, stuck, out of order or linked to the wrong slot (W-S)."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    ConsumeQueue,
    DequeuePut,
    DirtyPages,
    OpenSlot,
    TimerLog,
    Wheel,
    timer_recover,
)


@mutant("W-S1", "the wheel is durable before the timer log")
def _timer_log_not_synced() -> Patches:
    yield swap(TimerLog, "sync", nothing)


@mutant("W-S3", "a cut of the log is not applied to the queues")
def _queues_not_cut() -> Patches:
    original = ConsumeQueue.recover

    def recovered(self: Any, _log_end: int, log_begin: int) -> None:
        original(self, 2**62, log_begin)

    yield swap(ConsumeQueue, "recover", recovered)


@mutant("W-S6", "pages of the wheel changed since its copy are not written again")
def _dirty_pages_forgotten() -> Patches:
    original = Wheel.copy_dirty

    def copy_dirty(self: Any) -> Any:
        found = original(self)
        keep = len(found.pages) // 2
        return DirtyPages(found.pages[:keep], found.data[:keep])

    yield swap(Wheel, "copy_dirty", copy_dirty)


@mutant(
    "W-S7", "after the clock goes forward and back, messages due in between are delivered at once"
)
def _latest_time_counts() -> Patches:
    latest = {"ms": 0}

    class Peak:
        def __init__(self, clock: Any) -> None:
            self._clock = clock

        @property
        def now_ms(self) -> int:
            latest["ms"] = max(latest["ms"], self._clock.now_ms)
            return latest["ms"]

    original = DequeuePut.step

    def step(self: Any) -> bool:
        if not isinstance(self._clock, Peak):
            latest["ms"] = 0
            self._clock = Peak(self._clock)
        return original(self)

    yield swap(DequeuePut, "step", step)


@mutant("W-S8", "messages of one slot are delivered in any order")
def _no_order() -> Patches:
    original = OpenSlot.pop

    def pop(self: Any, now_ms: int, capacity: int) -> Any:
        due, loaded_slot = original(self, now_ms, capacity)
        return due[::-1].copy(), loaded_slot

    yield swap(OpenSlot, "pop", pop)


@mutant("W-S9", "pending counts drift")
def _counts_drift() -> Patches:
    original = timer_recover.set_pending

    def set_pending(routes: Any, counts: Any, now_ms: int) -> None:
        more = {t: {q: n + 1 for q, n in of.items()} for t, of in counts.pending.items()}
        original(routes, counts._replace(pending=more), now_ms)

    yield swap(timer_recover, "set_pending", set_pending)
