"""Plant twelve bugs that were first planted in a small model of the engine."""

from dataclasses import replace
from typing import Any

from tests.sim.mutants.planting import Lib, Patches, mutant, nothing, set_states, swap
from tests.support.inside.engine import (
    Canceller,
    CommitLog,
    Puller,
    PutCheck,
    Segments,
    dequeue_put,
    lib,
    linker,
    put_many,
    recovery,
)
from tests.support.inside.methods import CHECKPOINT_TAKE, CHECKPOINT_WRITE
from tests.support.inside.parts import states_of
from timerstore import CancelResult


@mutant("L-1", "the checkpoint is written before the log is synced")
def _checkpoint_first() -> Patches:
    original = CHECKPOINT_WRITE.value

    def write(self: Any, taken: Any, pause: Any, *, is_clean: bool) -> Any:
        log = self._log
        with swap(type(log.segments), "sync", nothing):
            log.write_out()
            with swap(CommitLog, "sync_through", nothing):
                found = original(self, taken, pause, is_clean=is_clean)
        return found

    yield swap(*CHECKPOINT_WRITE, write)


@mutant("L-2", "the state of a timer is not checked before delivery")
def _no_dedupe() -> Patches:
    def deliver(view: Any, routes: Any, log: Any, *rest: Any) -> int:
        due, count = rest[2:4]
        set_states(log.states, [due[i].id for i in range(count)], lib.TS_PENDING)
        return int(lib.ts_deliver_many(view, routes, log, *rest))

    yield swap(dequeue_put, "lib", Lib(ts_deliver_many=deliver))


@mutant("L-3", "a put returns before it is synced")
def _ack_early() -> Patches:
    original = PutCheck.check

    def check(self: Any, *given: Any, **named: Any) -> Any:
        return replace(original(self, *given, **named), is_sync=False)

    yield swap(PutCheck, "check", check)
    yield swap(put_many, "wants_sync", lambda *_args: False)


@mutant("L-4", "a slot is reused a lap later, whatever it holds")
def _lap() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        link.reuse_below = 2**62
        return int(lib.ts_timer_link(one, link, *rest))

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("L-5", "a cancel changes the state and writes no record")
def _cancel_not_logged() -> Patches:
    original = Canceller.cancel

    def cancelled(self: Any, handle: Any) -> Any:
        found = [one for one in self._finder.find(handle) if handle.timer_id != -1]
        if len(found) == 1 and states_of(self._finder).get(found[0].timer_id) == lib.TS_PENDING:
            set_states(states_of(self._finder).native, [found[0].timer_id], lib.TS_CANCELLED)
            return CancelResult.CANCELLED, 0
        return original(self, handle)

    yield swap(Canceller, "cancel", cancelled)


@mutant("L-6", "a message can be linked into the slot that is being read")
def _slot_in_progress() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        link.read_slot -= 1
        return int(lib.ts_timer_link(one, link, *rest))

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("L-7", "a pull returns messages that are not durable")
def _pull_beyond() -> Patches:
    original = Puller.__init__

    def init(self: Any, core: Any, *rest: Any) -> None:
        config = replace(core.config, visibility="written")
        original(self, core._replace(config=config), *rest)

    yield swap(Puller, "__init__", init)


@mutant("L-8", "a sync covers only the caller's own record")
def _ranged_sync() -> Patches:
    def sync(self: Any) -> None:
        dirty = sorted(self._dirty)
        for number in dirty[-1:]:
            self._dirty.pop(number).sync()

    yield swap(Segments, "sync", sync)


@mutant("L-9", "the recovered tail is not synced")
def _tail_not_synced() -> Patches:
    def settle_end(one: Any, _trusted: int, end: int) -> None:
        one.cut(end)

    yield swap(recovery, "settle_end", settle_end)


@mutant("L-11", "the read slot is noted after the log's end instead of before")
def _read_pointer_late() -> Patches:
    original = CHECKPOINT_TAKE.value

    def take(self: Any) -> Any:
        taken = original(self)
        now_slot = self._clock.now_ms // self._config.precision_ms
        return taken._replace(replay_slot=max(taken.replay_slot, now_slot + 1))

    yield swap(*CHECKPOINT_TAKE, take)


@mutant("L-12", "a truncation is not synced")
def _cut_not_synced() -> Patches:
    original = Segments.cut

    def cut(self: Any, offset: int) -> None:
        number, at = divmod(offset, self.segment_bytes)
        if number in self.numbers and at:
            file = self._file(number)
            file.zero(at, self.segment_bytes - at)
            self._remove([n for n in self.numbers if n > number])
            self.reserve_from(offset)
        else:
            original(self, offset)

    yield swap(Segments, "cut", cut)
