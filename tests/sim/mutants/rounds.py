"""Plant bugs in keyed puts.

See also: docs/decisions/0009-leases-replace-and-recurring.md
"""

from types import SimpleNamespace
from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import Canceller
from tests.support.inside.methods import (
    REPLACING_DUE_MS,
    REPLACING_FIND,
    REPLACING_LOOK,
    REPLACING_REPLACE,
    REPLACING_WAITING_OF,
)


@mutant("RP-1", "the pending message of a key is not found", needs="replace")
def _not_found() -> Patches:
    yield swap(*REPLACING_FIND, nothing)


@mutant("RP-2", "the pending message of a key is not found after a restart", needs="replace")
def _not_looked_up() -> Patches:
    yield swap(*REPLACING_LOOK, nothing)


@mutant("RP-3", "each put starts a new time limit", needs="replace")
def _limit_anew() -> Patches:
    original = REPLACING_REPLACE.value

    def replace(self: Any, given: Any, before: Any, now_ms: int) -> Any:
        return original(self, given, before._replace(first_ms=now_ms, limit_ms=-1), now_ms)

    yield swap(*REPLACING_REPLACE, replace)


@mutant("RP-4", "the time limit is lost at a restart", needs="replace")
def _limit_forgotten() -> Patches:
    original = REPLACING_WAITING_OF.value

    def waiting_of(self: Any, *given: Any) -> Any:
        found = original(self, *given)
        return None if found is None else found._replace(limit_ms=-1)

    yield swap(*REPLACING_WAITING_OF, waiting_of)


@mutant("RP-5", "the old message is removed before the new one is stored", needs="replace")
def _one_after_the_other() -> Patches:
    def replace(self: Any, given: Any, before: Any, now_ms: int) -> Any:
        due_ms, limit_ms = self._due_ms(given, before.first_ms, before.limit_ms, now_ms)
        canceller: Any = Canceller
        core = SimpleNamespace(clock=self._clock, log=self._log)
        canceller(core, None, self._removals, None).cancel_handle(before.named)
        self._log.write_out()
        given = given._replace(due_ms=due_ms, wait_ms=None)
        with swap(*REPLACING_DUE_MS, lambda *_args: (due_ms, limit_ms)):
            return self._first(given, before.first_ms)

    yield swap(*REPLACING_REPLACE, replace)


@mutant("RP-6", "a time limit in the past is ignored", needs="replace")
def _limit_passed() -> Patches:
    original = REPLACING_DUE_MS.value

    def due_ms(self: Any, given: Any, first_ms: int, limit_ms: int, now_ms: int) -> Any:
        if 0 <= limit_ms <= now_ms:
            return original(self, given._replace(wait_ms=None), first_ms, -1, now_ms)
        return original(self, given, first_ms, limit_ms, now_ms)

    yield swap(*REPLACING_DUE_MS, due_ms)
