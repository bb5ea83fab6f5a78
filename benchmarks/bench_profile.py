"""Measure the cost of a message by service, function and thread, and compare it with limits.

n messages go from put to pull with a manual clock, as in bench_end_to_end. First the services are
stepped in one thread; wall time, CPU time and page faults are measured for each step. Then the
store's own threads run, and the CPU time of each is measured. --write updates PROFILE.md.

Functions are samples of `perf record -e cpu-clock`, because virtual machines have no better event.
A sample is assigned to the step that ran at its time, also if it is in the kernel. Without `perf`
a warning is printed, and there is no table by function.

Raises: WorkError if a message is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

import timerstore
from benchmarks import harness, machine, profile_text, samples
from benchmarks.harness import START_MS, Result, Spread, Work, need
from benchmarks.peers.ours import TOPIC, WAIT_S, wait_enqueued
from benchmarks.rounds import interleaved
from benchmarks.turned import TurnedClock
from timerstore import StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

FULL: dict[str, Any] = {
    "n": 1_000_000,
    "body": 128,
    "batch": 10_000,
    "horizon_s": 600,
    "rounds": 3,
    "seconds_max": 120.0,
}
SMOKE: dict[str, Any] = {
    "n": 1_000,
    "body": 32,
    "batch": 100,
    "horizon_s": 60,
    "rounds": 1,
    "seconds_max": 30.0,
}
PUT, PULL = "put_many", "pull_batch"


class Spent(NamedTuple):
    """Of one piece of work, or of many together: nanoseconds and page faults."""

    wall_ns: int = 0
    user_ns: int = 0
    system_ns: int = 0
    faults: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*(mine + its for mine, its in zip(self, other, strict=True)))


class Meter:
    """Adds up what named pieces of work spend, and keeps when each ran."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = {}
        self.marks: list[tuple[int, int, str]] = []

    def run(self, name: str, job: Callable[[], Any]) -> Any:
        """Do it, and count it under the name."""
        use = getrusage(RUSAGE_SELF)
        began = time.monotonic_ns()
        answer = job()
        ended = time.monotonic_ns()
        used = getrusage(RUSAGE_SELF)
        spent = Spent(
            ended - began,
            int((used.ru_utime - use.ru_utime) * 1e9),
            int((used.ru_stime - use.ru_stime) * 1e9),
            used.ru_minflt - use.ru_minflt,
        )
        self.spent[name] = self.spent.get(name, Spent()).plus(spent)
        self.marks.append((began, ended, name))
        return answer


def settle(store: TimerStore, meter: Meter, phase: str) -> None:
    """Step every service until none has work; each under its name and the phase's."""
    stepper = Stepper(store)
    names = tuple(store.services())
    worked = True
    while worked:
        done = [meter.run(f"{phase} {name}", partial(stepper.step, name)) for name in names]
        worked = any(done)


def stepped(
    work: Work, config: StoreConfig, batch: int, root: Path, meter: Meter
) -> dict[str, float]:
    """The whole way; bytes a message."""
    clock = ManualClock(START_MS)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        for begin in range(0, work.n, batch):
            end = min(begin + batch, work.n)
            bodies, due = work.bodies(begin, end), work.due_ms[begin:end]
            meter.run(PUT, partial(store.put_many, TOPIC, bodies, deliver_ms=due))
        settle(store, meter, "enqueue")
        pending = store.stats()
        clock.set(int(work.due_ms.max()) + 1000)
        settle(store, meter, "deliver")
        seen = 0
        while seen < work.n:
            pull = partial(store.pull_batch, TOPIC, 0, seen, max_count=batch)
            pulled = meter.run(PULL, pull)
            need(len(pulled) > 0, f"{work.n - seen} did not come out")
            seen = int(pulled.next_offset)
        stats = store.stats()
        disk = harness.disk(root)
    return {
        "log_bytes_pending": pending["log_end_bytes"] / work.n,
        "timer_log_bytes": pending["timer_log_end_bytes"] / work.n,
        "log_bytes": stats["log_end_bytes"] / work.n,
        "disk_bytes": disk.allocated_bytes / work.n,
    }


