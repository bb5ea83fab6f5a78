"""Take what is committed into each shard that nobody has open; one task a shard.

A shard that is open is left to its owner, and told. What is due is delivered when a shard's owner
opens it, not here.

Data:     the manifests below _ingest, and the shards' logs.
Holds:    a version comes into a shard once, however often this is run.
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
    """Which shards."""

    path: Path


def build(spark: SparkSession, args: Args) -> DataFrame:
    """One row a shard, once it has taken what was committed."""
    count = require(Disk(), args.path).shard_count
    shards = spark.range(0, count, 1, count)
    return shards.mapInArrow(IngestShards(str(args.path)), INGEST_RESULT)


def work(run: Run, args: Args) -> Outcome:
    """Run it and tell."""
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
            help="The shards' directory.",
        ),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
