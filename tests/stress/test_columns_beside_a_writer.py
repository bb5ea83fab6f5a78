"""Read tables from another process while threads put, cancel, deliver and checkpoint."""

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import timerstore
from tests.support.arrow_rows import read_rows
from tests.support.bench import small
from timerstore._engine.snapshot.position import take

pytestmark = pytest.mark.more


def write(root: Path, stop: Any) -> None:
    config = small(checkpoint_interval_ms=20, commit_log_segment_bytes=256 * 1024)
    with timerstore.open(root, config) as store:
        number = 0
        while not stop.is_set():
            store.put_many("t", [b"%08d" % n for n in range(number, number + 20)])
            receipts = [store.put("t", b"later", delay=0.3 + n / 10) for n in range(5)]
            store.cancel(receipts[0])
            number += 20


def test_every_snapshot_is_complete_and_a_prefix_of_the_next(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writer = context.Process(target=write, args=(tmp_path / "s", stop))
    writer.start()
    try:
        while not (tmp_path / "s" / "timerstore" / "watermark").exists():
            time.sleep(0.01)
        before: list[Any] = []
        end = time.monotonic() + 4
        rounds = 0
        while time.monotonic() < end or rounds < 4:
            store = take(tmp_path / "s")
            columns = ("log_offset", "kind", "timer_id", "body")
            rows = read_rows(store.root, snapshot=store, columns=columns)
            assert rows[: len(before)] == before
            timers = {row["log_offset"] for row in rows if row["kind"] in ("timer", "delete")}
            units = read_rows(store.root, "timer_units", snapshot=store)
            assert {unit["log_offset"] for unit in units} <= timers
            sources = {row["timer_id"]: row["log_offset"] for row in rows if row["kind"] == "timer"}
            deleted = {sources[row["timer_id"]] for row in rows if row["kind"] == "delete"}
            cancelled = {unit["log_offset"] for unit in units if unit["cancelled"]}
            assert cancelled == deleted & {unit["log_offset"] for unit in units}
            positions = {unit["timer_pos"] for unit in units}
            # Retention removes files during the reads, so units of the middle may be missing. A
            # slot may still refer to such a file; all its units are in the past.
            begin = store.timer_log_begin_now
            slots = read_rows(store.root, "slots", snapshot=store)
            kept = {slot["last_pos"] for slot in slots if slot["last_pos"] >= begin}
            assert kept <= positions
            deliveries = read_rows(store.root, "deliveries", snapshot=store)
            assert all(row["lateness_ms"] >= 0 for row in deliveries)
            delivered = [row["timer_id"] for row in deliveries]
            assert len(delivered) == len(set(delivered))
            before = rows
            rounds += 1
        assert len(before) > 100
    finally:
        stop.set()
        writer.join(30)
    assert writer.exitcode == 0
