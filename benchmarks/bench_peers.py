"""The same work by timerstore, LMDB, SQLite and heapq, in turns, in one sitting.

Data:     n messages, due times uniform over 3 s of a turned clock, in batches of 10,000.
Threads:  one a process, but for timerstore with its services in threads, as in production; every
          run is a process and a directory of its own.
Holds:    (1) schedule all; then, all being due, move them to a ready queue in (due, put) order and
              take them out of it, batch by batch: each engine's client code is in its time;
          (2) all must give the same rows in the same order: their work digests are equal.
Fails:    WorkError where an engine gives other rows, or another order.

What is compared differs in what it promises; the flush column says it. `sync 1 s` and `sync 0.5 s`
lose up to that much in a power cut; LMDB with NOSYNC and WRITEMAP may then be corrupt as a whole,
SQLite in WAL with synchronous=NORMAL and timerstore are not. heapq keeps nothing. Only timerstore
finds duplicates, checks records by CRC, and keeps what was delivered; the others delete it.
A peer may be tuned better than here; where you know how, change it here.
"""

from __future__ import annotations

import heapq
import sqlite3
import statistics
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Result, Work, need
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

TOPIC = "bench"
HORIZON_MS = 3_000
WAIT_S = 10.0  # for what is being delivered; far more than it takes
MAP_BYTES = 16 << 30
KEY = struct.Struct(">QQ")
FULL: dict[str, Any] = {"n": 200_000, "body": 128, "batch": 10_000, "rounds": 3}
SMOKE: dict[str, Any] = {"n": 600, "body": 32, "batch": 100, "rounds": 1}


class Times(NamedTuple):
    """Seconds of the two phases, nanoseconds of each scheduled batch, the bodies that came out."""

    schedule: float
    deliver: float
    laps_ns: list[int]
    bodies: bytes
    disk_pending: int


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


