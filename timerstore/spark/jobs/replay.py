"""Schedule exported messages again, in this or another store, with their times shifted.

--start gives the new due time of the first message. --shift moves all due times by a span; a span
that begins with - moves them back. --input is an export of the table messages. Only messages that
were delayed are scheduled; --all adds those that were not. Messages keep their ids, keys, tags and
the properties of their producers.

Invariants:
    A repeated run with the same --run-id schedules nothing twice.
"""

import sys
from dataclasses import dataclass

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import STORE, TARGET, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.parquet_table import read_parquet
from timerstore.spark.jobs.pending_messages import LEVEL_DELAYS, read_level_delays, rows_to_put
from timerstore.spark.jobs.scheduling import Root, require_target
from timerstore.spark.jobs.spans import read_span_ms, read_time_ms, told_ms
from timerstore.spark.jobs.write_rows import write_rows

_SYSTEM_TOPICS = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "%RETRY%")


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    input: str
    path: Root
    start: str | None = None
    shift: str | None = None
    all: bool = False


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return the rows with shifted times. With --start, this reads the first due time."""
    table = read_parquet(spark, args.input)
    missing = {"topic", "properties", "deliver_at", "body", "flags"} - set(table.columns)
    if missing:
        raise ConfigError(f"{args.input}: not an export of messages; no columns {sorted(missing)}")
    real = table
    for prefix in _SYSTEM_TOPICS:
        real = real.where(~F.col("topic").startswith(prefix))
    if not args.all:
        real = real.where(F.col("properties")["REAL_TOPIC"].isNotNull())
    rows = rows_to_put(real, read_level_delays(LEVEL_DELAYS))
    return rows.withColumn("deliver_ms", F.col("deliver_ms") + F.lit(_shift_ms(rows, args)))


def _shift_ms(rows: DataFrame, args: Args) -> int:
    if args.start is None:
        assert args.shift is not None, "checked by work()"
        back = args.shift.startswith("-")
        span = read_span_ms("--shift", args.shift.removeprefix("-"))
        return -span if back else span
    first = rows.agg(F.min("deliver_ms")).first()
    assert first is not None, "an aggregate has a row"
    return 0 if first[0] is None else read_time_ms("--start", args.start) - int(first[0])


def work(run: Run, args: Args) -> Outcome:
    """Schedule the rows, and ingest them."""
    source = check_run_id(run.run_id)
    if (args.start is None) == (args.shift is None):
        raise ConfigError("wanted one of --start and --shift")
    if args.start is not None:
        read_time_ms("--start", args.start)
    elif args.shift is not None:
        read_span_ms("--shift", args.shift.removeprefix("-"))
    need_there(args.input)
    require_target(args.path)
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
        click.Option(["--input"], required=True, type=STORE, help="The exported Parquet files."),
        click.Option(
            ["--path"],
            required=True,
            type=TARGET,
            help="The shard directory, or the bucket that its owner reads.",
        ),
        click.Option(["--start"], help="First due time: now, epoch ms, or a time with a zone."),
        click.Option(["--shift"], help="Instead: shift by a span, as 7d or -1h."),
        click.Option(["--all"], is_flag=True, help="Also messages that were not delayed."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
