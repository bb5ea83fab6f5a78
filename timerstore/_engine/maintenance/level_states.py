"""Delivered messages of each level's queue as the log requires them.

The cursors of levels in memory and in the counts file are compared with them. A message that can
never be delivered counts as done, whether or not the service has passed it.

See also: docs/exactly-once.md; docs/decisions/0007-delay-levels.md.
"""

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.format.counts_json import Levels
from timerstore._engine.log.fold import Fold
from timerstore._engine.log.scanned_records import Scan, places_of
from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors


class LevelFold:
    """The fold by place of one log, batch by batch in its order."""

    def __init__(self, store_id: int, floors: dict[int, int]) -> None:
        """`floors`: by queue, the first queue offset that is still in the log."""
        self._store_id = store_id
        self._floors = floors
        self._cursors = LevelCursors()
        for queue_id, floor in floors.items():
            self._cursors.begin_at(queue_id, floor)
        self._unusable = LevelCursors()
        self._ends: dict[int, int] = {}  # by queue: queue offset after the last message
        self.begins: dict[int, int] = {}  # by queue: queue offset of the first
        self.pending: dict[int, int] = {}  # by index of route
        self.inherited: list[
            int
        ] = []  # routes of messages that were pending at the log's begin and delivered
        self.foreign = 0  # deliveries that need matching

    def add(self, part: Scan) -> None:
        """Fold a batch."""
        kind = part["kind"]
        is_unusable = kind == lib.TS_KIND_LEVEL_UNUSABLE
        self._sources(part[(kind == lib.TS_KIND_LEVEL) | is_unusable])
        unusable = places_of(part[is_unusable])
        self._unusable.done(unusable)
        self._cursors.done(unusable)
        deliveries = part[kind == lib.TS_KIND_LEVEL_DELIVERED]
        own = (deliveries["timer_id"] >= 0) & (deliveries["store_id"] == self._store_id)
        places, first = np.unique(deliveries["timer_id"][own], return_index=True)
        self.foreign += len(deliveries) - len(places)
        self.foreign += sum(not self._waits(place) for place in places.tolist())
        self._cursors.done(places)
        self._count(part[kind == lib.TS_KIND_LEVEL], 1)
        came = deliveries[own][first]
        is_left = np.array([self._is_left(place) for place in places.tolist()], bool)
        self._count(came[is_left], -1)  # the others need matching
        self.inherited += came["route"][~is_left].tolist()

    def _count(self, rows: Scan, sign: int) -> None:
        indexes, counts = np.unique(rows["route"], return_counts=True)
        for index, count in zip(indexes.tolist(), counts.tolist(), strict=True):
            self.pending[index] = self.pending.get(index, 0) + sign * count

    def _sources(self, rows: Scan) -> None:
        queues, first = np.unique(rows["queue_id"], return_index=True)
        for queue_id, at in zip(queues.tolist(), first.tolist(), strict=True):
            if queue_id not in self.begins:
                self.begins[queue_id] = int(rows["queue_offset"][at])
                self._cursors.begin_at(queue_id, self.begins[queue_id])
            self._ends[queue_id] = int(rows["queue_offset"][rows["queue_id"] == queue_id][-1]) + 1

    def _waits(self, place: int) -> bool:
        queue_id, offset = place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)
        if not self._is_left(place):
            return True  # retention removed its source
        is_there = offset < self._ends.get(queue_id, 0)
        return is_there and not self._cursors.is_done(queue_id, offset)

    def _is_left(self, place: int) -> bool:
        return place & ((1 << OFFSET_BITS) - 1) >= self._floors.get(place >> OFFSET_BITS, 0)

    def copy(self) -> Levels:
        """Return the result so far."""
        return self._cursors.copy()

    def of_fold(self, found: Fold) -> Levels:
        """Return what a fold by matching found to be done, of this log or its first part."""
        cursors = LevelCursors()
        for queue_id, begin in (self._floors | self.begins).items():
            cursors.begin_at(queue_id, begin)
        cursors.done(found.level_places_done)
        return cursors.copy()

    def differing(self, wanted: Levels, got: Levels) -> list[tuple[int, object, object]]:
        """Return (queue, wanted, got) where two tables differ."""
        one, other = self._levelled(wanted), self._levelled(got)
        return [
            (queue_id, one.get(queue_id, ()), other.get(queue_id, ()))
            for queue_id in sorted(one.keys() | other.keys())
            if one.get(queue_id) != other.get(queue_id)
        ]

    def _levelled(self, levels: Levels) -> Levels:
        cursors = LevelCursors()
        for queue_id, floor in self._floors.items():
            cursors.begin_at(queue_id, floor)
        for table in (levels, self._unusable.copy()):
            cursors.add(table)
        return cursors.copy()
