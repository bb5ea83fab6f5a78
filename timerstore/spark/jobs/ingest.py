"""Ingest committed rows into each shard that is not open, in one task per shard.

An open shard is left to its owner, and is reported. Due messages are delivered when the owner opens
the shard, not by this job.

Invariants:
    A shard ingests each committed version once, even if this job is repeated.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.storage.disk import Disk
from timerstore.shards.cluster import require
from timerstore.spark.jobs.bulk_worker import INGEST_RESULT, IngestShards
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, need_there
from timerstore.spark.jobs.scheduling import take


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: Path


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return one row per shard. The shards ingest when the rows are read."""
    count = require(Disk(), args.path).shard_count
    shards = spark.range(0, count, 1, count)
    return shards.mapInArrow(IngestShards(str(args.path)), INGEST_RESULT)


def work(run: Run, args: Args) -> Outcome:
    """Ingest, and report rows and open shards."""
    need_there(str(args.path))
    require(Disk(), args.path)
    taken = take(run, run.spark, args.path)
    return Outcome({"rows": taken.rows, "locked_shards": list(taken.locked)})


JOB = Job(
    "ingest",
    Args,
    work,
    (
        click.Option(
            ["--path"],
            required=True,
            type=FOLDER,
            help="The shard directory.",
        ),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
