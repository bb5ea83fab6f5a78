"""Plant bugs in message ids, within their window and across restarts (W-D7)."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import CommitLog, Contents, Ids, OriginalMessages
from tests.support.inside.methods import IDS_ADD


@mutant("W-D7", "a repeated put with the same id is stored again", needs="put_once")
def _ids_are_names() -> Patches:
    yield swap(Ids, "is_on", property(lambda _: False))


@mutant("P-14", "message ids are forgotten at a restart", needs="put_once")
def _ids_forgotten() -> Patches:
    yield swap(*IDS_ADD, nothing)


@mutant(
    "P-15", "message ids since the last checkpoint are forgotten at a restart", needs="put_once"
)
def _last_ids_forgotten() -> Patches:
    yield swap(Ids, "scan", nothing)


@mutant("P-16", "message ids are remembered longer than the window", needs="put_once")
def _window_too_long() -> Patches:
    original = Ids.__init__

    def init(self: Any, *given: Any) -> None:
        original(self, *given)
        self.native.window_ms *= 1000

    yield swap(Ids, "__init__", init)


@mutant("P-17", "a duplicate is answered before the first put is durable", needs="put_once")
def _first_not_synced() -> Patches:
    original = OriginalMessages.read

    def read(self: Any, *given: Any) -> Any:
        self._log.write_out()
        with swap(CommitLog, "sync_through", nothing):
            return original(self, *given)

    yield swap(OriginalMessages, "read", read)


@mutant(
    "P-18", "a duplicate's receipt does not show that the first was cancelled", needs="put_once"
)
def _cancelled_not_said() -> Patches:
    original = OriginalMessages.read

    def read(self: Any, *given: Any) -> Any:
        found = original(self, *given)
        found["is_cancelled"] = 0
        return found

    yield swap(OriginalMessages, "read", read)


@mutant(
    "P-19", "an id returns the record from before the message was rescheduled", needs="put_once"
)
def _old_record_answers() -> Patches:
    yield swap(Ids, "move", nothing)


@mutant("P-52", "a message with the id of another one is dropped with success", needs="put_once")
def _other_contents_swallowed() -> Patches:
    yield swap(Contents, "check", nothing)


@mutant(
    "P-53", "a repeated message is taken for another after it was rescheduled", needs="put_once"
)
def _moved_is_compared() -> Patches:
    original = OriginalMessages.read

    def read(self: Any, *given: Any) -> Any:
        found = original(self, *given)
        found["is_moved"] = 0
        return found

    yield swap(OriginalMessages, "read", read)
