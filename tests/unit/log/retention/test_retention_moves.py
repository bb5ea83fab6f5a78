"""Pending messages and ledger records that retention moves before it removes a file."""

import shutil
from pathlib import Path

import numpy as np

from tests.support.bench import NOW
from tests.support.inside import (
    doubt_header,
    inside,
)
from tests.support.retaining import DAY_MS, HOUR_MS, KIB, RetentionBench, config
from timerstore import CancelResult, RowBatch
from timerstore._engine.format.handle import decode, encode


def test_pending_messages_are_moved_and_delivered_once_in_order(bench: RetentionBench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=86_400) for k in range(5)]
    handle = receipts[4].handle
    bench.fill()
    bench.age()
    assert bench.stat("retention_moved_messages") == 5
    assert bench.log_files[0] > 0
    assert [one.handle for one in bench.store.pending()] == [one.handle for one in receipts]
    assert bench.store.cancel(receipts[0]) is CancelResult.CANCELLED
    broker = encode(decode(receipts[1].handle)._replace(timer_id=None))
    assert bench.store.cancel(broker) is CancelResult.CANCELLED
    moved = bench.store.reschedule(handle, delay=43_200)
    bench.check()
    bench.reopen()
    for _ in range(3):
        bench.fill(12, "other")
        bench.age(2 * HOUR_MS)
    bench.clock.set(moved.due_ms)
    bench.stepper.settle()
    assert b"4" in bench.bodies()
    bench.clock.set(receipts[3].due_ms - 1)
    bench.stepper.settle()
    assert not {b"2", b"3"} & set(bench.bodies())
    bench.clock.advance(1)
    bench.stepper.settle()
    late = [body for body in bench.bodies() if len(body) == 1]
    assert late[-2:] == [b"2", b"3"]
    assert bench.stat("pending_messages") == 0


def test_delivered_and_cancelled_messages_are_not_moved(bench: RetentionBench) -> None:
    bench.store.put("t", b"soon", delay=1)
    cancelled = bench.store.put("t", b"never", delay=86_400)
    bench.store.cancel(cancelled)
    bench.fill()
    bench.age()
    assert bench.stat("retention_moved_messages") == 0
    assert bench.store.cancel(cancelled) is CancelResult.UNKNOWN  # its source is gone


def test_rolled_message_is_not_moved_from_its_old_place(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(wheel_slot_count=16))  # reaches 8 minutes ahead
    bench.store.put("t", b"far", delay=2 * 3600)
    bench.fill()
    bench.age(HOUR_MS)
    assert bench.log_files[0] > 0
    assert bench.stat("dequeue_put_rolled_messages") > 0
    assert bench.stat("retention_moved_messages") == 0
    bench.age(HOUR_MS)
    assert b"far" in bench.bodies()
    bench.check()
    bench.store.close()


def test_message_moved_twice_is_delivered_once(bench: RetentionBench) -> None:
    bench.store.put("t", b"far", delay=20 * 3600)
    for _ in range(6):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("retention_moved_messages") >= 3
    assert len(list(bench.store.pending())) == 1
    bench.age(DAY_MS)
    assert bench.bodies().count(b"far") == 1


def test_pending_level_message_keeps_its_file(bench: RetentionBench) -> None:
    bench.store.put("t", b"level", level=2)
    bench.fill(40)
    bench.age(HOUR_MS)
    assert bench.log_files[0] == 0
    bench.age(HOUR_MS)
    assert bench.log_files[0] > 0
    assert b"level" in bench.bodies()


def test_records_not_in_the_wheel_keep_their_file(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(stop_enqueue=True))
    bench.store.cancel(bench.store.put("t", b"never", delay=60))
    bench.fill(40)
    bench.store.put("t", b"late", delay=60)
    bench.age(2 * HOUR_MS)
    bench.store.flush()
    bench.age()
    assert bench.log_files[0] == 0
    bench.store.close()
    bench.config = config()
    bench.open()
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    assert b"late" in bench.bodies()
    bench.store.close()


