"""Plant bugs in fixed delay levels (W-F)."""

from typing import Any

import numpy as np

from tests.sim.mutants.planting import Patches, mutant, swap
from tests.support.inside.engine import LevelCursors, ScheduleDeliver, recovery
from tests.support.inside.methods import SCHEDULE_PLACE
from timerstore.errors import FullError


@mutant(
    "W-F1",
    "levels: deliveries since the checkpoint are repeated after a crash",
    needs="put_level",
)
def _levels_not_folded() -> Patches:
    yield swap(recovery, "delivered_level_places", lambda *_args: np.empty(0, np.int64))


@mutant("W-F2", "levels: messages that cannot be delivered now are skipped", needs="put_level")
def _level_skipped() -> Patches:
    original = ScheduleDeliver.step

    def step(self: Any) -> bool:
        try:
            return original(self)
        except FullError:
            for queue in self._queues:
                for run in list(queue.runs)[:1]:
                    queue.advance(run, 1)
            raise

    yield swap(ScheduleDeliver, "step", step)


@mutant("W-F3", "levels: an exception inside the loop marks a batch as done", needs="put_level")
def _level_batch_done() -> Patches:
    original = SCHEDULE_PLACE.value

    def place(self: Any, entries: Any, runs: Any, now_ms: int) -> None:
        try:
            original(self, entries, runs, now_ms)
        except FullError:
            self._cursors.done(entries["place"])
            raise

    yield swap(*SCHEDULE_PLACE, place)


@mutant("W-F4", "levels: the offset file is newer than the message", needs="put_level")
def _level_cursor_early() -> Patches:
    original = LevelCursors.copy

    def copy(self: Any) -> Any:
        return {queue: (one[0] + 1, *one[1:]) for queue, one in original(self).items()}

    yield swap(LevelCursors, "copy", copy)