def ours(work: Work, root: Path, batch: int, smoke: bool, form: str, threads: bool) -> Times:
    """timerstore; a sync every half second, and of whatever a consumer sees."""
    config = harness.small_config(flush="async") if smoke else StoreConfig(flush="async")
    clock = ManualClock(START_MS)
    found: list[bytes] = []
    with timerstore.open(root, config, clock=clock, threads=threads) as store:
        settle = partial(_wait_enqueued, store) if threads else Stepper(store).settle
        sync = Every(0.5, store.flush)
        cuts = [(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
        parts: list[Any] = [(work.part if form == "buffer" else work.bodies)(*cut) for cut in cuts]
        laps = harness.Stopwatch()
        began = time.perf_counter()
        for (begin, end), part in zip(cuts, parts, strict=True):
            with laps:
                store.put_many(TOPIC, part, deliver_ms=work.due_ms[begin:end])
                sync.tick()
        settle()
        scheduled = time.perf_counter()
        used = harness.disk(root).allocated_bytes
        resumed = time.perf_counter()
        clock.set(START_MS + HORIZON_MS)
        if not threads:
            settle()
        offset, left = 0, work.n
        while left > 0:
            pulled = store.pull_batch(TOPIC, 0, offset, max_count=batch, wait=WAIT_S)
            need(len(pulled) > 0, f"{left} did not come out")
            view, offsets = memoryview(pulled.bodies), pulled.body_offsets.tolist()
            found += [bytes(view[begin:end]) for begin, end in pairwise(offsets)]
            offset = int(pulled.next_offset)
            left -= len(pulled)
            sync.tick()
        ended = time.perf_counter()
    return Times(scheduled - began, ended - resumed, laps.laps_ns, b"".join(found), used)


def _wait_enqueued(store: timerstore.TimerStore) -> None:
    while store.stats()["enqueue_behind_messages"]:
        time.sleep(0.001)


def by_lmdb(work: Work, root: Path, batch: int, smoke: bool, durable: bool) -> Times:
    """LMDB: one tree by (due, row), one by number of arrival. durable: a sync each transaction."""
    env = lmdb.open(
        str(root), map_size=MAP_BYTES >> (6 if smoke else 0), max_dbs=2, sync=durable,
        metasync=durable, writemap=not durable, map_async=not durable,
    )  # fmt: skip
    waiting, ready = env.open_db(b"waiting"), env.open_db(b"ready")
    sync = Every(float("inf") if durable else 1.0, lambda: env.sync(True))
    found: list[bytes] = []
    due = work.due_ms.tolist()
    given = [work.bodies(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    laps = harness.Stopwatch()
    began = time.perf_counter()
    for at, bodies in zip(range(0, work.n, batch), given, strict=True):
        with laps:
            items = [(KEY.pack(due[at + row], at + row), body) for row, body in enumerate(bodies)]
            items.sort()
            with env.begin(write=True) as change, change.cursor(waiting) as cursor:
                cursor.putmulti(items)
            sync.tick()
    scheduled = time.perf_counter()
    used = harness.disk(root).allocated_bytes
    resumed = time.perf_counter()
    limit = KEY.pack(START_MS + HORIZON_MS + 1, 0)
    moved = taken = 0
    while moved < work.n:
        with env.begin(write=True) as change:
            with change.cursor(waiting) as cursor:
                need(cursor.first(), "nothing waits")
                out: list[tuple[bytes, bytes]] = []
                while len(out) < batch and cursor.key() < limit:
                    out.append((KEY.pack(0, moved + len(out)), cursor.value()))
                    if not cursor.delete():  # moves on to the next; False: there is none
                        break
            with change.cursor(ready) as cursor:
                cursor.putmulti(out, append=True)
        moved += len(out)
        sync.tick()
    while taken < work.n:
        with env.begin(write=True) as change, change.cursor(ready) as cursor:
            need(cursor.first(), "nothing is ready")
            for _ in range(min(batch, work.n - taken)):
                found.append(cursor.value())
                cursor.delete()
                taken += 1
        sync.tick()
    ended = time.perf_counter()
    env.close()
    return Times(scheduled - began, ended - resumed, laps.laps_ns, b"".join(found), used)


SQLITE_TABLES = {
    "clustered": (
        "CREATE TABLE waiting (due INTEGER, row INTEGER, body BLOB, PRIMARY KEY (due, row))"
        " WITHOUT ROWID"
    ),
    "rowid + index": (
        "CREATE TABLE waiting (row INTEGER PRIMARY KEY, due INTEGER, body BLOB);"
        "CREATE INDEX by_due ON waiting (due, row)"
    ),
}


def by_sqlite(work: Work, root: Path, batch: int, _smoke: bool, layout: str) -> Times:
    """SQLite, WAL, synchronous=NORMAL: syncs at checkpoints of the WAL, which it chooses."""
    base = sqlite3.connect(root / "peer.sqlite", isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=NORMAL")
    base.execute("PRAGMA cache_size=-65536")
    base.executescript(SQLITE_TABLES[layout])
    base.execute("CREATE TABLE ready (place INTEGER PRIMARY KEY, body BLOB)")
    found: list[bytes] = []
    due = work.due_ms.tolist()
    given = [work.bodies(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    laps = harness.Stopwatch()
    began = time.perf_counter()
    for at, bodies in zip(range(0, work.n, batch), given, strict=True):
        with laps:
            rows = [(due[at + row], at + row, body) for row, body in enumerate(bodies)]
            base.execute("BEGIN IMMEDIATE")
            base.executemany("INSERT INTO waiting (due, row, body) VALUES (?, ?, ?)", rows)
            base.execute("COMMIT")
    scheduled = time.perf_counter()
    used = harness.disk(root).allocated_bytes
    resumed = time.perf_counter()
    now_ms, moved = START_MS + HORIZON_MS, 0
    while moved < work.n:
        base.execute("BEGIN IMMEDIATE")
        answer = base.execute(
            "SELECT due, row FROM waiting WHERE due <= ? ORDER BY due, row LIMIT 1 OFFSET ?",
            (now_ms, batch - 1),
        ).fetchone()
        last = answer or (now_ms, work.n)
        base.execute(
            "INSERT INTO ready (body) SELECT body FROM waiting WHERE (due, row) <= (?, ?)"
            " ORDER BY due, row",
            last,
        )
        moved += base.execute("DELETE FROM waiting WHERE (due, row) <= (?, ?)", last).rowcount
        base.execute("COMMIT")
    while len(found) < work.n:
        base.execute("BEGIN IMMEDIATE")
        got = base.execute("SELECT place, body FROM ready ORDER BY place LIMIT ?", (batch,))
        taken = got.fetchall()
        need(bool(taken), "nothing is ready")
        base.execute("DELETE FROM ready WHERE place <= ?", (taken[-1][0],))
        base.execute("COMMIT")
        found += [body for _, body in taken]
    ended = time.perf_counter()
    base.close()
    return Times(scheduled - began, ended - resumed, laps.laps_ns, b"".join(found), used)


def by_heapq(work: Work, _root: Path, batch: int, _smoke: bool) -> Times:
    """A heap of tuples and a deque: what a program without a store would do."""
    heap: list[tuple[int, int, bytes]] = []
    ready: deque[bytes] = deque()
    found: list[bytes] = []
    due = work.due_ms.tolist()
    given = [work.bodies(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    laps = harness.Stopwatch()
    began = time.perf_counter()
    for at, bodies in zip(range(0, work.n, batch), given, strict=True):
        with laps:
            for row, body in enumerate(bodies, at):
                heapq.heappush(heap, (due[row], row, body))
    scheduled = time.perf_counter()
    now_ms = START_MS + HORIZON_MS
    while heap and heap[0][0] <= now_ms:
        ready.append(heapq.heappop(heap)[2])
    while ready:
        found.append(ready.popleft())
    ended = time.perf_counter()
    return Times(scheduled - began, ended - scheduled, laps.laps_ns, b"".join(found), 0)


class Engine(NamedTuple):
    """A way to do the work, and what it promises."""

    name: str
    variant: str
    flush: str
    work: Callable[[Work, Path, int, bool], Times]


ENGINES = (
    Engine("timerstore", "list", "async, sync 0.5 s", partial(ours, form="list", threads=True)),
    Engine("timerstore", "buffer", "async, sync 0.5 s", partial(ours, form="buffer", threads=True)),
    Engine("timerstore", "stepped", "async, sync 0.5 s", partial(ours, form="list", threads=False)),
    Engine("lmdb", "NOSYNC, WRITEMAP", "sync 1 s", partial(by_lmdb, durable=False)),
    Engine("lmdb", "default", "sync each transaction", partial(by_lmdb, durable=True)),
    Engine("sqlite", "clustered", "WAL, NORMAL", partial(by_sqlite, layout="clustered")),
    Engine("sqlite", "rowid + index", "WAL, NORMAL", partial(by_sqlite, layout="rowid + index")),
    Engine("heapq", "heap and deque", "none", by_heapq),
)


def once(engine: Engine, work: Work, root: Path, parameters: dict[str, Any], smoke: bool) -> Result:
    """One run of one engine."""
    times = engine.work(work, root, parameters["batch"], smoke)
    rows = harness.rows_of(times.bodies, work.body_bytes)
    need(len(rows) == work.n, f"{engine.name}: {len(rows)} came out, {work.n} were put")
    need(bool((rows == work.due_order()).all()), f"{engine.name}: other rows, or another order")
    total = times.schedule + times.deliver
    laps = np.array(times.laps_ns) / min(parameters["batch"], work.n)
    return Result(
        "peers",
        {"engine": engine.name, "variant": engine.variant, **parameters},
        work.n,
        work.n / total,
        "ns a message of a scheduled batch",
        harness.spread(laps),
        engine.flush,
        harness.digest(times.bodies),
        {
            "schedule_rate": work.n / times.schedule,
            "deliver_rate": work.n / times.deliver,
            "disk_bytes_per_pending": times.disk_pending / work.n,
        },
    )


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Every engine once a round."""
    parameters = dict(parameters)
    rounds = parameters.pop("rounds")
    work = harness.make_work(parameters["n"], parameters["body"], HORIZON_MS)
    for _ in range(rounds):
        for engine in ENGINES:
            with harness.workspace(directory) as root:
                job = partial(once, engine, work, root, parameters, smoke)
                yield harness.isolated(job, fork=not smoke)


def ratios(results: list[Result]) -> str:
    """Medians, and how many times as fast as each ours (lists of bodies) is."""
    by_engine: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (result.parameters["engine"], result.parameters["variant"])
        by_engine.setdefault(key, []).append(result)

    def median(key: tuple[str, str], what: str) -> float:
        return statistics.median(
            result.rate if what == "rate" else result.figures[what] for result in by_engine[key]
        )

    base = median(("timerstore", "list"), "rate")
    head = f"{'engine':<28}{'flush':<24}{'schedule/s':>12}{'deliver/s':>12}{'both/s':>12}"
    lines = [f"{head}{'range':>22}{'ours is':>10}"]
    for key, runs in by_engine.items():
        rates = [result.rate for result in runs]
        schedule, deliver = median(key, "schedule_rate"), median(key, "deliver_rate")
        both = median(key, "rate")
        lines.append(
            f"{' '.join(key):<28}{runs[0].flush:<24}{schedule:>12,.0f}{deliver:>12,.0f}"
            f"{both:>12,.0f}{f'{min(rates):,.0f}-{max(rates):,.0f}':>22}{base / both:>8.2f} x"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print one line a run, then medians and ratios."""
    options = harness.arguments(__doc__, FULL).parse_args(argv)
    found = run(harness.chosen(options, FULL, SMOKE), options.smoke, options.directory)
    print(ratios(harness.emit(found, options.json)), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
