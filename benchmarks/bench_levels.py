"""Compare the cost of a fixed delay level with that of a timer with the same delay.

n messages of one size are put one by one. Each is due `delay` seconds after its put, by `level=1`
or by `delay=`. Both variants make the same calls with the same clocks. The phases are put (one call
per message, with the system clock), wait (all services: a timer gets a unit in the timer log,
a level message a queue unit) and deliver. Before deliver the store is reopened with a manual clock.

Thread safety: the services are stepped, so that the phases are separate. Each run is a separate
    process.
Raises: WorkError if a message is missing, duplicated, early or out of order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, Stopwatch, Work, need
from benchmarks.rounds import interleaved
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

TOPIC = "bench"
FULL: dict[str, Any] = {
    "n": 300_000,
    "body": 128,
    "delay": 3600,
    "rounds": 5,
    "seconds_max": 120.0,
}
SMOKE: dict[str, Any] = {
    "n": 2_000,
    "body": 64,
    "delay": 3600,
    "rounds": 1,
    "seconds_max": 60.0,
}


def once(work: Work, config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """One run in a fresh directory."""
    delay_s = parameters["delay"]
    how: dict[str, Any] = {"level": 1} if parameters["kind"] == "level" else {"delay": delay_s}
    put, wait, deliver = (Stopwatch() for _ in range(3))
    bodies = work.bodies(0, work.n)
    with timerstore.open(root, config, threads=False) as store:
        store.put(TOPIC, bodies[0], **how)  # makes the queues
        with put:
            for body in bodies[1:]:
                receipt = store.put(TOPIC, body, **how)
        with wait:
            Stepper(store).settle()
    clock = ManualClock(receipt.due_ms - delay_s * 1000)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        stepper.settle()
        clock.set(receipt.due_ms)
        with deliver:
            stepper.settle()
        batch = store.pull_batch(TOPIC, 0, 0, max_count=work.n + 1)
    need(len(batch) == work.n, f"{len(batch)} came out, {work.n} were put")
    rows = harness.rows_of(batch.bodies, work.body_bytes)
    need(bool((rows == np.arange(work.n)).all()), "not in the order of put")
    need(bool((batch.due_ms == batch.born_ms + delay_s * 1000).all()), "due at another time")
    need(bool((batch.delivered_ms >= batch.due_ms).all()), "something came early")
    phases = {"put": put.seconds, "wait": wait.seconds, "deliver": deliver.seconds}
    total = sum(phases.values())
    return Result(
        "levels",
        parameters,
        work.n,
        work.n / total,
        "ns a message, put to delivered",
        harness.spread([total * 1e9 / work.n]),
        f"{config.flush}, durable when settled",
        harness.digest(rows),
        {f"{name}_ns": taken * 1e9 / work.n for name, taken in phases.items()},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """A level, a timer, and so on, `rounds` times over."""
    parameters = dict(parameters)
    limits = {name: parameters.pop(name) for name in ("rounds", "seconds_max")}
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    config = replace(config, level_delays=f"{parameters['delay']}s")
    work = harness.make_work(parameters["n"], parameters["body"], 1000)
    variants = [
        partial(once, work, config, {**parameters, "kind": kind}) for kind in ("level", "timer")
    ]
    return interleaved(variants, limits, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
