"""Simulate a year of reminders with Spark: 336,776 flights, four shards, and an audit.

The flights (benchmarks/flights.py) become a DataFrame with one reminder each, due 24 hours before
departure. `bulk-schedule --fast` stages them by shard and commits them. Executors ingest the rows
of two shards at a time, and simulate the year with a manual clock. A flight without a departure
time was cancelled: its reminder is cancelled one hour before it is due. Messages due in a year roll
every 24 days. Then `audit` compares each row of the DataFrame with the logs of the shards.

Exit status 1 with FAIL means that a count contradicts the data, 2 that the data is missing.

Invariants:
    Every count is that of the audit, which compares the logs with the scheduled DataFrame. The
    shards' own counts are not used.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks import flights, harness
from benchmarks.play_worker import RESULT, PlayShards, progress_path
from benchmarks.progress_line import progress_line
from timerstore.spark.jobs import audit, bulk_schedule, init_shards
from timerstore.spark.jobs.job import Common, make_session

TOPIC = "flight-reminder"
SHARDS = 4

# Slots of a minute, and a roll window of 24 days, the limit of a timer log unit.
SETTINGS = ("precision_ms=60000", "wheel_slot_count=71000")
SMALL = ("commit_log_segment_bytes=134217728", "timer_log_segment_bytes=16777216")

SLO = "lost=0,dup=0,early=0,phantom=0,crc=0,uncancelled=0,pending=0"


class StepError(RuntimeError):
    """A job failed."""


def as_table(data: flights.Flights) -> pa.Table:
    """Return the flights as a table to schedule, with the cancelled flights."""
    count = len(data.bodies)
    return pa.table(
        {
            "message_id": pa.array([f"flight-{row:06d}" for row in range(count)]),
            "deliver_at": pa.array(data.due_ms * 1000, pa.timestamp("us", tz="UTC")),
            "body": pa.array(data.bodies, pa.binary()),
            "called_off": pa.array(data.called_off),
        }
    )


def step(name: str, main: Any, argv: Sequence[object], report: Path) -> dict[str, Any]:
    """Run a job as the command line does. Return its report."""
    status = main([*map(str, argv), "--report", str(report)])
    told: dict[str, Any] = json.loads(report.read_text("utf-8"))
    if status == 1:
        raise StepError(f"{name}: {'; '.join(told['problems'])}")
    return told


def play(spark: Any, worker: PlayShards, *, quiet: bool) -> list[dict[str, Any]]:
    """Simulate the year of all shards, with a progress bar."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(worker.root, done, quiet))
    watcher.start()
    try:
        numbers = spark.range(0, SHARDS, 1, SHARDS)
        rows = numbers.mapInArrow(worker, RESULT).collect()
    finally:
        done.set()
        watcher.join()
    return [row.asDict() for row in sorted(rows, key=lambda row: row["shard"])]


def _watch(root: str, done: threading.Event, quiet: bool) -> None:
    with progress_line(SHARDS * 100, "%", quiet=quiet) as bar:
        while True:
            over = done.wait(0.5)
            parts = []
            for shard in range(SHARDS):
                path = progress_path(root, shard)
                if path.exists():
                    told = json.loads(path.read_text("utf-8"))
                    parts.append((told["done"] / max(told["of"], 1), told["now_ms"]))
            if parts:
                now_ms = min((now for part, now in parts if part < 1), default=parts[0][1])
                date = time.strftime("%Y-%m-%d", time.gmtime(now_ms / 1e3))
                bar.set_description(date, refresh=False)
                bar.update(int(100 * sum(part for part, _ in parts)) - bar.n)
            if over:
                return


def run(
    directory: Path | None = None,
    *,
    out: Path,
    limit: int | None = None,
    keep: bool = False,
    stop_minutes: int = 2,
    quiet: bool = False,
    master: str = "local[2]",
) -> dict[str, Any]:
    """Run the demo. Return all figures; `wrong` lists the violated conditions."""
    began = time.perf_counter()
    data = flights.load(limit)
    tell(quiet, f"{len(data.bodies):,} flights read in {time.perf_counter() - began:.1f} s")
    conf = ("spark.driver.memory=2g", "spark.sql.shuffle.partitions=4", "spark.ui.enabled=false")
    common = Common(master=master, conf=(*conf, "spark.log.level=ERROR"), quiet=True)
    active = SparkSession.getActiveSession()
    spark = active or make_session("demo", common)
    try:
        with harness.workspace(directory, keep=keep) as root:
            figures = _run(spark, data, root, out, stop_minutes=stop_minutes, quiet=quiet)
    finally:
        if active is None:
            spark.stop()
    figures["total_seconds"] = round(time.perf_counter() - began, 1)
    figures["directory"] = str(root) if keep else None
    return figures


