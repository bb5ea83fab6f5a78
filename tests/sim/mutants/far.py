"""The far wheel: docs/decisions/0003-timing-wheel.md; its overflow, and which slots are
free: docs/decisions/0003-timing-wheel.md."""

from typing import Any

import numpy as np

from tests.sim.mutants.planting import Lib, Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    FarWheel,
    Linker,
    Tree,
    Wheel,
    as_due,
    lib,
    linker,
)
from tests.support.inside.methods import DEQUEUE_GET_LAST_SLOT, LINKER_PLACE, PENDING_DUE_FAR

_ON = '"far_wheel": "s'
"""What a schedule says whose store has one that a broker may see."""


@mutant("F-1", "moving a far slot down also removes units that found no slot", needs=_ON)
def _rest_lost() -> Patches:
    original = FarWheel.take_off

    def take_off(self: Any, slot: int, units: Any) -> None:
        original(self, slot, self.first_of(slot) if len(units) else units)

    yield swap(FarWheel, "take_off", take_off)


@mutant("F-2", "a message moved down stays on the far wheel too", needs=_ON)
def _kept() -> Patches:
    yield swap(FarWheel, "take_off", nothing)


@mutant("F-3", "a checkpoint does not update the far wheel's table", needs=_ON)
def _table_not_written() -> Patches:
    def write(self: Any, _taken: Any) -> int:
        self.segments.sync()
        return int(self.number)

    yield swap(FarWheel, "write", write)


@mutant("F-4", "the far wheel's units are not synced before the table that names them", needs=_ON)
def _not_synced() -> Patches:
    original = FarWheel.write

    def write(self: Any, taken: Any) -> int:
        with swap(type(self.segments), "sync", nothing):
            return original(self, taken)

    yield swap(FarWheel, "write", write)


@mutant("F-5", "slots are delivered while an earlier message is still on the far wheel", needs=_ON)
def _overtaken() -> Patches:
    yield swap(*DEQUEUE_GET_LAST_SLOT, lambda _self, now_slot: now_slot)
    yield swap(Linker, "complete_until_ms", lambda _self: 1 << 62)


@mutant("F-15", "messages linked again by recovery overtake overflow messages")
def _parked_overtaken() -> Patches:
    yield swap(Linker, "complete_until_ms", lambda _self: 1 << 62)


@mutant("F-6", "the slot of a relinked message is emptied at once", needs=_ON)
def _emptied() -> Patches:
    original = Wheel.follow_back

    def follow_back(self: Any, *given: Any) -> bool:
        self.moved_on, self._moved_before = set(), set()
        return original(self, *given)

    yield swap(Wheel, "follow_back", follow_back)


@mutant("F-7", "files are removed that the last checkpoint's table still names", needs=_ON)
def _files_gone() -> Patches:
    def unlink(self: Any) -> bool:
        self.table()
        self.segments.retire(self._log.offset_of(self.begin))
        return bool(self.segments.unlink_retired())

    yield swap(FarWheel, "unlink", unlink)


@mutant("F-8", "messages on the far wheel do not count as pending", needs=_ON)
def _not_pending() -> Patches:
    yield swap(*PENDING_DUE_FAR, lambda _self, units: as_due(units[:0]))


@mutant("F-9", "a new table overwrites the one in use", needs=_ON)
def _one_table() -> Patches:
    yield swap(Tree, "far_table", lambda self, _number: self.side / "far-0")


@mutant("F-10", "messages past the last far slot are due when that slot comes", needs=_ON)
def _last_is_due() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        if link.far_width:
            link.far_last = link.write_slot // link.far_width + 12
        count = int(lib.ts_timer_link(one, link, *rest))
        for k in range(link.far_count):
            unit = link.far[k]
            unit.due_ms = min(unit.due_ms, (unit.slot + 1) * link.far_width * one.precision_ms)
        return count

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("F-11", "retention moves only the copy that is newest by order of units", needs=_ON)
def _newest_by_order() -> Patches:
    yield swap(FarWheel, "has_far", property(nothing))


@mutant("F-14", "retention trusts the order of units after some were relinked")
def _newest_out_of_order() -> Patches:
    yield swap(FarWheel, "note_linked_again", nothing)


@mutant("PK-8", "retention takes overflow messages for rolled ones")
def _parked_has_rolled() -> Patches:
    yield swap(
        FarWheel, "overflow_offsets", lambda _self, _view, _rows: np.empty(0, np.int64)
    )  # fmt: skip


@mutant("F-12", "an opening takes the far wheel for empty", needs=_ON)
def _loaded_empty() -> Patches:
    def load(self: Any, _number: int) -> bool:
        self.start_over_empty()
        return True

    yield swap(FarWheel, "load", load)


@mutant("F-13", "a relinked message leaves its slot without a new unit", needs=_ON)
def _not_linked_again() -> Patches:
    original = LINKER_PLACE.value

    def place(self: Any, requests: Any, now_slot: int, **given: Any) -> int:
        if given.get("is_again") and not given.get("for_broker") and len(requests):
            return len(requests)
        return original(self, requests, now_slot, **given)

    yield swap(*LINKER_PLACE, place)


@mutant("PK-1", "an overflow message has no unit for recovery")
def _parked_in_memory_alone() -> Patches:
    original = FarWheel.add

    def add(self: Any, units: Any) -> None:
        units = units[units["slot"] >= 0]
        if len(units):
            original(self, units)

    yield swap(FarWheel, "add", add)


@mutant("PK-2", "an opening does not read overflow messages")
def _parked_for_ever() -> Patches:
    def release(self: Any) -> None:
        self._lowest = None

    yield swap(FarWheel, "release_overflow", release)


@mutant("PK-3", "overflow is dropped while some of it is pending")
def _dropped() -> Patches:
    yield swap(Linker, "drop_overflow", lambda self: self._far.drop_overflow())


@mutant("PK-4", "a slot with undelivered messages is reused for another lap")
def _none_kept() -> Patches:
    yield swap(Wheel, "kept", lambda _self: np.empty(0, np.int64))


@mutant("PK-5", "a slot with a late message is reused for another lap")
def _late_not_kept() -> Patches:
    yield swap(Wheel, "note_late", nothing)


@mutant("PK-6", "slots that the last checkpoint did not find read are reused for another lap")
def _not_of_the_checkpoint() -> Patches:
    def link(one: Any, link: Any, *rest: Any) -> int:
        link.read_below = link.read_slot
        return int(lib.ts_timer_link(one, link, *rest))

    yield swap(linker, "lib", Lib(ts_timer_link=link))


@mutant("PK-7", "after the clock is set back, slots that will be read again are reused")
def _free_though_read_again() -> Patches:
    original = Wheel.follow_back

    def follow_back(self: Any, *given: Any) -> bool:
        before = self.reading, self._begun_reading
        found = original(self, *given)
        self.reading, self._begun_reading = before
        return found

    yield swap(Wheel, "follow_back", follow_back)