def by_service(work: Work, config: StoreConfig, told: dict[str, Any], root: Path) -> Result:
    """One run, stepped."""
    meter = Meter()
    before = _written()
    figures = stepped(work, config, told["batch"], root, meter)
    wall = sum(spent.wall_ns for spent in meter.spent.values())
    spent = {name: [round(value / work.n, 3) for value in one] for name, one in meter.spent.items()}
    return Result(
        "profile",
        {**told, "threads": False},
        work.n,
        work.n * 1e9 / wall,
        "ns a message",
        Spread(wall / work.n, wall / work.n, wall / work.n),
        config.flush,
        harness.digest(work.due_ms),
        {**figures, "written_bytes": (_written() - before) / work.n, "spent": spent},
    )


def _written() -> int:
    """Bytes that this process has asked the kernel to write."""
    for line in Path("/proc/self/io").read_text("ascii").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def by_thread(work: Work, config: StoreConfig, told: dict[str, Any], root: Path) -> Result:
    """One run with the store's threads: CPU nanoseconds a message of each."""
    batch = told["batch"]
    clock = TurnedClock(START_MS)
    with timerstore.open(root, config, clock=clock) as store:
        before, began = _cpu_by_thread(), time.perf_counter()
        for begin in range(0, work.n, batch):
            end = min(begin + batch, work.n)
            due = work.due_ms[begin:end]
            store.put_many(TOPIC, work.bodies(begin, end), deliver_ms=due)
        wait_enqueued(store)
        clock.set(int(work.due_ms.max()) + 1000)
        seen = 0
        while seen < work.n:
            pulled = store.pull_batch(TOPIC, 0, seen, max_count=batch, wait=WAIT_S)
            need(len(pulled) > 0, f"{work.n - seen} did not come out")
            seen = int(pulled.next_offset)
        took, after = time.perf_counter() - began, _cpu_by_thread()
    used = {name: round((total - before.get(name, 0)) / work.n, 2) for name, total in after.items()}
    return Result(
        "profile",
        {**told, "threads": True},
        work.n,
        work.n / took,
        "ns a message",
        Spread(*(took * 1e9 / work.n,) * 3),
        config.flush,
        harness.digest(work.due_ms),
        {"cpu_ns": used},
    )


def _cpu_by_thread() -> dict[str, int]:
    """Nanoseconds on a processor, by the thread's name; the main thread is the caller."""
    found: dict[str, int] = {}
    names = {one.native_id: one.name for one in threading.enumerate()}
    for folder in Path("/proc/self/task").iterdir():
        name = names.get(int(folder.name), "other")
        used = int((folder / "schedstat").read_text("ascii").split()[0])
        found[name] = found.get(name, 0) + used
    return found


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """By service and by thread, in turns."""
    told = {name: parameters[name] for name in ("n", "body", "batch", "horizon_s")}
    work = harness.make_work(told["n"], told["body"], told["horizon_s"] * 1000)
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    return interleaved(
        [partial(way, work, config, told) for way in (by_service, by_thread)],
        parameters,
        smoke=smoke,
        directory=directory,
    )


def sampled(parameters: dict[str, Any], marks: Path) -> None:
    """What runs under perf: one stepped way, and when each step ran."""
    work = harness.make_work(parameters["n"], parameters["body"], parameters["horizon_s"] * 1000)
    meter = Meter()
    with harness.workspace(None) as root:
        stepped(work, StoreConfig(flush="async"), parameters["batch"], root, meter)
    marks.write_text(json.dumps(meter.marks), "utf-8")


def main(argv: list[str] | None = None) -> int:
    """Print the lines, then the tables."""
    parser = harness.arguments(__doc__, FULL)
    parser.add_argument("--write", action="store_true", help="the tables into PROFILE.md")
    parser.add_argument("--sampled", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    parameters = harness.chosen(options, FULL, SMOKE)
    if options.sampled is not None:
        sampled(parameters, options.sampled)
        return 0
    results = harness.emit(run(parameters, options.smoke, options.directory), options.json)
    lines = [json.loads(result.line()) for result in results]
    found = None if options.smoke else samples.by_step(parameters)
    limits = {} if options.smoke else machine.limits(harness.place(options.directory))
    text = profile_text.tables(lines, found, limits)
    print(text, file=sys.stderr)
    if options.write:
        profile_text.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
