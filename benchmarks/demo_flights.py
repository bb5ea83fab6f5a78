"""A year of reminders: 336,776 flights, each reminded of 24 hours before it was to leave.

Data:     benchmarks/flights.py; one topic, `flight-reminder`, one queue.
Threads:  none: threads=False, and the services are stepped on a clock that the program turns.
Holds:    (1) the clock stops at every second minute (--stop-minutes) at which, or just before
              which, something is put, cancelled or due, and all
              services but flush run there until none has work; flush runs, and what has come out
              is pulled, every simulated day (--pull-minutes);
          (2) every count is taken from what was pulled: see audit.py; the store is asked only
              which cancels it accepted and, at the end, what it still holds.
Fails:    exit status 1 with FAIL where a count is not what the data demands; 2 without the data.

The story. A reminder is put 47 hours before departure and is due 23 hours later; every tenth is put
nine days before departure, waits eight days and rolls. A flight without a departure time in the
data was cancelled: an hour before its reminder is due, the reminder is cancelled. After the last
reminder the clock goes on for ten days, so that anything late or doubled has time to show itself.
Then the directory is opened again, must hold nothing that waits, and is read a second time.

Writes are flushed as `async`: about 180,000 stops with a disk sync each would measure the disk, and
a pull needs one, since it shows only what is durable.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

import timerstore
from benchmarks import audit, flights, harness
from timerstore import CancelResult, StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

TOPIC = "flight-reminder"
PULL_COUNT_MAX = 10_000
AFTERWARDS_MS = 10 * 24 * flights.HOUR_MS

SERVICES = (
    "dispatch",
    "enqueue_get",
    "enqueue_put",
    "dequeue_get",
    "dequeue_get_message",
    "dequeue_put",
    "dispatch",
)
"""All but flush, in the order in which a message meets them; it meets dispatch twice."""

PULL_MINUTES = 1440

Int64 = NDArray[np.int64]


class Plan(NamedTuple):
    """What happens when. Rows are listed in the order of puts and in that of cancels."""

    stops_ms: list[int]
    put_rows: Int64
    put_ends: list[int]
    """put_rows up to here have been put after each stop."""
    cancel_rows: Int64
    cancel_ends: list[int]
    due_counts: Int64
    """Reminders due by each stop, those called off left out: for the progress bar alone."""


def make_plan(data: flights.Flights, stop_minutes: int) -> Plan:
    """Put every event at its minute, or at the end of its stop_minutes if that is more than 1."""
    width = stop_minutes * flights.MINUTE_MS

    def stop_of(times: Int64) -> Int64:
        return -(-times // width) * width

    off = np.flatnonzero(data.called_off)
    puts = stop_of(data.put_ms)
    cancels = stop_of(data.due_ms[off] - flights.CANCEL_MS)
    dues = stop_of(data.due_ms)
    stops = np.unique(np.concatenate([puts, cancels, dues]))
    put_order = np.argsort(puts, kind="stable")
    cancel_order = np.argsort(cancels, kind="stable")
    kept_dues = np.sort(dues[~data.called_off])
    return Plan(
        stops_ms=stops.tolist(),
        put_rows=put_order.astype(np.int64),
        put_ends=np.searchsorted(puts[put_order], stops, side="right").tolist(),
        cancel_rows=off[cancel_order].astype(np.int64),
        cancel_ends=np.searchsorted(cancels[cancel_order], stops, side="right").tolist(),
        due_counts=np.searchsorted(kept_dues, stops, side="right").astype(np.int64),
    )


class Reader:
    """Pulls from where it left off and keeps what an audit needs."""

    def __init__(self, expected: audit.Expected) -> None:
        self.pulled = audit.Pulled()
        self.next_offset = 0
        self._expected = expected

    def drain(self, store: TimerStore, now_ms: int) -> int:
        """Pull until nothing comes; how many came."""
        before = self.pulled.count
        while TOPIC in store.topics():
            batch = store.pull_batch(TOPIC, 0, self.next_offset, max_count=PULL_COUNT_MAX)
            if not len(batch):
                break
            bodies = np.frombuffer(batch.bodies, dtype=np.uint8)
            offsets = np.asarray(batch.body_offsets, dtype=np.int64)
            columns = (flights.ROW_BEGIN, flights.ROW_END)
            rows = audit.digits(bodies, offsets[:-1], columns)
            altered = self._expected.altered(rows, bodies, offsets)
            self.pulled.add(rows, batch.delivered_ms, now_ms, altered)
            self.next_offset = int(batch.next_offset)
        return self.pulled.count - before


class Played(NamedTuple):
    """What the year gave."""

    scheduled: audit.Bools
    cancelled: audit.Bools
    refused: dict[str, int]
    """Cancels answered otherwise than CANCELLED, by answer."""
    stops: int
    seconds: float
    end_ms: int


def play(
    store: TimerStore,
    clock: ManualClock,
    data: flights.Flights,
    plan: Plan,
    reader: Reader,
    *,
    pull_minutes: int,
    progress: Callable[[int], None],
) -> Played:
    """Turn the clock from event to event."""
    stepper = Stepper(store)
    pull_ms = pull_minutes * flights.MINUTE_MS
    bodies = [data.bodies[row] for row in plan.put_rows]
    due_ms = data.due_ms[plan.put_rows]
    off = data.called_off[plan.put_rows]
    off_places = [*np.flatnonzero(off).tolist(), len(off)]
    scheduled = np.zeros(len(bodies), dtype=np.bool_)
    cancelled = np.zeros(len(bodies), dtype=np.bool_)
    refused: dict[str, int] = {}
    handles: dict[int, str] = {}
    put_rows, cancel_rows = plan.put_rows.tolist(), plan.cancel_rows.tolist()
    put_done = cancel_done = next_off = 0
    next_pull_ms = plan.stops_ms[0] + pull_ms
    began = time.perf_counter()
    for stop, now_ms in enumerate(plan.stops_ms):
        clock.set(now_ms)
        end = plan.cancel_ends[stop]
        while cancel_done < end:
            row = cancel_rows[cancel_done]
            answer = store.cancel(handles.pop(row))
            if answer == CancelResult.CANCELLED:
                cancelled[row] = True
            else:
                refused[str(answer)] = refused.get(str(answer), 0) + 1
            cancel_done += 1
        end = plan.put_ends[stop]
        if put_done < end:
            batch = store.put_many(TOPIC, bodies[put_done:end], deliver_ms=due_ms[put_done:end])
            while off_places[next_off] < end:
                place = off_places[next_off]
                handles[put_rows[place]] = batch[place - put_done].handle
                next_off += 1
            scheduled[plan.put_rows[put_done : put_done + len(batch)]] = True
            put_done = end
        work(stepper)
        if now_ms >= next_pull_ms:
            stepper.settle()
            reader.drain(store, now_ms)
            next_pull_ms = now_ms + pull_ms
            progress(now_ms)
    end_ms = plan.stops_ms[-1]
    for now_ms in (end_ms, end_ms + AFTERWARDS_MS):
        clock.set(now_ms)
        stepper.settle()
        reader.drain(store, now_ms)
    progress(end_ms)
    seconds = time.perf_counter() - began
    stops = len(plan.stops_ms)
    return Played(scheduled, cancelled, refused, stops, seconds, end_ms + AFTERWARDS_MS)


def work(stepper: Stepper) -> None:
    """Step all services but flush until a whole round moves no message.

    Dispatch stands first: what it finds, the others of the same round have seen.
    """
    busy = True
    while busy:
        busy = False
        for name in SERVICES:
            if stepper.step(name) and name != "dispatch":
                busy = True


class Reopened(NamedTuple):
    """What the directory holds when it is opened again."""

    pending: int
    clean: bool
    report: str
    reread_differs: int
    more: int
    """Messages that came out after all."""


def reopen(
    root: Path, config: StoreConfig, end_ms: int, expected: audit.Expected, first: Reader
) -> Reopened:
    """Open it again; list what waits, verify, let the services look for work, read all again."""
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
    """What is wrong, one sentence each; empty means PASS."""
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
    """Play it; all figures, with `wrong` a list of what is not as it must be."""
    config = config or StoreConfig(flush="async", index_enabled=False)  # nobody asks by key here
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
        bar = tqdm(total=due_total, unit=" reminders", disable=quiet, mininterval=0.5)

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
    """All that was put and not cancelled must be there; nothing else may be."""
    must = played.scheduled & ~played.cancelled
    nothing = np.zeros_like(must)
    return audit.count(reader.pulled, data.due_ms, must, nothing, played.cancelled)


def tell(quiet: bool, line: str) -> None:
    """Print, unless quiet."""
    if not quiet:
        print(line, flush=True)


def show(figures: dict[str, Any]) -> None:
    """The figures for people."""
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
    """Exit status: 0 PASS, 1 FAIL, 2 the data or the directory is not usable."""
    parser = argparse.ArgumentParser(description="One reminder for each flight of a year.")
    parser.add_argument("--directory", type=Path, help="a new or empty one (default: temporary)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N flights only")
    parser.add_argument("--keep", action="store_true", help="leave the store on disk")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument(
        "--stop-minutes", type=int, default=2, metavar="M", help="how far apart the clock stops"
    )
    parser.add_argument(
        "--pull-minutes",
        type=int,
        default=PULL_MINUTES,
        metavar="M",
        help="simulated time between pulls, and flushes",
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
