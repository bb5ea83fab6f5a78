"""Backup and restore: two at the same time, in one process and in several."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.support.backups import fill
from tests.support.bench import Bench
from timerstore import (
    ConfigError,
    LockedError,
)
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Anchor, Disk


def test_backup_rejects_second_backup_at_the_same_time(source: Bench, tmp_path: Path) -> None:
    source.store.backup(tmp_path / "backup")
    held = Directory(Disk(), tmp_path / "backup")
    with pytest.raises(LockedError):
        source.store.backup(tmp_path / "backup")
    held.release()
    source.store.backup(tmp_path / "backup")


def test_backup_readers_and_writers_exclude_each_other(source: Bench, tmp_path: Path) -> None:
    fill(source, 100)
    source.turn()
    backup = tmp_path / "backup"
    told: list[str] = []
    source.store.backup(tmp_path / "other")
    with pytest.raises(ConfigError, match="progress: wanted a callable, got int 7"):
        timerstore.restore(tmp_path / "other", tmp_path / "torn", progress=7)  # type: ignore[arg-type]

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(LockedError, match="in this process") as caught:
            call()
        told.append(str(caught.value))

    def reads(_done: int, _all: int) -> None:
        refused(lambda: timerstore.restore(backup, tmp_path / "torn"))
        refused(lambda: timerstore.check_backup(backup))

    def writes(_done: int, _all: int) -> None:
        refused(lambda: source.store.backup(backup))
        assert timerstore.check_backup(backup).clean  # readers do not exclude each other

    source.store.backup(backup, progress=reads)
    assert not (tmp_path / "torn").exists()
    names = sorted(backup.iterdir())
    fill(source, 50, begin=100)
    source.turn()
    timerstore.restore(backup, tmp_path / "whole", progress=writes)
    assert len(told) > 3, "nothing was copied in pieces"
    assert all(str(backup) in one for one in told)
    assert sorted(backup.iterdir()) == names, "a backup that is read is not written to"
    assert timerstore.verify_directory(tmp_path / "whole").clean
    source.store.backup(backup)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_backup_lock_is_not_held_by_forked_child(source: Bench, tmp_path: Path) -> None:
    fill(source, 10)
    source.turn()
    backup = tmp_path / "backup"
    source.store.backup(backup)
    come, go = os.pipe()
    children = []

    def fork(_done: int, _all: int) -> None:
        child = os.fork()
        if child == 0:
            os.read(come, 1)
            os._exit(0)
        children.append(child)

    timerstore.restore(backup, tmp_path / "restored", progress=fork)
    try:
        source.store.backup(backup)
    finally:
        os.write(go, b"x" * len(children))
        for child in children:
            os.waitpid(child, 0)
        os.close(come)
        os.close(go)


def test_restore_rejects_second_restore_into_same_folder(source: Bench, tmp_path: Path) -> None:
    fill(source, 100)
    backup, path = tmp_path / "backup", tmp_path / "restored"
    source.store.backup(backup)
    tried: list[int] = []

    def again(done: int, _all: int) -> None:
        with pytest.raises(LockedError, match=r"restored\.restoring"):
            timerstore.restore(backup, path)
        tried.append(done)

    report = timerstore.restore(backup, path, progress=again)
    assert len(tried) == report.segment_count == len(list((path / "commitlog").iterdir()))
    with pytest.raises(ConfigError, match="empty"):
        timerstore.restore(backup, path)
    assert not path.with_name("restored.restoring").exists()
    held = Directory(Disk(), path)  # no process holds this directory
    held.release()


def test_restore_rejects_folder_that_another_restore_just_made(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the lock of a folder that has its name by then."""
    fill(source, 100)
    backup, path = tmp_path / "backup", tmp_path / "restored"
    source.store.backup(backup)
    building = path.with_name("restored.restoring")
    whole = Disk.anchor

    def anchor(self: Disk, root: Path) -> Anchor:
        found = whole(self, root)
        if root == building:  # the other one ends between its opening and its locking
            monkeypatch.setattr(Disk, "anchor", whole)
            building.rename(path)
        return found

    monkeypatch.setattr(Disk, "anchor", anchor)
    with pytest.raises(LockedError, match="just built"):
        timerstore.restore(backup, path)
    assert not building.exists()
    assert path.exists()
