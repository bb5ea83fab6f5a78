"""Backup and restore: which folders can be a backup or the target of a restore."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.backups import fill, numbers
from tests.support.bench import Bench, small
from timerstore import (
    ConfigError,
    TimerStoreError,
)


def test_backup_rejects_folder_that_is_no_backup(source: Bench, tmp_path: Path) -> None:
    fill(source, 3)
    other = Bench(tmp_path / "other")
    other.store.put("t", b"x", delay=5)
    other.store.backup(tmp_path / "others")
    before = sorted(path.name for path in other.root.rglob("*"))
    (tmp_path / "file").write_text("mine")
    for target, match in (
        (other.root, "backup.json"),
        (tmp_path / "others", "of store"),
        (tmp_path / "file", "folder"),
        (source.root, "outside"),
        (source.root / "inside", "outside"),
        (tmp_path, "outside"),
    ):
        with pytest.raises(ConfigError, match=match):
            source.store.backup(target)
    assert sorted(path.name for path in other.root.rglob("*")) == before
    other.close()
    for target in (other.root, tmp_path / "file"):
        with pytest.raises(ConfigError, match="empty"):
            timerstore.restore(tmp_path / "others", target)
    with pytest.raises(ConfigError, match=r"backup\.json"):
        timerstore.restore(other.root, tmp_path / "new")


def test_open_rejects_backup(source: Bench, tmp_path: Path) -> None:
    fill(source, 3)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    for call in (
        lambda: timerstore.open(backup, source.config, clock=source.clock, threads=False),
        lambda: timerstore.convert(backup, "timerstore", source.config),
    ):
        with pytest.raises(ConfigError, match="got a backup; restore it"):
            call()
    assert {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()} == before
    source.store.backup(backup)


def test_backup_rejects_backup_that_was_opened_as_store(source: Bench, tmp_path: Path) -> None:
    """Earlier versions could open a backup as a store. Its new messages exist only there."""
    fill(source, 12)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    manifest = (backup / "backup.json").read_bytes()
    (backup / "backup.json").unlink()
    config = small(commit_log_segment_bytes=(backup / "commitlog" / ("0" * 20)).stat().st_size)
    other = Bench(backup, config, source.clock.now_ms)
    other.store.put("t", b"00777")
    other.close()
    (backup / "backup.json").write_bytes(manifest)
    fill(source, 3)
    with pytest.raises(ConfigError, match=r"opened as a store.*timerwheel"):
        source.store.backup(backup)
    with pytest.raises(ConfigError, match=r"got a backup.*as a store.*remove .*backup\.json"):
        other.open()
    (backup / "backup.json").unlink()
    other.open()
    assert 777 in numbers(other)
    other.close()


def test_restore_rejects_target_inside_backup(source: Bench, tmp_path: Path) -> None:
    """One at `timerwheel` made it look like a backup that had been opened as a store."""
    backup = tmp_path / "backup"
    source.store.backup(backup)
    (tmp_path / "link").symlink_to(backup)
    for path in (backup / "timerwheel", backup / "a" / "b", tmp_path / "link" / "new"):
        with pytest.raises(ConfigError, match="restore: wanted a folder outside the backup"):
            timerstore.restore(backup, path)
    source.store.backup(backup)
    assert sorted(one.name for one in backup.iterdir()) == ["backup.json", "commitlog", "lock"]


def test_restore_accepts_relative_target(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path may lead through a link, but a link in place of the folder would be replaced."""
    fill(source, 3)
    backup = tmp_path / "backup"
    source.store.backup(backup)
    for name in ("here", "linked", "repaired"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("linked")
    (tmp_path / "other-link").symlink_to("repaired")
    monkeypatch.chdir(tmp_path / "here")
    for here in (".", tmp_path / "here"):
        with pytest.raises(ConfigError, match="restore: wanted another folder than the one"):
            timerstore.restore("../backup", here)
    timerstore.restore("../backup", "there")
    timerstore.restore(backup, tmp_path / "link")
    timerstore.repair(tmp_path / "link", tmp_path / "other-link")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match="repair: wanted another folder than the one"):
        timerstore.repair(tmp_path / "link", ".")
    for name in ("here/there", "linked", "repaired"):
        assert timerstore.verify_directory(tmp_path / name).clean
    assert (tmp_path / "link").is_symlink()
    assert not list(tmp_path.glob("*ing"))


