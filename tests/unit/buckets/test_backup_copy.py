"""Reads of backups in a bucket."""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import timerstore
from tests.support.bench import NOW, small
from tests.support.bucket import s3_server
from tests.support.bucket.fault_proxy import Fault, FaultProxy
from tests.support.bucket.uploads import upload
from tests.support.programs import run_program
from timerstore import ConfigError, CorruptError, tables
from timerstore._engine.storage.disk import Disk
from timerstore.testing import ManualClock

TABLES = ("messages", "timers", "deliveries", "transactions")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of temporary files for this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))  # of programs
    return folder / f"timerstore-{os.getuid()}"


def make_backup(path: Path, count: int, first: int = 0) -> Path:
    """Make a store with pending and delivered messages, and its backup."""
    clock = ManualClock(NOW)
    with timerstore.open(path, small(), clock=clock, threads=False) as store:
        for k in range(first, first + count):
            store.put("t", b"later-%d" % k, delay=60 + k)
            store.put("t", b"now-%d" % k)
        store.backup(path.with_suffix(".backup"))
    return path.with_suffix(".backup")


def rows(path: str | Path, table: str, **how: Any) -> list[dict[str, Any]]:
    found = [row for batch in tables.read(path, table, **how) for row in batch.to_pylist()]
    return sorted(found, key=repr)


def test_backup_in_bucket_has_the_rows_of_its_store(tmp_path: Path, prefix: str) -> None:
    backup = make_backup(tmp_path / "s", 20)
    upload(backup, prefix)
    timerstore.restore(backup, tmp_path / "again")
    for table in TABLES:
        assert rows(prefix, table) == rows(tmp_path / "again", table)
    assert len(rows(prefix, "timers")) == 20
    assert len(rows(prefix, "messages", columns=("body",))) == 40


