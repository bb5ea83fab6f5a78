"""Measure messages from put_many to pull_batch in one process, with a manual clock.

The n messages have due times uniform over a horizon, and bodies that do not compress. The phases:

| phase   | work                                                                         |
|---------|------------------------------------------------------------------------------|
| put     | put_many with lists or with one buffer                                       |
| enqueue | all services at the start time: write messages to the timer log and wheel    |
| deliver | advance the clock over the horizon in `stops` steps; all services, and flush |
| pull    | read all messages                                                            |

With threads, `enqueue` is the part that did not overlap with put, and `pull` waits for delivery.
The time excludes making the bodies, and checking the pulled messages. Memory is measured while all
n are pending: resident bytes without the mapped files of the store, minus the value before opening.

Thread safety: with `threads` the services have their own threads, as in production. Otherwise they
    are stepped, so that the phases are separate. Each run is a separate process.
Raises: WorkError if a message is missing, duplicated, early or out of order.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Result, Stopwatch, Work, need
from benchmarks.rounds import interleaved
from benchmarks.turned import TurnedClock
from benchmarks.warm import warm_bytes_for
from timerstore import StoreConfig, TimerStore
from timerstore.testing import Stepper

TOPIC = "bench"
WAIT_S = 10.0  # for messages in delivery; far more than needed
FULL: dict[str, Any] = {
    "n": 1_000_000,
    "body": 128,
    "batch": 10_000,
    "horizon_s": 600,
    "stops": 600,
    "rounds": 5,
    "seconds_max": 300.0,
}
SMOKE: dict[str, Any] = {
    "n": 3_000,
    "body": 64,
    "batch": 500,
    "horizon_s": 60,
    "stops": 12,
    "rounds": 1,
    "seconds_max": 60.0,
}


def once(work: Work, config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """One run in a fresh directory."""
    batch, stops, form = parameters["batch"], parameters["stops"], parameters["form"]
    horizon_ms = parameters["horizon_s"] * 1000
    put, enqueue, deliver, pull = (Stopwatch() for _ in range(4))
    turns = np.linspace(0, horizon_ms, stops + 1)[1:].astype(np.int64) + START_MS
    threads = parameters["threads"]
    before = harness.memory(root)
    clock = TurnedClock(START_MS)
    with timerstore.open(root, config, clock=clock, threads=threads) as store:
        settle = partial(_wait_enqueued, store) if threads else Stepper(store).settle
        _put_all(store, work, batch, form, put)
        with enqueue:
            settle()
        pending = harness.memory(root)
        on_disk = harness.disk(root)
        for now_ms in turns.tolist():
            clock.set(now_ms)
            if not threads:
                with deliver:
                    settle()
        rows, late = _pull_all(store, work, batch, pull)
    _check(work, rows)
    need(int(late.min()) >= 0, "something came early")
    seconds = {
        "put": put.seconds,
        "enqueue": enqueue.seconds,
        "deliver": deliver.seconds,
        "pull": pull.seconds,
    }
    total = sum(seconds.values())
    beyond = pending.beyond_bytes - before.beyond_bytes
    figures: dict[str, Any] = {
        f"{name}_ns": taken * 1e9 / work.n for name, taken in seconds.items()
    }
    figures |= {
        "seconds": total,
        "beyond_files_bytes": beyond,
        "beyond_files_bytes_per_pending": beyond / work.n,
        "anonymous_bytes": pending.anonymous_bytes - before.anonymous_bytes,
        "disk_bytes_per_pending": on_disk.allocated_bytes / work.n,
        "disk_bytes_per_message_after": harness.disk(root).allocated_bytes / work.n,
        "lateness_max_ms": int(late.max()),
    }
    return Result(
        "end_to_end",
        parameters,
        work.n,
        work.n / total,
        "ns a message of a put_many",
        harness.spread(np.array(put.laps_ns) / batch),
        f"{config.flush}, durable when settled",
        harness.digest(rows, work.due_ms),
        figures,
    )


def _put_all(store: TimerStore, work: Work, batch: int, form: str, watch: Stopwatch) -> None:
    for begin in range(0, work.n, batch):
        end = min(begin + batch, work.n)
        bodies: Any = work.part(begin, end) if form != "list" else work.bodies(begin, end)
        with watch:
            receipts = store.put_many(TOPIC, bodies, deliver_ms=work.due_ms[begin:end])
        need(len(receipts) == end - begin, "put_many acknowledged another number than was put")


def _wait_enqueued(store: TimerStore) -> None:
    while store.stats()["enqueue_lag_messages"]:
        time.sleep(0.001)


def _pull_all(
    store: TimerStore, work: Work, batch: int, watch: Stopwatch
) -> tuple[harness.Int64, harness.Int64]:
    rows = [np.zeros(0, dtype=np.int64)]
    late = [np.zeros(0, dtype=np.int64)]
    offset = 0
    while offset < work.n:
        with watch:
            pulled = store.pull_batch(TOPIC, 0, offset, max_count=batch, wait=WAIT_S)
        if not len(pulled):
            break
        rows.append(harness.rows_of(pulled.bodies, work.body_bytes))
        late.append(pulled.delivered_ms - work.due_ms[rows[-1]])
        offset = int(pulled.next_offset)
    return np.concatenate(rows), np.concatenate(late)


def _check(work: Work, rows: harness.Int64) -> None:
    need(len(rows) == work.n, f"{len(rows)} came out, {work.n} were put")
    need(bool((np.bincount(rows, minlength=work.n) == 1).all()), "something lost or doubled")
    need(bool((rows == work.due_order()).all()), "not in the order of (due, put)")


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Five variants in turn, `rounds` times over.

    The form "needed" is a buffer in a store with delivered_properties="needed".
    """
    told = {name: parameters[name] for name in ("n", "body", "batch", "horizon_s")}
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    work = harness.make_work(told["n"], told["body"], told["horizon_s"] * 1000)
    ways: tuple[tuple[bool, int, str], ...] = (
        (True, 1, "list"),
        (True, 1, "buffer"),
        (True, 1, "needed"),
        (False, 1, "buffer"),
        (False, parameters["stops"], "list"),
    )
    changes: dict[str, dict[str, Any]] = {"needed": {"delivered_properties": "needed"}}
    known = {one.name for one in fields(StoreConfig)}  # a base of bench-compare may be older
    variants = [
        partial(
            once,
            work,
            replace(config, **changes.get(form, {})),
            {**told, "stops": stops, "form": form, "threads": threads},
        )
        for threads, stops, form in ways
        if known >= changes.get(form, {}).keys()
    ]
    return interleaved(
        variants,
        parameters,
        smoke=smoke,
        directory=directory,
        warm_bytes=warm_bytes_for(told["n"], told["body"]),
    )


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
