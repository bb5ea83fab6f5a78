"""Schedule the rows of a stream into the shards exactly once, from Kafka, files or another store.

--sql computes the rows: a SELECT of topic, body, deliver_at or deliver_ms, key, tags, message_id,
properties FROM input. Each batch is committed under its number, so a batch that Spark repeats after
a crash adds nothing. --checkpoint is Spark's checkpoint. With a new one the same input is another
stream, and its rows are scheduled again.

Invariants:
    Each input row is scheduled once as long as the checkpoint is kept, even if processes are
    killed.
"""

import sys
from dataclasses import dataclass

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import TARGET, Job, Outcome, Run
from timerstore.spark.jobs.scheduling import Root, require_target
from timerstore.spark.jobs.streaming import TRIGGER_OPTIONS, read_pairs, run_stream
from timerstore.spark.locations import local_path

_FILES = {"parquet", "json", "csv", "orc", "text"}


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: Root
    format: str
    checkpoint: str
    options: tuple[str, ...] = ()
    schema: str | None = None
    sql: str | None = None
    topic: str | None = None
    shard_by: str = "key"
    on_invalid: str = "fail"
    every: str = "1s"
    once: bool = False
    run_for: str | None = None


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return the rows as a stream."""
    reader = spark.readStream.format(args.format)
    reader = reader.options(**source_options(args))
    if args.schema is not None:
        reader = reader.schema(args.schema)
    rows = reader.load()
    if args.sql is None:
        return rows
    rows.createOrReplaceTempView("input")
    return spark.sql(args.sql)


def source_options(args: Args) -> dict[str, str]:
    """Return the options of the source. Raise ConfigError for invalid ones."""
    options = read_pairs("--option", args.options)
    if "path" in options and args.format in {*_FILES, "timerstore"}:
        what = "--option path"
        options["path"] = str(absolute_path(what, local_path(what, options["path"])))
    return options


def work(run: Run, args: Args) -> Outcome:
    """Check the options, and run the stream."""
    require_target(args.path)
    source_options(args)
    if args.format in _FILES and args.schema is None:
        raise ConfigError(f"--schema: missing; a stream of {args.format} files needs it")
    rows = build(run.spark, args)
    options = {
        "path": str(args.path),
        "shard_by": args.shard_by,
        "on_invalid": args.on_invalid,
    }
    if args.topic is not None:
        options["topic"] = args.topic
    writer = rows.writeStream.format("timerstore").outputMode("append").options(**options)
    figures = run_stream(
        run,
        writer,
        checkpoint=args.checkpoint,
        every=args.every,
        once=args.once,
        run_for=args.run_for,
    )
    return Outcome(figures)


JOB = Job(
    "stream-schedule",
    Args,
    work,
    (
        click.Option(
            ["--path"],
            required=True,
            type=TARGET,
            help="The shard directory, or the bucket that its owner reads.",
        ),
        click.Option(["--format"], required=True, help="Source: kafka, parquet, json, rate, ..."),
        click.Option(
            ["--option", "options"], multiple=True, metavar="K=V", help="An option of the source."
        ),
        click.Option(["--schema"], help="Schema of files: 'body string, deliver_ms long'."),
        click.Option(["--sql"], help="A SELECT ... FROM input that computes the rows."),
        click.Option(["--topic"], help="The topic of all rows."),
        click.Option(["--shard-by"], default="key", help="Route by key, msg_id, or a column."),
        click.Option(["--on-invalid"], type=click.Choice(["fail", "quarantine"]), default="fail"),
        *TRIGGER_OPTIONS,
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
