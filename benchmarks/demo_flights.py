"""Simulate a year of reminders: one for each of 336,776 flights, due 24 hours before departure.

A reminder is put 47 hours before departure, and is due 23 hours later. Every tenth is put nine days
before departure, so that it waits eight days and rolls. A flight without a departure time in the
data was cancelled: its reminder is cancelled one hour before it is due. After the last reminder the
clock advances by ten days, so that late and duplicate messages appear. Then the directory is
reopened. It must have no pending message, and is read a second time.

The clock stops at every second minute (--stop-minutes) in which something is put, cancelled or due.
All services but flush run there until none has work. Flush runs, and delivered messages are pulled,
every simulated day (--pull-minutes). Writes use flush="async": a disk sync at each of about 180,000
stops would measure the disk. A pull needs a sync, because reads are durable.

Exit status 1 with FAIL means that a count contradicts the data, 2 that the data is missing.

Thread safety: uses one thread. The services are stepped (threads=False) on a manual clock.
Invariants:
    Every count is computed from the pulled messages (audit.py). The store reports only accepted
    cancels and, at the end, pending messages.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import timerstore
from benchmarks import audit, flights, harness
from benchmarks.flight_year import PULL_MINUTES, Played, Reader, make_plan, play
from benchmarks.progress_line import progress_line
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper


class Reopened(NamedTuple):
    """The contents of the reopened directory."""

    pending: int
    clean: bool
    report: str
    reread_differs: int
    more: int
    """Messages delivered after the reopening."""


def reopen(
    root: Path, config: StoreConfig, end_ms: int, expected: audit.Expected, first: Reader
) -> Reopened:
    """Reopen the store, run the services, list pending messages, verify, and read all again."""
    clock = ManualClock(end_ms)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        Stepper(store).settle()
        pending = sum(1 for _ in store.pending())
        report = store.verify()
        again = Reader(expected)
        again.drain(store, end_ms)
    ids, first_ids = again.pulled.ids, first.pulled.ids
    common = min(len(ids), len(first_ids))
    same_times = again.pulled.delivered_ms[:common] == first.pulled.delivered_ms[:common]
    differs = int(np.count_nonzero((ids[:common] != first_ids[:common]) | ~same_times))
    differs += max(0, len(first_ids) - common) + again.pulled.altered
    return Reopened(pending, report.clean, str(report), differs, max(0, len(ids) - common))


def verdict(figures: dict[str, Any], stop_minutes: int) -> list[str]:
    """Return one sentence for each violated condition; none means PASS."""
    wrong = [
        f"{name}: {figures[name]:,}, wanted 0"
        for name in (
            "lost",
            "duplicated",
            "early",
            "unwanted",
            "unknown",
            "altered",
            "cancels_refused",
            "pending_after_reopen",
            "reread_differs",
            "delivered_after_reopen",
        )
        if figures[name]
    ]
    for name, wanted in (
        ("scheduled", figures["flights"]),
        ("cancelled", figures["called_off"]),
        ("delivered", figures["flights"] - figures["called_off"]),
    ):
        if figures[name] != wanted:
            wrong.append(f"{name}: {figures[name]:,}, wanted {wanted:,}")
    late_max = (stop_minutes - 1) * flights.MINUTE_MS
    if figures["lateness_max_ms"] is None or figures["lateness_max_ms"] > late_max:
        wrong.append(f"lateness max: {figures['lateness_max_ms']} ms, wanted at most {late_max}")
    if not figures["verify_clean"]:
        wrong.append(f"verify: {figures['verify_report']}")
    return wrong


def run(
    directory: Path | None = None,
    *,
    limit: int | None = None,
    keep: bool = False,
    config: StoreConfig | None = None,
    stop_minutes: int = 1,
    pull_minutes: int = PULL_MINUTES,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the demo. Return all figures; `wrong` lists the violated conditions."""
    config = config or StoreConfig(flush="async", index_enabled=False)  # no queries by key
    began = time.perf_counter()
    data = flights.load(limit)
    load_seconds = time.perf_counter() - began
    plan = make_plan(data, stop_minutes)
    expected = audit.Expected.of(data.bodies)
    reader = Reader(expected)
    due_total = int(plan.due_counts[-1])
    tell(quiet, f"{len(data.bodies):,} flights read in {load_seconds:.1f} s")
    with harness.workspace(directory, keep=keep) as root:
        clock = ManualClock(plan.stops_ms[0])
        bar = progress_line(due_total, " reminders", quiet=quiet)

        def progress(now_ms: int) -> None:
            bar.set_description(time.strftime("%Y-%m-%d", time.gmtime(now_ms / 1e3)), refresh=False)
            bar.update(min(reader.pulled.count, due_total) - bar.n)

        with bar, timerstore.open(root, config, clock=clock, threads=False) as store:
            played = play(
                store, clock, data, plan, reader, pull_minutes=pull_minutes, progress=progress
            )
        used = harness.disk(root)
        peak = harness.peak_rss_bytes()
        after = reopen(root, config, played.end_ms, expected, reader)
    found = count(data, played, reader)
    late = harness.spread(audit.lateness_ms(reader.pulled, data.due_ms))
    figures: dict[str, Any] = {
        "flights": len(data.bodies),
        "called_off": int(data.called_off.sum()),
        "scheduled": int(played.scheduled.sum()),
        "cancelled": int(played.cancelled.sum()),
        "cancels_refused": sum(played.refused.values()),
        "refusals": played.refused,
        **found._asdict(),
        "lateness_p50_ms": harness.or_none(late.p50),
        "lateness_p99_ms": harness.or_none(late.p99),
        "lateness_max_ms": harness.or_none(late.max),
        "clock_stops": played.stops,
        "stop_minutes": stop_minutes,
        "load_seconds": round(load_seconds, 3),
        "play_seconds": round(played.seconds, 3),
        "messages_per_second": round(len(data.bodies) / played.seconds),
        "files": used.files,
        "apparent_bytes": used.apparent_bytes,
        "allocated_bytes": used.allocated_bytes,
        "peak_rss_bytes": peak,
        "pending_after_reopen": after.pending,
        "verify_clean": after.clean,
        "verify_report": after.report,
        "reread_differs": after.reread_differs,
        "delivered_after_reopen": after.more,
        "directory": str(root) if keep else None,
        "total_seconds": round(time.perf_counter() - began, 3),
    }
    figures["wrong"] = verdict(figures, stop_minutes)
    return figures


