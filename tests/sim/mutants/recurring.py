"""Plant bugs in recurring messages.

See also: docs/decisions/0009-leases-replace-and-recurring.md
"""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import Definitions, RecurringCalls, planner
from tests.support.inside.methods import RECURRING_CANCEL_UNTIL


@mutant("RC-1", "an opening ignores runs in the log after the watermark", needs='"every"')
def _runs_not_read() -> Patches:
    yield swap(Definitions, "recover", nothing)


@mutant("RC-2", "a checkpoint does not save the progress of definitions", needs='"every"')
def _progress_not_saved() -> Patches:
    original = Definitions.record_runs

    def record_runs(self: Any, *given: Any) -> None:
        before = self._is_changed
        original(self, *given)
        self._is_changed = before

    yield swap(Definitions, "record_runs", record_runs)


@mutant("RC-3", "runs missed while the store was closed are delivered", needs='"every"')
def _nothing_prepared() -> Patches:
    yield swap(RecurringCalls, "prepare", nothing)


@mutant("RC-4", "the last of the runs to skip is delivered", needs='"every"')
def _skips_one_less() -> Patches:
    original = planner.runs_of

    def runs_of(rule: Any, missed: str, *rest: Any) -> Any:
        return original(rule, "one" if missed == "skip" else missed, *rest)

    yield swap(planner, "runs_of", runs_of)


@mutant("RC-5", "only the last of several missed runs is delivered", needs='"every"')
def _not_all() -> Patches:
    original = planner.runs_of

    def runs_of(rule: Any, missed: str, *rest: Any) -> Any:
        return original(rule, "one" if missed == "all" else missed, *rest)

    yield swap(planner, "runs_of", runs_of)


@mutant("RC-6", "the pending run stays when its definition ends", needs='"every"')
def _run_stays() -> Patches:
    yield swap(*RECURRING_CANCEL_UNTIL, nothing)


@mutant("RC-7", "an interrupted end of a definition is not completed", needs='"every"')
def _half_ended() -> Patches:
    original = RecurringCalls.prepare

    def prepare(self: Any) -> None:
        with swap(*RECURRING_CANCEL_UNTIL, nothing):
            original(self)

    yield swap(RecurringCalls, "prepare", prepare)


@mutant("RC-8", "a definition is acknowledged before it is durable", needs='"every"')
def _definition_not_durable() -> Patches:
    original = RecurringCalls.put_every

    def put_every(self: Any, *given: Any, **more: Any) -> Any:
        with swap(Definitions, "save", nothing):
            return original(self, *given, **more)

    yield swap(RecurringCalls, "put_every", put_every)