def _run(
    spark: Any, data: flights.Flights, root: Path, out: Path, *, stop_minutes: int, quiet: bool
) -> dict[str, Any]:
    table, shards, reports = root / "flights.parquet", root / "shards", out / "reports"
    shutil.rmtree(out, ignore_errors=True)
    reports.mkdir(parents=True)
    hush = ["--quiet"] if quiet else []
    rows = as_table(data)
    spark.createDataFrame(rows).repartition(4).write.parquet(str(table))
    settings = [part for one in (*SETTINGS, *SMALL) for part in ("--set", one)]
    step(
        "init-shards",
        init_shards.main,
        ["--path", shards, "--shards", SHARDS, *settings, *hush],
        reports / "init-shards.json",
    )
    bulk = step(
        "bulk-schedule",
        bulk_schedule.main,
        ["--input", table, "--path", shards, "--fast", "--topic", TOPIC, "--no-ingest",
         "--rows-per-task", 100_000, "--run-id", "flights-2013", *hush],
        reports / "bulk-schedule.json",
    )  # fmt: skip
    called_off = rows.filter(rows.column("called_off")).column("message_id")
    off = frozenset(called_off.to_pylist())
    start_ms, end_ms = int(data.due_ms.min()) - flights.HOUR_MS * 24, int(data.due_ms.max())
    worker = PlayShards(str(shards), start_ms, end_ms, stop_minutes, off)
    tell(quiet, "simulating the year, two shards at a time")
    began = time.perf_counter()
    played = play(spark, worker, quiet=quiet)
    seconds = time.perf_counter() - began
    audited = step(
        "audit",
        audit.main,
        ["--path", shards, "--scheduled", table, "--topic", TOPIC, "--now", end_ms + 86_400_000,
         "--out", out, "--slo", f"{SLO},max<{stop_minutes}m", *hush],
        reports / "audit.json",
    )  # fmt: skip
    found = audited["figures"]
    figures = {
        "flights": len(data.bodies),
        "called_off": len(off),
        "staged": bulk["figures"]["rows"],
        "ingested": sum(one["ingested"] for one in played),
        "cancels_refused": sum(one["refused"] for one in played),
        "pending_in_shards": sum(one["pending"] for one in played),
        "stops": sum(one["stops"] for one in played),
        "play_seconds": round(seconds, 1),
        "audit_seconds": audited["seconds"],
        "bulk_seconds": bulk["seconds"],
        **{name: value for name, value in found.items() if not isinstance(value, list)},
        "by_shard": found["by_shard"],
    }
    figures["wrong"] = [*audited["problems"], *verdict(figures)]
    (out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return one sentence for each violated condition that the audit does not check."""
    flown = figures["flights"] - figures["called_off"]
    wanted = (
        ("staged", figures["flights"]),
        ("ingested", figures["flights"]),
        ("scheduled", figures["flights"]),
        ("cancelled", figures["called_off"]),
        ("delivered", flown),
        ("cancels_refused", 0),
        ("pending_in_shards", 0),
    )
    return [
        f"{name}: {figures[name]:,}, wanted {value:,}"
        for name, value in wanted
        if figures[name] != value
    ]


def tell(quiet: bool, line: str) -> None:
    """Print a message, unless quiet."""
    if not quiet:
        print(line, flush=True)


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    late = figures["lateness_p50_ms"], figures["lateness_p99_ms"], figures["lateness_max_ms"]
    spread = " / ".join("-" if one is None else f"{one:,.0f}" for one in late)
    for name, value in (
        ("scheduled", f"{figures['scheduled']:,} in {SHARDS} shards"),
        ("delivered", f"{figures['delivered']:,}"),
        ("cancelled", f"{figures['cancelled']:,}"),
        ("lost", f"{figures['lost']:,}"),
        ("duplicated", f"{figures['duplicated']:,}"),
        ("early", f"{figures['early']:,}"),
        ("phantom", f"{figures['phantom']:,}"),
        ("cancelled, yet delivered", f"{figures['uncancelled']:,}"),
        ("still waiting", f"{figures['pending']:,}"),
        ("lateness p50 / p99 / max", f"{spread} ms, simulated"),
        ("clock stops", f"{figures['stops']:,}"),
        ("bulk-schedule", f"{figures['bulk_seconds']:.1f} s"),
        ("the year", f"{figures['play_seconds']:.1f} s"),
        ("audit", f"{figures['audit_seconds']:.1f} s, {figures['log_bytes'] / 2**20:,.0f} MiB"),
        ("in all", f"{figures['total_seconds']:.1f} s"),
        *((name.replace("_", " "), path) for name, path in figures["files"].items()),
    ):
        print(f"{name:>26}  {value}")
    if figures["directory"]:
        print(f"{'kept':>26}  {figures['directory']}")
    for wrong in figures["wrong"]:
        print(f"wrong: {wrong}")
    print("FAIL" if figures["wrong"] else "PASS")


def main(argv: list[str] | None = None) -> int:
    """Run the demo. Return 0 for PASS, 1 for FAIL, 2 if the data is missing."""
    parser = argparse.ArgumentParser(description="A year of reminders, through Spark.")
    parser.add_argument(
        "--directory", type=Path, help="a new or empty directory (default: temporary)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo-spark"), help="plots, reports")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N flights only")
    parser.add_argument("--keep", action="store_true", help="leave the shards on disk")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--stop-minutes", type=int, default=2, metavar="M", help="minutes between clock stops"
    )
    options = parser.parse_args(argv)
    try:
        figures = run(
            options.directory,
            out=options.out,
            limit=options.limit,
            keep=options.keep,
            stop_minutes=options.stop_minutes,
            quiet=options.quiet,
            master=options.master,
        )
    except (flights.DataError, harness.WorkError) as error:
        print(f"demo_spark: {error}", file=sys.stderr)
        return 2
    except StepError as error:
        print(f"wrong: {error}\nFAIL")
        return 1
    show(figures)
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
