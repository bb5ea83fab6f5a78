"""Schedule a stream's rows into the shards, exactly once: Kafka, files, another store, rate.

--sql makes the rows: a SELECT of topic, body, deliver_at or deliver_ms, key, tags, message_id,
properties FROM input. What a batch brought is committed with the batch's number, so that a batch
that Spark repeats after a crash adds nothing.

Data:     --checkpoint is Spark's; with a new one the same input is another stream, and its rows
          come again.
Holds:    each row of the input is scheduled once, whoever is killed when, as long as the checkpoint
          is kept.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards.cluster import require
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, need_there
from timerstore.spark.jobs.streaming import TRIGGER_OPTIONS, read_pairs, run_stream

_FILES = {"parquet", "json", "csv", "orc", "text"}


@dataclass(frozen=True, slots=True)
class Args:
    """From which stream, into which shards."""

    path: Path
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
    """The rows as a stream."""
    reader = spark.readStream.format(args.format)
    reader = reader.options(**read_pairs("--option", args.options))
    if args.schema is not None:
        reader = reader.schema(args.schema)
    rows = reader.load()
    if args.sql is None:
        return rows
    rows.createOrReplaceTempView("input")
    return spark.sql(args.sql)


def work(run: Run, args: Args) -> Outcome:
    """Run it."""
    need_there(str(args.path))
    require(Disk(), args.path)
    read_pairs("--option", args.options)
    if args.format in _FILES and args.schema is None:
        raise ConfigError(f"--schema: a stream of {args.format} files needs the files' schema")
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
            type=FOLDER,
            help="The shards' directory.",
        ),
        click.Option(["--format"], required=True, help="kafka, parquet, json, rate ..."),
        click.Option(
            ["--option", "options"], multiple=True, metavar="K=V", help="An option of the source."
        ),
        click.Option(["--schema"], help="Of files, as 'body string, deliver_ms long'."),
        click.Option(["--sql"], help="SELECT ... FROM input that makes the rows."),
        click.Option(["--topic"], help="The topic of all rows."),
        click.Option(["--shard-by"], default="key", help="key, msg_id, or a column."),
        click.Option(["--on-invalid"], type=click.Choice(["fail", "quarantine"]), default="fail"),
        *TRIGGER_OPTIONS,
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
