"""Puts: put() one by one, flushed async and sync, and put_many of lists and of one buffer.

The n messages are due in a day, so that none is delivered during the run. With a consumer, each is
due 0.1 to 0.6 s after its put.

put() async is timed in chunks of 100 calls, because reading the clock costs a large part of a call.
p50, p99 and max are those of chunk means, so a single stall is reduced by a factor of up to 100.
The sync variants time every call; their callers are threads, or tasks of one loop that await
`timerstore.aio`.

Thread safety: stepped (threads=False) runs the services between timed chunks, so that the figure is
    that of the call alone. live (threads=True) runs the six service threads at the same time, which
    share the interpreter lock and the cores. With a consumer, another thread pulls in batches.
Raises: WorkError unless each row is pending at its due time, or was delivered once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
import timerstore.aio
from benchmarks import harness
from benchmarks.harness import Result, Work, need
from benchmarks.rounds import Variant, interleaved
from timerstore import StoreConfig, TimerStore
from timerstore.aio import AsyncTimerStore
from timerstore.testing import Stepper

TOPIC = "bench"
DAY_MS = 86_400_000
CHUNK = 100
SETTLE_EVERY = 50_000
PATIENCE_S = 30.0
CONSUMED_FROM_MS, CONSUMED_OVER_MS = 100, 500
FULL: dict[str, Any] = {
    "n": 300_000,
    "body": 128,
    "sync_n": 2_000,
    "callers": 64,
    "consumed_n": 1_000_000,
    "batch": 1_000,
    "rounds": 5,
    "seconds_max": 120.0,
}
SMOKE: dict[str, Any] = {
    "n": 400,
    "body": 32,
    "sync_n": 5,
    "callers": 4,
    "consumed_n": 200,
    "batch": 50,
    "rounds": 1,
    "seconds_max": 60.0,
}

Putter = Callable[[Any, Work, Callable[[], None]], list[float]]
"""Puts all the work into a store, calls the callable now and then, gives nanoseconds a message of
each chunk."""


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


def put_ahead(store: TimerStore, work: Work, _rest: Callable[[], None]) -> list[float]:
    """As put_each, but the work's due times say how many ms after its put each is due."""
    bodies, ahead = work.bodies(0, work.n), work.due_ms.tolist()
    put, clock = store.put, time.perf_counter_ns
    found = []
    for begin in range(0, work.n, CHUNK):
        end = min(begin + CHUNK, work.n)
        before = clock()
        now_ms = time.time_ns() // 1_000_000
        for row in range(begin, end):
            put(TOPIC, bodies[row], deliver_ms=now_ms + ahead[row])
        found.append((clock() - before) / (end - begin))
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


def put_awaited(
    store: AsyncTimerStore, work: Work, _rest: Callable[[], None], *, callers: int, ids: bool
) -> list[float]:
    """The same by tasks of one loop; with `ids` each message has an id of its caller."""
    bodies, due = work.bodies(0, work.n), work.due_ms.tolist()
    put = store.put
    named: list[dict[str, Any]] = [{"message_id": f"id-{k}"} if ids else {} for k in range(work.n)]
    found: list[float] = []

    async def call(caller: int) -> None:
        for row in range(caller, work.n, callers):
            before = time.perf_counter_ns()
            await put(TOPIC, bodies[row], deliver_ms=due[row], **named[row])
            found.append(time.perf_counter_ns() - before)

    async def all_callers() -> None:
        await asyncio.gather(*map(call, range(callers)))

    asyncio.run(all_callers())
    return found


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


@contextmanager
def opened(
    root: Path, config: StoreConfig, *, live: bool, tasks: bool
) -> Iterator[tuple[TimerStore | AsyncTimerStore, TimerStore]]:
    """What callers put into, threads or tasks, and the store itself."""
    if not tasks:
        with timerstore.open(root, config, threads=live) as store:
            yield store, store
        return

    async def begin() -> AsyncTimerStore:
        return await timerstore.aio.open(root, config, threads=live)

    awaited = asyncio.run(begin())
    try:
        yield awaited, awaited.blocking
    finally:
        asyncio.run(awaited.close())


