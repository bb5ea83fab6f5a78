"""Level cursors: which messages of the level topic are delivered, queue by queue.

Threads:  changed and copied under the append lock; the service that delivers reads its own.
Holds:    (1) a place is done in the hold of the append lock that places its copy, never before;
          (2) this is a cache of a fold over the commit log: the copies name the places they are of
          (native/format/level_mark.h); (3) in order as all is, one number a queue says everything:
          ranges beyond it are there only while an earlier message is due later, because the clock
          was set back, or because a broker passed it over.
Source:   docs/exactly-once.md; docs/decisions/0007-delay-levels.md.
"""

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from timerstore._engine.format.counts_json import Levels

Int64Array = npt.NDArray[np.int64]

OFFSET_BITS = 48
QUEUE_MAX = 32_767
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class _Queue:
    __slots__ = ("begins", "cursor", "ends")

    def __init__(self) -> None:
        self.cursor = 0  # everything below is done
        self.begins: list[int] = []  # of the ranges beyond it that are done, ascending
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Mark [begin, end) as done."""
        if begin > self.cursor:
            self._add_range(begin, end)
            return
        self.cursor = max(self.cursor, end)
        while self.begins and self.begins[0] <= self.cursor:
            self.cursor = max(self.cursor, self.ends[0])
            del self.begins[0], self.ends[0]

    def _add_range(self, begin: int, end: int) -> None:
        first = bisect_left(self.ends, begin)  # the first that touches or lies behind
        last = first
        while last < len(self.begins) and self.begins[last] <= end:
            begin, end = min(begin, self.begins[last]), max(end, self.ends[last])
            last += 1
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]


class LevelCursors:
    """What is done of each queue of the level topic."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}

    def done(self, places: Int64Array) -> None:
        """Mark places (queue << 48 | queue offset) as done; under the append lock."""
        if not len(places):
            return
        places = np.sort(places)
        edges = np.flatnonzero(np.diff(places) > 1)
        begins = places[np.concatenate(([0], edges + 1))].tolist()
        lasts = places[np.concatenate((edges, [len(places) - 1]))].tolist()
        for begin, last in zip(begins, lasts, strict=True):
            queue = self._queue(begin >> OFFSET_BITS)
            queue.add(begin & _OFFSET_MASK, (last & _OFFSET_MASK) + 1)

    def begin_at(self, queue_id: int, offset: int) -> None:
        """What lies below is gone from the log."""
        self._queue(queue_id).add(0, offset)

    def _queue(self, queue_id: int) -> _Queue:
        found = self._queues.get(queue_id)
        if found is None:
            found = self._queues[queue_id] = _Queue()
        return found

    def cursor(self, queue_id: int) -> int:
        """Give the queue offset of the first message that is not done."""
        found = self._queues.get(queue_id)
        return 0 if found is None else found.cursor

    def is_done(self, queue_id: int, offset: int) -> bool:
        """Whether the message there is done."""
        found = self._queues.get(queue_id)
        if found is None or offset < found.cursor:
            return found is not None
        at = bisect_left(found.begins, offset + 1) - 1
        return at >= 0 and offset < found.ends[at]

    def gaps(self, queue_id: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Give the ranges within [begin, end) that are not done, ascending."""
        found = self._queues.get(queue_id)
        if found is None:
            return [(begin, end)] if begin < end else []
        at, ranges = max(begin, found.cursor), []
        for done_begin, done_end in zip(found.begins, found.ends, strict=True):
            if at < min(done_begin, end):
                ranges.append((at, min(done_begin, end)))
            at = max(at, done_end)
        if at < end:
            ranges.append((at, end))
        return ranges

    @property
    def has_gaps(self) -> bool:
        """Whether a queue has something done beyond its cursor, which one number cannot tell."""
        return any(queue.begins for queue in self._queues.values())

    def copy(self) -> Levels:
        """Give everything, as in format/counts_json.py; under the append lock."""
        return {
            queue_id: (
                queue.cursor,
                *(n for pair in zip(queue.begins, queue.ends, strict=True) for n in pair),
            )
            for queue_id, queue in sorted(self._queues.items())
            if queue.cursor or queue.begins
        }

    def add(self, levels: Levels) -> None:
        """Take what `copy` gave, beside what there is."""
        for queue_id, (cursor, *ranges) in levels.items():
            queue = self._queue(queue_id)
            for begin, end in ((0, cursor), *zip(ranges[::2], ranges[1::2], strict=True)):
                queue.add(begin, end)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
