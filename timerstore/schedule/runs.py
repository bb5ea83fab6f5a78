"""Runs: what waits in one queue of the level topic, as stretches of ascending due times.

Threads:  the service that delivers.
Holds:    (1) each message that waits is in one run, and each run begins with one that waits;
          (2) there is one run, but where the clock was set back or the table of delays changed in
          between: so what is due never waits behind what is not.
Source:   store-format.md 3.2 and 9; decision 0013.

The ancestor corrects a due time that lies farther ahead than the level's whole delay: it delivers
at once. Here the message is due its level's present delay after it was stored, where that is
earlier: after a change of the table the same, after a clock that was set back still not too early.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from timerstore.layout import queue_unit
from timerstore.native import ffi
from timerstore.queues.level_cursors import OFFSET_BITS, LevelCursors
from timerstore.queues.routes import Route

_UNITS = 65_536  # read at a time
LEVEL_DUE = np.dtype(
    [
        ("place", np.int64),
        ("log_offset", np.int64),
        ("due_ms", np.int64),
        ("unit_ms", np.int64),
        ("size", np.int32),
        ("run", np.int32),
    ]
)
assert LEVEL_DUE.itemsize == ffi.sizeof("ts_level_due"), "runs.py and api.h disagree"

Entries = npt.NDArray[np.void]
StoreMs = Callable[[int], int]


class Run:
    """Units [next, end) of a queue, due times ascending."""

    __slots__ = ("end", "head_ms", "is_corrected", "last_ms", "next")

    def __init__(self, begin: int, end: int, head_ms: int, last_ms: int) -> None:
        self.next = begin
        self.end = end
        self.last_ms = last_ms
        self.head_ms: int | None = head_ms  # None: not read yet
        self.is_corrected = False


class Runs:
    """One queue."""

    def __init__(
        self, route: Route, cursors: LevelCursors, delay_ms: int, store_ms: StoreMs
    ) -> None:
        self.route = route
        self._cursors = cursors
        self._delay_ms = delay_ms
        self._store_ms = store_ms  # of the record at a log offset
        self._seen = cursors.cursor(route.queue_id)
        self.runs: list[Run] = []

    def look(self) -> None:
        """Take in the units that are new."""
        count = self.route.queue.count
        if count <= self._seen:
            return
        for begin, end in self._cursors.gaps(self.route.queue_id, self._seen, count):
            for at in range(begin, end, _UNITS):
                self._add(at, self._read(at, min(_UNITS, end - at))["tags_code"])
        self._seen = count

    def _read(self, offset: int, count: int) -> queue_unit.Units:
        units = queue_unit.read(self.route.queue.read(offset, count))
        assert len(units) == count, "units below the count of a queue are there"
        return units

    def _add(self, begin: int, due_ms: "npt.NDArray[np.int64]") -> None:
        edges = [0, *(np.flatnonzero(np.diff(due_ms) < 0) + 1).tolist(), len(due_ms)]
        for first, end in pairwise(edges):
            head_ms, last_ms = int(due_ms[first]), int(due_ms[end - 1])
            last = self.runs[-1] if self.runs else None
            if last is not None and last.end == begin + first and last.last_ms <= head_ms:
                last.end, last.last_ms = begin + end, last_ms
            else:
                self.runs.append(Run(begin + first, begin + end, head_ms, last_ms))

    def head_ms(self, run: Run, now_ms: int) -> int:
        """When the first of a run is due."""
        if run.head_ms is None:
            run.head_ms = int(self._read(run.next, 1)["tags_code"][0])
            run.is_corrected = False
        if run.head_ms > now_ms + self._delay_ms and not run.is_corrected:
            log_offset = int(self._read(run.next, 1)["log_offset"][0])
            run.head_ms = min(run.head_ms, self._store_ms(log_offset) + self._delay_ms)
            run.is_corrected = True
        return run.head_ms

    def due(self, run: Run, now_ms: int, capacity: int) -> Entries:
        """Give the first of a run that are due now, at most `capacity`; its head is."""
        units = self._read(run.next, min(capacity, run.end - run.next))
        due_ms = units["tags_code"].astype(np.int64)
        due_ms[0] = self.head_ms(run, now_ms)
        count = max(1, int(np.searchsorted(due_ms, now_ms, side="right")))
        while count < len(due_ms) and due_ms[count] > now_ms + self._delay_ms:
            corrected = self._store_ms(int(units["log_offset"][count])) + self._delay_ms
            if corrected > now_ms:
                break
            due_ms[count] = corrected
            count += 1
        entries = np.empty(count, LEVEL_DUE)
        entries["place"] = np.arange(run.next, run.next + count)
        entries["place"] |= self.route.queue_id << OFFSET_BITS
        entries["log_offset"] = units["log_offset"][:count]
        entries["due_ms"] = np.maximum.accumulate(due_ms[:count])
        entries["unit_ms"] = units["tags_code"][:count]
        entries["size"] = units["size"][:count]
        return entries

    def advance(self, run: Run, count: int) -> None:
        """So many of a run are dealt with."""
        run.next += count
        run.head_ms = None
        if run.next == run.end:
            self.runs.remove(run)
