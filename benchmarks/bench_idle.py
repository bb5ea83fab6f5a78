"""Measure the CPU use of an idle store with a million timers and all its threads.

The n messages are due in a day or later. The result is CPU seconds of the process over `seconds` of
wall time, on the real clock. The measurement begins when the process is idle: less than 1 ms of CPU
in half a second. The result also has the figure of a process that only sleeps, and the context
switches counted by the kernel. They show a store that polls even if its CPU time is too small.

Raises: WorkError if the process does not become idle, or if n messages are not pending.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, Spread, need
from benchmarks.rounds import watched
from timerstore import StoreConfig, TimerStore

TOPIC = "bench"
DAY_MS = 86_400_000
REST_S = 0.5
REST_CPU_S = 0.001
PATIENCE_S = 120.0
FULL: dict[str, Any] = {"n": 1_000_000, "body": 128, "batch": 10_000, "seconds": 10.0}
SMOKE: dict[str, Any] = {"n": 500, "body": 32, "batch": 100, "seconds": 0.1}


class Use(NamedTuple):
    """CPU and context switches of this process."""

    cpu_s: float
    voluntary: int
    forced: int

    @classmethod
    def now(cls) -> Use:
        """Since the process began."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_nvcsw, used.ru_nivcsw)

    def since(self, before: Use) -> Use:
        """The difference."""
        return Use(
            self.cpu_s - before.cpu_s,
            self.voluntary - before.voluntary,
            self.forced - before.forced,
        )


def used_over(seconds: float) -> Use:
    """Sleep once, and return the usage of the process during the sleep."""
    before = Use.now()
    time.sleep(seconds)
    return Use.now().since(before)


def come_to_rest() -> float:
    """Wait until half a second passes without CPU; how long that took."""
    began = time.monotonic()
    while used_over(REST_S).cpu_s > REST_CPU_S:
        need(time.monotonic() - began < PATIENCE_S, f"still busy after {PATIENCE_S} s")
    return time.monotonic() - began


def fill(store: TimerStore, parameters: dict[str, Any], start_ms: int) -> harness.Int64:
    """Put everything; the due times, less the start."""
    n, batch = parameters["n"], parameters["batch"]
    work = harness.make_work(n, parameters["body"], DAY_MS, start_ms=start_ms + DAY_MS)
    for begin in range(0, n, batch):
        end = min(begin + batch, n)
        store.put_many(TOPIC, work.part(begin, end), deliver_ms=work.due_ms[begin:end])
    return work.due_ms - start_ms


def once(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Fill, come to rest, measure."""
    seconds = parameters["seconds"]
    asleep = used_over(seconds)
    start_ms = time.time_ns() // 1_000_000
    with timerstore.open(root, config) as store:
        due = fill(store, parameters, start_ms)
        rest_s = come_to_rest()
        idle = used_over(seconds)
        pending = sum(1 for _ in store.pending())
    need(pending == parameters["n"], f"{pending} pending, {parameters['n']} put")
    return Result(
        "idle",
        parameters,
        parameters["n"],
        float("nan"),
        "CPU s",
        Spread(idle.cpu_s, idle.cpu_s, idle.cpu_s),
        config.flush,
        harness.digest(np.sort(due)),
        {
            "cpu_seconds": idle.cpu_s,
            "cpu_percent": 100 * idle.cpu_s / seconds,
            "voluntary_switches": idle.voluntary,
            "forced_switches": idle.forced,
            "asleep_cpu_seconds": asleep.cpu_s,
            "asleep_voluntary_switches": asleep.voluntary,
            "seconds_to_rest": rest_s,
        },
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """One line."""
    make = harness.small_config if smoke else StoreConfig
    job = partial(once, make(flush="async"), parameters)
    yield watched(job, 0, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print the line."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
