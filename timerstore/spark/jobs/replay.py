"""Schedule an export again, its times moved: what was delivered in June, next week, in another
store.

--start says when the first of the rows shall be due; --shift moves all by a span (with - before it:
back). Rows are those of real topics that waited, each as it was delivered: --all also takes those
that never waited. They keep their ids, keys, tags and their producers' properties.

Data:     --input: what `export` wrote of the table messages.
Holds:    again under the same --run-id: nothing is scheduled twice.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards.cluster import require
from timerstore.spark.jobs.job import FOLDER, PLACE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.spans import read_span_ms, read_time_ms, told_ms
from timerstore.spark.jobs.waiting import LEVEL_DELAYS, read_level_delays, rows_to_put
from timerstore.spark.jobs.writing import write_rows

_SYSTEM_TOPICS = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "%RETRY%")


@dataclass(frozen=True, slots=True)
class Args:
    """Which export, into which shards, moved how."""

    input: str
    path: Path
    start: str | None = None
    shift: str | None = None
    all: bool = False


def build(spark: SparkSession, args: Args) -> DataFrame:
    """The rows with their times moved. Looks at the first due time where --start is given."""
    table = spark.read.parquet(args.input)
    missing = {"topic", "properties", "deliver_at", "body", "flags"} - set(table.columns)
    if missing:
        raise ConfigError(f"{args.input}: not an export of messages; without {sorted(missing)}")
    real = table
    for prefix in _SYSTEM_TOPICS:
        real = real.where(~F.col("topic").startswith(prefix))
    if not args.all:
        real = real.where(F.col("properties")["REAL_TOPIC"].isNotNull())
    rows = rows_to_put(real, read_level_delays(LEVEL_DELAYS))
    return rows.withColumn("deliver_ms", F.col("deliver_ms") + F.lit(_shift_ms(rows, args)))


def _shift_ms(rows: DataFrame, args: Args) -> int:
    if args.start is None:
        assert args.shift is not None, "checked before"
        back = args.shift.startswith("-")
        span = read_span_ms("--shift", args.shift.removeprefix("-"))
        return -span if back else span
    first = rows.agg(F.min("deliver_ms")).first()
    assert first is not None, "an aggregate has a row"
    return 0 if first[0] is None else read_time_ms("--start", args.start) - int(first[0])


def work(run: Run, args: Args) -> Outcome:
    """Schedule it."""
    source = check_run_id(run.run_id)
    if (args.start is None) == (args.shift is None):
        raise ConfigError("wanted one of --start and --shift")
    if args.start is not None:
        read_time_ms("--start", args.start)
    elif args.shift is not None:
        read_span_ms("--shift", args.shift.removeprefix("-"))
    need_there(args.input, str(args.path))
    require(Disk(), args.path)
    done = write_rows(run, build(run.spark, args), args.path, source)
    run.tell(f"{done.rows:,} rows scheduled")
    figures = {"rows": done.rows, "by_shard": done.by_shard, "is_replay": done.is_replay}
    if args.start is not None:
        figures["start"] = told_ms(read_time_ms("--start", args.start))
    return Outcome(figures)


JOB = Job(
    "replay",
    Args,
    work,
    (
        click.Option(["--input"], required=True, type=PLACE, help="The export."),
        click.Option(
            ["--path"],
            required=True,
            type=FOLDER,
            help="The shards' directory.",
        ),
        click.Option(
            ["--start"], help="When the first is due: now, epoch ms, a time with its zone."
        ),
        click.Option(["--shift"], help="Or move all by a span, as 7d or -1h."),
        click.Option(["--all"], is_flag=True, help="Also what never waited."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
