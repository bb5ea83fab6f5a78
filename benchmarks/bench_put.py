"""Puts alone: put() one by one, flushed async and sync, and put_many of lists and of one buffer.

Data:     n messages due in a day, so that nothing is delivered while the clock runs.
Threads:  stepped (threads=False): between timed chunks the services are settled, untimed, so that
          the figure is the call's own. live (threads=True): the six threads run beside it.
Holds:    every row put is pending afterwards, under its due time.
Fails:    WorkError where it is not.

put() async is timed in chunks of 100 calls, since reading a clock costs a good part of a call: p50,
p99 and max are those of chunk means, and a single stall is hidden in them by a factor of up to 100.
The sync variants time every call. `live` shares the interpreter lock and the cores with the
services.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Result, Work, need
from timerstore import StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

TOPIC = "bench"
DAY_MS = 86_400_000
CHUNK = 100
SETTLE_EVERY = 50_000
FULL: dict[str, Any] = {"n": 300_000, "body": 128, "sync_n": 2_000, "batch": 1_000, "rounds": 3}
SMOKE: dict[str, Any] = {"n": 400, "body": 32, "sync_n": 5, "batch": 50, "rounds": 1}

Putter = Callable[[TimerStore, Work, Callable[[], None]], list[float]]
"""Puts all the work, calls the callable now and then, gives nanoseconds a message of each chunk."""


def put_each(store: TimerStore, work: Work, rest: Callable[[], None]) -> list[float]:
    """put() by put(), timed a hundred at a time."""
    bodies, due = work.bodies(0, work.n), work.due_ms.tolist()
    put, clock = store.put, time.perf_counter_ns
    found = []
    for begin in range(0, work.n, CHUNK):
        end = min(begin + CHUNK, work.n)
        chunk = list(zip(bodies[begin:end], due[begin:end], strict=True))
        before = clock()
        for body, due_ms in chunk:
            put(TOPIC, body, deliver_ms=due_ms)
        found.append((clock() - before) / (end - begin))
        if end % SETTLE_EVERY == 0:
            rest()
    return found


def put_sync(
    store: TimerStore, work: Work, rest: Callable[[], None], *, callers: int
) -> list[float]:
    """put() from several threads at once, each call timed: they share syncs."""
    rest()
    bodies, due = work.bodies(0, work.n), work.due_ms.tolist()
    found: list[list[float]] = [[] for _ in range(callers)]

    def call(caller: int) -> None:
        for row in range(caller, work.n, callers):
            before = time.perf_counter_ns()
            store.put(TOPIC, bodies[row], deliver_ms=due[row])
            found[caller].append(time.perf_counter_ns() - before)

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [took for part in found for took in part]


def put_lists(
    store: TimerStore, work: Work, rest: Callable[[], None], *, batch: int, form: str
) -> list[float]:
    """put_many, timed by call; the lists of bodies are made before."""
    found = []
    for begin in range(0, work.n, batch):
        end = min(begin + batch, work.n)
        bodies: Any = work.part(begin, end) if form == "buffer" else work.bodies(begin, end)
        due = work.due_ms[begin:end]
        before = time.perf_counter_ns()
        store.put_many(TOPIC, bodies, deliver_ms=due)
        found.append((time.perf_counter_ns() - before) / (end - begin))
        if end // SETTLE_EVERY != begin // SETTLE_EVERY:
            rest()
    return found


def once(
    name: str, root: Path, config: StoreConfig, parameters: dict[str, Any], putter: Putter
) -> Result:
    """Open a store, put, look that all is pending."""
    live = parameters["services"] == "live"
    start_ms = time.time_ns() // 1_000_000 if live else START_MS
    n = parameters["n"]
    work = harness.make_work(n, parameters["body"], 600_000, start_ms=start_ms + DAY_MS)
    clock = None if live else ManualClock(start_ms)
    with timerstore.open(root, config, clock=clock, threads=live) as store:
        rest = _nothing if live else Stepper(store).settle
        before = time.perf_counter()
        taken = putter(store, work, rest)
        wall = time.perf_counter() - before
        store.flush()
        if live:
            _await_pending(store, n)
        rest()
        due = np.fromiter((timer.due_ms for timer in store.pending()), dtype=np.int64)
    need(len(due) == n, f"{len(due)} pending, {n} put")
    need(bool((np.sort(due) == np.sort(work.due_ms)).all()), "pending under other due times")
    each = parameters.get("callers", 1)
    # Chunks have equal sizes but the last; callers overlap, so only the wall tells their rate.
    rate = n / wall if each > 1 else 1e9 / float(np.mean(taken))
    return Result(
        name,
        parameters,
        n,
        rate,
        "ns a message",
        harness.spread(taken),
        config.flush,
        harness.digest(np.sort(due) - start_ms, work.buffer),
    )


def _await_pending(store: TimerStore, n: int, patience_s: float = 30.0) -> None:
    """Until the services have taken all up; gives up silently: the count decides."""
    until = time.monotonic() + patience_s
    while sum(1 for _ in store.pending()) < n and time.monotonic() < until:
        time.sleep(0.2)


def _nothing() -> None:
    return None


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """All variants in turn, `rounds` times over."""
    n, body, batch = parameters["n"], parameters["body"], parameters["batch"]
    make = harness.small_config if smoke else StoreConfig
    variants: list[tuple[str, str, dict[str, Any], Putter]] = []
    for services in ("stepped", "live"):
        told = {"n": n, "body": body, "services": services}
        variants.append(("put", "async", told, put_each))
    for callers in (1, 8):
        told = {"n": parameters["sync_n"], "body": body, "services": "live", "callers": callers}
        variants.append(("put", "sync", told, partial(put_sync, callers=callers)))
    for form, size in (("list", batch // 10), ("list", batch), ("buffer", batch)):
        told = {"n": n, "body": body, "services": "stepped", "form": form, "batch": size}
        variants.append(("put_many", "async", told, partial(put_lists, batch=size, form=form)))
    for _ in range(parameters["rounds"]):
        for name, flush, told, putter in variants:
            with harness.workspace(directory) as root:
                job = partial(once, name, root, make(flush=flush), told, putter)
                yield harness.isolated(job, fork=not smoke)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
