"""Compare scheduled with delivered messages, one by one, and check the result against an SLO.

The exit status is 2 if a condition of --slo does not hold. --scheduled names a Parquet table of the
scheduled messages; without it, they are taken from the store's own log. --now is the time until
which messages should have been delivered: now (the clock of this machine), log (the newest record,
for a store that is not running), epoch ms, or a time with a zone.

The job only reads the store. --out receives the offenders as Parquet, the figures by hour as CSV,
and two plots.

Invariants:
    All figures of a run come from one state of the stores, even if they are written to.
See also: audit_frames.py for the definitions of all counts.
"""

import csv
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore.spark import latest_offsets
from timerstore.spark.jobs import audit_frames as frames
from timerstore.spark.jobs import plots, slo
from timerstore.spark.jobs.job import FOLDER, STORE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.projection import (
    Projection,
    projection_options,
    read_messages,
    read_table,
)
from timerstore.spark.jobs.source_tasks import state_of
from timerstore.spark.jobs.spans import read_time_ms, told_ms
from timerstore.spark.plan import snapshots
from timerstore.spark.read_options import parse

_HOURS_TOLD = 24
_OFFENDERS_TOLD = 10


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: str
    scheduled: str | None = None
    topic: str | None = None
    topic_column: str | None = None
    id_column: str = "message_id"
    due_column: str = "deliver_at"
    now: str = "now"
    grace_ms: int = 10_000
    slo: str = slo.DEFAULT
    out: Path | None = None
    offenders: Path | None = None


class AuditPlan(NamedTuple):
    """The plans of an audit, and the properties of its stores."""

    verdicts: DataFrame
    cube: DataFrame
    now_ms: int
    shard_count: int
    log_bytes: int
    state: tuple[dict[str, Any], ...]


def build(spark: SparkSession, args: Args) -> AuditPlan:
    """Plan the verdicts on all identities, and the table of all figures."""
    # Pinned, so that every pass reads the same state of a store that is written to.
    pinned = latest_offsets(args.path)
    messages = read_messages(
        spark, args.path, frames.MESSAGE_COLUMNS, as_of=pinned, properties=frames.PROPERTIES
    )
    stores = snapshots(parse({"path": args.path, "as_of": pinned}))
    now = read_now(args.now)
    if now is None:
        extent = read_messages(spark, args.path, "stored_at long", as_of=pinned)
        newest = extent.agg(F.max("stored_at")).first()
        now = int(newest[0] or 0) if newest is not None else 0
    is_whole = all(store.log_begin == 0 for store in stores.values())
    log_bytes = sum(store.log_end - store.log_begin for store in stores.values())
    if args.scheduled is None:
        judged = frames.verdicts(frames.events(messages), now, args.grace_ms, is_whole=is_whole)
    else:
        table = read_table(spark, args.scheduled, _projection(args))
        events = frames.events_against_table(messages, table)
        judged = frames.verdicts(events, now, args.grace_ms, by_shard=False)
    return AuditPlan(judged, frames.cube(judged), now, len(stores), log_bytes, state_of(stores))


def work(run: Run, args: Args) -> Outcome:
    """Audit the store, and check the conditions."""
    conditions = slo.parse(args.slo)
    read_now(args.now)
    need_there(args.path, *([args.scheduled] if args.scheduled else []))
    plan = build(run.spark, args)
    run.tell(f"{plan.log_bytes / 2**20:,.1f} MiB of log in {plan.shard_count} shards")
    rows = plan.cube.collect()
    figures = figures_of(rows, plan)
    problems = slo.problems_of(conditions, figures)
    faults = sum(int(figures[name]) for name in frames.FAULTS)
    if faults:
        figures["offenders"] = _keep_offenders(plan, args, run)
    if args.out is not None:
        figures["files"] = write_files(args.out, rows)
    run.tell(summary(figures))
    return Outcome(figures, tuple(problems))


def read_now(text: str) -> int | None:
    """Return --now in epoch ms, or None for the newest record of the log."""
    return None if text == "log" else read_time_ms("--now", text)


