"""Stream what was delivered to Parquet, Kafka or the console.

Data:     table `deliveries`; with --bodies table `messages`, of what was delivered. --checkpoint is
          Spark's.
Holds:    into Parquet each delivery is written once, as long as checkpoint and --out are kept; into
          Kafka at least once.
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
    """From which store, where to."""

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
    """The deliveries as a stream."""
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
    """Run it."""
    need_there(args.path)
    options = read_pairs("--option", args.options)
    if args.to == "parquet":
        if args.out is None:
            raise ConfigError("--out: Parquet needs a folder")
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
        click.Option(
            ["--path"], required=True, type=PLACE, help="A store, or a directory of shards."
        ),
        click.Option(
            ["--to"], type=click.Choice(["parquet", "kafka", "console", "noop"]), required=True
        ),
        click.Option(["--out"], type=PLACE, help="Folder of Parquet."),
        click.Option(
            ["--option", "options"], multiple=True, metavar="K=V", help="An option of the sink."
        ),
        click.Option(["--topics"], help="Only these topics, a comma between."),
        click.Option(["--bodies"], is_flag=True, help="The messages themselves."),
        *TRIGGER_OPTIONS,
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
