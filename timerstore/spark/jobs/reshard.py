"""Move what still waits from N shards to M: another number of shards is another directory.

The old shards must be closed, and must not be opened again for delivery: what they hold is
delivered by the new ones. What was delivered stays where it is. Messages keep ids, keys, tags,
properties and times; handles of the old shards do not work in the new ones, and what was put with
replace=True is no more replaced there: the next put of its key waits beside it.

Data:     --source: a store or a directory of shards, read only; --path: the new directory of shards
          (init-shards makes it).
Holds:    (1) each message that waits is scheduled once; (2) again under the same --run-id: nothing
          is scheduled twice.
Fails:    ConfigError where a store of --source is open or was not closed: its services may deliver;
          where something is committed there that a shard has not taken in; where something recurs:
          its definition would stay behind.
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
from timerstore.spark.jobs.tables import read_messages
from timerstore.spark.jobs.waiting import (
    LEVEL_DELAYS,
    read_level_delays,
    rows_to_put,
    waiting_places,
)
from timerstore.spark.jobs.writing import write_rows

_ROW_COLUMNS = (
    "shard int, log_offset long, topic string, msg_id binary, key binary, tags string, "
    "stored_at long, deliver_at long, properties map<string,string>, body binary, flags int"
)


@dataclass(frozen=True, slots=True)
class Args:
    """From where, to where."""

    source: Path
    path: Path
    level_delays: str = LEVEL_DELAYS


def build(spark: SparkSession, args: Args) -> DataFrame:
    """The rows that wait."""
    delays = read_level_delays(args.level_delays)
    messages = read_messages(spark, str(args.source), audit_frames.MESSAGE_COLUMNS)
    bodies = read_messages(spark, str(args.source), _ROW_COLUMNS)
    waiting = waiting_places(messages)
    return rows_to_put(bodies.join(waiting, ["shard", "log_offset"], "left_semi"), delays)


def work(run: Run, args: Args) -> Outcome:
    """Move it."""
    source = check_run_id(run.run_id)
    read_level_delays(args.level_delays)
    need_there(str(args.source), str(args.path))
    require(Disk(), args.path)
    if args.source.resolve() == args.path.resolve():
        raise ConfigError("--path: wanted another directory than --source")
    refuse_open(args.source)
    refuse_pending(args.source)
    refuse_recurring(args.source)
    done = write_rows(run, build(run.spark, args), args.path, source)
    run.tell(f"{done.rows:,} rows moved")
    return Outcome({"rows": done.rows, "by_shard": done.by_shard, "is_replay": done.is_replay})


def refuse_open(source: Path) -> None:
    """Raise ConfigError where a store has its mark of being open."""
    disk = Disk()
    opened = [one for one in _stores(source) if disk.exists(Tree(one).abort)]
    if opened:
        raise ConfigError(
            [f"{one}: is open, or was not closed; open and close it first" for one in opened]
        )


def refuse_recurring(source: Path) -> None:
    """Raise ConfigError where a store has what recurs: only its next run could move."""
    problems = [
        f"{store}: {one.name!r} recurs, and would end with its next run; end it first (`timerstore "
        "every PATH --cancel NAME`, cancel_every), and begin it again in the new shards"
        for store in _stores(source)
        for one in recurring_json.read(Disk().read_small(Tree(store).recurring_json))
        if not one.is_ended
    ]
    if problems:
        raise ConfigError(problems)


def _stores(source: Path) -> list[Path]:
    shards = [source / name for name in Disk().list(source) if name.startswith("shard-")]
    return shards or [source]


JOB = Job(
    "reshard",
    Args,
    work,
    (
        click.Option(["--source"], required=True, type=FOLDER, help="The old directory."),
        click.Option(["--path"], required=True, type=FOLDER, help="The new shards."),
        click.Option(["--level-delays"], default=LEVEL_DELAYS, help="As the old stores have them."),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
