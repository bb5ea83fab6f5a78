"""Write the messages or another table of a store to Parquet.

The executors write the files without Spark's writer. Times are epoch ms. A killed run can leave
files in --out; a run with the same --run-id replaces them.

On-disk format: see export_folder.py.
Invariants:
    1. The files of a run contain one state of the store.
    2. A repeated run with the same --run-id writes nothing and reports the same figures.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from timerstore._engine.buckets import BucketUrl
from timerstore.errors import ConfigError
from timerstore.spark.jobs.export_folder import ExportFolder
from timerstore.spark.jobs.export_worker import RESULT, WriteParquet
from timerstore.spark.jobs.job import PLACE, TARGET, Job, Outcome, Run, need_there
from timerstore.spark.jobs.lake import check_run_id
from timerstore.spark.jobs.shared_folder import shared_folder
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
    out: Path | BucketUrl
    table: str = "messages"
    topics: str | None = None
    compression: str = "zstd"


def build(spark: SparkSession, args: Args, folder: ExportFolder) -> tuple[DataFrame, Source]:
    """Return one row per written file, and the scan. Reading the rows writes the files."""
    options = {"topics": args.topics} if args.topics else {}
    source = plan_source(args.path, SCHEMAS[args.table], table=args.table, **options)
    write = WriteParquet(folder.folder, folder.staging, args.compression)
    return run_tasks(spark, source, write, RESULT), source


def work(run: Run, args: Args) -> Outcome:
    """Export the table, unless a run with this id has done so."""
    need_there(args.path)
    folder = ExportFolder(shared_folder(args.out), check_run_id(run.run_id))
    done = folder.record()
    if done is not None:
        run.tell("a run with this id has exported before; nothing to do")
        return Outcome({**json.loads(done), "is_replay": True})
    folder.clear()
    written, source = build(run.spark, args, folder)
    files = written.orderBy("number").collect()
    names = {file["name"]: f"{run.run_id}-{file['number']:05d}.parquet" for file in files}
    folder.move_in(names)
    figures = {
        "rows": sum(one["rows"] for one in files),
        "bytes": sum(one["bytes"] for one in files),
        "files": [
            {"name": names[one["name"]], "rows": one["rows"], "bytes": one["bytes"]}
            for one in files
        ],
        "as_of": source.state,
    }
    if not folder.finish(json.dumps(figures, indent=1).encode() + b"\n"):
        raise ConfigError(
            f"--run-id: another process has just exported as {run.run_id} to {args.out}, and its "
            "files may be replaced; wanted one process for an id. Export again with another id"
        )
    run.tell(f"{figures['rows']:,} rows in {len(files)} files")
    return Outcome({**figures, "is_replay": False})


JOB = Job(
    "export",
    Args,
    work,
    (
        click.Option(["--path"], required=True, type=PLACE, help="A store, or a shard directory."),
        click.Option(
            ["--out"], required=True, type=TARGET, help="Output directory, or the URL of a bucket."
        ),
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
