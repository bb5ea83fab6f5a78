"""Compare DelayQueue with heapq and with a hierarchical timing wheel, on the same work in turns.

A run adds n keys and cancels every third. Due times are uniform over a minute (dense) or 30 days
(sparse), or all within 20 ms (burst). Then the clock advances over the horizon in steps. Each step
removes the due keys and reads the next due time. Memory is the tracemalloc count after all keys are
added, without keys and due times, in a separate pass. Every run is a separate process.

heapq and the wheel are pure Python, written for this comparison. heapq uses a dict by key, deletes
lazily, and rebuilds its heap when more than half of it is cancelled. The wheel has slots of 1 ms
and eight levels of 256 slots. The level of a key is the highest base-256 digit in which due time
and clock differ, so that slots cascade as a whole and the order is kept. A 256-bit number for each
level finds the next used slot.

`DelayQueue` uses its default buckets of one second, which it widens by itself in the sparse shape.
`DelayQueue 1 h` uses buckets of an hour, which hold the whole dense shapes.

Invariants:
    All three find by key, reject a duplicate key, cancel at once, and return equal due times in
    the order of adding. Their work digests are equal in each shape.
Raises: WorkError if one returns other keys or another order.
"""

from __future__ import annotations

import gc
import heapq
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks import harness
from benchmarks.harness import SEED, START_MS, Result, need
from benchmarks.rounds import interleaved
from benchmarks.warm import AHEAD_BYTES
from timerstore import DelayQueue

FULL: dict[str, Any] = {"n": 300_000, "steps": 3_000, "rounds": 3, "seconds_max": 300.0}
SMOKE: dict[str, Any] = {"n": 300, "steps": 20, "rounds": 1, "seconds_max": 60.0}
SHAPES = {"dense": 60_000, "sparse": 30 * 86_400_000, "burst": 20}
"""Horizons, ms."""


class Planner(Protocol):
    """The operations of all three."""

    def add(self, key: Any, due_ms: int) -> object: ...
    def cancel(self, key: Any) -> object: ...
    def expire(self, now_ms: int) -> list[Any]: ...
    def next_due_ms(self) -> int | None: ...


class HeapPlanner:
    """A heap of (due, order, key) with lazy deletion, and a dict of the waiting entries."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._waiting: dict[Any, tuple[int, int, Any]] = {}
        self._order = 0

    def add(self, key: Any, due_ms: int) -> object:
        if key in self._waiting:
            raise ValueError(key)
        entry = self._waiting[key] = (due_ms, self._order, key)
        self._order += 1
        heapq.heappush(self._heap, entry)
        return entry

    def cancel(self, key: Any) -> object:
        entry = self._waiting.pop(key, None)
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = list(self._waiting.values())
            heapq.heapify(self._heap)
        return entry

    def expire(self, now_ms: int) -> list[Any]:
        heap, waiting = self._heap, self._waiting
        found = []
        while heap and heap[0][0] <= now_ms:
            entry = heapq.heappop(heap)
            if waiting.get(entry[2]) is entry:
                del waiting[entry[2]]
                found.append(entry)
        return found

    def next_due_ms(self) -> int | None:
        heap, waiting = self._heap, self._waiting
        while heap and waiting.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None


class WheelPlanner:
    """Levels of 256 slots. A slot is a dict by key, so a cancel removes its entry at once."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms  # everything due before it is removed
        self._levels: list[list[dict[Any, int] | None]] = [[None] * 256 for _ in range(8)]
        self._used = [0] * 8
        self._due: dict[Any, int] = {}

    def _place(self, due_ms: int) -> tuple[int, int]:
        level = max(0, (due_ms ^ self._now_ms).bit_length() - 1) // 8
        return level, (due_ms >> 8 * level) & 255

    def add(self, key: Any, due_ms: int) -> object:
        if key in self._due:
            raise ValueError(key)
        self._due[key] = due_ms
        self._insert(key, due_ms)
        return key

    def _insert(self, key: Any, due_ms: int) -> None:
        level, at = self._place(max(due_ms, self._now_ms))
        slot = self._levels[level][at]
        if slot is None:
            slot = self._levels[level][at] = {}
            self._used[level] |= 1 << at
        slot[key] = due_ms

    def cancel(self, key: Any) -> object:
        due_ms = self._due.pop(key, None)
        if due_ms is None:
            return None
        level, at = self._place(max(due_ms, self._now_ms))
        slot = self._levels[level][at]
        assert slot is not None
        del slot[key]
        if not slot:
            self._clear(level, at)
        return key

    def _clear(self, level: int, at: int) -> None:
        self._levels[level][at] = None
        self._used[level] ^= 1 << at

    def _next_slot(self) -> tuple[int, int, int] | None:
        """Return level, slot and start time of the first used slot."""
        for level, used in enumerate(self._used):
            if used:
                at = (used & -used).bit_length() - 1
                above = self._now_ms >> 8 * (level + 1) << 8 * (level + 1)
                return level, at, above + (at << 8 * level)
        return None

    def expire(self, now_ms: int) -> list[Any]:
        found: list[Any] = []
        while (there := self._next_slot()) is not None and there[2] <= now_ms:
            level, at, begin_ms = there
            slot = self._levels[level][at]
            assert slot is not None
            self._clear(level, at)
            self._now_ms = max(self._now_ms, begin_ms)
            if level:
                for key, due_ms in slot.items():
                    self._insert(key, due_ms)
            else:
                for key, due_ms in slot.items():
                    del self._due[key]
                    found.append((due_ms, key))
        self._advance(now_ms)
        return found

    def _advance(self, now_ms: int) -> None:
        """Advance the clock, and distribute the slots that it enters to lower levels."""
        self._now_ms = max(self._now_ms, now_ms)
        for level in range(7, 0, -1):
            at = (self._now_ms >> 8 * level) & 255
            slot = self._levels[level][at]
            if slot is not None:
                self._clear(level, at)
                for key, due_ms in slot.items():
                    self._insert(key, due_ms)

    def next_due_ms(self) -> int | None:
        there = self._next_slot()
        if there is None:
            return None
        slot = self._levels[there[0]][there[1]]
        assert slot is not None
        return min(slot.values())


