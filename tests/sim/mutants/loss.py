"""Messages that are lost: store-format.md W-L."""

from typing import Any

from tests.sim.mutants.planting import Lib, Patches, mutant, swap
from timerstore import opening
from timerstore.commitlog import commit_log
from timerstore.errors import FullError, TimerStoreError
from timerstore.native import lib
from timerstore.timer import (
    checkpoint,
    dequeue_get,
    dequeue_get_message,
    dequeue_put,
    enqueue_get,
    linker,
    open_slot,
    timer_log,
    wheel_checks,
)
from timerstore.timer import recover as timer_recover


@mutant("W-L1", "a hand-over that fails three times on a full disk is dropped")
def _three_strikes() -> Patches:
    original, strikes = dequeue_put.DequeuePut.step, {"count": 0}

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

    yield swap(dequeue_put.DequeuePut, "step", step)


@mutant("W-L4", "after a long downtime reading goes on at the present slot")
def _jump_over() -> Patches:
    def start_at(one: Any, opened: Any, read_slot: int) -> None:
        timer_recover_start(one, opened, read_slot + one.slot_count // 2)

    timer_recover_start = timer_recover.start_at
    yield swap(timer_recover, "start_at", start_at)


@mutant("W-L6", "a record that cannot be read while indexing is skipped")
def _skip_unreadable() -> Patches:
    original = enqueue_get.EnqueueGet.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except TimerStoreError:
            self.queue_offset += 1
            return True

    yield swap(enqueue_get.EnqueueGet, "step", step)


@mutant("W-L7", "the read time is made durable, the delivered copies are not")
def _copies_not_synced() -> Patches:
    original = checkpoint.Checkpoint._write

    def write(self: Any, taken: Any, pause: Any, *, is_clean: bool) -> Any:
        with swap(commit_log.CommitLog, "sync_through", lambda log, _end: log.write_out()):
            return original(self, taken, pause, is_clean=is_clean)

    yield swap(checkpoint.Checkpoint, "_write", write)


@mutant("W-L8", "the read time moves past what is still in flight")
def _read_time_early() -> Patches:
    yield swap(open_slot.OpenSlot, "lowest_slot", lambda _self, frontier: frontier)


@mutant("W-L9", "an unexpected exception drops the rest of a slot")
def _drop_rest() -> Patches:
    original = dequeue_get_message.DequeueGetMessage.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except MemoryError:
            self._source.take()
            return True

    yield swap(dequeue_get_message.DequeueGetMessage, "step", step)


@mutant("W-L10", "a timer log that is gone is not noticed")
def _timer_log_gone() -> Patches:
    yield swap(timer_log.TimerLog, "is_whole", lambda *_args: True)


@mutant("W-L11", "a wheel that is gone is taken for an empty one")
def _wheel_gone() -> Patches:
    original = opening._Opening._recover

    def recover(self: Any, *, was_open: bool, wheel_is_ours: bool) -> Any:
        return original(self, was_open=was_open, wheel_is_ours=wheel_is_ours or was_open)

    yield swap(opening._Opening, "_recover", recover)
    yield swap(opening._Opening, "_leads_to_all", lambda *_args, **_given: True)
    yield swap(wheel_checks.WheelChecks, "fits", lambda *_args: True)


@mutant("W-L12", "a message for a slot that was read already is put there, and never read")
def _late_is_lost() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        count = lib.ts_timer_link(one, link, *rest)
        link.late_count = 0
        return int(count)

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("P-42", "what was read of slots is dropped where a file cannot be opened amid them")
def _read_then_dropped() -> Patches:
    original = dequeue_get.DequeueGet.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            self._count, self._finished = 0, []
            raise

    yield swap(dequeue_get.DequeueGet, "step", step)
