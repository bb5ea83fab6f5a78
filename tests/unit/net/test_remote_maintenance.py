"""`verify` and `backup` of a connected store: the process that has the store open makes them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.served_bench import ServedBench
from timerstore import ConfigError, FailedError, FullError, TimerStoreError
from timerstore.net.remote_store import RemoteStore
from timerstore.types.reports import Problem, Report


def test_backup_through_a_server_is_one_of_the_store(
    served: ServedBench, remote: RemoteStore, tmp_path: Path
) -> None:
    remote.put_many("t", [b"1", b"2"], delay=60)
    first = remote.backup(tmp_path / "backup")
    assert first.segment_count == 1
    remote.put("t", b"3", delay=60)
    second = remote.backup(str(tmp_path / "backup"))
    assert second.kept_bytes == first.copied_bytes
    assert served.bench.store.backup(tmp_path / "other").log_end == second.log_end
    assert timerstore.check_backup(tmp_path / "backup").clean
    timerstore.restore(tmp_path / "backup", tmp_path / "again")
    assert timerstore.verify_directory(tmp_path / "again").clean
    with timerstore.open(tmp_path / "again", threads=False) as again:
        assert len(list(again.pending())) == 3


def test_verify_through_a_server_reports_as_the_store(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.put("t", b"1", delay=60)
    assert remote.verify() == served.bench.store.verify()
    found = Report((Problem("a unit", "f 0", "1", "2"),), {"records": 1})
    monkeypatch.setattr(served.bench.store, "_do_verify", lambda: found)
    assert remote.verify() == found
    assert not remote.verify().clean


def test_awaited_backup_and_verify_are_those_of_the_store(
    served: ServedBench, tmp_path: Path
) -> None:
    async def main() -> None:
        async with timerstore.aio.connect(served.url) as store:
            await store.put("t", b"1", delay=60)
            assert (await store.backup(tmp_path / "backup")).segment_count == 1
            assert (await store.verify()).clean

    asyncio.run(main())
    assert timerstore.check_backup(tmp_path / "backup").clean


@pytest.mark.parametrize("folder", ["backup", "./backup", "../backup", Path("backup")])
def test_relative_folder_is_rejected_on_both_sides(
    served: ServedBench, remote: RemoteStore, folder: Any
) -> None:
    with pytest.raises(ConfigError, match="backup: wanted an absolute path, as the process"):
        remote.backup(folder)
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, "backup", [os.fspath(folder)], {}])
    assert "wanted an absolute path" in str(raw.reply())


@pytest.mark.parametrize("folder", ["", 7, None, b"/backup", "/a\0b"])
def test_folder_that_is_no_path_is_rejected(remote: RemoteStore, folder: Any) -> None:
    with pytest.raises(ConfigError, match="backup: wanted"):
        remote.backup(folder)


def test_progress_cannot_travel(remote: RemoteStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="progress: wanted None"):
        remote.backup(tmp_path / "backup", progress=lambda _done, _all: None)
    assert not (tmp_path / "backup").exists()


def test_errors_of_a_backup_reach_the_client(
    served: ServedBench, remote: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.put("t", b"1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(ConfigError, match="wanted an empty folder"):
        remote.backup(tmp_path / "other")
    assert (tmp_path / "other" / "file").read_text() == "x"
    with pytest.raises(ConfigError, match="outside the store"):
        remote.backup(served.bench.store.path / "backup")

    channel = remote._connector.channel()
    for error in (FullError("the disk is full"), FailedError("the sync of a file of the backup")):

        def fail(*_: object, error: TimerStoreError = error) -> None:
            raise error

        monkeypatch.setattr(served.bench.store, "_do_backup", fail)
        with pytest.raises(type(error), match=error.what):
            remote.backup(tmp_path / "backup")
    assert remote.topics()["t"] == 1
    assert remote._connector.channel() is channel, "the store has not failed, so the server goes on"