PLANNERS: dict[str, Callable[[], Planner]] = {
    "DelayQueue": DelayQueue,
    "DelayQueue 1 h": partial(DelayQueue, bucket_ms=3_600_000),
    "heapq": HeapPlanner,
    "wheel": WheelPlanner,
}


class Job(NamedTuple):
    """The work: due times, cancelled keys, and times of the steps."""

    due: list[int]
    cancelled: list[int]
    looks: list[int]

    def order(self) -> list[int]:
        """Return the keys in the required order."""
        gone = set(self.cancelled)
        left = [key for key in range(len(self.due)) if key not in gone]
        return sorted(left, key=self.due.__getitem__)


def make_job(n: int, steps: int, horizon_ms: int) -> Job:
    """Create a job. Equal parameters give equal jobs."""
    random = np.random.default_rng(SEED)
    due = START_MS + random.integers(1, horizon_ms + 1, size=n, dtype=np.int64)
    cancelled = random.permutation(n)[: n // 3]
    looks = START_MS + np.unique(np.linspace(0, horizon_ms, steps + 1).astype(np.int64))
    return Job(due.tolist(), cancelled.tolist(), looks.tolist())


def held_bytes(make: Callable[[], Planner], job: Job) -> int:
    """Return the memory of a planner with all keys, without keys and due times."""
    tracemalloc.start()
    planner = make()
    for key, due_ms in enumerate(job.due):
        planner.add(key, due_ms)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del planner
    return used


def once(engine: str, shape: str, parameters: dict[str, Any], _root: Path) -> Result:
    """One run of one of them."""
    job = make_job(parameters["n"], parameters["steps"], SHAPES[shape])
    make = PLANNERS[engine]
    memory = held_bytes(make, job)
    planner = make()
    keys = list(range(len(job.due)))
    found: list[Any] = []
    laps = harness.Stopwatch()
    gc.collect()
    began = time.perf_counter()
    for key, due_ms in zip(keys, job.due, strict=True):
        planner.add(key, due_ms)
    added = time.perf_counter()
    for key in job.cancelled:
        planner.cancel(key)
    cancelled = time.perf_counter()
    for now_ms in job.looks:
        with laps:
            out = planner.expire(now_ms)
            planner.next_due_ms()
        found += out
    ended = time.perf_counter()
    came = [entry[-1] if engine == "heapq" else entry[1] for entry in found]
    need(planner.next_due_ms() is None, f"{engine}: keys are left")
    need(came == job.order(), f"{engine}: other keys, or another order")
    return Result(
        "delay_queue",
        {"engine": engine, "shape": shape, **parameters},
        len(keys),
        len(keys) / (ended - began),
        "us a look",
        harness.spread(np.array(laps.laps_ns) / 1000),
        "none",
        harness.digest(np.array(came, np.int64)),
        {
            "add_rate": len(keys) / (added - began),
            "cancel_rate": len(job.cancelled) / (cancelled - added),
            "expire_rate": len(came) / (ended - cancelled),
            "held_bytes_per_key": memory / len(keys),
        },
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Every one once a round, in each shape."""
    parameters = dict(parameters)
    limits = {name: parameters.pop(name) for name in ("rounds", "seconds_max")}
    variants = [partial(once, engine, shape, parameters) for shape in SHAPES for engine in PLANNERS]
    return interleaved(
        variants,
        limits,
        smoke=smoke,
        directory=directory,
        warm_bytes=AHEAD_BYTES,
    )


def medians(results: list[Result]) -> str:
    """Medians of the rounds, and how many times as fast as each DelayQueue is."""
    by_engine: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (result.parameters["shape"], result.parameters["engine"])
        by_engine.setdefault(key, []).append(result)
    names = ("add_rate", "cancel_rate", "expire_rate", "held_bytes_per_key")
    head = f"{'shape, engine':<24}{'add/s':>12}{'cancel/s':>12}{'expire/s':>12}"
    lines = [f"{head}{'B held':>8}{'all/s':>12}{'ours is':>10}"]
    for (shape, engine), runs in by_engine.items():
        figures = [statistics.median(result.figures[name] for result in runs) for name in names]
        rate = statistics.median(result.rate for result in runs)
        ours = statistics.median(result.rate for result in by_engine[shape, "DelayQueue"])
        lines.append(
            f"{shape + ' ' + engine:<24}{figures[0]:>12,.0f}{figures[1]:>12,.0f}"
            f"{figures[2]:>12,.0f}{figures[3]:>8,.0f}{rate:>12,.0f}{ours / rate:>8.2f} x"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run, then medians and ratios."""
    options = harness.arguments(__doc__, FULL).parse_args(argv)
    found = run(harness.chosen(options, FULL, SMOKE), options.smoke, options.directory)
    print(medians(harness.emit(found, options.json)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
