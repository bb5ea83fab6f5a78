"""Schedule rows once: stage them in the executors, commit on the driver, and ingest per shard.

Thread safety: runs on the driver's thread.
Invariants:
    1. Each (source, version) is committed once, even if several processes try.
    2. A repeated run stages nothing if the commit exists. It always ingests missing rows.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from timerstore._engine.buckets import BucketUrl
from timerstore.shards.cluster import Cluster
from timerstore.shards.committing import commit
from timerstore.shards.manifest import Manifest
from timerstore.shards.staged_files import QUARANTINE
from timerstore.shards.staging_location import area_at
from timerstore.shards.write_options import WriteOptions
from timerstore.spark.jobs.bulk_worker import (
    INGEST_RESULT,
    STAGE_RESULT,
    IngestShards,
    Renaming,
    StageTasks,
    staged_of,
)
from timerstore.spark.jobs.job import Run, need_there
from timerstore.spark.jobs.parquet_tasks import Task


class Scheduled(NamedTuple):
    """The row counts of a committed version."""

    rows: int
    quarantined: int
    by_shard: dict[int, int]
    is_replay: bool


class Taken(NamedTuple):
    """The ingested rows. `locked` lists the open shards, whose owners ingest later."""

    rows: int
    locked: tuple[int, ...]


Root = Path | BucketUrl
"""A directory of shards, or the bucket from which its owner ingests."""


def require_target(root: Root) -> Cluster:
    """Return the description of the shards. Raise ConfigError if it is missing."""
    if isinstance(root, Path):
        need_there(str(root))
    return area_at("path", root).cluster()


def committed(root: Root, source: str, version: int) -> Manifest | None:
    """Return the manifest of a version, or None if it is not committed."""
    return area_at("path", root).load(source, version)


def stage_and_commit(
    run: Run,
    root: Root,
    source: str,
    version: int,
    tasks: Sequence[Task],
    renaming: Renaming,
    options: WriteOptions,
    without: Iterable[str] = (),
) -> Scheduled:
    """Stage all tasks and make them visible together, unless the version is committed."""
    known = committed(root, source, version)
    if known is not None:
        run.tell(f"{source} version {version} was committed before")
        return scheduled_of(known, is_replay=True)
    work = StageTasks(
        str(root), source, version, tuple(tasks), renaming, options, frozenset(without)
    )
    found = []
    if tasks:
        numbers = run.spark.range(0, len(tasks), 1, len(tasks))
        found = numbers.mapInArrow(work, STAGE_RESULT).collect()
    run.tell(f"{sum(row['rows'] for row in found):,} rows staged by {len(found)} tasks")
    parts = [staged_of(source, version, row["files"]) for row in found]
    done = commit(area_at("path", root), source, version, parts, same_rows=True)
    return scheduled_of(done.manifest, is_replay=done.is_replay)


def scheduled_of(manifest: Manifest | None, *, is_replay: bool) -> Scheduled:
    """Return the row counts of a manifest. A write without rows has none."""
    if manifest is None:
        return Scheduled(0, 0, {}, is_replay)
    by_shard: dict[int, int] = {}
    quarantined = 0
    for one in manifest.files:
        if one.shard == QUARANTINE:
            quarantined += one.rows
        else:
            by_shard[one.shard] = by_shard.get(one.shard, 0) + one.rows
    return Scheduled(manifest.row_count, quarantined, dict(sorted(by_shard.items())), is_replay)


def take(run: Run, spark: SparkSession, root: Root) -> Taken:
    """Ingest committed rows into each shard that is not open, in one task per shard.

    Rows in a bucket are left to the owner of the shards.
    """
    count = require_target(root).shard_count
    if isinstance(root, BucketUrl):
        run.tell(f"left to the owner of {root}")
        return Taken(0, ())
    shards = spark.range(0, count, 1, count)
    rows = shards.mapInArrow(IngestShards(str(root)), INGEST_RESULT).collect()
    taken = Taken(
        sum(row["rows"] for row in rows),
        tuple(sorted(row["shard"] for row in rows if row["is_locked"])),
    )
    text = f"{taken.rows:,} rows ingested by {count} shards"
    if taken.locked:
        text += f"; open elsewhere, left to their owners: {taken.locked}"
    run.tell(text)
    return taken
