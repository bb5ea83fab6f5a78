"""Count due messages by time and shard, and find the peak.

The job counts the rows of the table `timers`: each pending message once, at its own due time, as
`store.histogram` does. --lake adds the unclaimed messages of a cold lake by day. --out receives the
counts as CSV and a plot.

Invariants:
    The sum of all buckets is `due`.
"""

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore.spark.jobs import plots
from timerstore.spark.jobs.forecast_worker import COLUMNS, RESULT, CountBuckets
from timerstore.spark.jobs.job import FOLDER, PLACE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import open_lake
from timerstore.spark.jobs.source_tasks import Source, plan_source, run_tasks
from timerstore.spark.jobs.spans import read_span_ms, read_time_ms, told_ms

_PEAKS_TOLD = 10
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: str
    bucket: str = "1h"
    begin: str = "now"
    horizon: str = "30d"
    lake: Path | None = None
    out: Path | None = None


def build(spark: SparkSession, args: Args) -> tuple[DataFrame, Source]:
    """Return one row per shard and non-empty bucket, and the scan that it counts."""
    bucket_ms = read_span_ms("--bucket", args.bucket)
    begin_ms = read_time_ms("--begin", args.begin)
    end_ms = begin_ms + read_span_ms("--horizon", args.horizon)
    source = plan_source(
        args.path,
        COLUMNS,
        table="timers",
        deliver_from_ms=str(begin_ms),
        deliver_to_ms=str(end_ms),
    )
    counts = run_tasks(spark, source, CountBuckets(bucket_ms), RESULT)
    by_bucket = counts.groupBy("shard", "bucket").agg(
        F.sum("due").alias("due"), F.sum("bytes").alias("bytes")
    )
    return by_bucket, source


def work(run: Run, args: Args) -> Outcome:
    """Count the messages, and write the files."""
    bucket_ms = read_span_ms("--bucket", args.bucket)
    need_there(args.path)
    counts, source = build(run.spark, args)
    rows = counts.orderBy("bucket", "shard").collect()
    figures = figures_of([row.asDict() for row in rows], bucket_ms) | {"as_of": source.state}
    if args.lake is not None:
        figures["lake"] = lake_counts(args.lake)
    run.tell(f"{figures['due']:,} due in {figures['buckets']:,} buckets of {args.bucket}")
    if args.out is not None:
        figures["files"] = _write(args.out, [row.asDict() for row in rows], bucket_ms)
    return Outcome(figures)


def figures_of(rows: Sequence[dict[str, Any]], bucket_ms: int) -> dict[str, Any]:
    """Return the totals, the totals by shard, and the largest buckets."""
    totals: dict[int, int] = {}
    shards: dict[int, dict[str, int]] = {}
    for row in rows:
        totals[row["bucket"]] = totals.get(row["bucket"], 0) + row["due"]
        shard = shards.setdefault(row["shard"], {"due": 0, "bytes": 0})
        for name in shard:
            shard[name] += row[name]
    peaks = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:_PEAKS_TOLD]
    return {
        "due": sum(totals.values()),
        "bytes": sum(shard["bytes"] for shard in shards.values()),
        "buckets": len(totals),
        "bucket_ms": bucket_ms,
        "by_shard": [{"shard": shard, **sums} for shard, sums in sorted(shards.items())],
        "peaks": [{"begin": told_ms(at * bucket_ms), "due": due} for at, due in peaks],
    }


def lake_counts(root: Path) -> dict[str, Any]:
    """Count the unclaimed messages of a cold lake by day, from its records alone."""
    lake = open_lake(root)
    files = list(lake.files())
    left: dict[str, int] = {}
    for day in sorted({one.day for one in files}):
        rows = sum(one.rows for one in lake.unclaimed(day, files))
        if rows:
            left[day.isoformat()] = rows
    return {"due": sum(left.values()), "by_day": left}


def days_of_lake(counts: dict[str, int]) -> dict[int, int]:
    """Return the counts with days as numbers since 1970."""
    return {(date.fromisoformat(day) - _EPOCH).days: rows for day, rows in counts.items()}


def _write(out: Path, rows: Sequence[dict[str, Any]], bucket_ms: int) -> dict[str, str]:
    out.mkdir(parents=True, exist_ok=True)
    table, picture = out / "forecast.csv", out / "forecast.png"
    with table.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow(["begin", "shard", "due", "bytes"])
        for row in rows:
            begin = told_ms(row["bucket"] * bucket_ms)
            writer.writerow([begin, row["shard"], row["due"], row["bytes"]])
    totals: dict[int, int] = {}
    for row in rows:
        totals[row["bucket"]] = totals.get(row["bucket"], 0) + row["due"]
    times = [at * bucket_ms for at in sorted(totals)]
    plots.line_plot(picture, times, [totals[at] for at in sorted(totals)], "Due per bucket")
    return {"counts": str(table), "plot": str(picture)}


OPTIONS = (
    click.Option(["--path"], required=True, type=PLACE, help="A store, or a shard directory."),
    click.Option(["--begin"], default="now", help="now, epoch ms, or a time with a zone."),
    click.Option(["--horizon"], default="30d", help="Length of the forecast, as 7d."),
    click.Option(["--lake"], type=FOLDER, help="A cold lake to add by day."),
    click.Option(["--out"], type=FOLDER, help="Directory for counts and plot."),
)

JOB = Job(
    "forecast",
    Args,
    work,
    (click.Option(["--bucket"], default="1h", help="Width of a bucket, as 1m."), *OPTIONS),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
