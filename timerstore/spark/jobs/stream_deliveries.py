"""Stream delivered messages to Parquet, Kafka or the console.

The job reads the table `deliveries`. With --bodies it reads the delivered messages of the table
`messages`. --checkpoint is Spark's checkpoint.

Invariants:
    Each delivery is written once to Parquet, as long as checkpoint and --out are kept. It is
    written at least once to Kafka.
"""

import sys
from dataclasses import dataclass

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import PLACE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.streaming import TRIGGER_OPTIONS, read_pairs, run_stream

_SCHEMA = (
    "shard int, topic string, queue_id int, queue_offset long, msg_id binary, "
    "deliver_at timestamp, delivered_at timestamp, lateness_ms long, rolls int"
)
_BODIES = (
    "shard int, topic string, queue_id int, queue_offset long, msg_id binary, key binary, "
    "tags string, stored_at timestamp, deliver_at timestamp, properties map<string,string>, "
    "body binary, flags int, kind string"
)


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: str
    to: str
    checkpoint: str
    out: str | None = None
    options: tuple[str, ...] = ()
    topics: str | None = None
    bodies: bool = False
    every: str = "1s"
    once: bool = False
    run_for: str | None = None


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return the deliveries as a stream."""
    table, schema = ("messages", _BODIES) if args.bodies else ("deliveries", _SCHEMA)
    reader = spark.readStream.format("timerstore").option("path", args.path)
    reader = reader.option("table", table).schema(schema)
    if args.topics:
        reader = reader.option("topics", args.topics)
    rows = reader.load()
    if args.bodies:
        rows = rows.where(F.col("kind").isin("delivered", "level_delivered")).drop("kind")
    if args.to == "kafka":
        value = F.col("body") if args.bodies else F.to_json(F.struct("*"))
        rows = rows.select(F.col("msg_id").alias("key"), value.alias("value"))
    return rows


def work(run: Run, args: Args) -> Outcome:
    """Check the options, and run the stream."""
    need_there(args.path)
    options = read_pairs("--option", args.options)
    if args.to == "parquet":
        if args.out is None:
            raise ConfigError("--out: missing; --to parquet needs a directory")
        options["path"] = args.out
    writer = build(run.spark, args).writeStream.format(args.to).outputMode("append")
    figures = run_stream(
        run,
        writer.options(**options),
        checkpoint=args.checkpoint,
        every=args.every,
        once=args.once,
        run_for=args.run_for,
    )
    return Outcome(figures)


JOB = Job(
    "stream-deliveries",
    Args,
    work,
    (
        click.Option(["--path"], required=True, type=PLACE, help="A store, or a shard directory."),
        click.Option(
            ["--to"], type=click.Choice(["parquet", "kafka", "console", "noop"]), required=True
        ),
        click.Option(["--out"], type=PLACE, help="Directory for Parquet."),
        click.Option(
            ["--option", "options"], multiple=True, metavar="K=V", help="An option of the sink."
        ),
        click.Option(["--topics"], help="Only these topics, separated by commas."),
        click.Option(["--bodies"], is_flag=True, help="Write whole messages with their bodies."),
        *TRIGGER_OPTIONS,
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
