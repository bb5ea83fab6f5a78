"""Compare two ways to wait a year: rolling every two days, and waiting on the far wheel.

n messages of one size are put in one call, due in `days`. The clock advances by a day at a time.
The services are stepped. Each run is a separate process, and is measured in CPU time, which does
not depend on the load of the machine.

Figures per message, from enqueue to delivery: CPU time, bytes of log, writes of the body
including the delivery, and bytes of units in the timer log and on the far wheel.

Raises: WorkError if a message is missing or early.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, Work, need
from benchmarks.rounds import interleaved
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

TOPIC = "bench"
DAY_MS = 86_400_000
BEGIN_MS = 1_700_000_000_000
UNIT_BYTES = 52
FULL: dict[str, Any] = {"n": 5_000, "body": 128, "days": 365, "rounds": 3, "seconds_max": 120.0}
SMOKE: dict[str, Any] = {"n": 200, "body": 64, "days": 20, "rounds": 1, "seconds_max": 60.0}


def once(work: Work, config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """One run in a fresh directory."""
    clock = ManualClock(BEGIN_MS)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        due_ms = BEGIN_MS + parameters["days"] * DAY_MS
        store.put_many(TOPIC, work.bodies(0, work.n), deliver_ms=due_ms)
        stepper.settle()
        before, begin = store.stats(), time.process_time()
        for _ in range(parameters["days"] - 1):
            clock.advance(DAY_MS)
            stepper.settle()
        early = store.pull(TOPIC, 0, 0).messages if TOPIC in store.topics() else ()
        clock.advance(DAY_MS)
        stepper.settle()
        seconds = time.process_time() - begin
        after = store.stats()
        batch = store.pull_batch(TOPIC, 0, 0, max_count=work.n + 1)
    need(not early, "something came early")
    need(len(batch) == work.n, f"{len(batch)} came out, {work.n} were put")
    rows = harness.rows_of(batch.bodies, work.body_bytes)

    def grown(name: str) -> float:
        return (int(after[name]) - int(before[name])) / work.n

    return Result(
        "far",
        parameters,
        work.n,
        work.n / seconds,
        "us of CPU a message",
        harness.spread([seconds * 1e6 / work.n]),
        f"{config.flush}, durable when settled",
        harness.digest(rows),
        {
            "log_bytes": grown("log_end_bytes"),
            "bodies": grown("dequeue_put_rolled_messages") + grown("dequeue_put_messages"),
            "unit_bytes": grown("timer_log_end_bytes") + UNIT_BYTES * grown("far_added_messages"),
        },
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Rolled, far, and so on, `rounds` times over."""
    parameters = dict(parameters)
    limits = {name: parameters.pop(name) for name in ("rounds", "seconds_max")}
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    config = replace(config, index_enabled=False)
    work = harness.make_work(parameters["n"], parameters["body"], 1000)
    modes: tuple[Literal["off", "shared"], ...] = ("off", "shared")
    variants = [
        partial(once, work, replace(config, far_wheel=mode), {**parameters, "far_wheel": mode})
        for mode in modes
    ]
    return interleaved(variants, limits, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
