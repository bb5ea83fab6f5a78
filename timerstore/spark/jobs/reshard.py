"""Move pending messages from N shards to M shards in another directory.

--source is a store or a shard directory, which is only read. --path is the new shard directory,
created by init-shards.

Close the old shards first, and do not open them for delivery again: the new shards deliver their
pending messages. Delivered messages stay in the old shards. Messages keep their ids, keys, tags,
properties and times. Handles of the old shards do not work in the new ones. A message put with
replace=True or unique=True is not found any more: the next put of its key adds a second message.

Invariants:
    1. Each pending message is scheduled once.
    2. A repeated run with the same --run-id schedules nothing twice.
Raises: ConfigError if a store of --source is open or was not closed, since it may still deliver;
    if it has committed rows that are not ingested; or if it has recurring messages, whose
    definitions are not moved.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.format import recurring_json
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards.cluster import require
from timerstore.shards.pending_ingest import refuse_pending
from timerstore.spark.jobs import audit_frames
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.pending_messages import (
    LEVEL_DELAYS,
    pending_places,
    read_level_delays,
    rows_to_put,
)
from timerstore.spark.jobs.projection import read_messages
from timerstore.spark.jobs.write_rows import write_rows

_ROW_COLUMNS = (
    "shard int, log_offset long, topic string, msg_id binary, key binary, tags string, "
    "stored_at long, deliver_at long, properties map<string,string>, body binary, flags int"
)


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    source: Path
    path: Path
    level_delays: str = LEVEL_DELAYS


def build(spark: SparkSession, args: Args) -> DataFrame:
    """Return the pending messages as rows to put."""
    delays = read_level_delays(args.level_delays)
    messages = read_messages(spark, str(args.source), audit_frames.MESSAGE_COLUMNS)
    bodies = read_messages(spark, str(args.source), _ROW_COLUMNS)
    waiting = pending_places(messages)
    return rows_to_put(bodies.join(waiting, ["shard", "log_offset"], "left_semi"), delays)


def work(run: Run, args: Args) -> Outcome:
    """Check both directories, and move the pending messages."""
    source = check_run_id(run.run_id)
    read_level_delays(args.level_delays)
    need_there(str(args.source), str(args.path))
    require(Disk(), args.path)
    if args.source.resolve() == args.path.resolve():
        raise ConfigError("--path: must not be the directory of --source")
    refuse_open(args.source)
    refuse_pending(args.source)
    refuse_recurring(args.source)
    done = write_rows(run, build(run.spark, args), args.path, source)
    run.tell(f"{done.rows:,} rows moved")
    return Outcome({"rows": done.rows, "by_shard": done.by_shard, "is_replay": done.is_replay})


def refuse_open(source: Path) -> None:
    """Raise ConfigError if a store has the file that marks it as open."""
    disk = Disk()
    opened = [one for one in _stores(source) if disk.exists(Tree(one).abort)]
    if opened:
        raise ConfigError(
            [f"{one}: is open, or was not closed; open and close it first" for one in opened]
        )


def refuse_recurring(source: Path) -> None:
    """Raise ConfigError if a store has recurring messages: only their next run could move."""
    problems = [
        f"{store}: {one.name!r} recurs, and would end with its next run; end it first (`timerstore "
        "every PATH --cancel NAME` or cancel_every), and start it again in the new shards"
        for store in _stores(source)
        for one in _definitions(store)
        if not one.is_ended
    ]
    if problems:
        raise ConfigError(problems)


def _definitions(store: Path) -> list[recurring_json.Definition]:
    path = Tree(store).recurring_json
    return recurring_json.read(Disk().read_small(path), path)


def _stores(source: Path) -> list[Path]:
    shards = [source / name for name in Disk().list(source) if name.startswith("shard-")]
    return shards or [source]


JOB = Job(
    "reshard",
    Args,
    work,
    (
        click.Option(["--source"], required=True, type=FOLDER, help="The old store or shards."),
        click.Option(["--path"], required=True, type=FOLDER, help="The new shard directory."),
        click.Option(["--level-delays"], default=LEVEL_DELAYS, help="Delays of the old stores."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
