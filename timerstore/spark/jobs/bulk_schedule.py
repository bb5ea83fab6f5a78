"""Schedule the rows of a table into the shards, each once.

By default the input has any format that Spark reads, and is written with the data source's writer.
--sql can compute the rows: a SELECT of topic, body, deliver_at or deliver_ms, key, tags,
message_id, properties FROM input. --fast reads Parquet columns as they are and stages them in the
executors, without Spark rows.

Invalid rows fail the run, or are set aside with --on-invalid quarantine. A row whose time has
passed is delivered at once.

Invariants:
    1. All rows become visible together.
    2. A repeated run with the same --run-id schedules nothing twice, and completes a killed run.
"""

import sys
from dataclasses import dataclass
from itertools import islice

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore.errors import ConfigError
from timerstore.shards.row_columns import check_columns
from timerstore.shards.write_options import WriteOptions
from timerstore.spark.jobs.bulk_worker import Renaming
from timerstore.spark.jobs.job import STORE, TARGET, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.parquet_table import read_parquet
from timerstore.spark.jobs.parquet_tasks import (
    ROWS_PER_TASK,
    parquet_files,
    read_task,
    schema_of,
    tasks_of,
)
from timerstore.spark.jobs.projection import (
    PROJECTION_FIELDS,
    Projection,
    projection_options,
    rows_of,
)
from timerstore.spark.jobs.scheduling import (
    Root,
    Scheduled,
    committed,
    require_target,
    scheduled_of,
    stage_and_commit,
    take,
)
from timerstore.spark.locations import local_path
from timerstore.spark.writer import check_target

_VERSION = 0


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    input: str
    path: Root
    fast: bool = False
    format: str = "parquet"
    sql: str | None = None
    on_invalid: str = "fail"
    shard_by: str = "key"
    ingest: bool = True
    dry_run: bool = False
    rows_per_task: int = ROWS_PER_TASK
    topic: str | None = None
    topic_column: str | None = None
    body_column: str = "body"
    due_column: str = "deliver_at"
    id_column: str | None = "message_id"
    key_column: str | None = None
    tags_column: str | None = None


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return the rows in the form of the data source's writer."""
    if args.format == "parquet":
        table = read_parquet(spark, args.input)
    else:
        table = spark.read.format(args.format).load(args.input)
    if args.sql is not None:
        table.createOrReplaceTempView("input")
        return spark.sql(args.sql)
    rows = rows_of(table, projection_of(args))
    empty = [
        name
        for name, column in (
            ("message_id", args.id_column), ("key", args.key_column), ("tags", args.tags_column)
        )
        if column is None
    ]  # fmt: skip
    return rows.drop(*empty)


def work(run: Run, args: Args) -> Outcome:
    """Schedule the rows, and ingest them unless --no-ingest is given."""
    source = check_run_id(run.run_id)
    need_there(args.input)
    require_target(args.path)
    if args.format != "parquet":
        local_path("--input", args.input)
    if args.fast and (args.sql is not None or args.format != "parquet"):
        raise ConfigError(
            "--fast: not with --sql or --format; it reads Parquet columns as they are"
        )
    if args.dry_run:
        return _count(run, args, source)
    done = _fast(run, args, source) if args.fast else _by_writer(run, args, source)
    figures = {
        "rows": done.rows,
        "quarantined": done.quarantined,
        "by_shard": done.by_shard,
        "is_replay": done.is_replay,
        "source": source,
    }
    if args.ingest:
        taken = take(run, run.spark, args.path)
        figures |= {"taken": taken.rows, "locked_shards": list(taken.locked)}
    run.tell(f"{done.rows:,} rows scheduled")
    return Outcome(figures)


def _fast(run: Run, args: Args, source: str) -> Scheduled:
    files = parquet_files(args.input)
    renaming = renaming_of(args)
    schema_of(files, renaming.read)
    tasks = tasks_of(files, args.rows_per_task)
    run.tell(f"{len(files)} files in {len(tasks)} tasks")
    options = _options(args, source)
    return stage_and_commit(run, args.path, source, _VERSION, tasks, renaming, options)


