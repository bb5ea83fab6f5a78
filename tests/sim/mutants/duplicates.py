"""Plant bugs that deliver a message twice (W-D)."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, set_states, swap
from tests.support.inside.engine import EnqueuePut, Recovery, Segments, lib, timer_recover


@mutant("W-D1", "deliveries after the last checkpoint are forgotten after a crash")
def _no_fold() -> Patches:
    def fold_forward(one: Any, routes: Any, scanned: Any, store_id: int) -> None:
        handed = scanned["kind"] == lib.TS_KIND_DELIVERED
        original(one, routes, scanned[~handed], store_id)

    original = timer_recover.fold_forward
    yield swap(timer_recover, "fold_forward", fold_forward)


@mutant("W-D2", "the last indexed messages are indexed again after a restart")
def _indexed_twice() -> Patches:
    original = Recovery.run

    def run(self: Any) -> None:
        original(self)
        self.timer_queue_offset = max(0, self.timer_queue_offset - 2)

    yield swap(Recovery, "run", run)


@mutant("W-D4", "one failure inside a batch indexes the whole batch again")
def _group_again() -> Patches:
    original = EnqueuePut.step

    def step(self: Any) -> bool:
        whole = self._rest
        worked = original(self)
        if whole is not None and self._rest is not None and len(self._rest) < len(whole):
            self._rest = whole
        return worked

    yield swap(EnqueuePut, "step", step)


@mutant("W-D6", "without side files, no delivery is known")
def _anew_knowsnothing() -> Patches:
    def fold_from_empty(one: Any, routes: Any, scanned: Any, found: Any) -> None:
        original(one, routes, scanned, found)
        set_states(one.native, found.ids_delivered, lib.TS_PENDING)

    original = timer_recover.fold_from_empty
    yield swap(timer_recover, "fold_from_empty", fold_from_empty)


@mutant("W-D8", "bytes after a cut are not zeroed")
def _cut_without_zeros() -> Patches:
    original = Segments.cut

    def cut(self: Any, offset: int) -> None:
        number, at = divmod(offset, self.segment_bytes)
        if number in self.numbers and at:
            file = self._file(number)
            with swap(type(file), "zero", nothing):
                original(self, offset)
        else:
            original(self, offset)

    yield swap(Segments, "cut", cut)
