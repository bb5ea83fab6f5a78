"""Plant bugs in random due times and in the rates of topics.

See also: docs/decisions/0004-fair-delivery.md
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.sim.mutants.planting import Patches, mutant, swap
from tests.support.inside.engine import (
    DueQueue,
    FairQueue,
    OpenSlot,
    Spreader,
    TopicQueue,
    fair_queue,
    open_slot,
)
from tests.support.inside.methods import (
    FAIR_QUEUE_TAKE_TOKENS,
    OPEN_SLOT_FIND_BURSTS,
    OPEN_SLOT_SORT_IN,
)


@mutant("SP-1", "a spread window ends at the given time instead of starting there", needs="spread")
def _window_before() -> Patches:
    original = Spreader.one

    def one(self: Any, request: Any) -> Any:
        found = original(self, request)
        if request.spread is None:
            return found
        return replace(found, deliver_ms=found.deliver_ms - int(1000 * float(request.spread)))

    yield swap(Spreader, "one", one)


@mutant("SP-2", "the evenly spread times of a batch are in reverse order", needs="spread")
def _drawn_each() -> Patches:
    original = Spreader.many

    def many(self: Any, request: Any, count: int) -> Any:
        found = original(self, request, count)
        return replace(found, deliver_ms=found.deliver_ms[::-1].copy())

    yield swap(Spreader, "many", many)


@mutant("SP-3", "the time is drawn a second time before it is stored", needs="spread")
def _drawn_twice() -> Patches:
    original = Spreader.one

    def one(self: Any, request: Any) -> Any:
        original(self, request)
        return original(self, request)

    yield swap(Spreader, "one", one)


@mutant("PC-1", "a rate limit is not kept", needs='"pace"')
def _no_rate() -> Patches:
    yield swap(*FAIR_QUEUE_TAKE_TOKENS, lambda _self, _queue, _rate, count: count)


@mutant("PC-2", "a cancelled message uses up a turn", needs='"pace"')
def _cancelled_count() -> Patches:
    yield swap(fair_queue, "which_wait", lambda _states, ids: np.ones(len(ids), bool))


@mutant("PC-3", "removing a topic's rate drops its queued messages", needs='"pace"')
def _dropped_with_rate() -> Patches:
    original = FairQueue.set_rate

    def set_rate(self: Any, topic: str, per_second: float | None) -> None:
        if per_second is None:
            self._queues.pop(topic, None)
        original(self, topic, per_second)

    yield swap(FairQueue, "set_rate", set_rate)


@mutant("PC-4", "a topic's messages are delivered in reverse order", needs='"pace"')
def _last_first() -> Patches:
    original = TopicQueue.take

    def take(self: Any, count: int) -> Any:
        return [part[::-1].copy() for part in original(self, count)]

    yield swap(TopicQueue, "take", take)


@mutant("PC-5", "an early message of a topic is queued after later ones", needs='"pace"')
def _never_before() -> Patches:
    def add(self: Any, part: Any) -> None:
        self.count += len(part)
        self.parts.append(part)

    yield swap(TopicQueue, "add", add)


@mutant("CW-1", "messages of a topic stay in the common queue when it gets its own queue")
def _left_in_rest() -> Patches:
    original = OPEN_SLOT_FIND_BURSTS.value

    def look(self: Any, entries: Any) -> None:
        rest = self._rest
        self._rest = DueQueue()
        original(self, entries)
        self._rest = rest

    yield swap(*OPEN_SLOT_FIND_BURSTS, look)


@mutant("CW-2", "a burst's queue is dropped after a partial read")
def _burst_forgotten() -> Patches:
    original = OpenSlot.pop

    def pop(self: Any, *given: Any) -> Any:
        found = original(self, *given)
        self._bursts = {key: one for key, one in self._bursts.items() if not len(found[0])}
        return found

    yield swap(OpenSlot, "pop", pop)


@mutant("CW-3", "new messages of a topic with its own queue go to the common queue")
def _new_in_rest() -> Patches:
    def sort_in(self: Any, entries: Any) -> None:
        had = dict(self._bursts)
        if (
            len(entries) >= open_slot.RUN_MIN
            and len(self._rest) + len(entries) > open_slot.BURST_MESSAGES
        ):
            self._find_bursts(entries)
        for key in self._bursts.keys() - had.keys():
            self._bursts[key].push(entries[entries["topic_hash"] == key])
            entries = entries[entries["topic_hash"] != key]
        self._rest.push(entries)

    yield swap(*OPEN_SLOT_SORT_IN, sort_in)
