"""Plant bugs in cancels (W-R)."""

from typing import Any
from unittest.mock import patch

from tests.sim.mutants.planting import Patches, mutant, set_states, swap
from tests.support.inside.engine import Canceller, FoundTimer, HandleLookup, lib, timer_recover
from tests.support.inside.parts import states_of
from timerstore import CancelResult


@mutant("W-R1", "a cancel returns, but the message is delivered")
def _cancel_forgotten() -> Patches:
    original = Canceller.cancel

    def cancelled(self: Any, handle: Any) -> Any:
        answer, end = original(self, handle)
        if answer is CancelResult.CANCELLED:
            found = self._finder.find(handle)
            set_states(states_of(self._finder).native, [found[0].timer_id], lib.TS_PENDING)
        return answer, end

    yield swap(Canceller, "cancel", cancelled)


@mutant("W-R3", "a message that rolled cannot be cancelled")
def _rolled_escapes() -> Patches:
    original = HandleLookup.find

    def find(self: Any, handle: Any) -> Any:
        found = original(self, handle)
        return [] if any(self.is_rolled(one) for one in found) else found

    def is_rolled(self: Any, one: Any) -> bool:
        return one.timer_id + 1 < self._timer_route.queue.count and bool(one.timer_id % 2)

    yield swap(HandleLookup, "find", find)
    yield patch.object(HandleLookup, "is_rolled", is_rolled, create=True)


@mutant("W-R4", "a handle matches all messages with its topic and key, not one message")
def _by_key_only() -> Patches:
    original = HandleLookup.find

    def find(self: Any, handle: Any) -> Any:
        waiting = [
            one for one in self._pending.read(None, None, handle.topic)
            if one.message_id == handle.message_id
        ]  # fmt: skip
        if not waiting:
            return original(self, handle)
        route = self._routes.make(handle.topic, waiting[0].queue_id, 0)
        return [
            FoundTimer(p.timer_id, p.message_id, route, p.due_ms - 1, p.due_ms, p.log_offset)
            for p in waiting
        ]  # fmt: skip

    yield swap(HandleLookup, "find", find)


@mutant("W-R7", "a cancel since the last checkpoint is lost after a crash")
def _cancel_not_folded() -> Patches:
    def fold_forward(one: Any, routes: Any, scanned: Any, store_id: int) -> None:
        deleted = scanned["kind"] == lib.TS_KIND_DELETE
        original(one, routes, scanned[~deleted], store_id)

    original = timer_recover.fold_forward
    yield swap(timer_recover, "fold_forward", fold_forward)