def test_restore_rejects_mount_point_before_copying(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount point cannot be renamed over. The error must come before the copy."""
    source.store.backup(tmp_path / "backup")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == mounted)
    with pytest.raises(ConfigError, match="restore: wanted a folder below a mount point"):
        timerstore.restore(tmp_path / "backup", mounted)
    with pytest.raises(ConfigError, match="repair: wanted a folder below a mount point"):
        timerstore.repair(source.root, mounted)
    assert not list(tmp_path.glob("*ing"))
    timerstore.restore(tmp_path / "backup", mounted / "store")


def test_invalid_path_raises_config_error(source: Bench, tmp_path: Path) -> None:
    backup, loop, nowhere = tmp_path / "backup", tmp_path / "loop", tmp_path / "nowhere"
    loop.symlink_to(loop)
    nowhere.symlink_to(tmp_path / "not there")
    source.store.backup(backup)
    calls: dict[str, Callable[[Any], object]] = {
        "open": lambda path: timerstore.open(path, threads=False),
        "open_shards": lambda path: timerstore.open_shards(path, 2, threads=False),
        "backup": source.store.backup,
        "restore": lambda path: timerstore.restore(backup, path),
        "restore of": lambda path: timerstore.restore(path, tmp_path / "new"),
        "check_backup": timerstore.check_backup,
        "verify": timerstore.verify_directory,
        "repair": lambda path: timerstore.repair(source.root, path),
        "repair of": lambda path: timerstore.repair(path, tmp_path / "new"),
        "convert": lambda path: timerstore.convert(path, "timerstore"),
    }
    for call in calls.values():
        for path in (str(tmp_path / "a\0b"), b"bytes", None):
            with pytest.raises(ConfigError, match=r"NUL|wanted text or a path"):
                call(path)
    for name, call in calls.items():
        for path in (loop, nowhere) if name in ("restore", "repair") else (loop,):
            with pytest.raises(TimerStoreError):
                call(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["backup", "loop", "nowhere", "store"]
    fill(source, 1)


def test_restore_rejects_bind_mount_of_same_disk(
    source: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the device of its parent folder, so only the system's table of mounts shows it."""
    source.store.backup(tmp_path / "backup")
    mounted = tmp_path / "with space" / "mounted"
    mounted.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    where = str(mounted).replace(" ", r"\040")
    table.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/a rw\n60 1 8:1 /from {where} rw - ext4 /dev/a rw\n"
    )
    monkeypatch.setattr("timerstore._engine.storage.anchor.MOUNTS", table)
    with pytest.raises(ConfigError, match="restore: wanted a folder below a mount point"):
        timerstore.restore(tmp_path / "backup", mounted)
    with pytest.raises(ConfigError, match="repair: wanted a folder below a mount point"):
        timerstore.repair(source.root, mounted)
    assert not list(mounted.parent.glob("*ing"))
    timerstore.restore(tmp_path / "backup", mounted / "store")
    for lost in (b"", b"\xff garbage\n", b"1 2\n"):
        table.write_bytes(lost)
        timerstore.restore(tmp_path / "backup", tmp_path / f"restored-{len(lost)}")
    table.unlink()
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")


def test_backup_follows_links_in_its_path(source: Bench, tmp_path: Path) -> None:
    """As its log on another disk: locked or not, it is read as it is."""
    fill(source, 10)
    source.turn()
    backup = tmp_path / "backup"
    source.store.backup(backup)
    (backup / "commitlog").rename(tmp_path / "elsewhere")
    (backup / "commitlog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(backup)
    assert timerstore.check_backup(tmp_path / "link").clean
    timerstore.restore(tmp_path / "link", tmp_path / "restored")
