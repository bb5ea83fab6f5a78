"""Open slot: loaded messages in order of (due time, timer id), released by time.

Where more than one topic waits and a topic has a crowd of them, that topic gets a queue of its own,
and what is released is a share of each: nobody waits for another topic's crowd. Topics are told
apart by their hash: two that share one share a turn.

    the rest: ▪▪                       ─► all of these, a share of a, a share of b
    a:        ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪
    b:        ▪▪▪▪▪▪▪▪▪▪▪

Threads:  dequeue-get-message and enqueue-put push, dequeue-put pops, checkpoints ask for the lowest
          slot: each under `_lock`.
Holds:    (1) nothing leaves before its time; (2) nothing leaves while a slot that could hold
          something earlier is not loaded whole (`frontier`); (3) `outstanding` counts, per slot,
          what was read of it and is not in the log yet: a checkpoint keeps the lowest (R of
          docs/exactly-once.md); what no slot took counts apart, as `parked`
          (docs/decisions/0003-timing-wheel.md); (4) of
          one topic all lies in one queue: its order is (due, put).
Source:   docs/decisions/0004-fair-delivery.md for the crowds.
"""

from collections.abc import Callable, Iterable

import numpy as np

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.timer.due_queue import RUN_MIN, DueQueue
from timerstore._engine.timer.timer_arrays import DUE, Int64Array, Records

BURST_MESSAGES = 65_536
"""Messages of one topic, about, that are read and wait: from here on it has a queue of its own."""
_BURSTS_MAX = 64  # so many topics at most


