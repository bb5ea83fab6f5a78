"""Open slot: loaded messages in order of (due time, timer id), released by time.

Threads:  dequeue-get-message and enqueue-put push, dequeue-put pops, checkpoints ask for the lowest
          slot: each under `_lock`.
Holds:    (1) nothing leaves before its time; (2) nothing leaves while a slot that could hold
          something earlier is not loaded whole (`frontier`); (3) `outstanding` counts, per slot,
          what was read of it and is not in the log yet: a checkpoint keeps the lowest (R of
          exactly-once.md 5).
"""

import threading
from typing import Any

import numpy as np

from timerstore.native import ffi, lib
from timerstore.timer.request import DUE, KEY, Int64Array, Records

_SIZE_MIN = 1024
_RUN_MIN = 512  # entries that are worth a run of their own


def _by_slot(slots: Int64Array) -> list[tuple[int, int]]:
    """Give (slot, how often it stands there). Most arrays have one slot, or nothing."""
    if not len(slots):
        return []
    first = int(slots[0])
    if (slots == first).all():
        return [(first, len(slots))]
    values, counts = np.unique(slots, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


class OpenSlot:
    """What has been read from the wheel and waits for its millisecond."""

    def __init__(self, precision_ms: int) -> None:
        self._precision_ms = precision_ms
        self._lock = threading.Lock()
        self._outstanding: dict[int, int] = {}
        self._open: Any = ffi.new("ts_open *")
        self._runs: list[tuple[Records, Any]] = []  # what the C side's runs point at
        self._entries: Records = np.empty(0, DUE)
        self._keys: Records = np.empty(0, KEY)
        self._unused: Int64Array = np.empty(0, np.int64)
        self._grow(_SIZE_MIN)
        self.frontier = 0
        self._back_count = 0  # of the wheel, when its frontier followed the clock back last

    def _grow(self, size: int) -> None:
        """Have room for `size` entries in the heap; every entry keeps its place."""
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

    def __len__(self) -> int:
        return int(self._open.heap.count) + sum(map(self._left, range(len(self._runs))))

    def _left(self, i: int) -> int:
        run = self._open.runs[i]
        return int(run.end - run.at)

    def expect(self, slot: int, count: int) -> None:
        """So many of a slot are on their way into the log."""
        with self._lock:
            self._outstanding[slot] = self._outstanding.get(slot, 0) + count

    def expect_many(self, slots: Int64Array) -> None:
        """The same for an array with one slot an entry."""
        for slot, count in _by_slot(slots):
            self.expect(slot, count)

    def done(self, slot: int, count: int) -> None:
        """So many of a slot are in the log, or need not get there."""
        with self._lock:
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
            return np.array(sorted(self._outstanding), np.int64)

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
            if len(entries) >= _RUN_MIN:
                self._add_run(entries)
            elif len(entries):
                self._push_few(entries)
            if frontier is not None:
                is_old = back_count < self._back_count
                self.frontier = min(self.frontier, frontier) if is_old else frontier

    def _push_few(self, entries: Records) -> None:
        heap = self._open.heap
        needed = int(heap.count) + len(entries)
        if needed > len(self._entries):
            self._grow(max(needed, 2 * len(self._entries)))
        lib.ts_heap_push(ffi.addressof(heap), ffi.from_buffer("ts_due[]", entries), len(entries))

    def _add_run(self, entries: Records) -> None:
        """Sort entries into a run of their own. Each run stays less than half the one before it:
        however many are loaded, there are few runs, and an entry is moved few times.
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
        while len(self._runs) > 1 and 2 * self._left(len(self._runs) - 1) >= self._left(
            len(self._runs) - 2
        ):
            self._merge_last_two()

    def _append_run(self, run: Records) -> None:
        view = ffi.from_buffer("ts_due[]", run)
        native = self._open.runs[len(self._runs)]
        native.entries, native.at, native.end = view, 0, len(run)
        self._runs.append((run, view))
        self._open.run_count = len(self._runs)

    def _merge_last_two(self) -> None:
        last = len(self._runs) - 1
        run = np.empty(self._left(last - 1) + self._left(last), DUE)
        first, second = (ffi.addressof(self._open.runs, i) for i in (last - 1, last))
        lib.ts_run_merge(first, second, ffi.from_buffer("ts_due[]", run))
        del self._runs[-2:]
        self._append_run(run)

    def _drop_empty_runs(self) -> None:
        kept = [i for i in range(len(self._runs)) if self._left(i)]
        for to, i in enumerate(kept):
            if to != i:
                self._open.runs[to] = self._open.runs[i]
        self._runs = [self._runs[i] for i in kept]
        self._open.run_count = len(kept)

    def expect_and_push(self, entries: Records) -> None:
        """Late entries: they were read from no slot, but are linked in one."""
        self.expect_many(entries["slot"])
        self.push(entries)

    def pop(self, now_ms: int, capacity: int) -> tuple[Records, int]:
        """Take what is to be done by now, in order; and the frontier that this was decided with."""
        with self._lock:
            out = np.empty(min(capacity, max(1, len(self))), DUE)
            until_ms = min(now_ms, self.frontier * self._precision_ms)
            count = 0
            while True:
                count += lib.ts_open_pop(
                    self._open,
                    until_ms,
                    self.frontier,
                    self._precision_ms,
                    ffi.from_buffer("ts_due[]", out) + count,
                    len(out) - count,
                )
                if not self._open.is_full:
                    return out[:count], self.frontier
                self._grow(2 * len(self._entries))

    def next_wake_ms(self) -> int | None:
        """When the first entry is to be looked at; None: there is none, or its slot not whole."""
        with self._lock:
            wake_ms = int(lib.ts_open_wake(self._open))
            return wake_ms if wake_ms <= self.frontier * self._precision_ms else None
