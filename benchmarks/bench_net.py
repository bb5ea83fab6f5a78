"""Measure message servers behind a unix socket, each through its usual Python client.

A server process and this process share the machine. First `n` messages are put, by one thread, by
many threads or by many tasks of a loop; then all are received and settled, `batch` at a time. The
spread is that of a put. Servers are compared within `syncs_each`: equal durability.

Raises: WorkError if a message is lost or received twice.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness, served
from benchmarks.harness import Result, need, spread
from benchmarks.peers.contract import each_once
from benchmarks.rounds import interleaved
from benchmarks.served.contract import Caller, Served, Server

ENDS_S = 120.0
FULL: dict[str, Any] = {"n": 6000, "body": 128, "callers": 64, "batch": 32, "rounds": 3,
                        "seconds_max": 300.0, "servers": ""}  # fmt: skip
SMOKE: dict[str, Any] = {"n": 24, "body": 32, "callers": 4, "batch": 4, "rounds": 1,
                         "seconds_max": 60.0, "servers": ""}  # fmt: skip


class Phase(NamedTuple):
    """What one half of the work took."""

    seconds: float
    took_ms: list[float]


class Work:
    """The bodies to put and those received; the callers share it."""

    def __init__(self, n: int, size: int) -> None:
        filler = b"x" * (size - 8)
        self.n = n
        self._bodies = iter([row.to_bytes(8, "little") + filler for row in range(n)])
        self._lock = threading.Lock()
        self.received: list[bytes] = []
        self._ends = time.monotonic() + ENDS_S

    def next_body(self) -> bytes | None:
        with self._lock:
            return next(self._bodies, None)

    def is_left(self) -> bool:
        """Return whether messages are still to be received."""
        left = self.n - len(self.received)
        need(left == 0 or time.monotonic() < self._ends, f"{left} of {self.n} were not received")
        return left > 0

    def check(self) -> None:
        rows = np.array([int.from_bytes(one[:8], "little") for one in self.received], np.uint64)
        each_once(rows, self.n)


def _putter(work: Work, caller: Caller, took: list[float]) -> None:
    while (body := work.next_body()) is not None:
        began = time.perf_counter()
        caller.put(body)
        took.append(1000 * (time.perf_counter() - began))


def _taker(batch: int, work: Work, caller: Caller, took: list[float]) -> None:
    while work.is_left():
        began = time.perf_counter()
        found = caller.take(batch)
        if found:
            took.append(1000 * (time.perf_counter() - began))
        work.received += found


def _by_threads(server: Server, count: int, target: Callable[[Caller, list[float]], None]) -> Phase:
    """Run the target in threads, each with a connection that is made before. An error of one is
    raised here.
    """
    took: list[float] = []
    callers = [server.caller() for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        began = time.perf_counter()
        for done in [pool.submit(target, one, took) for one in callers]:
            done.result()
        seconds = time.perf_counter() - began
    for one in callers:
        one.close()
    return Phase(seconds, took)


def from_threads(server: Server, work: Work, callers: int, batch: int) -> tuple[Phase, Phase]:
    """Put all, then receive all."""
    puts = _by_threads(server, callers, partial(_putter, work))
    return puts, _by_threads(server, callers, partial(_taker, batch, work))


async def _from_tasks(server: Server, work: Work, tasks: int, batch: int) -> tuple[Phase, Phase]:
    caller = await server.async_caller()
    took_put: list[float] = []
    took_take: list[float] = []

    async def put_some() -> None:
        while (body := work.next_body()) is not None:
            began = time.perf_counter()
            await caller.put(body)
            took_put.append(1000 * (time.perf_counter() - began))

    async def take_some() -> None:
        while work.is_left():
            began = time.perf_counter()
            found = await caller.take(batch)
            if found:
                took_take.append(1000 * (time.perf_counter() - began))
            work.received += found

    began = time.perf_counter()
    await asyncio.gather(*(put_some() for _ in range(tasks)))
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    await asyncio.gather(*(take_some() for _ in range(tasks)))
    take_s = time.perf_counter() - began
    await caller.close()
    return Phase(put_s, took_put), Phase(take_s, took_take)


def from_tasks(server: Server, work: Work, callers: int, batch: int) -> tuple[Phase, Phase]:
    """Put all, then receive all, from one loop."""
    return asyncio.run(_from_tasks(server, work, callers, batch))


BY = {"threads": from_threads, "tasks": from_tasks}


def once(one: Served, by: str, callers: int, batch: int, n: int, size: int, root: Path) -> Result:
    """One server, one kind of caller."""
    work = Work(n, size)
    server = one.start(root)
    try:
        puts, takes = BY[by](server, work, callers, batch)
    finally:
        server.close()
    work.check()
    took = spread(takes.took_ms)
    parameters = {"server": one.key, "by": by, "callers": callers, "batch": batch, "body": size,
                  "n": n, "syncs_each": one.syncs_each}  # fmt: skip
    return Result(
        "net",
        parameters,
        n,
        n / puts.seconds,
        "ms",
        spread(puts.took_ms),
        "sync" if one.syncs_each else "async",
        harness.digest(f"{n} {size}"),
        {
            "name_of_server": one.name,
            "durability": one.durability,
            "take_rate": n / takes.seconds,
            "take_p50": took.p50,
            "take_p99": took.p99,
        },
    )


def chosen(names: str) -> list[Served]:
    """Return the named servers, or all, less those that cannot run here."""
    wanted = [one for one in served.ALL if not names or one.key in names.split(",")]
    need(bool(wanted), f"no server {names!r}: {', '.join(one.key for one in served.ALL)}")
    ready = []
    for one in wanted:
        reason = one.missing()
        if reason is None:
            ready.append(one)
        else:
            print(f"!!! NOT MEASURED: {one.name}: {reason}", file=sys.stderr)
    return ready


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Each server by one thread, by threads, and by tasks where it has such a client."""
    n, size, callers = parameters["n"], parameters["body"], parameters["callers"]
    variants = []
    for one in chosen(parameters["servers"]):
        shapes = [("threads", 1, 1), ("threads", 1, parameters["batch"]), ("threads", callers, 1)]
        shapes += [("tasks", callers, 1)] if one.has_tasks else []
        for by, count, batch in shapes:
            few = n if count > 1 else max(1, n // 4)
            variants.append(partial(once, one, by, count, batch, few, size))
    yield from interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print the lines."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
