"""Plant bugs that lose messages (W-L)."""

from typing import Any

from tests.sim.mutants.planting import Lib, Patches, mutant, swap
from tests.support.inside.engine import (
    CommitLog,
    DequeueGet,
    DequeueGetMessage,
    DequeuePut,
    EnqueueGet,
    OpenSlot,
    TimerLog,
    WheelChecks,
    lib,
    linker,
    timer_recover,
)
from tests.support.inside.methods import CHECKPOINT_WRITE, OPENING_LEADS_TO_ALL, OPENING_RECOVER
from timerstore.errors import FullError, TimerStoreError


@mutant("W-L1", "a delivery that fails three times on a full disk is dropped")
def _three_strikes() -> Patches:
    original, strikes = DequeuePut.step, {"count": 0}

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            strikes["count"] += 1
            if strikes["count"] % 3:
                raise
            due, _ = self._open_slot.pop(self._clock.now_ms, 512)
            for slot in due["slot"].tolist():
                self._open_slot.done([(slot, 1)])
            return False

    yield swap(DequeuePut, "step", step)


@mutant("W-L4", "after a long downtime, reading continues at the present slot")
def _jump_over() -> Patches:
    def start_at(one: Any, opened: Any, read_slot: int) -> None:
        timer_recover_start(one, opened, read_slot + one.slot_count // 2)

    timer_recover_start = timer_recover.start_at
    yield swap(timer_recover, "start_at", start_at)


@mutant("W-L6", "a record that cannot be read while indexing is skipped")
def _skip_unreadable() -> Patches:
    original = EnqueueGet.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except TimerStoreError:
            self.queue_offset += 1
            return True

    yield swap(EnqueueGet, "step", step)


@mutant("W-L7", "the read time is durable before the delivered copies")
def _copies_not_synced() -> Patches:
    original = CHECKPOINT_WRITE.value

    def write(self: Any, taken: Any, pause: Any, *, is_clean: bool) -> Any:
        with swap(CommitLog, "sync_through", lambda log, _end: log.write_out()):
            return original(self, taken, pause, is_clean=is_clean)

    yield swap(*CHECKPOINT_WRITE, write)


@mutant("W-L8", "the read time passes messages that are in flight")
def _read_time_early() -> Patches:
    yield swap(OpenSlot, "replay_slot", lambda _self, read_slot: read_slot)


@mutant("W-L9", "an unexpected exception drops the rest of a slot")
def _drop_rest() -> Patches:
    original = DequeueGetMessage.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except MemoryError:
            self._source.take()
            return True

    yield swap(DequeueGetMessage, "step", step)


@mutant("W-L10", "a missing timer log is not noticed")
def _timer_log_gone() -> Patches:
    yield swap(TimerLog, "is_whole", lambda *_args: True)


@mutant("W-L11", "a missing wheel is taken for an empty one")
def _wheel_gone() -> Patches:
    original = OPENING_RECOVER.value

    def recover(self: Any, *, was_open: bool, wheel_is_ours: bool) -> Any:
        return original(self, was_open=was_open, wheel_is_ours=wheel_is_ours or was_open)

    yield swap(*OPENING_RECOVER, recover)
    yield swap(*OPENING_LEADS_TO_ALL, lambda *_args, **_given: True)
    yield swap(WheelChecks, "fits", lambda *_args: True)


@mutant("W-L12", "a message for a slot that was read is linked there and never read")
def _late_is_lost() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        count = lib.ts_timer_link(one, link, *rest)
        link.late_count = 0
        return int(count)

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("P-42", "messages of slots are dropped if a file cannot be opened during the read")
def _read_then_dropped() -> Patches:
    original = DequeueGet.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            self._count, self._finished = 0, []
            raise

    yield swap(DequeueGet, "step", step)
