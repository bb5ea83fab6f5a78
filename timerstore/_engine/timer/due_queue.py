"""Due queue: loaded messages in order of (wake time, timer id).

What comes in large batches lies in sorted runs, what comes in small ones in a heap.

Threads:  one at a time: the open slot's lock.
Cost:     64 bytes of memory an entry; some 30 ns to sort and take it, 230 ns through the heap.
"""

from bisect import bisect_right
from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.timer.timer_arrays import DUE, KEY, Int64Array, Records

_SIZE_MIN = 1024
_FAN = 8  # runs that are merged at a time
_RUN_MAX = 1 << 18  # entries, some 10 ms
RUN_MIN = 512
"""Entries that are worth a run of their own."""


class DueQueue(Owner):
    """Entries, the next to be looked at first."""

    def __init__(self) -> None:
        self._open: Any = ffi.new("ts_open *")
        self._runs: list[tuple[Records, Any]] = []  # what the C side's runs point at
        self._entries: Records = np.empty(0, DUE)
        self._keys: Records = np.empty(0, KEY)
        self._unused: Int64Array = np.empty(0, np.int64)
        self._grow(_SIZE_MIN)

    def __len__(self) -> int:
        return int(self._open.heap.count) + sum(map(self._left, range(len(self._runs))))

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
        """Sort entries into a run of their own. The last `_FAN` runs become one where they are of
        about one size, and that is not so large that who takes would have to wait: however many are
        loaded, there are not many runs, and an entry is moved a few times at most.
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

    def pop(self, until_ms: int, frontier: int, precision_ms: int, out: Records) -> int:
        """Take what is to be done by a time, in order, as much as there is room for: how much. What
        would roll, and whose own slot lies below `frontier` by now, stays until it is due.
        """
        count = 0
        while True:
            count += lib.ts_open_pop(
                self._open,
                until_ms,
                frontier,
                precision_ms,
                ffi.from_buffer("ts_due[]", out) + count,
                len(out) - count,
            )
            if not self._open.is_full:
                return int(count)
            self._grow(2 * len(self._entries))

    def wake_ms(self) -> int:
        """When the first entry is to be looked at; 2**63 - 1: there is none."""
        return int(lib.ts_open_wake(self._open))

    def by(self, wake_ms: int) -> list[Records]:
        """Give what is to be looked at by a time, in parts and in no order; nothing is taken."""
        keys = self._keys[: int(self._open.heap.count)]
        parts: list[Records] = [self._entries[keys["at"][keys["wake_ms"] <= wake_ms]]]
        for i, (run, _) in enumerate(self._runs):
            at, end = int(self._open.runs[i].at), int(self._open.runs[i].end)
            times = run["wake_ms"]
            parts.append(run[at : bisect_right(range(end), wake_ms, at, key=times.item)])
        return parts

    def all(self) -> Records:
        """Give a copy of every entry, in no order."""
        count = int(self._open.heap.count)
        parts = [self._entries[self._keys["at"][:count]]]
        for i, (run, _) in enumerate(self._runs):
            native = self._open.runs[i]
            parts.append(run[int(native.at) : int(native.end)])
        entries: Records = np.concatenate(parts)
        return entries
