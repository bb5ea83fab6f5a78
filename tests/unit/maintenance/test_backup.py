"""Backup and restore: a restored store has the pending messages, groups and sizes of the store."""

import json
from pathlib import Path
from threading import Thread

import pytest

import timerstore
from tests.support.backups import SEGMENT, cut_at, fill, numbers, restored
from tests.support.bench import DAY, Bench, small
from timerstore import (
    CancelResult,
)


def test_restore_keeps_all_pending_messages(source: Bench, tmp_path: Path) -> None:
    early = fill(source, 50)
    fill(source, 50, 50, delay_s=2 * 86_400)
    level = source.store.put("t", b"99999", level=2)
    assert source.store.cancel(early[7]) is CancelResult.CANCELLED
    source.turn(61_000)
    delivered = sorted(numbers(source))
    assert delivered == sorted([*range(7), *range(8, 50), 99999])
    report = source.store.backup(tmp_path / "backup")
    assert report.copied_bytes == report.log_end - report.log_begin > 2 * SEGMENT
    assert report.segment_count == len(list((tmp_path / "backup" / "commitlog").iterdir()))
    fill(source, 5, 200)  # put after the backup
    other = restored(source, tmp_path / "backup")
    assert other.store.verify().clean
    assert sorted(numbers(other)) == delivered
    assert {one.due_ms for one in other.store.pending()} == {
        one.due_ms for one in source.store.pending(topic="t") if one.due_ms > source.clock.now_ms
    } - {source.clock.now_ms + 60_000}
    assert other.store.cancel(early[7].handle) is CancelResult.ALREADY_CANCELLED
    assert other.store.query("t", "k3")[0].body[:5] == b"00003"
    assert level.due_ms is not None
    other.turn(2 * DAY)
    assert sorted(numbers(other)) == sorted([*delivered, *range(50, 100)])
    other.close()


def test_backup_copies_only_new_bytes_when_repeated(source: Bench, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    fill(source, 100)
    first = source.store.backup(backup)
    again = source.store.backup(backup)
    assert (again.copied_bytes, again.kept_bytes) == (0, first.copied_bytes)
    fill(source, 100, 100)
    told: list[tuple[int, int]] = []
    second = source.store.backup(backup, progress=lambda done, all_: told.append((done, all_)))
    assert second.copied_bytes == second.log_end - first.log_end
    assert second.kept_bytes == first.copied_bytes
    assert told[-1] == (second.copied_bytes, second.copied_bytes)
    report = timerstore.check_backup(backup)
    assert report.clean
    assert report.counts == {
        "segments": second.segment_count,
        "bytes": second.copied_bytes + second.kept_bytes,
        "records": source.store.verify().counts["records"],
    }
    other = restored(source, backup)
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200))
    other.close()


def test_backup_lets_store_calls_run_during_copy(source: Bench, tmp_path: Path) -> None:
    """Calls that hold off retention do not exclude each other, so verify runs during a backup."""
    fill(source, 5)
    store, answers = source.store, []

    def look(_done: int, _all: int) -> None:
        looking = Thread(
            target=lambda: answers.append((store.histogram().counts.sum(), store.verify().clean)),
            daemon=True,
        )
        looking.start()
        looking.join(30)

    store.backup(tmp_path / "backup", progress=look)
    assert (5, True) in answers


def test_restore_of_empty_store_is_empty(source: Bench, tmp_path: Path) -> None:
    report = source.store.backup(tmp_path / "backup")
    assert report.log_begin == report.log_end == 0
    other = restored(source, tmp_path / "backup")
    assert (other.out(), list(other.store.pending())) == ([], [])
    fill(other, 1)
    other.turn(61_000)
    assert numbers(other) == [0]
    other.close()


def test_restore_keeps_committed_offsets(source: Bench, tmp_path: Path) -> None:
    fill(source, 10, delay_s=0)
    source.turn()
    reader = source.store.consumer("t", "g", wait=0)
    for _ in range(4):
        next(reader)
    reader.commit()
    reader.close()
    source.store.backup(tmp_path / "backup")
    other = restored(source, tmp_path / "backup")
    assert other.store.committed("t", "g") == source.store.committed("t", "g")
    other.close()


def test_restore_keeps_file_sizes(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(precision_ms=100, wheel_slot_count=256))
    fill(bench, 3)
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    with timerstore.open(tmp_path / "restored", clock=bench.clock, threads=False) as store:
        assert (store.config.precision_ms, store.config.wheel_slot_count) == (100, 256)
        assert store.config.commit_log_segment_bytes == 1 << 20
    bench.close()


@pytest.mark.parametrize("point", ["backup_segment_copied", "backup_copied", "backup_written"])
def test_backup_is_old_or_new_when_interrupted(
    source: Bench, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    fill(source, 100)
    source.store.backup(backup)
    fill(source, 100, 100)

    with cut_at(monkeypatch, point):
        source.store.backup(backup)
    assert timerstore.check_backup(backup).clean
    other = restored(source, backup)
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200 if point == "backup_written" else 100))
    other.close()
    source.store.backup(backup)
    assert timerstore.check_backup(backup).clean
    other = restored(source, backup, "again")
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(200))
    other.close()


def test_restore_keeps_queue_ends_when_retention_removed_messages(
    source: Bench, tmp_path: Path
) -> None:
    """backup.json has the ends of queues, which the log may have lost."""
    fill(source, 3, delay_s=0)
    source.turn()
    source.store.backup(tmp_path / "backup")
    path = tmp_path / "backup" / "backup.json"
    assert json.loads(path.read_text())["queue_ends"]["t"] == {"0": 3}


def test_restore_starts_from_scratch_when_interrupted(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 60)
    source.store.backup(tmp_path / "backup")

    with cut_at(monkeypatch, "restore_built"):
        timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    (tmp_path / "restored").mkdir()
    other = restored(source, tmp_path / "backup")
    other.turn(61_000)
    assert sorted(numbers(other)) == list(range(60))
    other.close()
