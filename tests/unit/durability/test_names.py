"""What an answer rests on is durable, also where a killed process made it and synced nothing."""

from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.durable.names import DurableNames, killed_before_sync
from timerstore._engine.storage.disk import Disk
from timerstore.testing import ManualClock


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_make_directory_makes_each_level_durable_that_a_killed_process_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    names = DurableNames(tmp_path, monkeypatch)
    path = tmp_path / "a" / "b" / "c" / "d"
    assert killed_before_sync(monkeypatch, lambda: Disk().make_directory(path), nth=nth)
    Disk().make_directory(path / "e")
    names.cut()
    assert (path / "e").is_dir()


@pytest.mark.parametrize("made_by", ["a killed opening", "the caller", "a rename"])
def test_open_makes_the_stores_name_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: str
) -> None:
    names = DurableNames(tmp_path, monkeypatch)
    root = tmp_path / "store"
    if made_by == "a killed opening":
        assert killed_before_sync(monkeypatch, lambda: Bench(root), nth=2)
        assert root.is_dir()
    elif made_by == "the caller":
        root.mkdir()
    else:
        Bench(tmp_path / "other").close()
        (tmp_path / "other").rename(root)
    bench = Bench(root)
    bench.store.put("t", b"x", flush="sync")
    bench.store.flush()
    names.cut()
    assert root.is_dir()
    assert (root / "commitlog").is_dir()
    bench.store.close()


def test_open_goes_on_where_the_folder_above_is_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    Disk().sync_name(Path("/proc"))  # its name is not in the parent's file system
    assert synced == []
    Disk().sync_name(tmp_path)
    assert len(synced) == 1


def test_restore_and_backup_make_their_folders_names_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store")
    bench.store.put("t", b"x", flush="sync")
    bench.store.flush()
    names = DurableNames(tmp_path, monkeypatch)
    (tmp_path / "backups" / "one").mkdir(parents=True)
    Disk().sync_name(tmp_path / "backups")
    bench.store.backup(tmp_path / "backups" / "one")
    timerstore.restore(tmp_path / "backups" / "one", tmp_path / "restored" / "deep" / "store")
    names.cut()
    assert (tmp_path / "backups" / "one" / "backup.json").exists()
    with timerstore.open(
        tmp_path / "restored" / "deep" / "store", small(), clock=ManualClock(NOW), threads=False
    ) as store:
        assert store.topics()["t"] == 1
    bench.close()


def test_link_is_durable_also_when_a_killed_process_made_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").write_bytes(b"1")
    (tmp_path / "second").write_bytes(b"2")
    names = DurableNames(tmp_path, monkeypatch)
    (tmp_path / "name").hardlink_to(tmp_path / "first")
    assert not Disk().link(tmp_path / "second", tmp_path / "name")
    names.cut()
    assert (tmp_path / "name").read_bytes() == b"1"
