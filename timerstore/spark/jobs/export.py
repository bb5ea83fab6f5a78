"""Write the messages or another table of a store to Parquet.

The executors write the files without Spark's writer. Times are epoch ms. A killed run can leave
files in --out; a run with the same --run-id replaces them.

On-disk format: --out has <run>-00000.parquet and further files, and _runs/<run>.json, which lists
    the files of a run.
Invariants:
    1. The files of a run contain one state of the store.
    2. A repeated run with the same --run-id writes nothing and reports the same figures.
"""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.storage.disk import Disk
from timerstore.spark.jobs.export_worker import RESULT, WriteParquet
from timerstore.spark.jobs.job import FOLDER, PLACE, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.source_tasks import Source, plan_source, run_tasks

SCHEMAS = {
    "messages": (
        "shard int, topic string, queue_id int, queue_offset long, log_offset long, msg_id binary, "
        "key binary, tags string, stored_at long, deliver_at long, "
        "properties map<string,string>, body binary, body_len int, body_crc int, flags int, "
        "kind string"
    ),
    "timers": (
        "shard int, topic string, deliver_at long, stored_at long, msg_id binary, key binary, "
        "tags string, size int, log_offset long, timer_id long, level int"
    ),
    "timer_units": (
        "shard int, deliver_at long, timer_pos long, prev_pos long, log_offset long, size int, "
        "enqueued_at long, flags int, rolled boolean, cancelled boolean"
    ),
    "slots": "shard int, slot int, slot_at long, first_pos long, last_pos long, count long",
    "deliveries": (
        "shard int, topic string, queue_id int, queue_offset long, msg_id binary, "
        "deliver_at long, delivered_at long, lateness_ms long, rolls int"
    ),
}


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: str
    out: Path
    table: str = "messages"
    topics: str | None = None
    compression: str = "zstd"


def build(spark: SparkSession, args: Args, folder: Path) -> tuple[DataFrame, Source]:
    """Return one row per written file, and the scan. Reading the rows writes the files."""
    options = {"topics": args.topics} if args.topics else {}
    source = plan_source(args.path, SCHEMAS[args.table], table=args.table, **options)
    return run_tasks(spark, source, WriteParquet(folder, args.compression), RESULT), source


def work(run: Run, args: Args) -> Outcome:
    """Export the table, unless a run with this id has done so."""
    need_there(args.path)
    disk = Disk()
    record = args.out / "_runs" / f"{check_run_id(run.run_id)}.json"
    done = disk.read_created(record)
    if done is not None:
        run.tell("a run with this id has exported before; nothing to do")
        return Outcome({**json.loads(done), "is_replay": True})
    staging = args.out / "_staging" / run.run_id
    shutil.rmtree(staging, ignore_errors=True)
    disk.make_directory(staging)
    for name in _files_of(disk, args.out, run.run_id):
        disk.unlink(args.out / name)
    written, source = build(run.spark, args, staging)
    files = written.orderBy("number").collect()
    told: list[dict[str, Any]] = []
    for file in files:
        name = f"{run.run_id}-{file['number']:05d}.parquet"
        disk.rename(staging / file["name"], args.out / name)
        told.append({"name": name, "rows": file["rows"], "bytes": file["bytes"]})
    disk.sync_directory(args.out)
    shutil.rmtree(staging, ignore_errors=True)
    figures = {
        "rows": sum(one["rows"] for one in told),
        "bytes": sum(one["bytes"] for one in told),
        "files": told,
        "as_of": source.state,
    }
    disk.make_directory(record.parent)
    disk.create_small(record, json.dumps(figures, indent=1).encode() + b"\n")
    run.tell(f"{figures['rows']:,} rows in {len(told)} files")
    return Outcome({**figures, "is_replay": False})


def _files_of(disk: Disk, out: Path, run_id: str) -> list[str]:
    """Return the files left by a killed run, whose rows a reader of the directory would read too.

    A date in a name, as in june-20260601.parquet, is not a file number.
    """
    wanted = re.compile(rf"{re.escape(run_id)}-([0-9]{{5}}|[1-9][0-9]{{5}})\.parquet")
    return [name for name in disk.list(out) if wanted.fullmatch(name)]


JOB = Job(
    "export",
    Args,
    work,
    (
        click.Option(["--path"], required=True, type=PLACE, help="A store, or a shard directory."),
        click.Option(["--out"], required=True, type=FOLDER, help="Output directory."),
        click.Option(["--table"], type=click.Choice(list(SCHEMAS)), default="messages"),
        click.Option(["--topics"], help="Only these topics, separated by commas."),
        click.Option(
            ["--compression"], type=click.Choice(["zstd", "snappy", "none"]), default="zstd"
        ),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
