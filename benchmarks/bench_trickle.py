"""Measure few messages a second, each due at a millisecond of its own: lateness, and CPU.

`rate` messages a second are put before the first is due; then one thread pulls them with a wait, on
the real clock. So each message costs a step of the services, a sync and a wake-up of the consumer.
The unit is ms of lateness by the consumer's clock. `cpu_us` is the CPU of the process for each
message, and `cpu_percent` its share of one core.

Raises: WorkError if a message is missing, early or received twice.
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
from benchmarks.harness import Result, need, rows_of
from benchmarks.peers.contract import each_once
from benchmarks.rounds import interleaved
from timerstore import StoreConfig

TOPIC = "trickle"
AHEAD_MS = 2500
WAIT_S = 30.0
FULL: dict[str, Any] = {"rate": 500, "seconds": 4.0, "body": 128, "rounds": 3, "flush": "async",
                        "seconds_max": 60.0}  # fmt: skip
SMOKE: dict[str, Any] = {"rate": 500, "seconds": 0.1, "body": 32, "rounds": 1, "flush": "async",
                         "seconds_max": 20.0}  # fmt: skip


def once(parameters: dict[str, Any], ahead_ms: int, root: Path) -> Result:
    """Put all messages, and pull each when it is due."""
    rate, body = parameters["rate"], parameters["body"]
    n = int(rate * parameters["seconds"])
    config = StoreConfig(flush=parameters["flush"])
    with timerstore.open(root, config) as store:
        begin_ms = int(time.time() * 1000) + ahead_ms
        due_ms = begin_ms + np.arange(n) * 1000 // rate
        filler = b"x" * (body - 8)
        bodies = [row.to_bytes(8, "little") + filler for row in range(n)]
        store.put_many(TOPIC, bodies, deliver_ms=due_ms)
        time.sleep(max(0.0, begin_ms / 1000 - time.time() - 0.2))
        began_ns, began = time.process_time_ns(), time.perf_counter()
        rows, late = [due_ms[:0]], [np.zeros(0)]
        offset = count = 0
        while count < n:
            pulled = store.pull_batch(TOPIC, 0, offset, wait=WAIT_S)
            now_ms = time.time() * 1000
            need(len(pulled) > 0, f"{n - count} of {n} did not come out in time")
            rows.append(rows_of(pulled.bodies, body))
            late.append(now_ms - due_ms[rows[-1]])
            offset, count = int(pulled.next_offset), count + len(pulled)
        cpu_s, took_s = (time.process_time_ns() - began_ns) / 1e9, time.perf_counter() - began
    each_once(np.concatenate(rows), n)
    found = np.concatenate(late)
    # A clock of whole milliseconds may have been read up to one before the due time was up.
    need(float(found.min()) > -1.0, f"{found.min()} ms: early")
    return Result(
        "trickle",
        parameters,
        n,
        n / took_s,
        "ms late",
        harness.spread(found),
        parameters["flush"],
        harness.digest(f"{parameters}"),
        {"cpu_us": 1e6 * cpu_s / n, "cpu_percent": 100 * cpu_s / took_s},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """The same again and again."""
    need(parameters["body"] >= 16, "a body must hold its row: 16 bytes")
    given = {name: parameters[name] for name in ("rate", "seconds", "body", "flush")}
    variant = partial(once, given, 100 if smoke else AHEAD_MS)
    yield from interleaved([variant], parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
