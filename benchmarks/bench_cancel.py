"""Measure cancels of pending messages by handle, from one caller, from many, and by lists.

n messages are due in a day. Each is cancelled once in a shuffled order, `cancels` of them per call.
The result of `cancel` is durable: one caller waits for the disk each time, and many share a sync.
Every run is a separate process with `callers` threads and the threads of the store.

Raises: WorkError if an answer is not CANCELLED, or if a message is pending at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, need
from benchmarks.peers.ours import wait_enqueued
from benchmarks.rounds import interleaved
from timerstore import CancelResult, StoreConfig
from timerstore.testing import ManualClock

TOPIC = "bench"
DAY_MS = 86_400_000
FULL: dict[str, Any] = {
    "n": 100_000,
    "alone": 3_000,
    "body": 128,
    "batch": 10_000,
    "callers": 64,
    "cancels": 1_000,
    "rounds": 5,
    "seconds_max": 60.0,
}
SMOKE: dict[str, Any] = {
    "n": 300,
    "alone": 20,
    "body": 32,
    "batch": 100,
    "callers": 4,
    "cancels": 50,
    "rounds": 1,
    "seconds_max": 20.0,
}


def once(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Put, cancel all, look that nothing waits."""
    n, callers, each = parameters["n"], parameters["callers"], parameters["cancels"]
    work = harness.make_work(n, parameters["body"], DAY_MS)
    clock = ManualClock(harness.START_MS)
    handles: list[str] = []
    with timerstore.open(root, config, clock=clock) as store:
        for begin in range(0, n, parameters["batch"]):
            end = min(begin + parameters["batch"], n)
            due = work.due_ms[begin:end] + DAY_MS
            receipts = store.put_many(TOPIC, work.part(begin, end), deliver_ms=due)
            handles += [one.handle for one in receipts]
        wait_enqueued(store)
        np.random.default_rng(harness.SEED).shuffle(handles)
        laps: list[list[int]] = [[] for _ in range(callers)]
        others: list[CancelResult] = []

        def call(caller: int) -> None:
            mine = handles[caller::callers]
            for begin in range(0, len(mine), each):
                some = mine[begin : begin + each]
                before = time.perf_counter_ns()
                answers = [store.cancel(some[0])] if each == 1 else store.cancel_many(some)
                laps[caller].append((time.perf_counter_ns() - before) // len(some))
                others.extend(one for one in answers if one is not CancelResult.CANCELLED)

        threads = [threading.Thread(target=call, args=(one,)) for one in range(callers)]
        cpu, began = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, used = time.perf_counter() - began, time.process_time() - cpu
        pending = store.stats()["pending_messages"]
    need(not others, f"cancel answered {others[:3]}")
    need(pending == 0, f"{pending} still wait")
    return Result(
        "cancel",
        parameters,
        n,
        n / took,
        "ns a cancel",
        harness.spread([lap for part in laps for lap in part]),
        "each answer durable",
        harness.digest(f"{n} {callers} {each}", work.due_ms),
        {"cpu_ns": used * 1e9 / n},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """One caller, many, and one with lists, in turns."""
    make = harness.small_config if smoke else StoreConfig
    told = {name: parameters[name] for name in ("body", "batch")}
    alone, n = parameters["alone"], parameters["n"]
    ways = (alone, 1, 1), (n, parameters["callers"], 1), (n, 1, parameters["cancels"])
    variants = [
        partial(
            once,
            make(flush="async"),
            {**told, "n": number, "callers": callers, "cancels": cancels},
        )
        for number, callers, cancels in ways
    ]
    return interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