def by_slot(slots: Int64Array) -> list[tuple[int, int]]:
    """Give (slot, how often it stands there). Most arrays have one slot, or nothing."""
    if not len(slots):
        return []
    first, last = int(slots.min()), int(slots.max())
    if first == last:
        return [(first, len(slots))]
    if last - first < len(slots):  # neighbours: counted, which is cheaper than sorted
        counts = np.bincount(slots - first)
        values = np.flatnonzero(counts)
        return list(zip((values + first).tolist(), counts[values].tolist(), strict=True))
    values, counts = np.unique(slots, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


class OpenSlot(Owner):
    """What has been read from the wheel and waits for its millisecond."""

    def __init__(self, precision_ms: int, is_mixed: Callable[[], bool]) -> None:
        """`is_mixed`: whether more than one topic has timers."""
        self._precision_ms = precision_ms
        self._lock = Lock()
        self._outstanding: dict[int, int] = {}
        self.overflow_count = 0  # the same of what is linked in no slot
        self._rest = DueQueue()
        self._rest_hash: int | None = None  # where all of the rest are of one topic
        self._bursts: dict[int, DueQueue] = {}  # by topic hash
        self._popped: Records = np.empty(0, DUE)  # last
        self._turn = 0
        self._is_mixed = is_mixed
        self.frontier = 0
        self._back_count = 0  # of the wheel, when its frontier followed the clock back last

    def start_at(self, read_slot: int) -> None:
        """Count slots from here on as not read."""
        self.frontier = read_slot

    def __len__(self) -> int:
        return len(self._rest) + sum(map(len, list(self._bursts.values())))

    @property
    def rest_count(self) -> int:
        """How many wait that are of no topic's crowd."""
        return len(self._rest)

    def expect(self, each: Iterable[tuple[int, int]]) -> None:
        """So many of a slot, of each of these slots, are on their way into the log."""
        with self._lock:
            for slot, count in each:
                if slot < 0:
                    self.overflow_count += count
                else:
                    self._outstanding[slot] = self._outstanding.get(slot, 0) + count

    def expect_entries(self, slots: Int64Array) -> None:
        """The same for an array with one slot an entry."""
        self.expect(by_slot(slots))

    def done(self, each: Iterable[tuple[int, int]]) -> None:
        """So many of a slot, of each of these slots, are in the log, or need not get there."""
        with self._lock:
            for slot, count in each:
                self._done(slot, count)

    def _done(self, slot: int, count: int) -> None:
        if slot < 0:
            self.overflow_count -= count
            assert self.overflow_count >= 0, "more done than was parked"
            return
        left = self._outstanding[slot] - count
        assert left >= 0, "more of a slot done than expected"
        if left:
            self._outstanding[slot] = left
        else:
            del self._outstanding[slot]

    def lowest_slot(self, frontier: int) -> int:
        """Give the lowest slot that is still needed: that holds something outstanding, or is not
        read yet, which may be lower where the clock was set back.
        """
        with self._lock:
            return min(frontier, min(self._outstanding, default=frontier))

    def outstanding(self) -> Int64Array:
        """Give every slot that holds something outstanding, ascending."""
        with self._lock:
            slots = np.fromiter(self._outstanding, np.int64, len(self._outstanding))
        slots.sort()
        return slots

    def highest_slot(self, otherwise: int) -> int:
        """Give the highest slot that holds something outstanding."""
        with self._lock:
            return max(self._outstanding, default=otherwise)

    def follow_back(self, frontier: int, back_count: int) -> None:
        """The clock was set back: from `frontier` on slots count as not loaded, until they are read
        again.
        """
        with self._lock:
            self.frontier = min(self.frontier, frontier)
            self._back_count = back_count

    def push(self, entries: Records, frontier: int | None = None, back_count: int = 0) -> None:
        """Add entries; then slots below `frontier` are loaded whole, unless the clock was set back
        since that was said (`back_count`: of the wheel, then).
        """
        with self._lock:
            self._sort_in(entries)
            if frontier is not None:
                is_old = back_count < self._back_count
                self.frontier = min(self.frontier, frontier) if is_old else frontier

    def _sort_in(self, entries: Records) -> None:
        if not len(entries):
            return
        self._stand_aside()
        if len(entries) >= RUN_MIN and len(self._rest) + len(entries) > BURST_MESSAGES:
            self._find_bursts(entries)
        self._part(entries)

    def _part(self, entries: Records) -> None:
        """Give each crowd what is of its topic, and the rest the rest."""
        for topic_hash, burst in self._bursts.items():
            is_of_it = entries["topic_hash"] == topic_hash
            if is_of_it.all():
                burst.push(entries)
                return
            if is_of_it.any():
                burst.push(entries[is_of_it])
                entries = entries[~is_of_it]
        self._push_rest(entries)

    def _push_rest(self, entries: Records) -> None:
        is_first = not len(self._rest)
        if len(entries) and (is_first or self._rest_hash is not None):
            topic_hash = int(entries["topic_hash"][0]) if is_first else self._rest_hash
            is_one = bool((entries["topic_hash"] == topic_hash).all())
            self._rest_hash = topic_hash if is_one else None
        self._rest.push(entries)

    def _stand_aside(self) -> None:
        """A crowd that was alone gets a queue of its own, as another topic has something by now."""
        topic_hash = self._rest_hash
        if (
            topic_hash is None
            or len(self._rest) <= BURST_MESSAGES
            or len(self._bursts) >= _BURSTS_MAX
        ):
            return
        if self._is_mixed():
            self._bursts[topic_hash] = self._rest
            self._rest, self._rest_hash = DueQueue(), None

    def _find_bursts(self, entries: Records) -> None:
        """Give a queue of its own to a topic that has a quarter of these."""
        hashes, counts = np.unique(entries["topic_hash"], return_counts=True)
        found = hashes[(counts >= RUN_MIN) & (4 * counts >= len(entries))].tolist()
        found = [one for one in found if one not in self._bursts][: _BURSTS_MAX - len(self._bursts)]
        if not found or not self._is_mixed():
            return
        self._bursts |= {topic_hash: DueQueue() for topic_hash in found}
        before, self._rest = self._rest, DueQueue()
        self._part(before.all())

    def expect_and_push(self, entries: Records) -> None:
        """Late entries: they were read from no slot, but are linked in one."""
        self.expect_entries(entries["slot"])
        self.push(entries)

    def pop(self, now_ms: int, capacity: int) -> tuple[Records, int]:
        """Take what is to be done by now, in order, of each crowd a share; and the frontier that
        this was decided with.
        """
        with self._lock:
            self._stand_aside()
            until_ms = min(now_ms, self.frontier * self._precision_ms)
            out = np.empty(min(capacity, max(1, len(self))), DUE)
            if not self._bursts:
                count = self._take(self._rest, until_ms, out)
            else:
                count = self._take_shares(until_ms, out)
                self._bursts = {key: burst for key, burst in self._bursts.items() if len(burst)}
            self._popped = out[:count]
            return self._popped, self.frontier

    def _take_shares(self, until_ms: int, out: Records) -> int:
        """Of each queue a share, and of what room some of them leave."""
        bursts = list(self._bursts.values())
        self._turn = (self._turn + 1) % len(bursts)
        queues = [self._rest, *bursts[self._turn :], *bursts[: self._turn]]
        count, before = 0, -1
        while before < count < len(out):
            before = count
            for k, queue in enumerate(queues):
                share = -(-(len(out) - count) // (len(queues) - k))
                count += self._take(queue, until_ms, out[count : count + share])
        return count

    def _take(self, queue: DueQueue, until_ms: int, out: Records) -> int:
        return queue.pop(until_ms, self.frontier, self._precision_ms, out) if len(out) else 0

    def by(self, now_ms: int) -> list[Records]:
        """Give what is to be looked at by a time, in parts; and what was popped last, which may be
        on its way yet. Nothing is taken.
        """
        with self._lock:
            parts = [self._popped]
            for queue in (self._rest, *self._bursts.values()):
                parts += queue.by(now_ms)
            return parts

    def next_wake_ms(self) -> int | None:
        """When the first entry is to be looked at; None: there is none, or its slot not whole."""
        with self._lock:
            wake_ms = self._first_wake_ms()
            return wake_ms if wake_ms <= self.frontier * self._precision_ms else None

    def blocked_wake_ms(self) -> int | None:
        """When the first entry would be looked at, but that its slot is not loaded whole; else
        None.
        """
        with self._lock:
            if not len(self):
                return None
            wake_ms = self._first_wake_ms()
            return wake_ms if wake_ms > self.frontier * self._precision_ms else None

    def _first_wake_ms(self) -> int:
        return min(queue.wake_ms() for queue in (self._rest, *self._bursts.values()))
