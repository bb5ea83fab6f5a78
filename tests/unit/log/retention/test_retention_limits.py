"""Removal of log files by age and by size, and the readers of removed messages."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.retaining import DAY_MS, HOUR_MS, KIB, RetentionBench, config
from timerstore import ConfigError, StoreConfig
from timerstore._engine.base import failpoints
from timerstore._engine.storage.disk import Disk


def test_file_is_removed_when_its_next_record_is_old(bench: RetentionBench) -> None:
    bench.fill()
    assert bench.log_files == [0, 16 * KIB]
    bench.age(HOUR_MS - 1)
    assert bench.log_files == [0, 16 * KIB]
    bench.age(1)
    assert bench.log_files == [16 * KIB]
    bench.age(100 * DAY_MS)
    assert bench.log_files == [16 * KIB]
    assert bench.stat("retention_log_files") == 1
    assert bench.stat("log_begin_bytes") == 16 * KIB


def test_retention_of_zero_keeps_all_files(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0))
    bench.fill(60)
    bench.age(100 * 365 * DAY_MS)
    assert bench.log_files[0] == 0
    assert len(bench.bodies()) == 60
    assert bench.store.services()["retention"].idle_s() is None  # no limit is set
    bench.store.close()


def test_queues_index_and_timer_log_are_dropped_with_the_log(bench: RetentionBench) -> None:
    for _ in range(10):
        for _ in range(20):
            bench.store.put("t", bytes(700), delay=1)
        bench.age(HOUR_MS // 2)
    for folder in ("consumequeue/t/0", "consumequeue/rmq_sys_wheel_timer/0", "index", "timerlog"):
        names = sorted((bench.root / folder).iterdir())
        assert 0 < len(names) <= 14, f"{folder}: {len(names)}"
        assert folder == "index" or int(names[0].name) > 0, folder
    bench.check()
    bench.reopen()
    assert len(bench.bodies()) < 120


def test_pull_below_the_minimum_returns_the_next_offset(bench: RetentionBench) -> None:
    bench.fill()
    bench.age()
    first = bench.store.pull("t", 0, 0)
    assert (first.status, first.messages) == ("OFFSET_TOO_SMALL", ())
    assert first.next_offset == first.min_offset > 0
    at = bench.store.pull("t", 0, first.next_offset)
    assert at.status == "FOUND"
    assert at.messages[0].queue_offset == first.min_offset
    assert bench.store.pull_batch("t", 0, 0).next_offset == first.next_offset
    assert bench.store.offset_at("t", 0, 0) == first.min_offset


def test_pull_reports_removal_between_retiring_and_dropping(bench: RetentionBench) -> None:
    bench.fill()
    bench.clock.advance(HOUR_MS)
    found = []

    def hook(name: str) -> None:
        if name == "retention_log_unlinked":
            found.append(bench.store.pull("t", 0, 0))

    failpoints.hook = hook
    try:
        bench.stepper.settle()
    finally:
        failpoints.hook = None
    assert [one.status for one in found] == ["MESSAGE_WAS_REMOVING"]
    assert found[0].next_offset == bench.store.pull("t", 0, 0).min_offset


def test_query_omits_removed_messages(bench: RetentionBench) -> None:
    gone = bench.store.put("t", bytes(100), keys="k")
    bench.fill()
    kept = bench.store.put("t", bytes(100), keys="k")
    bench.stepper.settle()
    assert len(bench.store.query("t", "k")) == 2
    bench.age()
    assert [m.log_offset for m in bench.store.query("t", "k")] == [kept.log_offset]
    assert bench.store.query("t", gone.message_id) == []


def test_log_above_its_size_limit_loses_its_oldest_files(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0, retention_log_bytes=40 * KIB))
    for _ in range(20):
        bench.fill(5)
        assert bench.stat("log_end_bytes") - bench.stat("log_begin_bytes") <= 40 * KIB + 7000
    bench.check()
    bench.store.close()


def test_log_of_its_size_limit_keeps_its_files(tmp_path: Path) -> None:
    """The size is first measured: with records of fixed sizes it is the same each time."""
    sizes = []
    for number, less in ((0, None), (1, 0), (2, 1)):
        limit = 0 if less is None else sizes[0] - less
        bench = RetentionBench(tmp_path / f"{number}", config(retention_log_bytes=limit))
        bench.fill()
        sizes.append(bench.stat("log_end_bytes"))
        assert sizes[-1] == sizes[0]
        assert bench.log_files == ([16 * KIB] if less == 1 else [0, 16 * KIB])
        bench.store.close()


def test_file_is_kept_while_the_next_one_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0, retention_log_bytes=KIB))
    bench.fill(12)

    def interrupt(name: str) -> None:
        if name == "log_rolled":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hook", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.store.put("t", bytes(1200))
    bench.store.flush()
    bench.stepper.settle()
    assert bench.stat("log_end_bytes") == 16 * KIB
    assert bench.log_files[0] == 0
    bench.fill(1)
    assert bench.log_files[0] == 16 * KIB
    bench.store.close()


def test_full_file_system_removes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0, retention_disk_percent=80))
    bench.fill(60)
    monkeypatch.setattr(Disk, "used_percent", lambda *_: 80.0)
    bench.stepper.settle()
    assert bench.log_files[0] == 0
    monkeypatch.setattr(Disk, "used_percent", lambda *_: 80.1)
    bench.stepper.settle()
    assert len(bench.log_files) == 1
    bench.store.close()


def test_pending_messages_above_the_limit_are_moved_again_only_when_the_log_doubled(
    tmp_path: Path,
) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0, retention_log_bytes=20 * KIB))
    for k in range(60):
        bench.store.put("t", bytes(1200), delay=80_000 + k)
    bench.stepper.settle()
    moved = bench.stat("retention_moved_messages")
    assert 30 <= moved <= 60
    for _ in range(5):
        bench.stepper.settle()
    assert bench.stat("retention_moved_messages") == moved
    for k in range(90):
        bench.store.put("t", bytes(1200), delay=80_000 + k)
    bench.stepper.settle()
    assert moved < bench.stat("retention_moved_messages") <= 3 * 150
    assert len(list(bench.store.pending())) == 150
    bench.check()
    bench.store.close()


def test_next_pass_begins_when_the_log_has_its_size(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(retention_ms=0, retention_log_bytes=20 * KIB))
    for k in range(60):
        bench.store.put("t", bytes(1200), delay=80_000 + k)
    bench.stepper.settle()
    moved = bench.stat("retention_moved_messages")
    size = bench.stat("log_end_bytes") - bench.stat("log_begin_bytes")
    retention: Any = bench.store.services()["retention"]
    retention._resume_bytes = size + 1
    bench.stepper.settle()
    assert bench.stat("retention_moved_messages") == moved
    retention._resume_bytes = size
    bench.stepper.settle()
    assert bench.stat("retention_moved_messages") > moved
    bench.check()
    bench.store.close()


def test_steady_load_keeps_disk_use_bounded(tmp_path: Path) -> None:
    """A short form of the soak test: two days of messages, each due within ten minutes."""
    bench = RetentionBench(tmp_path)
    sizes = []
    for turn in range(96):
        for k in range(12):
            bench.store.put("t", bytes(500), delay=1 + 50 * k)
        bench.age(HOUR_MS // 2)
        files = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
        sizes.append((len(files), sum(files)))
        if turn == 48:
            bench.check()
    assert max(count for count, _ in sizes[48:]) <= max(count for count, _ in sizes[6:24]) + 3
    assert max(size for _, size in sizes[48:]) <= max(size for _, size in sizes[6:24]) + 50 * KIB
    bench.check()
    bench.store.close()


def test_retention_limits_are_checked_at_their_edges() -> None:
    for good in (0, 1000, 2**35):
        StoreConfig(retention_ms=good)
    for name, bad in (
        ("retention_ms", 999), ("retention_ms", -1), ("retention_log_bytes", -1),
        ("retention_disk_percent", 100), ("retention_disk_percent", -1),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=name):
            StoreConfig(**{name: bad})  # type: ignore[arg-type]