def test_moved_copies_count_once_when_all_side_files_are_lost(bench: RetentionBench) -> None:
    bench.store.put("t", b"a", delay=30 * 3600)
    bench.store.put("t", b"b", delay=30 * 3600)
    for _ in range(2):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("log_begin_bytes") > 0
    handles = [one.handle for one in bench.store.pending()]
    bench.store.close()
    for name in ("timerstore", "consumequeue", "index", "timerlog"):
        shutil.rmtree(bench.root / name)
    (bench.root / "timerwheel").unlink()
    bench.open()
    assert [one.handle for one in bench.store.pending()] == handles
    bench.check()
    bench.age(2 * DAY_MS)
    assert [body for body in bench.bodies() if len(body) == 1] == [b"a", b"b"]


def test_new_ids_differ_from_ids_that_deliveries_name(bench: RetentionBench) -> None:
    """Sources and side files were removed. A reused id would count as delivered."""
    bench.store.put("t", b"old", delay=3600)
    bench.fill(14)
    bench.age(HOUR_MS)
    bench.store.flush()
    bench.age()
    assert (bench.log_files[0] > 0, bench.bodies()[-1]) == (True, b"old")
    bench.store.close()
    shutil.rmtree(bench.root / "timerstore")
    shutil.rmtree(bench.root / "consumequeue" / "rmq_sys_wheel_timer")
    bench.open()
    bench.store.put("t", b"new", delay=60)
    bench.age(120_000)
    assert b"new" in bench.bodies()


def rows(*bodies: bytes) -> list[RowBatch]:
    offsets = np.cumsum([0, *map(len, bodies)])
    return [RowBatch("t", b"".join(bodies), offsets, np.zeros(len(bodies), np.int64))]


def test_ledger_survives_the_removal_of_its_headers(bench: RetentionBench) -> None:
    bench.store.ingest("s", 1, rows(b"a", b"b"))
    bench.store.ingest("s", 2, rows(b"c"))
    for _ in range(4):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("log_begin_bytes") > 48 * KIB
    bench.reopen()
    assert bench.store.ingested("s").ranges == (range(1, 3),)
    assert bench.store.ingest("s", 2, rows(b"c")).is_replay
    bench.store.close()
    shutil.rmtree(bench.root / "timerstore")
    bench.open()
    assert bench.store.ingested("s").ranges == (range(1, 3),)
    assert bench.store.ingest("s", 1, rows(b"a", b"b")).is_replay
    assert not bench.store.ingest("s", 3, rows(b"d")).is_replay


def test_header_outside_the_ledger_keeps_its_file(bench: RetentionBench) -> None:
    bench.store.ingest("s", 1, rows(b"a"))
    ingester = inside(bench.store).ingester
    doubt_header(ingester, "s")
    with ingester.ledger.turn("s"):  # an ingest that is appending
        bench.fill(40)
        bench.age(2 * HOUR_MS)
        assert bench.log_files[0] == 0
    bench.age()
    assert bench.log_files[0] > 0
    assert bench.store.ingested("s").ranges == (range(1, 2),)


def test_late_unit_is_read_when_the_chain_of_its_slot_was_removed(tmp_path: Path) -> None:
    """Found by the simulator (seed 103): the clock is set back, and an old slot takes a unit."""
    bench = RetentionBench(tmp_path, config(wheel_slot_count=128, timer_log_segment_bytes=200))
    for _ in range(12):
        bench.store.put("t", b"early", delay=30)
    bench.age(120_000)
    for _ in range(24):
        bench.store.put("t", b"later", delay=60)
        bench.age(120_000)
    assert inside(bench.store).timer_log.segments.begin > 0
    bench.clock.set(NOW)
    bench.store.put("t", b"late", delay=30)
    bench.stepper.settle()
    assert len(list(bench.store.pending())) == 1
    bench.check()
    bench.reopen()
    bench.age(120_000)
    assert bench.bodies().count(b"late") == 1
    bench.check()
    bench.store.close()
