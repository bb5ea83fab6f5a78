"""Append far timers to a Parquet lake by day of delivery, from which `promote` moves near days.

Rows due sooner than --beyond from now are written to --near, as Parquet with the same columns for
bulk-schedule. Without --near they are an error, and nothing is appended. Rows without a due time,
topic or message id are also errors, because a promotion could not identify them. So are rows due
after the year 9999: such a column is probably not in ms.

On-disk format: see lake.py. Spark writes one file per day into the staging directory of the run.
    The files are then moved into the directories of their days, under names that begin with the
    run id. The record of the run is written last.
Invariants:
    1. A run counts as a whole or not at all. A killed run leaves files that no record names, and
       a run with the same id replaces them.
    2. A repeated run with the same --run-id appends nothing.
Raises: CorruptError if a staged directory is not a day, since its rows would be lost.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError
from timerstore.spark.jobs.job import FOLDER, STORE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import (
    DAY_PREFIX,
    Lake,
    LakeFile,
    check_run_id,
    day_of,
    open_lake,
)
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
    lake: Path
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
    staging = lake.staging(run.run_id)
    # The date of a timestamp would depend on the session's zone, which a notebook may have set.
    day = F.expr(f"date_from_unix_date(cast(deliver_ms div {DAY_MS} as int))")
    by_day = plan.far.withColumn("deliver_day", day)
    by_day.repartition("deliver_day").sortWithinPartitions("deliver_day", "deliver_ms").write.mode(
        "overwrite"
    ).partitionBy("deliver_day").parquet(str(staging))
    run.tell("written; moving into place")
    files = lake.commit_run(run.run_id, list(move_in(lake, run.run_id)))
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


def move_in(lake: Lake, run_id: str, disk: Disk | None = None) -> Iterator[LakeFile]:
    """Move the staged files of a run durably into the directories of their days.

    After a kill, a repeated call moves the remaining files. A file that already has the target name
    was moved by a killed attempt, and is replaced. The same input gives the same rows, and only
    one record ever names the file.
    """
    disk = disk or Disk()
    staging = lake.staging(run_id)
    for folder in disk.list(staging):
        if not folder.startswith(DAY_PREFIX):
            continue  # files of Spark's own, such as _SUCCESS
        day = day_of(folder)
        if day is None:
            given = folder.removeprefix(DAY_PREFIX)
            raise CorruptError("staged rows", where=staging, wanted="a day", got=repr(given))
        parts = [one for one in disk.list(staging / folder) if one.endswith(".parquet")]
        target = lake.day_folder(day)
        disk.make_directory(target)
        for number, part in enumerate(parts):
            path = target / f"{run_id}-{number:05d}.parquet"
            file = disk.open(staging / folder / part)
            file.sync()
            size = file.size()
            del file
            disk.rename(staging / folder / part, path)
            rows = pq.ParquetFile(path).metadata.num_rows
            yield LakeFile(day, path.name, rows, size)
        disk.sync_directory(target)


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
        click.Option(["--lake"], required=True, type=FOLDER, help="The lake."),
        click.Option(["--beyond"], default="7d", help="Append rows due later than this from now."),
        click.Option(["--now"], default="now", help="now, epoch ms, or a time with a zone."),
        click.Option(["--near"], type=FOLDER, help="Directory for nearer rows."),
        *projection_options(PROJECTION_FIELDS),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
