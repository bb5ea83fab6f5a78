"""Track which messages of the level topic are delivered, for each queue.

A queue's messages are normally delivered in order, so one number (the cursor) describes it. Ranges
past the cursor exist only while an earlier message is due later, because the clock was set back or
a broker skipped the message.

Locking: changes and copies need the append lock. The service that delivers a queue may read that
    queue without it.
Invariants:
    1. A place is done in the critical section that appends its delivery, never before.
    2. The cursors are a cache. They can be derived from the commit log, because each delivery names
       the place of its source (native/format/level_mark.h).
See also: docs/exactly-once.md; docs/decisions/0007-delay-levels.md.
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
        self.begins: list[int] = []  # of the done ranges past the cursor, ascending
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
        first = bisect_left(self.ends, begin)  # the first range that touches or follows
        last = first
        while last < len(self.begins) and self.begins[last] <= end:
            begin, end = min(begin, self.begins[last]), max(end, self.ends[last])
            last += 1
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]


class LevelCursors:
    """The delivered messages of all queues of the level topic."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}

    def done(self, places: Int64Array) -> None:
        """Mark places (queue << 48 | queue offset) as done. The caller holds the append lock."""
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
        """Mark all messages below a queue offset as done: they are gone from the log."""
        self._queue(queue_id).add(0, offset)

    def _queue(self, queue_id: int) -> _Queue:
        found = self._queues.get(queue_id)
        if found is None:
            found = self._queues[queue_id] = _Queue()
        return found

    def cursor(self, queue_id: int) -> int:
        """Return the queue offset of the first message that is not done."""
        found = self._queues.get(queue_id)
        return 0 if found is None else found.cursor

    def is_done(self, queue_id: int, offset: int) -> bool:
        """Return whether the message at a queue offset is done."""
        found = self._queues.get(queue_id)
        if found is None or offset < found.cursor:
            return found is not None
        at = bisect_left(found.begins, offset + 1) - 1
        return at >= 0 and offset < found.ends[at]

    def gaps(self, queue_id: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges within [begin, end) that are not done, ascending."""
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
        """Whether any queue has done messages past its cursor."""
        return any(queue.begins for queue in self._queues.values())

    def copy(self) -> Levels:
        """Return all cursors and ranges in the form of format/counts_json.py.

        The caller holds the append lock.
        """
        return {
            queue_id: (
                queue.cursor,
                *(n for pair in zip(queue.begins, queue.ends, strict=True) for n in pair),
            )
            for queue_id, queue in sorted(self._queues.items())
            if queue.cursor or queue.begins
        }

    def add(self, levels: Levels) -> None:
        """Add the cursors and ranges that `copy` returned to those present."""
        for queue_id, (cursor, *ranges) in levels.items():
            queue = self._queue(queue_id)
            for begin, end in ((0, cursor), *zip(ranges[::2], ranges[1::2], strict=True)):
                queue.add(begin, end)
