"""Deliver 200,000 reminders in real time over 20 seconds, with a kill -9 half-way.

A parent process starts, watches, kills and restarts a child (live_child.py), and counts at the end.
The child runs a store with its services (threads=True, flush="sync"), a producer and a consumer,
and records its calls in a ledger (live_ledger.py). Every hundredth message is cancelled right after
its put. Exit status 1 with FAIL means that a count contradicts the ledger.

Rules for the counts:
    - An acknowledged message is delivered exactly once, unless its cancel returned CANCELLED.
    - A message is delivered at most once if its put or cancel had no answer at the kill.
    - A message seen by a consumer before the kill is at the same queue offset afterwards.
    - Lateness is delivered_ms - due_ms. Messages due while no store was running count separately.

Invariants:
    1. The parent counts at the end, from the reopened directory.
    2. A message is identified by (row, life). A batch in flight at the kill is put again with the
       number of the next life, so that it is not mistaken for a duplicate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

import timerstore
from benchmarks import audit, harness
from benchmarks.control import Control, Stall
from benchmarks.live_child import Child
from benchmarks.live_ledger import (
    ACKED,
    CANCEL_INTENT,
    CANCELLED,
    DELAY_MS_MAX,
    GRACE_S,
    INTENT,
    LIVES_MAX,
    OPENED,
    PULL_COUNT_MAX,
    REFUSED,
    SEEN,
    SEEN_TYPE,
    STARTING_MS,
    STORE,
    TOO_LATE,
    TOPIC,
    Int64,
    Schedule,
    body_of,
    ids_of,
    ledger_of,
    wall_ms,
)
from benchmarks.progress_line import progress_line
from timerstore import StoreConfig


class Lived(NamedTuple):
    """The events and measurements of the parent."""

    killed_ms: list[int]
    opened_ms: list[int]
    stall: Stall
    seconds: float
    status: int


class Pace(NamedTuple):
    """The number of reminders, the duration of the puts, and the maximum delay."""

    n: int
    seconds: float
    delay_ms: int


def spawn(root: Path, life: int, pace: Pace, start_ms: int) -> subprocess.Popen[bytes]:
    """Start the child process of one life."""
    words = ["--life", str(life), "--directory", str(root.resolve()), "--start-ms", str(start_ms)]
    words += ["--n", str(pace.n), "--seconds", str(pace.seconds)]
    words += ["--delay-ms", str(pace.delay_ms)]
    home = Path(__file__).absolute().parent.parent
    return subprocess.Popen([sys.executable, "-m", "benchmarks.demo_live", *words], cwd=home)


def drive(root: Path, pace: Pace, kills: int, quiet: bool) -> tuple[Lived, Schedule]:
    """Run lives one after another. Each but the last is ended with SIGKILL."""
    n, seconds, delay_ms = pace
    start_ms = wall_ms() + STARTING_MS
    schedule = Schedule.of(n, seconds, start_ms, delay_ms)
    kill_at = [start_ms + seconds * 1e3 * (kill + 1) / (kills + 1) for kill in range(kills)]
    killed: list[int] = []
    began = time.perf_counter()
    ends_ms = int(schedule.due_ms.max()) + GRACE_S * 1e3 + 10_000
    with Control() as control, progress_line(n, " put", quiet=quiet) as bar:
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
    """Return a mask of the ids in the ledger records of one kind."""
    marks = np.zeros(LIVES_MAX * n, dtype=np.bool_)
    for record in records[records["kind"] == kind]:
        begin = int(record["life"]) * n + int(record["row"])
        marks[begin : begin + int(record["value"])] = True
    return marks


class Read(NamedTuple):
    """The contents of the reopened directory."""

    pulled: audit.Pulled
    pending: int
    clean: bool
    report: str


def consume(root: Path, n: int) -> Read:
    """Open the directory of the child, and read all messages from the first one on."""
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
    """Return a mask of the messages that no running store could have delivered in time.

    They were due before the end of a restart, and were delivered after the kill before it.
    """
    found = np.zeros(len(due), dtype=np.bool_)
    for killed, opened in zip(lived.killed_ms, lived.opened_ms[1:], strict=False):
        found |= (due <= opened) & (delivered >= killed)
    return found


class Seen(NamedTuple):
    """The records of the consumers of all lives."""

    taken_back: int
    """Messages missing or different at the queue offset where a consumer saw them."""
    ids: Int64
    first_ms: Int64
    """The time when each id was first seen."""


def seen_by_consumers(root: Path, lives: int, now: Int64) -> Seen:
    """Compare the consumers' records with the ids now in the queue, by queue offset."""
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
    """Run the demo and count. Return all figures; `wrong` lists the violated conditions."""
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
    """Return p50, p99 and max in a form that JSON accepts."""
    return [harness.or_none(value) for value in harness.spread(sample)]


def verdict(figures: dict[str, Any], kills: int) -> list[str]:
    """Return one sentence for each violated condition; none means PASS. Lateness is not checked."""
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
    """Print a message without damaging the progress bar, unless quiet."""
    if not quiet:
        tqdm.write(line)


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
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
        ("early", f"{figures['early']:,}, and {figures['seen_early']:,} as seen by a consumer"),
        ("cancelled, yet delivered", f"{figures['unwanted']:,}"),
        ("bodies altered", f"{figures['altered'] + figures['unknown']:,}"),
        ("seen, then missing", f"{figures['taken_back']:,}"),
        ("no answer at the kill", f"{figures['unanswered']:,} puts and cancels"),
        ("lateness p50 / p99 / max", late("lateness_ms")),
        ("as seen by a consumer", late("seen_lateness_ms")),
        (
            "due while down",
            f"{figures['due_while_down']:,}, down for {figures['down_ms']} ms: late by "
            + late("lateness_down_ms"),
        ),
        ("stall of the machine", f"{figures['stall_max_ms']:,.1f} ms at most"),
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
    """Run the demo. Return exit status 0 for PASS, 1 for FAIL."""
    parser = argparse.ArgumentParser(description="Reminders in real time, through a kill -9.")
    parser.add_argument(
        "--directory", type=Path, help="a new or empty directory (default: temporary)"
    )
    parser.add_argument("--n", type=int, default=200_000, help="reminders")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the puts")
    parser.add_argument(
        "--delay-ms", type=int, default=DELAY_MS_MAX, help="maximum delay of a reminder"
    )
    parser.add_argument("--kills", type=int, default=1, help="number of kills, evenly spaced")
    parser.add_argument("--keep", action="store_true", help="leave the store on disk")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures to this file")
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