def _by_writer(run: Run, args: Args, source: str) -> Scheduled:
    known = committed(args.path, source, _VERSION)
    if known is None:
        rows = build(run.spark, args)
        options = _writer_options(args, rows, source)
        rows.write.format("timerstore").mode("append").options(**options).save()
    found = committed(args.path, source, _VERSION)
    return scheduled_of(found, is_replay=known is not None)


def _writer_options(args: Args, rows: DataFrame, source: str) -> dict[str, str]:
    """Return the options of the data source's writer."""
    options = {
        "path": str(args.path),
        "write_id": source,
        "shard_by": args.shard_by,
        "on_invalid": args.on_invalid,
        "ingest": "none",
    }
    if "topic" not in map(str.lower, rows.columns) and args.topic:
        options["topic"] = args.topic
    return options


def _count(run: Run, args: Args, source: str) -> Outcome:
    """Check the columns and count the rows as a real run would, but write nothing."""
    rows = build(run.spark, args)
    if args.fast:
        _check_fast(args, source)
    else:
        check_target(_writer_options(args, rows, source), rows.schema, overwrite=False)
    due = next(name for name in rows.columns if name.lower() in {"deliver_ms", "deliver_at"})
    found = rows.agg(
        F.count("*").alias("rows"),
        F.min(due).cast("string").alias("first"),
        F.max(due).cast("string").alias("last"),
        F.count(F.when(F.col(due).isNull(), 1)).alias("without_time"),
    ).first()
    assert found is not None, "an aggregate has a row"
    run.tell(f"would schedule {found['rows']:,} rows")
    return Outcome({**found.asDict(), "is_dry_run": True})


def _check_fast(args: Args, source: str) -> None:
    """Check the columns in the way that staging does."""
    files, renaming = parquet_files(args.input), renaming_of(args)
    schema_of(files, renaming.read)
    for task in tasks_of(files, args.rows_per_task)[:1]:
        for batch in islice(read_task(task, renaming.read, 1), 1):
            check_columns(renaming.apply(batch).schema, _options(args, source))


def projection_of(args: Args) -> Projection:
    """Return the column names for the data source's writer."""
    return Projection(**{name: getattr(args, name) for name in PROJECTION_FIELDS})


def renaming_of(args: Args) -> Renaming:
    """Return the column names for staging in the executors."""
    if (args.topic is None) == (args.topic_column is None):
        raise ConfigError("topic: wanted one of --topic and --topic-column")
    pairs = (
        ("topic", args.topic_column),
        ("body", args.body_column),
        ("deliver_at", args.due_column),
        ("message_id", args.id_column),
        ("key", args.key_column),
        ("tags", args.tags_column),
    )
    return Renaming(tuple((name, given) for name, given in pairs if given is not None))


def _options(args: Args, source: str) -> WriteOptions:
    return WriteOptions(
        topic=args.topic or "",
        shard_by=args.shard_by,
        on_invalid=args.on_invalid,
        write_id=source,
        ingest="none",
    )


JOB = Job(
    "bulk-schedule",
    Args,
    work,
    (
        click.Option(
            ["--input"],
            required=True,
            type=STORE,
            help="File or directory with the rows; of Parquet, also in a bucket.",
        ),
        click.Option(
            ["--path"],
            required=True,
            type=TARGET,
            help="The shard directory, or the bucket that its owner reads.",
        ),
        click.Option(["--fast"], is_flag=True, help="Read and stage Parquet in the executors."),
        click.Option(["--format"], default="parquet", help="A Spark input format."),
        click.Option(["--sql"], help="A SELECT ... FROM input that computes the rows."),
        click.Option(["--on-invalid"], type=click.Choice(["fail", "quarantine"]), default="fail"),
        click.Option(["--shard-by"], default="key", help="Route by key, msg_id, or a column."),
        click.Option(
            ["--ingest/--no-ingest"], default=True, help="Ingest into the shards at once."
        ),
        click.Option(["--dry-run"], is_flag=True, help="Count rows, write nothing."),
        click.Option(["--rows-per-task"], type=click.IntRange(1), default=ROWS_PER_TASK),
        *projection_options(PROJECTION_FIELDS),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