def once(
    name: str, config: StoreConfig, parameters: dict[str, Any], putter: Putter, root: Path
) -> Result:
    """Open a store, put, look that all is pending."""
    live = parameters["services"] == "live"
    start_ms = time.time_ns() // 1_000_000  # the quick way in is there for the system's clock alone
    n = parameters["n"]
    work = harness.make_work(n, parameters["body"], 600_000, start_ms=start_ms + DAY_MS)
    by_tasks = parameters.get("by", "threads").startswith("tasks")
    with opened(root, config, live=live, tasks=by_tasks) as (way, store):
        rest = _nothing if live else Stepper(store).settle
        before = time.perf_counter()
        taken = putter(way, work, rest)
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


def _await_pending(store: TimerStore, n: int, patience_s: float = PATIENCE_S) -> None:
    """Until the services have taken all up; gives up silently: the count decides."""
    until = time.monotonic() + patience_s
    while sum(1 for _ in store.pending()) < n and time.monotonic() < until:
        time.sleep(0.2)


def _nothing() -> None:
    return None


def consumed(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Time put() with live services, and with a thread that consumes at the same time."""
    n, size = parameters["n"], parameters["body"]
    work = harness.make_work(n, size, CONSUMED_OVER_MS, start_ms=CONSUMED_FROM_MS)
    rows: list[harness.Int64] = []
    early: list[int] = []
    ended: list[float] = []
    with timerstore.open(root, config) as store:
        store.put(TOPIC, work.buffer[:size])  # makes the topic
        offset = int(store.pull_batch(TOPIC, 0, 0, wait=PATIENCE_S).next_offset)

        def consume() -> None:
            at, left = offset, n
            while left:
                pulled = store.pull_batch(TOPIC, 0, at, wait=PATIENCE_S)
                if not len(pulled):
                    return
                rows.append(harness.rows_of(pulled.bodies, size))
                early.append(int((pulled.delivered_ms - pulled.due_ms).min()))
                at, left = int(pulled.next_offset), left - len(pulled)
            ended.append(time.perf_counter())

        consumer = threading.Thread(target=consume)
        consumer.start()
        began = time.perf_counter()
        taken = put_ahead(store, work, _nothing)
        put = time.perf_counter()
        consumer.join()
    need(bool(ended), f"{sum(map(len, rows))} of {n} came out")
    found = np.concatenate(rows)
    need(bool((np.bincount(found, minlength=n) == 1).all()), "a message is lost or duplicated")
    need(min(early) >= 0, "something came early")
    return Result(
        "put",
        parameters,
        n,
        n / (put - began),
        "ns a message",
        harness.spread(taken),
        config.flush,
        harness.digest(np.sort(found)),
        {"consumed_rate": n / (ended[0] - began)},
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """All variants in turn, `rounds` times over."""
    n, body, batch = parameters["n"], parameters["body"], parameters["batch"]
    make = harness.small_config if smoke else StoreConfig
    variants: list[Variant] = []

    def add(name: str, flush: str, told: dict[str, Any], putter: Putter) -> None:
        told = {"body": body, **told}
        variants.append(partial(once, name, make(flush=flush), told, putter))

    for services in ("stepped", "live"):
        add("put", "async", {"n": n, "services": services}, put_each)
    ways: dict[str, Callable[..., list[float]]] = {
        "threads": put_sync,
        "tasks": partial(put_awaited, ids=False),
        "tasks, ids": partial(put_awaited, ids=True),
    }
    for by, putter in ways.items():
        for callers in (1, parameters["callers"]):
            # As many syncs as with one caller, about, where callers share them.
            told = {"n": parameters["sync_n"] * min(callers, 10), "services": "live"}
            told |= {"callers": callers, "by": by}
            add("put", "sync", told, partial(putter, callers=callers))
    for form, size in (("list", max(1, batch // 10)), ("list", batch), ("buffer", batch)):
        told = {"n": n, "services": "stepped", "form": form, "batch": size}
        add("put_many", "async", told, partial(put_lists, batch=size, form=form))
    told = {"body": body, "n": parameters["consumed_n"], "services": "live, and a consumer"}
    variants.append(partial(consumed, make(flush="async"), told))
    return interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