def test_backups_of_shards_are_read_together(tmp_path: Path, prefix: str) -> None:
    for shard in range(3):
        upload(make_backup(tmp_path / f"s{shard}", 5, 5 * shard), f"{prefix}/shard-0000{shard}")
    assert Counter(one["shard"] for one in rows(prefix, "timers")) == {0: 5, 1: 5, 2: 5}
    found = rows(prefix, "messages", columns=("shard", "body"))
    assert {(one["shard"], one["body"]) for one in found} == {
        (k // 5, body) for k in range(15) for body in (b"later-%d" % k, b"now-%d" % k)
    }


def test_copy_is_made_once_and_follows_the_backup(
    tmp_path: Path, prefix: str, proxy: FaultProxy, scratch: Path
) -> None:
    storage = s3_server.options(proxy.endpoint)
    upload(make_backup(tmp_path / "s", 5), prefix)
    for _ in range(3):
        assert len(rows(prefix, "timers", storage_options=storage)) == 5
    assert sum("commitlog" in one and one.startswith("GET") for one in proxy.requests) == 1
    make_backup(tmp_path / "t", 7)
    upload(tmp_path / "t.backup", prefix)
    assert len(rows(prefix, "timers", storage_options=storage)) == 7
    assert len(list(scratch.glob("*.store"))) == 2
    assert not list(scratch.glob("*.backup"))


_READER = """
    import sys
    from timerstore import tables

    list(tables.read(sys.argv[1], "timers"))
"""


def make_old(scratch: Path) -> None:
    for one in scratch.iterdir():
        os.utime(one, (0, 0))


def test_unused_copies_are_removed(tmp_path: Path, prefix: str, scratch: Path) -> None:
    upload(make_backup(tmp_path / "s", 5), f"{prefix}/one")
    upload(make_backup(tmp_path / "t", 5), f"{prefix}/two")
    assert run_program(_READER, f"{prefix}/one").returncode == 0
    (old,) = scratch.glob("*.store")
    left = scratch / ("0" * 32 + ".backup")  # of a killed process
    (left / "commitlog").mkdir(parents=True)
    left.with_suffix(".lock").touch()
    (scratch / ("1" * 32 + ".lock")).touch()
    (scratch / "notes").touch()
    make_old(scratch)
    rows(f"{prefix}/two", "timers")
    assert not old.exists()
    (now,) = scratch.glob("*.store")
    assert {one.name for one in scratch.iterdir()} == {
        "notes", now.name, now.with_suffix(".lock").name, now.with_suffix(".users").name
    }  # fmt: skip
    assert len(rows(f"{prefix}/one", "timers")) == 5


def test_copy_in_use_stays(tmp_path: Path, prefix: str, scratch: Path) -> None:
    """Also if its user began more than a day ago."""
    upload(make_backup(tmp_path / "s", 5), f"{prefix}/one")
    upload(make_backup(tmp_path / "t", 5), f"{prefix}/two")
    rows(f"{prefix}/one", "timers")
    (used,) = scratch.glob("*.store")
    make_old(scratch)
    assert run_program(_READER, f"{prefix}/two").returncode == 0
    assert used.exists()
    assert len(list(scratch.glob("*.store"))) == 2


def test_copy_that_another_process_makes_stays(tmp_path: Path, prefix: str, scratch: Path) -> None:
    upload(make_backup(tmp_path / "s", 5), prefix)
    scratch.mkdir(mode=0o700)
    part = scratch / ("0" * 32 + ".backup")
    part.mkdir()
    with Disk().locked(part.with_suffix(".lock"), alone=True):
        make_old(scratch)
        rows(prefix, "timers")
        assert part.exists()


def test_readers_at_once_share_one_copy(tmp_path: Path, prefix: str, proxy: FaultProxy) -> None:
    upload(make_backup(tmp_path / "s", 5), prefix)
    storage = s3_server.options(proxy.endpoint)
    counts: list[int] = []

    def read() -> None:
        counts.append(len(rows(prefix, "timers", storage_options=storage)))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert counts == [5] * 6
    assert sum("commitlog" in one and one.startswith("GET") for one in proxy.requests) == 1


@pytest.mark.parametrize("kind", ["error 503", "cut answer", "no answer"])
def test_download_survives_requests_that_fail(
    tmp_path: Path, prefix: str, proxy: FaultProxy, kind: str
) -> None:
    upload(make_backup(tmp_path / "s", 5), prefix)
    proxy.fail(Fault(kind, "GET", "commitlog", 2))
    assert len(rows(prefix, "timers", storage_options=s3_server.options(proxy.endpoint))) == 5
    assert len(proxy.happened) == 2


def test_damaged_backup_is_an_error(tmp_path: Path, prefix: str, scratch: Path) -> None:
    bucket = upload(make_backup(tmp_path / "s", 5), prefix)
    (name,) = (one.path for one in bucket.list("commitlog"))
    data = bucket.get(name)
    assert data is not None
    bucket.put(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(CorruptError):
        rows(prefix, "timers")
    assert not list(scratch.glob("*.store"))
    bucket.put(name, data)
    assert len(rows(prefix, "timers")) == 5


def test_prefix_without_backup_is_an_error(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ConfigError, match="no backup in the bucket"):
        rows(prefix, "timers")
    upload(make_backup(tmp_path / "s", 5), f"{prefix}/shard-00001")
    with pytest.raises(ConfigError, match=r"got \['shard-00001'\]"):
        rows(prefix, "timers")


def test_snapshot_of_backup_is_an_error(prefix: str) -> None:
    with pytest.raises(ConfigError, match="path: wanted the folder of a store, got s3://"):
        tables.take(prefix)


def test_folder_of_another_user_is_not_used(tmp_path: Path, prefix: str, scratch: Path) -> None:
    upload(make_backup(tmp_path / "s", 5), prefix)
    scratch.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match="wanted a folder of user"):
        rows(prefix, "timers")
