"""Measure calls of one message, and one step of the services with one due message.

Each run opens a store without threads, with `pending` messages that are due later, spread over
`spread`, and makes `calls` calls of one kind in one thread. `step` turns the clock to the next due
message and lets the services deliver it, without a checkpoint; `empty_step` turns the clock by as
much, and nothing is due; `checkpoint` completes a checkpoint after one put. The unit is
microseconds of CPU of one call; the rate is calls by wall time.

Raises: WorkError if a call does not return what it must.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Result, need, spread
from benchmarks.rounds import interleaved
from timerstore import AckResult, CancelResult, StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

TOPIC, GROUP, OTHERS = "single", "group", "others"
HOUR_MS = 3_600_000
SPREADS = {"week": 7 * 24 * HOUR_MS, "year": 365 * 24 * HOUR_MS}
FULL: dict[str, Any] = {
    "calls": 300,
    "pending": "0,100000",
    "spread": "week",
    "kinds": "",
    "body": 128,
    "rounds": 3,
    "seconds_max": 300.0,
}
SMOKE: dict[str, Any] = {
    "calls": 3,
    "pending": "0,50",
    "spread": "week",
    "kinds": "",
    "body": 32,
    "rounds": 1,
    "seconds_max": 120.0,
}

Call = Callable[[int], object]


class Bench:
    """A store with pending messages, its clock, and its services."""

    def __init__(self, store: TimerStore, clock: ManualClock, body: bytes) -> None:
        self.store = store
        self.clock = clock
        self.stepper = Stepper(store)
        self.body = body

    def fill(self, pending: int, spread_ms: int) -> None:
        """Put messages that are due later than all others, and link them."""
        if not pending:
            return
        step_ms = max(spread_ms // pending, 1)
        begin_ms = START_MS + 2 * HOUR_MS
        for begin in range(0, pending, 10_000):
            end = min(begin + 10_000, pending)
            due_ms = [begin_ms + at * step_ms for at in range(begin, end)]
            self.store.put_many(OTHERS, [self.body] * (end - begin), deliver_ms=due_ms)
        self.stepper.settle()
        self.store.flush()

    def put(self, count: int, **options: Any) -> list[Any]:
        """Put messages one by one, and let the services bring them as far as they can now."""
        receipts = [self.store.put(TOPIC, self.body, **options) for _ in range(count)]
        self.stepper.settle()
        return receipts

    def lease(self, count: int) -> list[Any]:
        """Put and lease messages."""
        self.put(count)
        found: list[Any] = []
        while len(found) < count:
            found += self.store.receive(TOPIC, GROUP, max_count=min(count, 1000), lease=3600)
        self.stepper.settle()
        return found

    def step_services(self) -> None:
        """Step each service but flush until none has work, as Stepper.settle."""
        names = [name for name in self.stepper.names if name != "flush"]
        while sum(self.stepper.step(name) for name in names):
            pass


def _of_put(bench: Bench, _calls: int) -> Call:
    return lambda _: bench.store.put(TOPIC, bench.body)


def _of_put_with_id(bench: Bench, _calls: int) -> Call:
    return lambda at: bench.store.put(TOPIC, bench.body, message_id=f"id-{at}")


def _of_receive(bench: Bench, calls: int) -> Call:
    bench.put(calls)
    return lambda _: need(len(bench.store.receive(TOPIC, GROUP)) == 1, "nothing received")


def _of_ack(bench: Bench, calls: int) -> Call:
    found = bench.lease(calls)
    return lambda at: need(bench.store.ack(found[at].receipt) is AckResult.ACKED, "not acked")


def _of_nack(bench: Bench, calls: int) -> Call:
    found = bench.lease(calls)
    return lambda at: need(
        bench.store.nack(found[at].receipt, delay=600) is AckResult.NACKED, "not nacked"
    )


def _of_extend(bench: Bench, calls: int) -> Call:
    found = bench.lease(calls)
    return lambda at: bench.store.extend(found[at].receipt, lease=3600)


def _of_cancel(bench: Bench, calls: int) -> Call:
    found = bench.put(calls, delay=3600)
    return lambda at: need(bench.store.cancel(found[at]) is CancelResult.CANCELLED, "not cancelled")


def _of_reschedule(bench: Bench, calls: int) -> Call:
    found = bench.put(calls, delay=3600)
    return lambda at: bench.store.reschedule(found[at], delay=3000)


def _of_pull(bench: Bench, calls: int) -> Call:
    found = bench.put(calls)
    return lambda at: need(
        len(bench.store.pull(TOPIC, found[at].queue_id, at, max_count=1).messages) == 1,
        "nothing pulled",
    )


def _of_explain(bench: Bench, calls: int) -> Call:
    found = bench.put(calls, delay=3600)
    return lambda at: bench.store.explain(found[at])


def _of_count(bench: Bench, _calls: int) -> Call:
    return lambda _: bench.store.stats()["pending_messages"]


def _of_step(bench: Bench, calls: int) -> Call:
    for at in range(calls):
        bench.store.put(TOPIC, bench.body, deliver_ms=START_MS + 1000 * (at + 1))
    bench.stepper.settle()

    def step(at: int) -> None:
        bench.clock.set(START_MS + 1000 * (at + 1))
        bench.step_services()

    return step


def _of_empty_step(bench: Bench, _calls: int) -> Call:
    def step(at: int) -> None:
        bench.clock.set(START_MS + 1000 * (at + 1))
        bench.step_services()

    return step


def _of_checkpoint(bench: Bench, _calls: int) -> Call:
    def checkpoint(_: int) -> None:
        bench.store.put(TOPIC, bench.body, delay=3600)
        bench.store.flush()

    return checkpoint


KINDS: dict[str, Callable[[Bench, int], Call]] = {
    "put": _of_put,
    "put_with_id": _of_put_with_id,
    "receive": _of_receive,
    "ack": _of_ack,
    "nack": _of_nack,
    "extend": _of_extend,
    "cancel": _of_cancel,
    "reschedule": _of_reschedule,
    "pull": _of_pull,
    "explain": _of_explain,
    "count": _of_count,
    "step": _of_step,
    "empty_step": _of_empty_step,
    "checkpoint": _of_checkpoint,
}


_NONE_LEFT = {"step", "cancel", "empty_step"}
"""After these kinds, only the other messages are pending."""


def once(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Make the calls of one kind, and measure each."""
    calls, pending = parameters["calls"], parameters["pending"]
    clock = ManualClock(START_MS)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        bench = Bench(store, clock, b"x" * parameters["body"])
        bench.fill(pending, SPREADS[parameters["spread"]])
        call = KINDS[parameters["kind"]](bench, calls + 1)
        call(0)  # the first call loads what later ones find
        laps_us = []
        began = time.perf_counter()
        for at in range(1, calls + 1):
            before = time.process_time_ns()
            call(at)
            laps_us.append((time.process_time_ns() - before) / 1000)
        took = time.perf_counter() - began
        if parameters["kind"] in _NONE_LEFT:
            left = store.stats()["pending_messages"]
            need(left == pending, f"{left} messages are pending, and must be {pending}")
    return Result(
        "single",
        parameters,
        calls,
        calls / took,
        "us of CPU",
        spread(laps_us),
        config.flush,
        harness.digest(f"{parameters}"),
        {"cpu_us": sum(laps_us) / calls},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Each kind with each number of pending messages, in turns."""
    config = (harness.small_config if smoke else StoreConfig)(flush="async")
    kinds = parameters["kinds"].split(",") if parameters["kinds"] else list(KINDS)
    shared = {name: parameters[name] for name in ("calls", "spread", "body")}
    variants = [
        partial(once, config, {"kind": kind, "pending": int(pending), **shared})
        for pending in parameters["pending"].split(",")
        for kind in kinds
    ]
    return interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
