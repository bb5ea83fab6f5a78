"""Hold loaded messages in order of (due time, timer id), and release them when they are due.

If several topics are pending and one of them has a burst, the burst gets a queue of its own. Each
release then takes a share of every queue, so that a burst does not delay other topics. Topics are
distinguished by a hash: two topics with the same hash share a queue.

    the rest: ▪▪                       ─► all of these, a share of a, a share of b
    a:        ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪
    b:        ▪▪▪▪▪▪▪▪▪▪▪

Thread safety: dequeue-get-message and enqueue-put push, dequeue-put pops, and checkpoints read the
    undelivered slots; each under `_lock`.
Invariants:
    1. No message leaves before its time.
    2. No message leaves while a slot with an earlier message could be partly loaded: all slots
       below `loaded_slot` are completely loaded.
    3. `outstanding` counts, for each slot, the messages that were read from it, or linked late into
       it, and are not in the log yet. A checkpoint keeps the lowest such slot as `replay_slot`
       (docs/exactly-once.md). Messages without a slot are counted as `overflow_count`.
    4. All messages of one topic are in one queue, so their order is (due time, put order).
See also: docs/decisions/0003-timing-wheel.md for the overflow,
    docs/decisions/0004-fair-delivery.md for bursts
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.timer.timer_arrays import DUE, KEY, Int64Array, Records

# --- due queue ---
# Keep loaded messages in order of (wake time, timer id).
#
# The wake time is when an entry leaves the queue: its due time, or an earlier time if it rolls.
# Large batches are kept in sorted runs, small ones in a heap. An entry takes 64 bytes of memory.
# Sorting and taking it costs about 30 ns in a run and 230 ns in the heap.
#
# Thread safety: none; the open slot's lock admits one thread at a time.


_SIZE_MIN = 1024
_FAN = 8  # runs that are merged at a time
_RUN_MAX = 1 << 18  # entries of a merged run, about 10 ms
_NEVER_MS = (1 << 63) - 1
RUN_MIN = 512
"""The smallest batch that becomes a run."""


class DueQueue(NotCopyable):
    """Entries in order of wake time."""

    def __init__(self) -> None:
        self._open: Any = ffi.new("ts_open *")
        self._runs: list[tuple[Records, Any]] = []  # what the C side's runs point at
        self._entries: Records = np.empty(0, DUE)
        self._keys: Records = np.empty(0, KEY)
        self._unused: Int64Array = np.empty(0, np.int64)
        self._grow(_SIZE_MIN)

    def __len__(self) -> int:
        count = int(self._open.heap.count)
        return count + sum(map(self._left, range(len(self._runs)))) if self._runs else count

    def _grow(self, size: int) -> None:
        """Make capacity for `size` entries in the heap; every entry keeps its index."""
        heap = self._open.heap
        old, count, unused_count = len(self._entries), int(heap.count), int(heap.unused_count)
        entries, keys, unused = np.empty(size, DUE), np.empty(size, KEY), np.empty(size, np.int64)
        entries[:old] = self._entries
        keys[:count] = self._keys[:count]
        unused[:unused_count] = self._unused[:unused_count]
        unused[unused_count : unused_count + size - old] = np.arange(old, size)
        self._entries, self._keys, self._unused = entries, keys, unused
        self._views = (
            ffi.from_buffer("ts_due[]", entries),
            ffi.from_buffer("ts_heap_key[]", keys),
            ffi.from_buffer("int64_t[]", unused),
        )
        heap.entries, heap.keys, heap.unused = self._views
        heap.unused_count = unused_count + size - old
        heap.capacity = size

    def _left(self, i: int) -> int:
        run = self._open.runs[i]
        return int(run.end - run.at)

    def push(self, entries: Records) -> None:
        """Add entries, in any order."""
        if len(entries) >= RUN_MIN:
            self._add_run(entries)
        elif len(entries):
            self._push_few(entries)

    def _push_few(self, entries: Records) -> None:
        heap = self._open.heap
        needed = int(heap.count) + len(entries)
        if needed > len(self._entries):
            self._grow(max(needed, 2 * len(self._entries)))
        lib.ts_heap_push(ffi.addressof(heap), ffi.from_buffer("ts_due[]", entries), len(entries))

    def _add_run(self, entries: Records) -> None:
        """Sort entries into a new run, and merge the last `_FAN` runs if their sizes are similar.

        This keeps the number of runs small, and each entry is moved a few times at most. Runs whose
        merge would delay a pop for too long are not merged.
        """
        count = len(entries)
        keys = np.empty(2 * count, KEY)
        run = np.empty(count, DUE)
        lib.ts_run_sort(
            ffi.from_buffer("ts_due[]", entries),
            count,
            ffi.from_buffer("ts_heap_key[]", keys),
            ffi.from_buffer("ts_due[]", run),
        )
        self._drop_empty_runs()
        self._append_run(run)
        while len(self._runs) >= _FAN and self._are_alike():
            self._merge_last()

    def _are_alike(self) -> bool:
        left = [self._left(i) for i in range(len(self._runs) - _FAN, len(self._runs))]
        is_alike = left[0] < _FAN * left[-1] and sum(left) <= _RUN_MAX
        return is_alike or len(self._runs) == lib.TS_RUNS_MAX

    def _append_run(self, run: Records) -> None:
        view = ffi.from_buffer("ts_due[]", run)
        native = self._open.runs[len(self._runs)]
        native.entries, native.at, native.end = view, 0, len(run)
        self._runs.append((run, view))
        self._open.run_count = len(self._runs)

    def _merge_last(self) -> None:
        begin, end = len(self._runs) - _FAN, len(self._runs)
        run = np.empty(sum(map(self._left, range(begin, end))), DUE)
        runs = ffi.addressof(self._open.runs, begin)
        lib.ts_runs_merge(runs, _FAN, ffi.from_buffer("ts_due[]", run))
        del self._runs[begin:]
        self._append_run(run)

    def _drop_empty_runs(self) -> None:
        kept = [i for i in range(len(self._runs)) if self._left(i)]
        for to, i in enumerate(kept):
            if to != i:
                self._open.runs[to] = self._open.runs[i]
        self._runs = [self._runs[i] for i in kept]
        self._open.run_count = len(kept)

    def pop(self, until_ms: int, loaded_slot: int, precision_ms: int, out: Records) -> int:
        """Move entries with a wake time up to `until_ms` into `out`, in order; return how many.

        An entry that would roll, but whose own slot is below `loaded_slot` by now, stays in the
        queue until it is due.
        """
        count = 0
        while True:
            count += lib.ts_open_pop(
                self._open,
                until_ms,
                loaded_slot,
                precision_ms,
                ffi.from_buffer("ts_due[]", out) + count,
                len(out) - count,
            )
            if not self._open.is_full:
                return int(count)
            self._grow(2 * len(self._entries))

    def wake_ms(self) -> int:
        """Return the wake time of the first entry in ms, or 2**63 - 1 if the queue is empty."""
        return int(lib.ts_open_wake(self._open))

    def by(self, wake_ms: int) -> list[Records]:
        """Return the entries with a wake time up to `wake_ms`, in parts, unordered.

        The entries stay in the queue.
        """
        keys = self._keys[: int(self._open.heap.count)]
        parts: list[Records] = [self._entries[keys["at"][keys["wake_ms"] <= wake_ms]]]
        for i, (run, _) in enumerate(self._runs):
            at, end = int(self._open.runs[i].at), int(self._open.runs[i].end)
            times = run["wake_ms"]
            parts.append(run[at : bisect_right(range(end), wake_ms, at, key=times.item)])
        return parts


# --- open slot ---


BURST_MESSAGES = 65_536
"""Loaded messages from which on large topics get a queue of their own."""
_BURSTS_MAX = 64  # topics with a queue of their own
_NO_ENTRIES: Records = np.empty(0, DUE)


def by_slot(slots: Int64Array) -> list[tuple[int, int]]:
    """Return (slot, number of occurrences) pairs. Most arrays have one slot, or are empty."""
    if len(slots) <= 1:
        return [(slot, 1) for slot in slots.tolist()]
    first, last = int(slots.min()), int(slots.max())
    if first == last:
        return [(first, len(slots))]
    if last - first < len(slots):  # counting is cheaper than sorting
        counts = np.bincount(slots - first)
        values = np.flatnonzero(counts)
        return list(zip((values + first).tolist(), counts[values].tolist(), strict=True))
    values, counts = np.unique(slots, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


class OpenSlot(NotCopyable):
    """The loaded messages of one store."""

    def __init__(self, precision_ms: int, is_mixed: Callable[[], bool]) -> None:
        """Create an empty open slot. `is_mixed` returns whether several topics have timers."""
        self._precision_ms = precision_ms
        self._lock = Lock()
        self._outstanding: dict[int, int] = {}
        self.overflow_count = 0  # undelivered messages that are linked in no slot
        self._rest = DueQueue()
        self._rest_hash: int | None = None  # the topic's hash if the rest has a single topic
        self._bursts: dict[int, DueQueue] = {}  # by topic hash
        self._popped: Records = _NO_ENTRIES  # by the last pop
        self._turn = 0
        self._is_mixed = is_mixed
        self.loaded_slot = 0
        self._back_count = 0  # the wheel's, when its `read_slot` last followed the clock back

    def start_at(self, read_slot: int) -> None:
        """Count slots from this one on as not loaded."""
        self.loaded_slot = read_slot

    def __len__(self) -> int:
        return len(self._rest) + sum(map(len, list(self._bursts.values())))

    @property
    def rest_count(self) -> int:
        """Number of entries that do not belong to a burst."""
        return len(self._rest)

    def expect(self, each: Iterable[tuple[int, int]]) -> None:
        """Count messages as undelivered.

        `each` has (slot, count) pairs. A slot below 0 is the overflow.
        """
        with self._lock:
            for slot, count in each:
                if slot < 0:
                    self.overflow_count += count
                else:
                    self._outstanding[slot] = self._outstanding.get(slot, 0) + count

    def done(self, each: Iterable[tuple[int, int]]) -> None:
        """Count messages as delivered, or as dropped; `each` has (slot, count) pairs."""
        with self._lock:
            for slot, count in each:
                if slot < 0:
                    self.overflow_count -= count
                    assert self.overflow_count >= 0, "more done than was in the overflow"
                    continue
                left = self._outstanding[slot] - count
                assert left >= 0, "more of a slot done than expected"
                if left:
                    self._outstanding[slot] = left
                else:
                    del self._outstanding[slot]

    def replay_slot(self, read_slot: int) -> int:
        """Return the lowest slot that a recovery must read.

        It is the lowest slot with an undelivered message, or `read_slot`, whichever is lower. After
        the clock was set back `read_slot` may be the lower one.
        """
        with self._lock:
            return min(read_slot, min(self._outstanding, default=read_slot))

    def outstanding(self) -> Int64Array:
        """Return every slot with an undelivered message, ascending."""
        with self._lock:
            slots = np.fromiter(self._outstanding, np.int64, len(self._outstanding))
        slots.sort()
        return slots

    def highest_slot(self, otherwise: int) -> int:
        """Return the highest slot with an undelivered message, or else `otherwise`."""
        with self._lock:
            return max(self._outstanding, default=otherwise)

    def follow_back(self, read_slot: int, back_count: int) -> None:
        """Follow the wheel after the clock was set back.

        Slots from `read_slot` on count as not loaded until they are read again.
        """
        with self._lock:
            self.loaded_slot = min(self.loaded_slot, read_slot)
            self._back_count = back_count

    def push(self, entries: Records, loaded_slot: int | None = None, back_count: int = 0) -> None:
        """Add entries; afterwards the slots below `loaded_slot` are completely loaded.

        back_count: the wheel's count when the entries were read. If the wheel followed the clock
            back since then, `loaded_slot` is out of date and is not raised.
        """
        with self._lock:
            self._sort_in(entries)
            if loaded_slot is not None:
                is_old = back_count < self._back_count
                self.loaded_slot = min(self.loaded_slot, loaded_slot) if is_old else loaded_slot

    def _sort_in(self, entries: Records) -> None:
        if not len(entries):
            return
        self._separate_rest()
        if len(entries) >= RUN_MIN and len(self._rest) + len(entries) > BURST_MESSAGES:
            self._find_bursts(entries)
        self._part(entries)

    def _part(self, entries: Records) -> None:
        """Put entries of topics with a burst into its queue, and the others into the rest."""
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

    def _separate_rest(self) -> None:
        """Make the rest a burst if it is one large topic and another topic has timers by now."""
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
        """Create a queue for each topic with at least a quarter of these entries."""
        hashes, counts = np.unique(entries["topic_hash"], return_counts=True)
        found = hashes[(counts >= RUN_MIN) & (4 * counts >= len(entries))].tolist()
        found = [one for one in found if one not in self._bursts][: _BURSTS_MAX - len(self._bursts)]
        if not found or not self._is_mixed():
            return
        self._bursts |= {topic_hash: DueQueue() for topic_hash in found}
        before, self._rest = self._rest, DueQueue()
        self._part(np.concatenate(before.by(_NEVER_MS)))

    def pop(self, now_ms: int, capacity: int) -> tuple[Records, int]:
        """Remove and return entries whose wake time has come, in order, with `loaded_slot`.

        If there are bursts, each queue gets a share of `capacity`.
        """
        with self._lock:
            self._separate_rest()
            until_ms = min(now_ms, self.loaded_slot * self._precision_ms)
            if not self._bursts and self._rest.wake_ms() > until_ms:
                self._popped = _NO_ENTRIES
                return self._popped, self.loaded_slot
            out = np.empty(min(capacity, max(1, len(self))), DUE)
            if not self._bursts:
                count = self._take(self._rest, until_ms, out)
            else:
                count = self._take_shares(until_ms, out)
                self._bursts = {key: burst for key, burst in self._bursts.items() if len(burst)}
            self._popped = out[:count]
            return self._popped, self.loaded_slot

    def _take_shares(self, until_ms: int, out: Records) -> int:
        """Take a share of each queue, and share the capacity that some of them leave unused."""
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
        return queue.pop(until_ms, self.loaded_slot, self._precision_ms, out) if len(out) else 0

    def by(self, now_ms: int) -> list[Records]:
        """Return the entries with a wake time up to `now_ms`, in parts, and those popped last.

        The latter may not be in the log yet. The entries stay in the open slot.
        """
        with self._lock:
            parts = [self._popped]
            for queue in (self._rest, *self._bursts.values()):
                parts += queue.by(now_ms)
            return parts

    def next_wake_ms(self) -> int | None:
        """Return the first entry's wake time in ms.

        Return None if there is no entry, or if the first one's slot is not completely loaded.
        """
        with self._lock:
            wake_ms = self._first_wake_ms()
            return wake_ms if wake_ms <= self.loaded_slot * self._precision_ms else None

    def blocked_wake_ms(self) -> int | None:
        """Return the first entry's wake time in ms if its slot is not loaded yet, or None."""
        with self._lock:
            if not len(self):
                return None
            wake_ms = self._first_wake_ms()
            return wake_ms if wake_ms > self.loaded_slot * self._precision_ms else None

    def _first_wake_ms(self) -> int:
        return min(queue.wake_ms() for queue in (self._rest, *self._bursts.values()))
