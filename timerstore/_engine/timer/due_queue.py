"""Keep loaded messages in order of (wake time, timer id).

The wake time is when an entry leaves the queue: its due time, or an earlier time if it rolls. Large
batches are kept in sorted runs, small ones in a heap. An entry takes 64 bytes of memory. Sorting
and taking it costs about 30 ns in a run and 230 ns in the heap.

Thread safety: none; the open slot's lock admits one thread at a time.
"""

from bisect import bisect_right
from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.timer.timer_arrays import DUE, KEY, Int64Array, Records

_SIZE_MIN = 1024
_FAN = 8  # runs that are merged at a time
_RUN_MAX = 1 << 18  # entries of a merged run, about 10 ms
RUN_MIN = 512
"""The smallest batch that becomes a run."""


class DueQueue(Owner):
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

    def all(self) -> Records:
        """Return a copy of every entry, unordered."""
        count = int(self._open.heap.count)
        parts = [self._entries[self._keys["at"][:count]]]
        for i, (run, _) in enumerate(self._runs):
            native = self._open.runs[i]
            parts.append(run[int(native.at) : int(native.end)])
        entries: Records = np.concatenate(parts)
        return entries
