"""`Expected`: states and counts that the log requires at one log end."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.format.counts_json import Levels
from timerstore._engine.log.fold import Fold, is_own
from timerstore._engine.log.scanned_records import Scan, places_of
from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors

# --- level states ---
# Delivered messages of each level's queue as the log requires them.
#
# The cursors of levels in memory and in the counts file are compared with them. A message that can
# never be delivered counts as done, whether or not the service has passed it.
#
# See also: docs/exactly-once.md; docs/decisions/0007-delay-levels.md.


class LevelFold:
    """The fold by place of one log, batch by batch in its order."""

    def __init__(self, store_id: int, floors: dict[int, int]) -> None:
        """`floors`: by queue, the first queue offset that is still in the log."""
        self._store_id = store_id
        self._floors = floors
        self.cursors = _cursors_from(floors)
        self._unusable = LevelCursors()
        self._ends: dict[int, int] = {}  # by queue: queue offset after the last message
        self.begins: dict[int, int] = {}  # by queue: queue offset of the first
        self.pending: Counter[int] = Counter()  # by index of route
        # Routes of messages that were pending at the log's begin and delivered.
        self.inherited: list[int] = []
        self.foreign = 0  # deliveries that need matching

    def add(self, part: Scan) -> None:
        """Fold a batch."""
        kind = part["kind"]
        is_unusable = kind == lib.TS_KIND_LEVEL_UNUSABLE
        self._sources(part[(kind == lib.TS_KIND_LEVEL) | is_unusable])
        unusable = places_of(part[is_unusable])
        self._unusable.done(unusable)
        self.cursors.done(unusable)
        deliveries = part[kind == lib.TS_KIND_LEVEL_DELIVERED]
        own = (deliveries["timer_id"] >= 0) & (deliveries["store_id"] == self._store_id)
        places, first = np.unique(deliveries["timer_id"][own], return_index=True)
        self.foreign += len(deliveries) - len(places)
        self.foreign += sum(not self._waits(place) for place in places.tolist())
        self.cursors.done(places)
        self.pending.update(part["route"][kind == lib.TS_KIND_LEVEL].tolist())
        came = deliveries["route"][own][first]
        is_left = np.array([self._is_left(place) for place in places.tolist()], bool)
        self.pending.subtract(came[is_left].tolist())  # the others need matching
        self.inherited += came[~is_left].tolist()

    def _sources(self, rows: Scan) -> None:
        queues, first = np.unique(rows["queue_id"], return_index=True)
        for queue_id, at in zip(queues.tolist(), first.tolist(), strict=True):
            if queue_id not in self.begins:
                self.begins[queue_id] = int(rows["queue_offset"][at])
                self.cursors.begin_at(queue_id, self.begins[queue_id])
            self._ends[queue_id] = int(rows["queue_offset"][rows["queue_id"] == queue_id][-1]) + 1

    def _waits(self, place: int) -> bool:
        queue_id, offset = place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)
        if not self._is_left(place):
            return True  # retention removed its source
        is_there = offset < self._ends.get(queue_id, 0)
        return is_there and not self.cursors.is_done(queue_id, offset)

    def _is_left(self, place: int) -> bool:
        return place & ((1 << OFFSET_BITS) - 1) >= self._floors.get(place >> OFFSET_BITS, 0)

    def of_fold(self, found: Fold) -> Levels:
        """Return what a fold by matching found to be done, of this log or its first part."""
        cursors = _cursors_from(self._floors | self.begins)
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
        cursors = _cursors_from(self._floors)
        for table in (levels, self._unusable.copy()):
            cursors.add(table)
        return cursors.copy()


def _cursors_from(begins: dict[int, int]) -> LevelCursors:
    """Return cursors at these queue offsets, by queue."""
    cursors = LevelCursors()
    for queue_id, begin in begins.items():
        cursors.begin_at(queue_id, begin)
    return cursors


# --- id states ---
# States of timer ids as the log requires them, to compare the state table with.
#
# A state has two bits, packed as in the side file (format/state_sector.py). The first delivery or
# delete record of an id decides its state.
#
# See also: docs/exactly-once.md.


Packed = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
NAMES = {
    lib.TS_NONE: "no state",
    lib.TS_PENDING: "pending",
    lib.TS_DELIVERED: "delivered",
    lib.TS_CANCELLED: "cancelled",
}
_SLICE_BYTES = 1 << 20


class IdStates:
    """A table of packed states that grows."""

    def __init__(self) -> None:
        self._packed: Packed = np.zeros(4096, np.uint8)

    def get(self, ids: Ids) -> Packed:
        """Return the states of these ids."""
        self._reach(ids)
        states: Packed = (self._packed[ids >> 2] >> ((ids & 3) << 1).astype(np.uint8)) & np.uint8(3)
        return states

    def put(self, ids: Ids, states: Packed) -> None:
        """Set the states of these ids, which are distinct."""
        change = self.get(ids) ^ states
        np.bitwise_xor.at(self._packed, ids >> 2, change << ((ids & 3) << 1).astype(np.uint8))

    def _reach(self, ids: Ids) -> None:
        need = (int(ids.max()) >> 2) + 1 if len(ids) else 0
        if need > len(self._packed):
            self._packed = _part(self._packed, 0, max(need, 2 * len(self._packed)))

    def copy(self) -> Packed:
        """Return a copy of all states."""
        return self._packed.copy()


def of_fold(found: Fold) -> Packed:
    """Return the states that a fold by matching found."""
    states = IdStates()
    for ids, state in (
        (found.ids_pending, lib.TS_PENDING),
        (found.ids_delivered, lib.TS_DELIVERED),
        (found.ids_cancelled, lib.TS_CANCELLED),
    ):
        states.put(ids.astype(np.int64), np.full(len(ids), state, np.uint8))
    return states.copy()


def differing(
    wanted: Packed, got: Packed, *, only_known: bool, floor: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Return (id, wanted, got) where two tables differ. `only_known`: if `wanted` has a state.

    `floor`: retention removed the sources of the ids below it. Of these ids only differences about
    pending timers are returned, as either table may not know how a timer ended.
    """
    size = max(len(wanted), len(got))
    for begin in range(0, size, _SLICE_BYTES):
        end = min(size, begin + _SLICE_BYTES)
        one, other = _part(wanted, begin, end), _part(got, begin, end)
        for at in np.flatnonzero(one != other).tolist():
            for k in range(4):
                states = int(one[at]) >> 2 * k & 3, int(other[at]) >> 2 * k & 3
                number = (begin + at) * 4 + k
                if states[0] == states[1] or (only_known and not states[0]):
                    continue
                if number >= floor or lib.TS_PENDING in states:
                    yield number, *states


