"""Measure the time to open a store after kill -9, with many pending messages.

n messages are due in a day. In each round a child process opens the store, puts a few thousand
messages with its services in threads, and is killed during the puts. The measured time is that of
`timerstore.open`: lock, recovery, and start of the services. The first put after it is also timed.

Invariants:
    Every message acknowledged before a kill is pending after it, and no message was added.
Raises: WorkError if that does not hold, or if a child ends by itself.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import timerstore
from benchmarks import harness
from benchmarks.bench_scaling import sizes
from benchmarks.control import Control
from benchmarks.harness import START_MS, Result, Spread, need
from benchmarks.warm import warm_memory
from timerstore import StoreConfig
from timerstore.testing import ManualClock

TOPIC = "bench"
DAY_MS = 86_400_000
AMONG = 1000  # of a put that may be under way at the kill
FULL: dict[str, Any] = {
    "n": 10_000_000,
    "body": 128,
    "batch": 10_000,
    "more": 200_000,
    "rounds": 5,
}
SMOKE: dict[str, Any] = {"n": 2_000, "body": 32, "batch": 500, "more": 2_000, "rounds": 1}


def fill(root: Path, config: StoreConfig, parameters: dict[str, Any], out: Connection) -> None:
    """Put all and wait until it is in the wheel and durable; then end without closing."""
    n, body, batch = parameters["n"], parameters["body"], parameters["batch"]
    work = harness.make_work(min(n, 500_000), body, DAY_MS, start_ms=START_MS + DAY_MS)
    store = timerstore.open(root, config, clock=ManualClock(START_MS))
    put = 0
    while put < n:
        begin = put % work.n
        end = min(begin + batch, work.n, begin + n - put)
        store.put_many(TOPIC, work.part(begin, end), deliver_ms=work.due_ms[begin:end])
        put += end - begin
    while store.stats()["enqueue_lag_messages"]:
        time.sleep(0.01)
    store.flush()
    out.send(put)
    signal.pause()


def reopen(root: Path, config: StoreConfig, parameters: dict[str, Any], out: Connection) -> None:
    """Open, report the time and the number of pending messages, and put until killed."""
    work = harness.make_work(parameters["more"], parameters["body"], DAY_MS,
                             start_ms=START_MS + DAY_MS)  # fmt: skip
    before = harness.memory(root)
    began, cpu = time.perf_counter(), time.process_time()
    store = timerstore.open(root, config, clock=ManualClock(START_MS))
    took, used = time.perf_counter() - began, time.process_time() - cpu
    store.put(TOPIC, work.buffer[: work.body_bytes], deliver_ms=int(work.due_ms[0]))
    answered = time.perf_counter() - began
    beyond = harness.memory(root).beyond_bytes - before.beyond_bytes
    pending = store.stats()["pending_messages"]
    out.send((took, used, answered, pending, beyond))
    for begin in range(1, work.n, AMONG):
        end = min(begin + AMONG, work.n)
        store.put_many(TOPIC, work.part(begin, end), deliver_ms=work.due_ms[begin:end])
        out.send(end - begin)
    signal.pause()


class Child:
    """A process that does a job, tells through a pipe, and is killed: at the latest as it is left.

    `with Child(job, ...) as child: child.hear()`
    """

    def __init__(self, job: Any, *given: Any) -> None:
        context = get_context("spawn")
        self.said, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=job, args=(*given, sender))
        self.process.start()
        sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.join()

    def hear(self) -> Any:
        """What it says next."""
        try:
            return self.said.recv()
        except EOFError:
            self.process.join()
            raise harness.WorkError(f"a child ended by itself: {self.process.exitcode}") from None

    def kill(self) -> int:
        """Kill -9; the sum of what it had still said."""
        self._end()
        total = 0
        while self.said.poll():
            try:
                total += self.said.recv()
            except EOFError:
                break
        self.said.close()
        return total


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Fill once, then a line a kill."""
    parameters = dict(parameters)
    rounds = parameters.pop("rounds")
    make = harness.small_config if smoke else StoreConfig
    config = make(flush="async")
    fits = sizes(parameters["n"], parameters["n"], parameters["body"], directory)
    need(bool(fits), f"the disk has no room for {parameters['n']:,} pending")
    parameters["n"] = fits[0]
    with harness.workspace(directory) as root:
        store = root / "store"
        with Child(fill, store, config, parameters) as child:
            acknowledged = child.hear()
        for number in range(rounds):
            with ExitStack() as stack:
                page_us = None if smoke else stack.enter_context(warm_memory())
                with Control() as control:
                    child = stack.enter_context(Child(reopen, store, config, parameters))
                    took, used, answered, pending, beyond = child.hear()
                need(
                    acknowledged < pending <= acknowledged + 1 + AMONG,
                    f"{pending} pending, {acknowledged} acknowledged before",
                )
                heard = 0
                while heard < parameters["more"] // 2:
                    heard += child.hear()
                acknowledged = pending + heard + child.kill()
            warmed = {} if page_us is None else {"warmed_page_us": page_us}
            yield replace(
                result_of(parameters, config, pending, took),
                figures={
                    "open_cpu_s": used,
                    "first_put_s": answered,
                    "round": number,
                    **warmed,
                    "beyond_files_bytes_per_pending": beyond / pending,
                    "control_p99_ms": control.stall.p99_ms,
                    "control_max_ms": control.stall.max_ms,
                },
            )


def result_of(parameters: dict[str, Any], config: StoreConfig, pending: int, took: float) -> Result:
    """One opening."""
    return Result(
        "recovery",
        parameters,
        parameters["n"],
        pending / took,
        "s to open after kill -9",
        Spread(took, took, took),
        config.flush,
        harness.digest(f"{parameters['n']} {parameters['more']}"),
    )


def main(argv: list[str] | None = None) -> int:
    """Print one line an opening."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
