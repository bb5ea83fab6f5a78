"""Split the pending messages of one level queue into runs of ascending due times.

RocketMQ delivers a message at once if its due time is further ahead than the level's delay. Here
such a message is due its level's present delay after it was stored, if that is earlier than its due
time (old_units.py). After a change of the table of delays the result is the same as RocketMQ's;
after the clock was set back the message is still not too early.

Thread safety: runs on the schedule-deliver thread only.
Invariants:
    1. Each pending message is in one run, and each run begins with a pending message.
    2. There is one run, unless the clock was set back or the table of delays was changed. So a due
       message never waits for one that is not due.
See also: docs/file-format.md, docs/decisions/0007-delay-levels.md
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi
from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors
from timerstore._engine.queues.old_units import LevelUnits
from timerstore._engine.queues.routes import Route

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
assert LEVEL_DUE.itemsize == ffi.sizeof("ts_level_due"), "level_runs.py and native/api disagree"

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
