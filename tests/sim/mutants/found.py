"""Plant bugs that the simulator found in this engine."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside import replaced_subscribers
from tests.support.inside.engine import CommitLog, Wheel
from tests.support.inside.methods import DISPATCH_BATCH, LINKER_APPEND, SEGMENTS_REMOVE


@mutant("E-1", "files after a cut are removed from the front, so a crash leaves a gap")
def _gap() -> Patches:
    def remove(self: Any, numbers: list[int]) -> None:
        for number in sorted(numbers):
            self._close_file(number)
            self._disk.unlink(self.path(number))
            self.numbers = [n for n in self.numbers if n != number]
        if self._disk.is_directory(self.directory):
            self._disk.sync_directory(self.directory)

    yield swap(*SEGMENTS_REMOVE, remove)


@mutant("E-2", "units that could not be written are linked again, to themselves")
def _linked_twice() -> Patches:
    def append(self: Any, size: int, end: int, far_count: int) -> None:
        self._timer_log.append(self._units.data[:size], end)
        if far_count:
            self._far.add(self._away[:far_count])

    yield swap(*LINKER_APPEND, append)


@mutant("E-3", "a failed sync of a topic's name does not end the store")
def _sync_failure_not_final() -> Patches:
    original = CommitLog.fail

    def fail(self: Any, error: Any) -> None:
        if "config" not in str(error):
            original(self, error)

    yield swap(CommitLog, "fail", fail)


@mutant("E-4", "a full disk keeps dispatch from waking waiting pulls")
def _not_told() -> Patches:
    original = DISPATCH_BATCH.value

    def dispatched(self: Any, written: int) -> bool:
        told: list[set[int]] = []
        with replaced_subscribers(self._signals.queues_advanced, told.append):
            worked = original(self, written)
        for touched in told:
            self._signals.queues_advanced(touched)
        return worked

    yield swap(*DISPATCH_BATCH, dispatched)


@mutant(
    "E-5", "after the clock is set back, read slots still count as read",
    equivalent="puts wait in memory, as late or overflow messages; that costs memory only",
)  # fmt: skip
def _read_slot_stays() -> Patches:
    yield swap(Wheel, "follow_back", nothing)
