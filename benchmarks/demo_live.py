"""200,000 reminders in real time over 20 seconds, through a kill -9 half-way.

Data:     a ledger, one file of 24-byte records that the writer appends with one write() each:
          INTENT before put_many, ACKED after it returned, the same round each cancel, OPENED
          when a store is ready. It survives SIGKILL in the page cache, as the store's files do.
Threads:  parent: starts, watches, kills, restarts, counts. Child: the store with its services
          (threads=True, flush="sync"), a producer, and a consumer that notes what it saw when.
Holds:    (1) the parent counts in a phase of its own, from the directory opened afresh;
          (2) a message is known by (row, life): a batch in flight at the kill is put again in the
          next life under that life's number, so that it is never mistaken for a duplicate.
Fails:    exit status 1 with FAIL where a count is not what the ledger demands.

Must come out exactly once: what was acknowledged; every hundredth is cancelled as soon as it is
put, and must not come out once that is answered CANCELLED. May come out at most once: what was put,
or was being cancelled, without an answer when the writer died. What the consumer saw before the
kill must still be there, at its place, afterwards. Lateness is delivered_ms - due_ms, both real;
messages that came due while no store was running are told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

import timerstore
from benchmarks import audit, harness
from benchmarks.control import Control, Stall
from timerstore import CancelResult, StoreConfig, TimerStore

TOPIC = "live-reminder"
PULL_COUNT_MAX = 10_000
PUT_EVERY_S = 0.01
POLL_S = 0.002
"""How long the consumer sleeps when nothing came; its own lateness is at least half of this."""

DELAY_MS_MAX = 3_000
"""A reminder is due a third of this to all of this after it is planned to be put."""

GRACE_S = 30.0
"""How long after the last due time the child may take to have delivered everything."""

STARTING_MS = 1_500
"""What the first child gets to start in, before the first row is to be put."""

LIVES_MAX = 9
LEDGER = "ledger"
SEEN = "seen"
STORE = "store"
RECORD = struct.Struct("<bxxxIQq")
"""Kind, life, first row or 0, and a count or a time in epoch ms."""

INTENT, ACKED, OPENED, CANCEL_INTENT, CANCELLED, TOO_LATE, REFUSED = range(1, 8)
CANCEL_EVERY = 100

Int64 = NDArray[np.int64]
RECORD_TYPE = np.dtype(
    [("kind", "i1"), ("pad", "V3"), ("life", "<u4"), ("row", "<u8"), ("value", "<i8")]
)
SEEN_TYPE = np.dtype([("offset", "<i8"), ("id", "<i8"), ("seen_ms", "<i8")])


def wall_ms() -> int:
    """The clock that both lives share."""
    return time.time_ns() // 1_000_000


class Schedule(NamedTuple):
    """When each row is planned to be put, and due; the same in every process, from the seed."""

    put_ms: Int64
    due_ms: Int64

    @classmethod
    def of(cls, n: int, seconds: float, start_ms: int, delay_ms: int) -> Schedule:
        """Puts are spread evenly; delays are random."""
        put = start_ms + (np.arange(n) * (seconds * 1000.0 / n)).astype(np.int64)
        random = np.random.default_rng(harness.SEED)
        return cls(put, put + random.integers(delay_ms // 3, delay_ms + 1, size=n))


def body_of(row: int, life: int) -> bytes:
    """Row in eight columns, life in one; padded to 128 bytes."""
    text = f'{{"row":{row:8d},"life":{life:1d},"text":"remember number {row}"'
    return text.ljust(127).encode() + b"}"


def ids_of(bodies: NDArray[np.uint8], offsets: Int64, n: int) -> Int64:
    """Give life * n + row of each body; -1 where it has none."""
    begins = offsets[:-1]
    rows = audit.digits(bodies, begins, (7, 15))
    lives = audit.digits(bodies, begins, (23, 24))
    good = (rows >= 0) & (rows < n) & (lives >= 0) & (lives < LIVES_MAX)
    return np.where(good, lives * n + rows, -1)


def ledger_of(root: Path) -> NDArray[Any]:
    """Whole records only: a write() of 24 bytes may have been cut."""
    path = root / LEDGER
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data[: len(data) // RECORD.size * RECORD.size], dtype=RECORD_TYPE)


# ---------------------------------------------------------------- the child


class Child:
    """One life: opens the store, goes on with the rows that no ledger says were acknowledged."""

    def __init__(self, root: Path, life: int, schedule: Schedule) -> None:
        self._root = root
        self._life = life
        self._schedule = schedule
        self._due_last_ms = int(schedule.due_ms.max())
        self._produced = threading.Event()
        self._ledger = os.open(root / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def live(self, config: StoreConfig) -> None:
        """Until every row is put and the store holds nothing that waits."""
        acked = ledger_of(self._root)
        acked = acked[acked["kind"] == ACKED]
        first = int((acked["row"].astype(np.int64) + acked["value"]).max(initial=0))
        with timerstore.open(self._root / STORE, config) as store:
            self._note(OPENED, 0, wall_ms())
            consumer = threading.Thread(target=self._consume, args=(store,), name="consumer")
            consumer.start()
            self._produce(store, first)
            self._produced.set()
            consumer.join()

    def _note(self, kind: int, row: int, value: int) -> None:
        os.write(self._ledger, RECORD.pack(kind, self._life, row, value))

    def _produce(self, store: TimerStore, first: int) -> None:
        put_ms, due_ms = self._schedule
        n = len(put_ms)
        while first < n:
            end = min(int(np.searchsorted(put_ms, wall_ms(), side="right")), first + 1000)
            if end > first:
                bodies = [body_of(row, self._life) for row in range(first, end)]
                self._note(INTENT, first, end - first)
                batch = store.put_many(TOPIC, bodies, deliver_ms=due_ms[first:end])
                self._note(ACKED, first, len(batch))
                for row in range(-(-first // CANCEL_EVERY) * CANCEL_EVERY, end, CANCEL_EVERY):
                    self._cancel(store, row, batch[row - first].handle)
                first = end
            if first < n:
                time.sleep(max(0.0, min(PUT_EVERY_S, (put_ms[first] - wall_ms()) / 1e3)))

    def _cancel(self, store: TimerStore, row: int, handle: str) -> None:
        self._note(CANCEL_INTENT, row, 1)
        answer = store.cancel(handle)
        kinds = {CancelResult.CANCELLED: CANCELLED, CancelResult.ALREADY_DELIVERED: TOO_LATE}
        self._note(kinds.get(answer, REFUSED), row, 1)

    def _consume(self, store: TimerStore) -> None:
        """Note what comes, until all is due, delivered and seen. Starts over in each life."""
        offset = 0
        n = len(self._schedule.put_ms)
        with (self._root / f"{SEEN}{self._life}").open("ab", buffering=0) as out:
            while True:
                final = self._produced.is_set() and wall_ms() > self._due_last_ms
                final = final and next(iter(store.pending()), None) is None
                got = 0
                while TOPIC in store.topics():
                    batch = store.pull_batch(TOPIC, 0, offset, max_count=PULL_COUNT_MAX)
                    if not len(batch):
                        break
                    got += len(batch)
                    seen = np.zeros(len(batch), dtype=SEEN_TYPE)
                    bodies = np.frombuffer(batch.bodies, dtype=np.uint8)
                    seen["id"] = ids_of(bodies, np.asarray(batch.body_offsets), n)
                    seen["offset"] = batch.queue_offset
                    seen["seen_ms"] = wall_ms()
                    out.write(seen.tobytes())
                    offset = int(batch.next_offset)
                if final and not got:
                    return
                if wall_ms() > self._due_last_ms + GRACE_S * 1e3:
                    return
                time.sleep(POLL_S)


# ---------------------------------------------------------------- the parent


class Lived(NamedTuple):
    """What the parent did and saw."""

    killed_ms: list[int]
    opened_ms: list[int]
    stall: Stall
    seconds: float
    status: int


class Pace(NamedTuple):
    """How many reminders, over how long, how far ahead."""

    n: int
    seconds: float
    delay_ms: int


def spawn(root: Path, life: int, pace: Pace, start_ms: int) -> subprocess.Popen[bytes]:
    """Start a life."""
    words = ["--life", str(life), "--directory", str(root.resolve()), "--start-ms", str(start_ms)]
    words += ["--n", str(pace.n), "--seconds", str(pace.seconds)]
    words += ["--delay-ms", str(pace.delay_ms)]
    home = Path(__file__).absolute().parent.parent
    return subprocess.Popen([sys.executable, "-m", "benchmarks.demo_live", *words], cwd=home)


def drive(root: Path, pace: Pace, kills: int, quiet: bool) -> tuple[Lived, Schedule]:
    """Run lives one after the other; each but the last ends by SIGKILL."""
    n, seconds, delay_ms = pace
    start_ms = wall_ms() + STARTING_MS
    schedule = Schedule.of(n, seconds, start_ms, delay_ms)
    kill_at = [start_ms + seconds * 1e3 * (kill + 1) / (kills + 1) for kill in range(kills)]
    killed: list[int] = []
    began = time.perf_counter()
    ends_ms = int(schedule.due_ms.max()) + GRACE_S * 1e3 + 10_000
    with Control() as control, tqdm(total=n, unit=" put", disable=quiet, mininterval=0.5) as bar:
        child = spawn(root, 0, pace, start_ms)
        try:
            while child.poll() is None:
                if wall_ms() > ends_ms:
                    break
                records = ledger_of(root)
                put = int(records["value"][records["kind"] == ACKED].sum())
                bar.update(put - bar.n)
                if len(killed) < kills and wall_ms() >= kill_at[len(killed)]:
                    killed.append(wall_ms())
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                    tell(quiet, f"killed with -9 after {put:,} acknowledged; starting again")
                    child = spawn(root, len(killed), pace, start_ms)
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            status = child.wait()
    records = ledger_of(root)
    opened = records["value"][records["kind"] == OPENED].tolist()
    lived = Lived(killed, opened, control.stall, time.perf_counter() - began, status)
    return lived, schedule


def spans(records: NDArray[Any], kind: int, n: int) -> NDArray[np.bool_]:
    """Which ids the records of a kind name."""
    marks = np.zeros(LIVES_MAX * n, dtype=np.bool_)
    for record in records[records["kind"] == kind]:
        begin = int(record["life"]) * n + int(record["row"])
        marks[begin : begin + int(record["value"])] = True
    return marks


class Read(NamedTuple):
    """What the directory gives when it is opened afresh."""

    pulled: audit.Pulled
    pending: int
    clean: bool
    report: str


def consume(root: Path, n: int) -> Read:
    """The consumer phase: another process's directory, read from the first message on."""
    pulled = audit.Pulled()
    offset = 0
    with timerstore.open(root / STORE, threads=False) as store:
        pending = sum(1 for _ in store.pending())
        report = store.verify()
        while TOPIC in store.topics():
            batch = store.pull_batch(TOPIC, 0, offset, max_count=PULL_COUNT_MAX)
            if not len(batch):
                break
            bodies = np.frombuffer(batch.bodies, dtype=np.uint8)
            offsets = np.asarray(batch.body_offsets, dtype=np.int64)
            ids = ids_of(bodies, offsets, n)
            whole = [body_of(int(at) % n, int(at) // n) if at >= 0 else b"" for at in ids]
            altered = audit.Expected.of(whole).altered(np.arange(len(ids)), bodies, offsets)
            pulled.add(ids, batch.delivered_ms, wall_ms(), altered)
            offset = int(batch.next_offset)
    return Read(pulled, pending, report.clean, str(report))


def down(due: Int64, delivered: Int64, lived: Lived) -> NDArray[np.bool_]:
    """Tell which no running store could have delivered in time.

    Due, but not out, before a kill and out after it; or due between a kill and the next opening.
    """
    found = np.zeros(len(due), dtype=np.bool_)
    for killed, opened in zip(lived.killed_ms, lived.opened_ms[1:], strict=False):
        found |= (due <= opened) & (delivered >= killed)
    return found


class Seen(NamedTuple):
    """What the consumers of all lives noted."""

    taken_back: int
    """Messages that are not, or not the same, at the place where they were seen."""
    ids: Int64
    first_ms: Int64
    """When each id was first seen."""


def seen_by_consumers(root: Path, lives: int, now: Int64) -> Seen:
    """Compare their notes with the ids that the queue holds now, in its order."""
    wrong = 0
    parts = [np.zeros(0, dtype=SEEN_TYPE)]
    for life in range(lives):
        path = root / f"{SEEN}{life}"
        data = path.read_bytes() if path.exists() else b""
        whole = len(data) // SEEN_TYPE.itemsize * SEEN_TYPE.itemsize
        seen = np.frombuffer(data[:whole], dtype=SEEN_TYPE)
        inside = seen["offset"] < len(now)
        wrong += int(np.count_nonzero(~inside))
        wrong += int(np.count_nonzero(now[seen["offset"][inside]] != seen["id"][inside]))
        parts.append(seen)
    joined = np.concatenate(parts)
    ids, first = np.unique(joined["id"], return_index=True)
    return Seen(wrong, ids, joined["seen_ms"][first].astype(np.int64))


def run(
    directory: Path | None = None,
    *,
    n: int = 200_000,
    seconds: float = 20.0,
    delay_ms: int = DELAY_MS_MAX,
    kills: int = 1,
    keep: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Live it, then count; all figures, with `wrong` a list of what is not as it must be."""
    harness.need(kills < LIVES_MAX, f"at most {LIVES_MAX - 1} kills")
    with harness.workspace(directory, keep=keep) as root:
        lived, schedule = drive(root, Pace(n, seconds, delay_ms), kills, quiet)
        read = consume(root, n)
        used = harness.disk(root / STORE)
        records = ledger_of(root)
        seen = seen_by_consumers(root, kills + 1, read.pulled.ids)
    acked, tried = spans(records, ACKED, n), spans(records, INTENT, n)
    cancelled, too_late = spans(records, CANCELLED, n), spans(records, TOO_LATE, n)
    unsure = (spans(records, CANCEL_INTENT, n) & ~cancelled & ~too_late) | (tried & ~acked)
    due = np.tile(schedule.due_ms, LIVES_MAX)
    found = audit.count(read.pulled, due, acked & ~unsure & ~cancelled, unsure, cancelled)
    late = audit.lateness_ms(read.pulled, due)
    ids = read.pulled.ids[read.pulled.ids >= 0]
    while_down = down(due[ids], read.pulled.delivered_ms[read.pulled.ids >= 0], lived)
    sights = seen.ids >= 0
    seen_due, seen_ms = due[seen.ids[sights]], seen.first_ms[sights]
    seen_late = (seen_ms - seen_due)[~down(seen_due, seen_ms, lived)]
    gaps = zip(lived.killed_ms, lived.opened_ms[1:], strict=False)
    figures: dict[str, Any] = {
        "reminders": n,
        "scheduled": int(acked.sum()),
        "unanswered": int(unsure.sum()),
        "cancelled": int(cancelled.sum()),
        "cancels_too_late": int(too_late.sum()),
        "cancels_refused": int(np.count_nonzero(records["kind"] == REFUSED)),
        **found._asdict(),
        "taken_back": seen.taken_back,
        "kills": len(lived.killed_ms),
        "down_ms": [opened - killed for killed, opened in gaps],
        "lateness_ms": spread_of(late[~while_down]),
        "due_while_down": int(while_down.sum()),
        "lateness_down_ms": spread_of(late[while_down]),
        "seen_early": int(np.count_nonzero(seen_ms < seen_due)),
        "seen_lateness_ms": spread_of(seen_late),
        "stall_max_ms": lived.stall.max_ms,
        "seconds": round(lived.seconds, 3),
        "messages_per_second": round(int(acked.sum()) / lived.seconds),
        "files": used.files,
        "apparent_bytes": used.apparent_bytes,
        "allocated_bytes": used.allocated_bytes,
        "peak_rss_bytes": harness.peak_rss_bytes(),
        "child_peak_rss_bytes": harness.peak_rss_bytes(children=True),
        "pending_after": read.pending,
        "verify_clean": read.clean,
        "verify_report": read.report,
        "child_status": lived.status,
    }
    figures["wrong"] = verdict(figures, kills)
    return figures


def spread_of(sample: Int64) -> list[float | None]:
    """p50, p99, max as JSON takes them."""
    return [harness.or_none(value) for value in harness.spread(sample)]


def verdict(figures: dict[str, Any], kills: int) -> list[str]:
    """What is wrong, one sentence each; empty means PASS. Lateness is told, not judged."""
    zero = "lost duplicated early seen_early unwanted unknown altered taken_back"
    zero += " cancels_refused pending_after"
    wrong = [f"{name}: {figures[name]:,}, wanted 0" for name in zero.split() if figures[name]]
    if figures["scheduled"] < figures["reminders"]:
        wrong.append(f"scheduled: {figures['scheduled']:,}, wanted {figures['reminders']:,}")
    if figures["kills"] != kills or len(figures["down_ms"]) != kills:
        wrong.append(f"killed and opened again: {figures['kills']} times, wanted {kills}")
    if figures["child_status"] != 0:
        wrong.append(f"the store's process ended with {figures['child_status']}, wanted 0")
    if not figures["verify_clean"]:
        wrong.append(f"verify: {figures['verify_report']}")
    return wrong


def tell(quiet: bool, line: str) -> None:
    """Print between two states of the progress bar, unless quiet."""
    if not quiet:
        tqdm.write(line)


def show(figures: dict[str, Any]) -> None:
    """The figures for people."""
    mebi = 1 << 20
    apparent = figures["apparent_bytes"] / mebi
    allocated = figures["allocated_bytes"] / mebi

    def late(name: str) -> str:
        told = ("-" if value is None else f"{value:,.0f}" for value in figures[name])
        return " / ".join(told) + " ms"

    for name, value in (
        ("scheduled", f"{figures['scheduled']:,}"),
        ("delivered", f"{figures['delivered']:,}"),
        ("cancelled", f"{figures['cancelled']:,}"),
        ("lost", f"{figures['lost']:,}"),
        ("duplicated", f"{figures['duplicated']:,}"),
        ("early", f"{figures['early']:,}, and {figures['seen_early']:,} as a consumer saw it"),
        ("cancelled, yet delivered", f"{figures['unwanted']:,}"),
        ("bodies altered", f"{figures['altered'] + figures['unknown']:,}"),
        ("seen, then taken back", f"{figures['taken_back']:,}"),
        ("no answer at the kill", f"{figures['unanswered']:,} puts and cancels: either is right"),
        ("lateness p50 / p99 / max", late("lateness_ms")),
        ("as a consumer saw it", late("seen_lateness_ms")),
        (
            "due while it was down",
            f"{figures['due_while_down']:,}, down for {figures['down_ms']} ms: late by "
            + late("lateness_down_ms"),
        ),
        ("machine's own stall", f"{figures['stall_max_ms']:,.1f} ms at most"),
        (
            "messages a second",
            f"{figures['messages_per_second']:,} as paced, {figures['seconds']:.1f} s in all",
        ),
        (
            "on disk",
            f"{figures['files']} files, {apparent:,.1f} MiB long, {allocated:,.1f} MiB allocated",
        ),
        ("peak RSS of the store", f"{figures['child_peak_rss_bytes'] / mebi:,.1f} MiB"),
        ("reopened: pending", f"{figures['pending_after']:,}"),
        ("reopened: verify", "clean" if figures["verify_clean"] else figures["verify_report"]),
    ):
        print(f"{name:>26}  {value}")
    for wrong in figures["wrong"]:
        print(f"wrong: {wrong}")
    print("FAIL" if figures["wrong"] else "PASS")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 PASS, 1 FAIL."""
    parser = argparse.ArgumentParser(description="Reminders in real time, through a kill -9.")
    parser.add_argument("--directory", type=Path, help="a new or empty one (default: temporary)")
    parser.add_argument("--n", type=int, default=200_000, help="reminders")
    parser.add_argument("--seconds", type=float, default=20.0, help="over which they are put")
    parser.add_argument(
        "--delay-ms", type=int, default=DELAY_MS_MAX, help="how long one waits at most"
    )
    parser.add_argument("--kills", type=int, default=1, help="evenly spread over the seconds")
    parser.add_argument("--keep", action="store_true", help="leave the store on disk")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument("--life", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--start-ms", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.life is not None:
        schedule = Schedule.of(options.n, options.seconds, options.start_ms, options.delay_ms)
        Child(options.directory, options.life, schedule).live(StoreConfig())
        return 0
    try:
        figures = run(
            options.directory,
            n=options.n,
            seconds=options.seconds,
            delay_ms=options.delay_ms,
            kills=options.kills,
            keep=options.keep,
        )
    except harness.WorkError as error:
        print(error, file=sys.stderr)
        return 1
    show(figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
