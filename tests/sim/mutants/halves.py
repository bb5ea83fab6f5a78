"""Plant bugs in half messages.

See also: docs/decisions/0022-half-messages.md
"""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, swap
from tests.support.inside.engine import HalfMessages
from tests.support.inside.methods import HALVES_COMMIT, HALVES_IS_COMMITTED, HALVES_ROLL_BACK
from timerstore import AckResult


@mutant("HM-1", "a commit ends the half message and delivers nothing", needs="half")
def _commit_lost() -> Patches:
    def commit(self: Any, half: Any, topic: str, sync: Any) -> AckResult:
        found: AckResult = HALVES_ROLL_BACK.value(self, half, sync)
        return AckResult.COMMITTED if found is AckResult.ROLLED_BACK else found

    yield swap(*HALVES_COMMIT, commit)


@mutant("HM-2", "a rollback returns, but the half message stays", needs="half")
def _rollback_forgotten() -> Patches:
    yield swap(*HALVES_ROLL_BACK, lambda *_args: AckResult.ROLLED_BACK)


@mutant("HM-3", "a commit and a rollback return before they are durable", needs="half")
def _end_not_durable() -> Patches:
    original = HalfMessages.end

    def end(self: Any, call: Any, target: Any, sync: Any = None) -> AckResult:
        return original(self, call, target, lambda _end: None)

    yield swap(HalfMessages, "end", end)


@mutant("HM-4", "a second commit does not find the first", needs="half")
def _not_told() -> Patches:
    yield swap(*HALVES_IS_COMMITTED, lambda *_args: False)
