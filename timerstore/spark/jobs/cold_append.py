"""Append far timers to a Parquet lake by day of delivery, from which `promote` moves near days.

Rows due sooner than --beyond from now are written to --near, as Parquet with the same columns for
bulk-schedule. Without --near they are an error, and nothing is appended. Rows without a due time,
topic or message id are also errors, because a promotion could not identify them. So are rows due
after the year 9999: such a column is probably not in ms.

On-disk format: see lake.py. Tasks write one file per day into the staging directory of the run. The
    files are then moved into the directories of their days, under names that begin with the run id.
    The record of the run is written last.
Invariants:
    1. A run counts as a whole or not at all. A killed run leaves files that no record names, and
       a run with the same id replaces them.
    2. A repeated run with the same --run-id appends nothing.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore._engine.buckets import BucketUrl
from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import FOLDER, STORE, TARGET, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import (
    Lake,
    LakeFile,
    check_run_id,
    open_lake,
    staging_of,
)
from timerstore.spark.jobs.lake_worker import DAY, RESULT, WriteDays
from timerstore.spark.jobs.parquet_table import read_parquet
from timerstore.spark.jobs.projection import (
    PROJECTION_FIELDS,
    Projection,
    projection_options,
    rows_of,
)
from timerstore.spark.jobs.spans import DAY_MS, LAST_MS, read_span_ms, read_time_ms, told_ms


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    input: str
    lake: Path | BucketUrl
    beyond: str = "7d"
    now: str = "now"
    near: Path | None = None
    topic: str | None = None
    topic_column: str | None = None
    body_column: str = "body"
    due_column: str = "deliver_at"
    id_column: str = "message_id"
    key_column: str | None = None
    tags_column: str | None = None


class AppendPlan(NamedTuple):
    """The input rows, by their destination."""

    far: DataFrame
    near: DataFrame
    bad: DataFrame
    late: DataFrame


def build(spark: SparkSession, args: Args) -> AppendPlan:
    """Divide the rows by destination."""
    projection = Projection(**{name: getattr(args, name) for name in PROJECTION_FIELDS})
    table = read_parquet(spark, args.input)
    rows = rows_of(table, projection)
    horizon = read_time_ms("--now", args.now) + read_span_ms("--beyond", args.beyond)
    is_whole = (
        F.col("topic").isNotNull()
        & F.col("message_id").isNotNull()
        & F.col("deliver_ms").isNotNull()
    )
    whole = rows.where(is_whole)
    is_near = F.col("deliver_ms") < F.lit(horizon)
    is_late = F.col("deliver_ms") > F.lit(LAST_MS)
    return AppendPlan(
        far=whole.where(~is_near & ~is_late),
        near=whole.where(is_near & ~is_late),
        bad=rows.where(~is_whole),
        late=whole.where(is_late),
    )


def work(run: Run, args: Args) -> Outcome:
    """Append the rows, unless a run with this id has done so."""
    check_run_id(run.run_id)
    need_there(args.input)
    read_span_ms("--beyond", args.beyond)
    read_time_ms("--now", args.now)
    lake = open_lake(args.lake, create=True)
    done = lake.run(run.run_id)
    if done is not None:
        run.tell("a run with this id has appended before; nothing to do")
        return Outcome({**_figures(lake, done), "is_replay": True})
    plan = build(run.spark, args)
    _refuse(plan, args)
    if args.near is not None:
        plan.near.write.mode("overwrite").parquet(str(args.near))
        run.tell(f"near rows: {args.near}")
    files = lake.commit_run(run.run_id, _write(lake, plan.far, run))
    figures = _figures(lake, files)
    run.tell(f"{figures['rows']:,} rows for {figures['days']:,} days")
    return Outcome({**figures, "is_replay": False})


def _refuse(plan: AppendPlan, args: Args) -> None:
    bad = plan.bad.count()
    near = plan.near.count() if args.near is None else 0
    problems = []
    if bad:
        problems.append(f"{bad:,} rows have no topic, message id or due time")
    late = plan.late.agg(F.count("*"), F.min("deliver_ms")).first()
    assert late is not None, "an aggregate has a row"
    if late[0]:
        problems.append(
            f"{late[0]:,} rows are due after the year 9999, the first at {late[1]} ms; wanted "
            "epoch ms, or a timestamp"
        )
    if near:
        first = plan.near.agg(F.min("deliver_ms")).first()
        assert first is not None, "an aggregate has a row"
        problems.append(
            f"{near:,} rows are due sooner than {args.beyond} from now, the first at "
            f"{told_ms(first[0])}; --near FOLDER writes them for bulk-schedule"
        )
    if problems:
        raise ConfigError(problems)


def _write(lake: Lake, rows: DataFrame, run: Run) -> list[LakeFile]:
    """Write the rows into the folders of their days. A killed attempt's files are replaced."""
    folder, staging = lake.folder, staging_of(run.run_id)
    folder.remove_folder(staging)
    # The date of a timestamp would depend on the session's zone, which a notebook may have set.
    day = F.expr(f"date_from_unix_date(cast(deliver_ms div {DAY_MS} as int))")
    by_day = rows.withColumn(DAY, day).repartition(DAY).sortWithinPartitions(DAY, "deliver_ms")
    staged = by_day.mapInArrow(WriteDays(folder, staging), RESULT).collect()
    run.tell("written; moving into place")
    return lake.move_in(run.run_id, staged)


def _figures(lake: Lake, files: tuple[LakeFile, ...]) -> dict[str, object]:
    return {
        "lake": str(lake.root),
        "rows": sum(one.rows for one in files),
        "bytes": sum(one.bytes for one in files),
        "files": len(files),
        "days": len({one.day for one in files}),
    }


JOB = Job(
    "cold-append",
    Args,
    work,
    (
        click.Option(["--input"], required=True, type=STORE, help="Parquet with the rows."),
        click.Option(
            ["--lake"], required=True, type=TARGET, help="The lake: a directory, or a bucket."
        ),
        click.Option(["--beyond"], default="7d", help="Append rows due later than this from now."),
        click.Option(["--now"], default="now", help="now, epoch ms, or a time with a zone."),
        click.Option(["--near"], type=FOLDER, help="Directory for nearer rows."),
        *projection_options(PROJECTION_FIELDS),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
