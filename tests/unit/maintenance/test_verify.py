"""verify: a whole store is clean at each step, and damage of its log and queues is reported."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.support.driver import START_MS, tiny
from tests.support.filled_bench import CONFIG, FilledBench, check_reports, flip, segment
from tests.support.inside import inside
from timerstore import CorruptError
from timerstore._engine.maintenance.live_view import LiveView
from timerstore.testing import ManualClock, Stepper


def test_verify_is_clean_when_store_is_empty(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, CONFIG, clock=ManualClock(START_MS), threads=False) as store:
        report = store.verify()
        assert report.clean, report
        assert report.counts["records"] == 0


def test_verify_reads_a_wheel_of_any_size(tmp_path: Path) -> None:
    """A side file may have 64 MiB."""
    config = replace(CONFIG, wheel_slot_count=(64 << 20) // 32 + 2)
    with timerstore.open(tmp_path, config, clock=ManualClock(START_MS), threads=False) as store:
        assert store.verify().clean


def test_verify_counts_what_it_reads(filled: FilledBench) -> None:
    filled.stepper.settle()
    report = filled.store.verify()
    assert report.clean, report
    timer_records = filled.store.pull("rmq_sys_wheel_timer", 0, 10**6).max_offset
    assert report.counts["timer units"] == timer_records
    assert report.counts["records"] == report.counts["queue units"]
    assert report.counts["pending"] == filled.store.stats()["pending_messages"] > 0


def test_verify_is_clean_after_each_service_step(filled: FilledBench) -> None:
    for turn in range(4):
        filled.clock.advance(7777)
        filled.store.put("topic-2", b"more", delay=turn / 3)
        moved = True
        while moved:
            moved = False
            for name in filled.stepper.names:
                moved = filled.stepper.step(name) or moved
                report = filled.store.verify()
                assert report.clean, (name, report)


def test_verify_is_clean_after_reopening_and_after_kill(filled: FilledBench) -> None:
    for _ in range(2):
        filled.reopen()
        assert filled.store.verify().clean, filled.store.verify()
        filled.clock.advance(3333)
        filled.stepper.settle()
        copy = filled.root.with_name(f"copy-{filled.clock.now_ms}")
        shutil.copytree(filled.root, copy)
        with timerstore.open(copy, CONFIG, clock=filled.clock, threads=False) as other:
            assert other.verify().clean, other.verify()
            Stepper(other).settle()
            assert other.verify().clean, other.verify()


def test_verify_is_clean_in_later_lap_of_wheel(filled: FilledBench) -> None:
    for _ in range(6):
        filled.clock.advance(100_000)  # a lap of the tiny wheel is 128 s
        filled.stepper.settle()
        filled.store.put("topic-0", b"again", delay=50)
        assert filled.store.verify().clean, filled.store.verify()


@pytest.mark.more
def test_verify_is_clean_while_threads_work(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "store", tiny(100, "async"))
    stop = threading.Event()

    def work() -> None:
        k = 0
        while not stop.is_set():
            batch = store.put_many("busy", [b"x" * 40] * 20, delay=np.arange(20) / 100)
            store.cancel(batch[19])
            k += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(15):
            report = store.verify()
            assert report.clean, report
    finally:
        stop.set()
        worker.join()
        store.close()


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (4, "magic number"),
        (0, "length"),
        (35, "stored position"),
        (89, "CRC"),
        (110, "CRC"),
    ],
)
def test_verify_reports_changed_record(filled: FilledBench, at: int, what: str) -> None:
    filled.stepper.settle()
    receipt = filled.store.put("topic-0", b"the one")
    filled.stepper.settle()
    size = CONFIG.commit_log_segment_bytes
    number, offset = divmod(receipt.log_offset, size)
    path = segment(filled.root, "commitlog", number, size)
    flip(path, offset + at)
    check_reports(filled.store.verify(), what, path, f"offset {offset}")
    flip(path, offset + at)
    assert filled.store.verify().clean


def test_verify_reports_bytes_past_log_end(filled: FilledBench) -> None:
    filled.stepper.settle()
    size = CONFIG.commit_log_segment_bytes
    number, offset = divmod(filled.store.stats()["log_end_bytes"], size)
    path = segment(filled.root, "commitlog", number, size)
    flip(path, offset + 777)
    check_reports(filled.store.verify(), "past the end", path, f"offset {offset + 777}")


def test_verify_reports_lost_record_of_pending_timer(filled: FilledBench) -> None:
    filled.stepper.settle()
    one = next(iter(filled.store.pending(topic="topic-1")))
    size = CONFIG.commit_log_segment_bytes
    path = segment(filled.root, "commitlog", one.log_offset // size, size)
    flip(path, one.log_offset % size + 7)
    report = filled.store.verify()
    check_reports(report, "magic number", path, f"offset {one.log_offset % size}")


@pytest.mark.parametrize("folder", ["commitlog", "timerlog"])
def test_verify_reports_short_and_missing_files(filled: FilledBench, folder: str) -> None:
    filled.stepper.settle()
    path = min((filled.root / folder).iterdir())
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(100)
    check_reports(filled.store.verify(), "size", path)
    path.write_bytes(whole)
    path.rename(filled.root / "aside")
    check_reports(filled.store.verify(), "size", path)
    (filled.root / "aside").rename(path)
    assert filled.store.verify().clean


@pytest.mark.parametrize("topic", ["topic-0", "rmq_sys_wheel_timer"])
@pytest.mark.parametrize("at", [7, 11, 19])  # position, size, tags code
def test_verify_reports_changed_queue_unit(filled: FilledBench, topic: str, at: int) -> None:
    filled.stepper.settle()
    path = filled.root / "consumequeue" / topic / "0" / f"{0:020d}"
    flip(path, 40 + at, 1)
    check_reports(filled.store.verify(), "queue unit", path, "offset 40")
    flip(path, 40 + at, 1)
    assert filled.store.verify().clean


def test_verify_reports_queue_unit_past_end(filled: FilledBench) -> None:
    filled.stepper.settle()
    count = filled.store.pull("topic-0", 0, 10**6).max_offset
    if count % 10 == 0:
        filled.store.put("topic-0", b"so that it does not end with its file")
        filled.stepper.settle()
        count += 1
    at = count * 20 % CONFIG.queue_segment_bytes
    path = filled.root / "consumequeue/topic-0/0" / f"{count * 20 - at:020d}"
    flip(path, at + 3)
    check_reports(filled.store.verify(), "past the end", path, f"offset {at + 3}")


def test_verify_reports_missing_queue_file(filled: FilledBench) -> None:
    filled.stepper.settle()
    path = filled.root / "consumequeue/topic-0/0" / f"{0:020d}"
    path.unlink()
    check_reports(filled.store.verify(), "size", path)


def test_verify_reports_queue_that_ends_too_soon(filled: FilledBench) -> None:
    filled.stepper.settle()
    route = inside(filled.store).routes.get("topic-0", 0)
    assert route is not None
    route.queue.count -= 1
    check_reports(filled.store.verify(), "ends too soon")
    route.queue.count += 1


def test_verify_reports_queue_that_cannot_be_read(
    filled: FilledBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: object, _route: object) -> int:
        raise CorruptError("queue", wanted="units", got="an input error")

    with monkeypatch.context() as patched:
        patched.setattr(LiveView, "first_offset", broken)
        report = filled.store.verify()
    assert any(one.what == "commit log" and "input error" in one.got for one in report.problems)
    assert filled.store.verify().clean  # the store did not fail
