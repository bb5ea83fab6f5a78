"""Measure the lateness that a burst of one topic causes for the next message of another topic.

n messages of topic `hot` are due at T, and one message of topic `other` at T + 1 ms. The services
are stepped on a manual clock. Times are CPU times of one core, which do not depend on the load of
the machine. Each run is a separate process.

| figure  | meaning                                                                        |
|---------|--------------------------------------------------------------------------------|
| load_s  | reading the slot of the burst                                                  |
| other_s | from T + 1 ms until the other message is in its topic                          |
| crowd_s | until all messages of the burst are delivered                                  |
| ahead_s | clock time before T at which reading began                                     |
| late_s  | other_s, and the part of load_s that exceeds ahead_s                           |

The order `turns` uses the fair queue: the burst has a queue of its own, and its slot is read ahead.
The order `one` delivers all messages in one order, and reads the slot when it is due.

Raises: WorkError if a message is missing, early, or out of the order of its topic.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import Result, Work, need
from benchmarks.rounds import interleaved
from benchmarks.warm import warm_bytes_for
from timerstore import StoreConfig
from timerstore._engine.timer import dequeue_get, fair_queue, open_slot
from timerstore.testing import ManualClock, Stepper

FULL: dict[str, Any] = {"n": 10_000_000, "body": 8, "rounds": 3, "seconds_max": 300.0}
SMOKE: dict[str, Any] = {"n": 2_000, "body": 8, "rounds": 1, "seconds_max": 60.0}
_NOW_MS = 1_700_000_000_000
_DUE_MS = _NOW_MS + 3_600_000
_AHEAD_MS = 60_000


def once(work: Work, config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """One run in a fresh directory."""
    never = (1 << 31) - 1
    burst = never if parameters["order"] == "one" else parameters["crowd"]
    fair_queue.BURST_MESSAGES = open_slot.BURST_MESSAGES = dequeue_get._CROWD = burst
    clock = ManualClock(_NOW_MS)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        for at in range(0, work.n, 100_000):
            store.put_many("hot", work.bodies(at, min(work.n, at + 100_000)), deliver_ms=_DUE_MS)
        store.put("other", b"x", deliver_ms=_DUE_MS + 1)
        Stepper(store).settle()
        services = store.services()
        readers = services["dequeue_get"], services["dequeue_get_message"]
        loaded, load_s = 0, 0.0
        for ms in range(_AHEAD_MS, 0, -config.precision_ms):
            clock.set(_DUE_MS - ms)
            begin = time.process_time()
            while sum(service.step() for service in readers):
                pass
            load_s += time.process_time() - begin
            ahead_s = ms / 1000
            if loaded := int(store.stats()["open_slot_messages"]):
                break
        need(loaded >= work.n, f"{loaded} were read before their time")
        clock.set(_DUE_MS + 1)
        begin = time.process_time()
        other_s = None
        while sum(service.step() for service in services.values()):
            if other_s is None and store.pull("other", 0, 0).messages:
                other_s = time.process_time() - begin
        crowd_s = time.process_time() - begin
        rows = all_of(store, work)
    if other_s is None:
        raise harness.WorkError("the message of the other topic was not delivered")
    late_s = max(0.0, load_s - ahead_s) + other_s
    return Result(
        "hot_slot",
        parameters,
        work.n,
        work.n / (load_s + crowd_s),
        "s late, the other topic's",
        harness.spread([late_s]),
        "async, durable when settled",
        harness.digest(rows),
        {
            "load_s": load_s,
            "ahead_s": ahead_s,
            "other_s": other_s,
            "crowd_s": crowd_s,
            "late_s": late_s,
        },
    )


def all_of(store: timerstore.TimerStore, work: Work) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the row numbers of the burst in delivery order."""
    parts: list[Any] = []
    offset = 0
    while len(batch := store.pull_batch("hot", 0, offset, max_count=100_000)):
        parts.append(harness.rows_of(batch.bodies, work.body_bytes))
        need(bool((batch.delivered_ms >= batch.due_ms).all()), "something came early")
        offset = batch.next_offset
    rows = np.concatenate(parts)
    need(len(rows) == work.n, f"{len(rows)} came out, {work.n} were put")
    need(bool((rows == np.arange(work.n)).all()), "not in the order of put")
    return rows


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """With turns, without, and so on, `rounds` times over."""
    parameters = dict(parameters)
    limits = {name: parameters.pop(name) for name in ("rounds", "seconds_max")}
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    burst = 100 if smoke else fair_queue.BURST_MESSAGES
    work = harness.make_work(parameters["n"], parameters["body"], 1000)
    variants = [
        partial(once, work, config, {**parameters, "order": order, "crowd": burst})
        for order in ("turns", "one")
    ]
    return interleaved(
        variants,
        limits,
        smoke=smoke,
        directory=directory,
        warm_bytes=warm_bytes_for(work.n, work.body_bytes),
    )


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
