"""Plant bugs in cancels of many messages (write/cancel.py)."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, swap
from tests.support.inside.engine import ManyCanceller, TimerStore, lib
from tests.support.inside.methods import MANY_CANCELLER_FIND, MANY_CANCELLER_PLACE


@mutant("CM-1", "cancel_many returns before it is durable", needs='"cancel_many"')
def _not_durable() -> Patches:
    original = ManyCanceller.cancel

    def cancel(self: Any, *given: Any) -> Any:
        return original(self, *given)[0], 0

    yield swap(ManyCanceller, "cancel", cancel)


@mutant("CM-2", "a hint is trusted without checking the message", needs='"cancel_many"')
def _believed() -> Patches:
    original = MANY_CANCELLER_FIND.value

    def find(self: Any, named: Any, names: Any, texts: Any, drafts: Any) -> int:
        count = original(self, named, names, texts, drafts)
        drafts["timer_id"][1:count] = drafts["timer_id"][: count - 1].copy()
        return count

    yield swap(*MANY_CANCELLER_FIND, find)


@mutant("CM-3", "a cancelled message is cancelled again", needs='"cancel_many"')
def _always_cancelled() -> Patches:
    original = MANY_CANCELLER_PLACE.value

    def place(self: Any, drafts: Any, texts: Any) -> int:
        end = original(self, drafts, texts)
        drafts["state"][:] = lib.TS_PENDING
        return end

    yield swap(*MANY_CANCELLER_PLACE, place)


@mutant("CM-4", "cancel_many omits the last message", needs='"cancel_many"')
def _last_left_out() -> Patches:
    original = TimerStore.cancel_many

    def call(self: TimerStore, given: Any) -> Any:
        some = list(given)
        answers = original(self, some[:-1])
        return [*answers, answers[-1]] if answers else original(self, some)

    yield swap(TimerStore, "cancel_many", call)
