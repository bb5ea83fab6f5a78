"""Move near days of the lake into the shards, each file once.

The job promotes every day up to --until, and completes promotions of killed runs. Files appended
to a day after its promotion are promoted as a separate set. Message ids in _tombstones are
skipped. --purge-after removes the files of finished sets whose days are that old. If a shard is
open elsewhere, the exit status is 2 and the set is not finished: run the job again.

On-disk format: see lake.py. The rows of a set have the source promote.<lake>.<day>, and the number
    of the set as version.
Invariants:
    1. A file is in one set, and each shard ingests a set once, even if processes are killed.
    2. A set is recorded as done when every shard has its rows.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from timerstore._engine.buckets import BucketUrl
from timerstore.errors import ConfigError, CorruptError
from timerstore.shards.write_options import WriteOptions
from timerstore.spark.jobs.bulk_worker import Renaming
from timerstore.spark.jobs.job import TARGET, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import COLUMNS, Claim, Lake, day_folder, open_lake
from timerstore.spark.jobs.parquet_tasks import ROWS_PER_TASK, ParquetPath, open_parquet, tasks_of
from timerstore.spark.jobs.scheduling import Root, Scheduled, require_target, stage_and_commit, take
from timerstore.spark.jobs.spans import read_day, read_time_ms

_RENAMING = Renaming(tuple((name, name) for name in COLUMNS))
_DAYS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    lake: Path | BucketUrl
    path: Root
    until: str | None = None
    purge_after: int | None = None
    now: str = "now"


def build(_spark: SparkSession, args: Args) -> list[Claim]:
    """Claim the files to promote. Unfinished earlier claims come first."""
    lake = open_lake(args.lake)
    files = tuple(lake.files())
    until = until_of(args)
    found = lake.unfinished()
    for day in sorted({one.day for one in files if one.day <= until}):
        claim = lake.claim(day, files)
        if claim is not None:
            found.append(claim)
    return found


def work(run: Run, args: Args) -> Outcome:
    """Promote the claims, ingest them, and purge old files."""
    need_there(str(args.lake))
    until_of(args)
    require_target(args.path)
    lake = open_lake(args.lake)
    claims = build(run.spark, args)
    without = read_tombstones(lake.tombstones())
    run.tell(f"{len(claims)} sets of files to promote, {len(without):,} tombstones")
    done = [(claim, _promote(run, lake, claim, args.path, without)) for claim in claims]
    figures: dict[str, Any] = {"sets": [_line(*one) for one in done], "rows": 0, "files": 0}
    problems: tuple[str, ...] = ()
    if done:
        taken = take(run, run.spark, args.path)
        if taken.locked:
            text = (
                f"shards {list(taken.locked)} are open elsewhere: {len(done)} sets are committed "
                "but not done; run the job again after the owners have ingested them"
            )
            problems = (text,)
        else:
            for claim, scheduled in done:
                lake.finish(claim, {"rows": scheduled.rows, "by_shard": _texts(scheduled)})
        figures["rows"] = sum(scheduled.rows for _, scheduled in done)
        figures["files"] = sum(len(claim.files) for claim, _ in done)
    if args.purge_after is not None:
        figures["purged_files"] = purge(lake, today_of(args) - timedelta(days=args.purge_after))
    run.tell(f"{figures['rows']:,} rows promoted")
    return Outcome(figures, problems)


def _promote(run: Run, lake: Lake, claim: Claim, root: Root, without: frozenset[str]) -> Scheduled:
    paths = lake.data(claim)
    source = source_of(lake, claim)
    tasks = tasks_of(paths, ROWS_PER_TASK)
    rows = sum(piece.rows for task in tasks for piece in task)
    if rows != claim.rows:
        raise CorruptError(
            "row count of a claim", where=day_folder(claim.day), wanted=claim.rows, got=rows
        )
    options = WriteOptions(shard_by="key", write_id=source, null_body="empty", ingest="none")
    done = stage_and_commit(run, root, source, claim.number, tasks, _RENAMING, options, without)
    run.tell(f"{claim.day}: {len(paths)} files, {done.rows:,} of {rows:,} rows")
    return done


def source_of(lake: Lake, claim: Claim) -> str:
    """Return the ingest source of a day, under which shards count versions."""
    return f"promote.{lake.id}.{claim.day.isoformat()}"


def until_of(args: Args) -> date:
    """Return the last day to promote."""
    if args.until is not None:
        return read_day("--until", args.until)
    return today_of(args) + timedelta(days=_DAYS_AHEAD)


def today_of(args: Args) -> date:
    """Return the day of --now in UTC."""
    return datetime.fromtimestamp(read_time_ms("--now", args.now) / 1000, UTC).date()


def read_tombstones(files: Sequence[ParquetPath]) -> frozenset[str]:
    """Return the message ids cancelled in the lake."""
    found: set[str] = set()
    for file in files:
        table = open_parquet(file).read()
        if "message_id" not in table.column_names:
            raise ConfigError(f"{file}: wanted a column message_id, got {table.column_names}")
        found.update(table.column("message_id").drop_null().to_pylist())
    return frozenset(found)


def purge(lake: Lake, last: date) -> int:
    """Remove the files of finished sets of days before `last`. Return their number."""
    old = (day for day in lake.claimed_days() if day < last)
    claims = (claim for day in old for claim in lake.claims(day) if lake.is_done(claim))
    return sum(map(lake.purge, claims))


def _line(claim: Claim, done: Scheduled) -> dict[str, Any]:
    return {
        "day": claim.day.isoformat(),
        "number": claim.number,
        "files": len(claim.files),
        "rows": done.rows,
        "left_out": claim.rows - done.rows,
        "by_shard": _texts(done),
        "is_replay": done.is_replay,
    }


def _texts(done: Scheduled) -> dict[str, int]:
    return {str(shard): rows for shard, rows in done.by_shard.items()}


JOB = Job(
    "promote",
    Args,
    work,
    (
        click.Option(
            ["--lake"], required=True, type=TARGET, help="The lake: a directory, or a bucket."
        ),
        click.Option(
            ["--path"],
            required=True,
            type=TARGET,
            help="The shard directory, or the bucket that its owner reads.",
        ),
        click.Option(["--until"], help="Last day, as 2026-11-21; default: in two days."),
        click.Option(
            ["--purge-after"],
            type=click.IntRange(0),
            help="Remove files older than this many days.",
        ),
        click.Option(["--now"], default="now", help="now, epoch ms, or a time with a zone."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
