"""The interface of a peer, and the loop that drives peers stepped by a client.

All peers do the same three steps: schedule in batches, move due messages to a ready queue in
(due, row) order, and take them out in batches. A body begins with its row. The time includes the
client code and its waits, but not making the bodies.

Thread safety: the loop uses one thread. The server of a peer has its own threads.
Raises: WorkError if a step does nothing although there is work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import START_MS, Work, need

HORIZON_MS = 3_000
"""Due times are uniform over so long; all is due before any of it is moved."""

RANDOM = np.random.default_rng
Lateness = harness.Float64


class Settings(NamedTuple):
    """How a run is cut."""

    batch: int
    smoke: bool


class Times(NamedTuple):
    """Seconds of the two phases, nanoseconds of each scheduled batch, the bodies that came out."""

    schedule: float
    deliver: float
    laps_ns: list[int]
    bodies: bytes
    disk_bytes: int
    """Allocated while all is pending."""
    ram_bytes: int
    """Anonymous memory (of the server where there is one) that all that is pending takes."""
    figures: Mapping[str, Any] = MappingProxyType({})


class Pace(NamedTuple):
    """A steady load: so many a second, for so long, each due `ahead_ms` later (from, to)."""

    rate: int
    seconds: float
    body: int
    ahead_ms: tuple[int, int]


class Session(Protocol):
    """An open peer."""

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        """Add rows first and on, each with its due time."""

    def move(self, now_ms: int, limit: int) -> int:
        """Move at most `limit` due messages to the ready queue. Return their number."""

    def take(self, limit: int) -> list[bytes]:
        """Take at most so many bodies out of the ready queue."""

    def sync(self) -> None:
        """What makes it as durable as it says; called every `sync_s`."""

    def ram_bytes(self) -> int:
        """Anonymous memory, now."""

    def close(self) -> None:
        """End it, and its server."""


@dataclass(frozen=True)
class Peer:
    """A way to do the work, and what it promises."""

    key: str
    name: str
    variant: str
    durability: str
    """The data that a power cut can lose."""
    tuned: str
    """The settings that differ from the defaults, and why."""
    work: Callable[[Work, Path, Settings], Times]
    missing: Callable[[], str | None]
    """None where it can run here; else why not."""
    exact: bool = True
    """Whether it hands over in (due, put) order; else only by whole seconds."""
    paced: Callable[[Pace, Path], Lateness] | None = None


def nothing_missing() -> str | None:
    """Never missing: part of Python."""
    return None


def module_missing(name: str) -> str | None:
    """Whether a module cannot be imported."""
    try:
        __import__(name)
    except ImportError as error:
        return f"{error} (`make bench-peers` installs it)"
    return None


class Every:
    """Calls a sync when the last one is at least so many seconds ago."""

    def __init__(self, seconds: float, sync: Callable[[], object]) -> None:
        self._seconds, self._sync = seconds, sync
        self._last = time.perf_counter()

    def tick(self) -> None:
        """Sync if it is time."""
        if time.perf_counter() - self._last >= self._seconds:
            self._sync()
            self._last = time.perf_counter()


def own_ram_bytes(root: Path) -> int:
    """Anonymous memory of this process."""
    return harness.memory(root).anonymous_bytes


def process_ram_bytes(pid: int) -> int:
    """Anonymous memory of another process."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def drive(
    open_it: Callable[[Path], Session], sync_s: float, work: Work, root: Path, settings: Settings
) -> Times:
    """Schedule all, move all, take all."""
    batch, due = settings.batch, work.due_ms.tolist()
    cuts = [(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    given = [(due[begin:end], begin, work.bodies(begin, end)) for begin, end in cuts]
    session = open_it(root)
    found: list[bytes] = []
    try:
        empty = session.ram_bytes()
        sync = Every(sync_s, session.sync)
        laps = harness.Stopwatch()
        began = time.perf_counter()
        for part in given:
            with laps:
                session.schedule(*part)
                sync.tick()
        scheduled = time.perf_counter()
        disk = harness.disk(root).allocated_bytes
        ram = session.ram_bytes() - empty
        resumed = time.perf_counter()
        moved = 0
        while moved < work.n:
            count = session.move(START_MS + HORIZON_MS, batch)
            need(count > 0, f"{work.n - moved} of {work.n} are not due")
            moved += count
            sync.tick()
        while len(found) < work.n:
            taken = session.take(batch)
            need(bool(taken), f"{work.n - len(found)} of {work.n} are not ready")
            found += taken
            sync.tick()
        ended = time.perf_counter()
    finally:
        session.close()
    return Times(
        scheduled - began, ended - resumed, laps.laps_ns, b"".join(found), disk, max(0, ram)
    )


POLL_S = 0.001


def each_once(rows: NDArray[Any], total: int) -> None:
    """WorkError where a row did not come out, or twice."""
    came = len(rows) == total and bool((np.sort(rows) == np.arange(total)).all())
    need(came, f"of {total} some were lost or duplicated")


def drive_paced(
    open_it: Callable[[Path], Session], sync_s: float, pace: Pace, root: Path
) -> Lateness:
    """Schedule at the given pace, move and take due messages in one thread. Return ms late.

    The thread sleeps a millisecond when there is no work.
    """
    total = int(pace.rate * pace.seconds)
    random = RANDOM(harness.SEED)
    ahead = random.integers(*pace.ahead_ms, size=total, endpoint=True)
    filler = random.bytes(pace.body - 16)
    late: list[float] = []
    rows: list[int] = []
    session = open_it(root)
    try:
        sync = Every(sync_s, session.sync)
        put, began = 0, time.time()
        until = began + pace.seconds + pace.ahead_ms[1] / 1000 + 20
        while len(late) < total:
            now = time.time()
            need(now < until, f"{total - len(late)} of {total} did not come out in time")
            wanted = min(total, int((now - began) * pace.rate))
            if wanted > put:
                due = (ahead[put:wanted] + int(now * 1000)).tolist()
                bodies = [
                    (put + row).to_bytes(8, "little") + at.to_bytes(8, "little") + filler
                    for row, at in enumerate(due)
                ]
                session.schedule(due, put, bodies)
                put = wanted
            moved = session.move(int(time.time() * 1000), 10_000)
            taken = session.take(10_000)
            now_ms = time.time() * 1000
            late += [now_ms - int.from_bytes(body[8:16], "little") for body in taken]
            rows += [int.from_bytes(body[:8], "little") for body in taken]
            sync.tick()
            if not moved and not taken:
                time.sleep(POLL_S)
    finally:
        session.close()
    each_once(np.array(rows, dtype=np.uint64), total)
    return np.array(late, dtype=np.float64)
