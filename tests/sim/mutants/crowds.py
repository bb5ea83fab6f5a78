"""Times that are drawn, and topics that take turns: decision 0043."""

from typing import Any

import numpy as np

from tests.sim.mutants.planting import Patches, mutant, swap
from timerstore import spreading
from timerstore.timer import lanes


@mutant("SP-1", "a window ends at the time that was given", needs="spread")
def _window_before() -> Patches:
    original = spreading.Spreader.one

    def one(self: Any, spread: Any, *rest: Any) -> int:
        return original(self, spread, *rest) - int(1000 * float(spread))

    yield swap(spreading.Spreader, "one", one)


@mutant("SP-2", "of many each time is drawn by itself", needs="spread")
def _drawn_each() -> Patches:
    original = spreading.Spreader.many

    def many(self: Any, spread: Any, count: int, *rest: Any) -> Any:
        found = original(self, spread, count, *rest)
        return found[::-1].copy()

    yield swap(spreading.Spreader, "many", many)


@mutant("SP-3", "the time that was drawn is not the one that is kept", needs="spread")
def _drawn_twice() -> Patches:
    original = spreading.Spreader.one

    def one(self: Any, *given: Any) -> int:
        original(self, *given)
        return original(self, *given)

    yield swap(spreading.Spreader, "one", one)


@mutant("PC-1", "a rate is not kept", needs='"pace"')
def _no_rate() -> Patches:
    yield swap(lanes.Lanes, "_within", lambda _self, _lane, _rate, count: count)


@mutant("PC-2", "what was cancelled takes a turn", needs='"pace"')
def _cancelled_count() -> Patches:
    yield swap(lanes.Lanes, "_are_waiting", lambda _self, part: np.ones(len(part), bool))


@mutant("PC-3", "what a topic holds goes with its rate", needs='"pace"')
def _dropped_with_rate() -> Patches:
    original = lanes.Lanes.set_rate

    def set_rate(self: Any, topic: str, per_second: float | None) -> None:
        if per_second is None:
            self._lanes.pop(topic, None)
        original(self, topic, per_second)

    yield swap(lanes.Lanes, "set_rate", set_rate)


@mutant("PC-4", "a topic's last comes first", needs='"pace"')
def _last_first() -> Patches:
    original = lanes._Lane.take

    def take(self: Any, count: int) -> Any:
        return [part[::-1].copy() for part in original(self, count)]

    yield swap(lanes._Lane, "take", take)


@mutant("PC-5", "what comes later to a topic goes behind what is due later", needs='"pace"')
def _never_before() -> Patches:
    def add(self: Any, part: Any) -> None:
        self.count += len(part)
        self.parts.append(part)

    yield swap(lanes._Lane, "add", add)
