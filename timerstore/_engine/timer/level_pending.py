"""Read the pending messages of delay levels from the level topic's queues.

Thread safety: any thread may call it.
Locking: the append lock, while the undelivered offsets are copied.
Invariants:
    1. Every message that was pending when a call began is returned once, in order of (due time,
       level, put order). Its due time is the time at which it will be delivered (Runs, below).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.delay_levels import parse_level_delays, real_queue
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.queues.dispatch import DispatchedQueues
from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes, record_fields
from timerstore._engine.queues.routes import LevelUnits, Route, Routes
from timerstore._engine.timer.timer_arrays import due_within
from timerstore.types.config import StoreConfig
from timerstore.types.messages import parse_properties
from timerstore.types.reports import PendingTimer

# --- level runs ---
# Split the pending messages of one level queue into runs of ascending due times.
#
# RocketMQ delivers a message at once if its due time is further ahead than the level's delay. Here
# such a message is due its level's present delay after it was stored, if that is earlier than its
# due time (routes.py). After a change of the table of delays the result is the same as
# RocketMQ's; after the clock was set back the message is still not too early.
#
# Thread safety: runs on the schedule-deliver thread only.
# Invariants:
#     1. Each pending message is in one run, and each run begins with a pending message.
#     2. There is one run, unless the clock was set back or the table of delays was changed. So a
#        due message never waits for one that is not due.
# See also: docs/file-format.md, docs/decisions/0007-delay-levels.md


_UNITS = 65_536  # units read at a time
LEVEL_DUE = np.dtype(
    [
        ("place", np.int64),
        ("log_offset", np.int64),
        ("due_ms", np.int64),
        ("size", np.int32),
        ("run", np.int32),
    ]
)
assert LEVEL_DUE.itemsize == ffi.sizeof("ts_level_due"), "level_pending.py and native/api disagree"

Entries = npt.NDArray[np.void]


class LevelRun:
    """The units [next, end) of a queue, with ascending due times."""

    __slots__ = ("end", "head_ms", "last_ms", "next")

    def __init__(self, begin: int, end: int, head_ms: int, last_ms: int) -> None:
        self.next = begin
        self.end = end
        self.last_ms = last_ms
        self.head_ms: int | None = head_ms  # due time of the first unit; None if not read yet


class Runs:
    """The runs of one level queue."""

    def __init__(self, route: Route, cursors: LevelCursors, units: LevelUnits) -> None:
        self.route = route
        self._cursors = cursors
        self._units = units
        self._seen = cursors.cursor(route.queue_id)
        self.runs: list[LevelRun] = []

    def look(self) -> None:
        """Read the units that were added since the last call."""
        count = self.route.queue.count
        if count <= self._seen:
            return
        for begin, end in self._cursors.gaps(self.route.queue_id, self._seen, count):
            for at in range(begin, end, _UNITS):
                units = self._units.read(self.route, at, min(_UNITS, end - at))
                self._add(at, units["tags_code"])
        self._seen = count

    def _add(self, begin: int, due_ms: "npt.NDArray[np.int64]") -> None:
        edges = [0, *(np.flatnonzero(np.diff(due_ms) < 0) + 1).tolist(), len(due_ms)]
        for first, end in pairwise(edges):
            head_ms, last_ms = int(due_ms[first]), int(due_ms[end - 1])
            last = self.runs[-1] if self.runs else None
            if last is not None and last.end == begin + first and last.last_ms <= head_ms:
                last.end, last.last_ms = begin + end, last_ms
            else:
                self.runs.append(LevelRun(begin + first, begin + end, head_ms, last_ms))

    def head_ms(self, run: LevelRun) -> int:
        """Return the due time of a run's first message."""
        if run.head_ms is None:
            run.head_ms = int(self._units.read(self.route, run.next, 1)["tags_code"][0])
        return run.head_ms

    def due(self, run: LevelRun, now_ms: int, capacity: int) -> Entries:
        """Return the due messages of a run, at most `capacity`. The first one is due."""
        units = self._units.read(self.route, run.next, min(capacity, run.end - run.next))
        due_ms = units["tags_code"].astype(np.int64)
        count = max(1, int(np.searchsorted(due_ms, now_ms, side="right")))
        entries = np.empty(count, LEVEL_DUE)
        entries["place"] = np.arange(run.next, run.next + count)
        entries["place"] |= self.route.queue_id << OFFSET_BITS
        entries["log_offset"] = units["log_offset"][:count]
        entries["due_ms"] = due_ms[:count]
        entries["size"] = units["size"][:count]
        return entries

    def advance(self, run: LevelRun, count: int) -> None:
        """Remove the first messages of a run, which are finished."""
        run.next += count
        run.head_ms = None
        if run.next == run.end:
            self.runs.remove(run)