def figures_of(rows: list[Row], plan: AuditPlan) -> dict[str, Any]:
    """Return the figures of the report."""
    (everything,) = (row for row in rows if row["grouping"] == frames.GROUPINGS["all"])
    found: dict[str, Any] = _line(everything)
    found["now"] = told_ms(plan.now_ms)
    found["as_of"] = plan.state
    found["shards"], found["log_bytes"] = plan.shard_count, plan.log_bytes
    for name in ("shard", "topic"):
        found[f"by_{name}"] = [{name: row[name], **_line(row)} for row in _grouped(rows, name)]
    hours = [row for row in _grouped(rows, "hour") if row["percentiles"]]
    hours.sort(key=lambda row: row["percentiles"][-1], reverse=True)
    found["latest_hours"] = [
        {"hour": _hour(row["hour"]), **_line(row)} for row in hours[:_HOURS_TOLD]
    ]
    return found


def _grouped(rows: list[Row], name: str) -> list[Row]:
    return sorted(
        (
            row
            for row in rows
            if row["grouping"] == frames.GROUPINGS[name] and row[name] is not None
        ),
        key=lambda row: row[name],
    )


def _line(row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {name: int(row[name] or 0) for name in frames.COUNTS}
    percentiles = row["percentiles"] or [None] * len(frames.PERCENTILES)
    line.update(zip(frames.PERCENTILES, percentiles, strict=True))
    return line


def _hour(number: int) -> str:
    return datetime.fromtimestamp(number * 3600, UTC).strftime("%Y-%m-%dT%H:00Z")


def _keep_offenders(plan: AuditPlan, args: Args, run: Run) -> dict[str, Any]:
    """Write all offenders if requested. Return their path and the first few."""
    wrong = frames.offenders(plan.verdicts)
    where = args.offenders or (args.out / "offenders" if args.out is not None else None)
    if where is not None:
        wrong.write.mode("overwrite").parquet(str(where))
        run.tell(f"offenders: {where}")
        wrong = run.spark.read.parquet(str(where))
    few = wrong.orderBy("due_ms", "msg_id").limit(_OFFENDERS_TOLD).collect()
    told = [
        {**row.asDict(), "msg_id": bytes(row["msg_id"] or b"").decode("utf-8", "replace")}
        for row in few
    ]
    return {"path": str(where) if where else None, "first": told}


def write_files(out: Path, rows: list[Row]) -> dict[str, str]:
    """Write the figures by hour as CSV, and plots of lateness and due counts."""
    out.mkdir(parents=True, exist_ok=True)
    table = out / "by_hour.csv"
    hours = _grouped(rows, "hour")
    with table.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, ["hour", *frames.COUNTS, *frames.PERCENTILES])
        writer.writeheader()
        writer.writerows({"hour": _hour(row["hour"]), **_line(row)} for row in hours)
    late = plots.figures_of(_grouped(rows, "step"), "step", "times")
    due = plots.figures_of(_grouped(rows, "day"), "day", "scheduled")
    return {
        "by_hour": str(table),
        "lateness": str(plots.lateness_plot(out / "lateness.png", late, "Deliveries by lateness")),
        "due_per_day": str(plots.due_plot(out / "due_per_day.png", due, "Due per day")),
    }


def summary(figures: dict[str, Any]) -> str:
    """Return the main figures in one line."""
    counts = ", ".join(
        f"{name} {figures[name]:,}" for name in frames.COUNTS if name != "sourceless"
    )
    late = figures["lateness_p99_ms"]
    return counts if late is None else f"{counts}; lateness p99 {late:,.0f} ms"


def _projection(args: Args) -> Projection:
    return Projection(
        topic=args.topic,
        topic_column=args.topic_column,
        id_column=args.id_column,
        due_column=args.due_column,
    )


JOB = Job(
    "audit",
    Args,
    work,
    (
        click.Option(
            ["--path"],
            required=True,
            type=STORE,
            help="A store, a shard directory, or a backup in a bucket.",
        ),
        click.Option(["--scheduled"], type=STORE, help="Parquet with the scheduled messages."),
        *projection_options(("topic", "topic_column", "id_column", "due_column")),
        click.Option(["--now"], default="now", help="now, log, epoch ms, or a time with a zone."),
        click.Option(
            ["--grace-ms"],
            type=click.IntRange(0),
            default=10_000,
            help="A message later than this is lost.",
        ),
        click.Option(["--slo"], default=slo.DEFAULT, help='As "lost=0,dup=0,p99<1000ms".'),
        click.Option(["--out"], type=FOLDER, help="Directory for files and plots."),
        click.Option(["--offenders"], type=FOLDER, help="Directory for Parquet of offenders."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
