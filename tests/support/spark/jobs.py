"""Run jobs as from a shell, on small shards whose stores use a manual clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import timerstore
from tests.support.inside import Disk
from timerstore import Message, StoreConfig, TimerStore
from timerstore.shards.cluster import require
from timerstore.shards.shard_ingest import ShardIngester
from timerstore.spark.jobs.names import module_of
from timerstore.testing import ManualClock, Stepper

START_MS = 2_000_000_000_000
"""Later than the machine's clock, so that rows scheduled by a job wait."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

END_MS = START_MS + 10_000_000
COLUMNS = ("--topic-column", "topic", "--key-column", "key")
"""The column options for the rows of `some_rows`."""

SMALL = (
    "commit_log_segment_bytes=1048576", "queue_segment_bytes=80000",
    "timer_log_segment_bytes=212992", "wheel_slot_count=65536", "index_slot_count=4096",
    "index_entry_count=65536",
)  # fmt: skip


def run(job: str, *argv: object, tmp: Path) -> tuple[int, dict[str, Any]]:
    """Run a job. Return its exit status and its report."""
    report = tmp / "reports" / f"{job}.json"
    report.unlink(missing_ok=True)
    module = import_module(module_of(job))
    status = module.main([*map(str, argv), "--report", str(report), "--quiet"])
    return status, json.loads(report.read_text("utf-8")) if report.exists() else {}


def make_shards(root: Path, count: int, tmp: Path) -> Path:
    """Create small shards."""
    settings = [part for one in SMALL for part in ("--set", one)]
    status, report = run("init-shards", "--path", root, "--shards", count, *settings, tmp=tmp)
    assert status == 0, report
    return root


def write_table(path: Path, rows: Iterable[dict[str, Any]], group: int = 100) -> Path:
    """Write rows as Parquet, `deliver_at` as timestamp and `body` as binary."""
    table = pa.Table.from_pylist(list(rows))
    for name, kind in (("deliver_at", pa.timestamp("ms", tz="UTC")), ("body", pa.binary())):
        if name in table.column_names:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(name).cast(kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def some_rows(count: int, first: int = 0, step_ms: int = 1000) -> list[dict[str, Any]]:
    """Return rows; row k is due k + 1 steps after START_MS."""
    return [
        {
            "message_id": f"m{k:05d}",
            "deliver_at": START_MS + (k + 1) * step_ms,
            "body": f"body {k}".encode(),
            "topic": f"t{k % 2}",
            "key": f"k{k % 7}",
        }
        for k in range(first, first + count)
    ]


@contextmanager
def opened(root: Path, now_ms: int) -> Iterator[dict[int, TimerStore]]:
    """Open the stores of all shards on one manual clock, without threads, and ingest."""
    count = require(Disk(), root).shard_count
    clock = ManualClock(now_ms)
    stores: dict[int, TimerStore] = {}
    try:
        for shard in range(count):
            path = root / f"shard-{shard:05d}"
            config = StoreConfig(flush="async", message_bytes_max=4 << 20)
            stores[shard] = timerstore.open(path, config, clock=clock, threads=False)
        ShardIngester(root, stores).run(0)
        for store in stores.values():
            Stepper(store).settle()
        yield stores
    finally:
        for store in stores.values():
            store.close()


def play(root: Path, begin_ms: int, end_ms: int, step_ms: int = 1000) -> None:
    """Advance the clock in steps, and deliver due messages."""
    with opened(root, begin_ms) as stores:
        for store in stores.values():
            clock = store.clock
            assert isinstance(clock, ManualClock)
            stepper = Stepper(store)
            for now_ms in range(begin_ms, end_ms + 1, step_ms):
                clock.set(now_ms)
                stepper.settle()


def waiting(root: Path, now_ms: int = START_MS) -> dict[str, tuple[str, int]]:
    """Return message id to topic and due time of all pending messages in all shards."""
    with opened(root, now_ms) as stores:
        found = [one for store in stores.values() for one in store.pending()]
    assert len({one.message_id for one in found}) == len(found), "an id occurs twice"
    return {one.message_id: (one.topic, one.due_ms) for one in found}


def delivered(root: Path, topic: str, now_ms: int = START_MS) -> list[Message]:
    """Return all messages of a topic."""
    found: list[Message] = []
    with opened(root, now_ms) as stores:
        for store in stores.values():
            for queue_id in range(store.topics().get(topic, 0)):
                found += store.pull(topic, queue_id, 0, max_count=10_000).messages
    return found


def schedule(tmp: Path, shards: Path, table: Path, *more: object) -> dict[str, Any]:
    """Run bulk-schedule without ingest, and return its figures."""
    status, report = run(
        "bulk-schedule", "--input", table, "--path", shards, "--fast", "--rows-per-task", 150,
        "--run-id", table.stem, "--no-ingest", *COLUMNS, *more, tmp=tmp,
    )  # fmt: skip
    assert status == 0, report["problems"]
    figures: dict[str, Any] = report["figures"]
    return figures


def expected_of(rows: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Return message id to topic and due time of rows, as `waiting` does."""
    return {row["message_id"]: (row["topic"], row["deliver_at"]) for row in rows}