# --- level pending ---


class Gaps(NamedTuple):
    """The messages that were not delivered when the log had a certain end."""

    log_end: int
    gaps: list[tuple[Route, tuple[int, int]]]  # a level's queue, and queue offsets [begin, end)


class LevelPending(NotCopyable):
    """Reads the pending messages of one store's delay levels."""

    def __init__(
        self,
        config: StoreConfig,
        log: LogReader,
        routes: Routes,
        dispatch: DispatchedQueues,
        cursors: LevelCursors,
    ) -> None:
        self._level_units = LevelUnits(log, parse_level_delays(config.level_delays))
        self._log = log
        self._routes = routes
        self._dispatch = dispatch
        self._cursors = cursors

    def read(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Yield messages that are due in [begin_ms, end_ms), in order."""
        entries = due_within(self.entries(), begin_ms, end_ms)
        if topic is not None:
            found = real_routes(
                self._log,
                self._routes,
                entries["log_offset"],
                entries["size"],
                is_level=True,
            )
            entries = entries[is_of_topic(self._routes, found, topic)]
        for entry in entries:
            one = self.describe(entry)
            if one is not None:
                yield one

    def entries(self) -> Entries:
        """Return every pending message as a due entry, in order."""
        with self._log.lock:
            gaps = self.gaps()
        return self.read_gaps(gaps)

    def due_ms(self) -> npt.NDArray[np.int64]:
        """Return the due times of the messages that can be delivered.

        Retention must not remove files during the call.
        """
        entries = self.entries()
        found = real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=True
        )
        due_ms: npt.NDArray[np.int64] = entries["due_ms"][found >= 0]
        return due_ms

    def gaps(self) -> Gaps:
        """Return the undelivered offsets of all levels. The caller holds the append lock."""
        return Gaps(
            self._log.end,
            [
                (route, gap)
                for route in list(self._routes.by_index)
                if route.native.kind == lib.TS_ROUTE_LEVELS
                for gap in self._cursors.gaps(route.queue_id, 0, int(route.native.next_offset))
            ],
        )

    def read_gaps(self, found: Gaps) -> Entries:
        """Return the messages of gaps in order, even those that were delivered since."""
        self._dispatch.through(found.log_end)
        parts = [
            self._units(route, at, min(_UNITS, gap_end - at))
            for route, (begin, gap_end) in found.gaps
            for at in range(begin, gap_end, _UNITS)
        ]
        entries = np.concatenate(parts) if parts else np.empty(0, LEVEL_DUE)
        in_order: Entries = entries[np.lexsort((entries["place"], entries["due_ms"]))]
        return in_order

    def _units(self, route: Route, begin: int, count: int) -> Entries:
        units = self._level_units.read(route, begin, count)
        entries = np.zeros(len(units), LEVEL_DUE)
        entries["place"] = np.arange(begin, begin + len(units))
        entries["place"] |= route.queue_id << OFFSET_BITS
        entries["log_offset"], entries["size"] = units["log_offset"], units["size"]
        entries["due_ms"] = units["tags_code"]
        return entries

    def describe(self, entry: Entries) -> PendingTimer | None:
        """Describe an entry. Return None if it is invalid and will never be delivered."""
        segments = self._log.segments
        log_offset = int(entry["log_offset"])
        with segments.view(self._log.written_through(log_offset + 1)) as view:
            _, _, text = record_fields(segments, view, log_offset)
        properties = parse_properties(text)
        real = real_queue(properties)
        if real is None:
            return None
        return PendingTimer(
            message_id=properties.get("UNIQ_KEY", ""),
            topic=real[0],
            queue_id=real[1],
            due_ms=int(entry["due_ms"]),
            timer_id=-1,
            log_offset=log_offset,
            handle="",
        )