def count(data: flights.Flights, played: Played, reader: Reader) -> audit.Counts:
    """Count deliveries; each message that was put and not cancelled is expected once."""
    must = played.scheduled & ~played.cancelled
    nothing = np.zeros_like(must)
    return audit.count(reader.pulled, data.due_ms, must, nothing, played.cancelled)


def tell(quiet: bool, line: str) -> None:
    """Print a message, unless quiet."""
    if not quiet:
        print(line, flush=True)


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    mebi = 1 << 20
    late = "{lateness_p50_ms} / {lateness_p99_ms} / {lateness_max_ms} ms".format(**figures)
    apparent = figures["apparent_bytes"] / mebi
    allocated = figures["allocated_bytes"] / mebi
    for name, value in (
        ("scheduled", f"{figures['scheduled']:,}"),
        ("delivered", f"{figures['delivered']:,}"),
        ("cancelled", f"{figures['cancelled']:,}"),
        ("lost", f"{figures['lost']:,}"),
        ("duplicated", f"{figures['duplicated']:,}"),
        ("early", f"{figures['early']:,}"),
        ("cancelled, yet delivered", f"{figures['unwanted']:,}"),
        ("bodies altered", f"{figures['altered'] + figures['unknown']:,}"),
        ("lateness p50 / p99 / max", f"{late}, simulated"),
        ("clock stops", f"{figures['clock_stops']:,}, to {figures['stop_minutes']} min"),
        (
            "messages a second",
            f"{figures['messages_per_second']:,} ({figures['play_seconds']:.1f} s for the year)",
        ),
        (
            "on disk",
            f"{figures['files']} files, {apparent:,.1f} MiB long, {allocated:,.1f} MiB allocated",
        ),
        ("peak RSS", f"{figures['peak_rss_bytes'] / mebi:,.1f} MiB, mapped files included"),
        ("reopened: pending", f"{figures['pending_after_reopen']:,}"),
        ("reopened: verify", "clean" if figures["verify_clean"] else figures["verify_report"]),
        (
            "reopened: read again",
            f"{figures['reread_differs']:,} differ" if figures["reread_differs"] else "the same",
        ),
        ("in all", f"{figures['total_seconds']:.1f} s, reading the flights included"),
    ):
        print(f"{name:>26}  {value}")
    if figures["directory"]:
        print(f"{'kept':>26}  {figures['directory']}")
    for wrong in figures["wrong"]:
        print(f"wrong: {wrong}")
    print("FAIL" if figures["wrong"] else "PASS")


def main(argv: list[str] | None = None) -> int:
    """Run the demo. Return 0 for PASS, 1 for FAIL, 2 if the data is missing."""
    parser = argparse.ArgumentParser(description="One reminder for each flight of a year.")
    parser.add_argument(
        "--directory", type=Path, help="a new or empty directory (default: temporary)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N flights only")
    parser.add_argument("--keep", action="store_true", help="leave the store on disk")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures to this file")
    parser.add_argument(
        "--stop-minutes", type=int, default=2, metavar="M", help="minutes between clock stops"
    )
    parser.add_argument(
        "--pull-minutes",
        type=int,
        default=PULL_MINUTES,
        metavar="M",
        help="simulated minutes between pulls and flushes",
    )
    options = parser.parse_args(argv)
    try:
        figures = run(
            options.directory,
            limit=options.limit,
            keep=options.keep,
            stop_minutes=options.stop_minutes,
            pull_minutes=options.pull_minutes,
        )
    except (flights.DataError, harness.WorkError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, flights.DataError) else 1
    show(figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