def pending(packed: Packed) -> Iterator[Ids]:
    """Return the pending ids, ascending, in parts."""
    for begin in range(0, len(packed), _SLICE_BYTES):
        part = packed[begin : begin + _SLICE_BYTES]
        states = (part[:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        yield np.flatnonzero(states == lib.TS_PENDING) + 4 * begin


def _part(packed: Packed, begin: int, end: int) -> Packed:
    """Return a part of a table, with zeros after the table's end."""
    part = packed[begin:end]
    return np.pad(part, (0, end - begin - len(part)))


class LogFold:
    """The fold by id of one log, batch by batch in its order."""

    def __init__(self, store_id: int, floor: int, level_floors: dict[int, int]) -> None:
        """`floor`: retention removed the sources of ids below it. `level_floors`: so by level."""
        self.store_id = store_id
        self.floor = floor
        self.inherited: list[tuple[int, int]] = []  # pending at the log's begin: id, route
        self.states = IdStates()
        self.pending: Counter[int] = Counter()  # by index of route
        self.levels = LevelFold(store_id, level_floors)
        self.foreign = 0  # timer records without an id of ours: these need matching
        self.doubled: list[tuple[int, int, bool]] = []  # log offset, id, whether it is a delivery
        self.orphans: list[tuple[int, int]] = []  # log offset, id

    def add(self, part: Scan) -> None:
        """Fold a batch."""
        self.levels.add(part)
        kind = part["kind"]
        is_evidence = (kind == lib.TS_KIND_DELIVERED) | (kind == lib.TS_KIND_DELETE)
        own = is_own(part, self.store_id)
        self.foreign += int(np.count_nonzero((is_evidence | (kind == lib.TS_KIND_TIMER)) & ~own))
        self._sources(part[own & (kind == lib.TS_KIND_TIMER)])
        self._evidence(part[own & is_evidence])

    def _sources(self, rows: Scan) -> None:
        # The first copy of an id is its source, or one that retention moved.
        ids, first = np.unique(rows["timer_id"], return_index=True)
        fresh = self.states.get(ids) == lib.TS_NONE
        self.states.put(ids[fresh], np.full(int(fresh.sum()), lib.TS_PENDING, np.uint8))
        self.pending.update(rows["route"][first[fresh]].tolist())
        self._inherit(rows[first[fresh]])

    def _evidence(self, rows: Scan) -> None:
        _, first = np.unique(rows["timer_id"], return_index=True)
        first = np.sort(first)
        before = self.states.get(rows["timer_id"][first])
        decides = first[before <= lib.TS_PENDING]
        repeated = np.ones(len(rows), bool)
        repeated[decides] = False
        is_delete = rows["kind"] == lib.TS_KIND_DELETE
        after = np.where(is_delete[decides], lib.TS_CANCELLED, lib.TS_DELIVERED).astype(np.uint8)
        self.states.put(rows["timer_id"][decides], after)
        waited = first[before == lib.TS_PENDING]
        self.pending.subtract(rows["route"][waited].tolist())
        for row in rows[repeated]:
            is_delivery = int(row["kind"]) == lib.TS_KIND_DELIVERED
            self.doubled.append((int(row["log_offset"]), int(row["timer_id"]), is_delivery))
        orphans = rows[first[before == lib.TS_NONE]]
        self._inherit(orphans)
        for row in orphans[orphans["timer_id"] >= self.floor]:
            self.orphans.append((int(row["log_offset"]), int(row["timer_id"])))

    def _inherit(self, rows: Scan) -> None:
        """Note ids below the floor: their first record shows that they were pending before."""
        rows = rows[rows["timer_id"] < self.floor]
        pairs = zip(rows["timer_id"].tolist(), rows["route"].tolist(), strict=True)
        self.inherited += pairs


# --- expected states ---


class Expected(NamedTuple):
    """States and counts that the log requires at one log end."""

    states: Packed
    pending: Counter[int] | None  # by index of route; None: not known
    levels: Levels
    level_pending: Counter[int]  # by index of route, of messages on fixed levels

    @classmethod
    def of_walk(cls, by_id: LogFold) -> "Expected":
        """Return the result of a fold by id so far."""
        pending, on_levels = by_id.pending.copy(), by_id.levels.pending.copy()
        return cls(by_id.states.copy(), pending, by_id.levels.cursors.copy(), on_levels)

    @classmethod
    def of_fold(cls, found: Fold, scanned: Scan, by_id: LogFold) -> "Expected":
        """Return the result of a fold by matching, for a log in which a broker wrote."""
        pending, level_pending = (
            Counter(scanned["route"][rows].tolist())
            for rows in (found.rows_pending, found.level_rows_pending)
        )
        levels = by_id.levels.of_fold(found)
        return cls(of_fold(found), pending, levels, level_pending)

    def with_inherited(self, inherited: list[tuple[int, int]], on_levels: list[int]) -> "Expected":
        """Add messages that only later records show to have been pending, as retention removed
        their sources.
        """
        states = IdStates()
        ids = np.array([timer_id for timer_id, _ in inherited], np.int64)
        states.put(ids, np.full(len(ids), lib.TS_PENDING, np.uint8))
        added = states.copy()
        size = max(len(added), len(self.states))
        if self.pending is not None:
            self.pending.update(route for _, route in inherited)
        self.level_pending.update(on_levels)
        return self._replace(states=_part(added, 0, size) | _part(self.states, 0, size))
