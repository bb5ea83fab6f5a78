"""Runs: what waits in one queue of the level topic, as stretches of ascending due times.

Threads:  the service that delivers.
Holds:    (1) each message that waits is in one run, and each run begins with one that waits;
          (2) there is one run, but where the clock was set back or the table of delays changed in
          between: so what is due never waits behind what is not.
Source:   docs/file-format.md; docs/decisions/0007-delay-levels.md.

The ancestor corrects a due time that lies farther ahead than the level's whole delay: it delivers
at once. Here the message is due its level's present delay after it was stored, where that is
earlier (old_units.py): after a change of the table the same, after a clock that was set back still
not too early.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi
from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors
from timerstore._engine.queues.old_units import LevelUnits
from timerstore._engine.queues.routes import Route

_UNITS = 65_536  # read at a time
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


class Run:
    """Units [next, end) of a queue, due times ascending."""

    __slots__ = ("end", "head_ms", "last_ms", "next")

    def __init__(self, begin: int, end: int, head_ms: int, last_ms: int) -> None:
        self.next = begin
        self.end = end
        self.last_ms = last_ms
        self.head_ms: int | None = head_ms  # None: not read yet


class Runs:
    """One queue."""

    def __init__(self, route: Route, cursors: LevelCursors, units: LevelUnits) -> None:
        self.route = route
        self._cursors = cursors
        self._units = units
        self._seen = cursors.cursor(route.queue_id)
        self.runs: list[Run] = []

    def look(self) -> None:
        """Take in the units that are new."""
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
                self.runs.append(Run(begin + first, begin + end, head_ms, last_ms))

    def head_ms(self, run: Run) -> int:
        """When the first of a run is due."""
        if run.head_ms is None:
            run.head_ms = int(self._units.read(self.route, run.next, 1)["tags_code"][0])
        return run.head_ms

    def due(self, run: Run, now_ms: int, capacity: int) -> Entries:
        """Give the first of a run that are due now, at most `capacity`; its head is."""
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

    def advance(self, run: Run, count: int) -> None:
        """So many of a run are dealt with."""
        run.next += count
        run.head_ms = None
        if run.next == run.end:
            self.runs.remove(run)
