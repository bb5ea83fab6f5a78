"""A shard that was restored from a backup reports lost versions."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
from tests.support.bench import NOW  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import batch_of  # noqa: E402
from timerstore import CorruptError  # noqa: E402
from timerstore.shards import commit, ingest, stage  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402


def write(root: Path, version: int, source: str = "s") -> Any:
    rows = batch_of(30, 30 * version, deliver_at=pa.array([0] * 30))
    part = stage(root, source, version, "p", [rows], clock=ManualClock(NOW))
    return commit(root, source, version, [part])


def put_back(shards: ShardBench, backup: Path) -> None:
    """Shard 1 as it was in its backup."""
    shards.close()
    shutil.rmtree(shards.root / "shard-00001")
    timerstore.restore(backup, shards.root / "shard-00001")
    shards.open()


def test_lost_version_of_restored_shard_is_named_and_can_be_skipped(
    shards: ShardBench, tmp_path: Path
) -> None:
    write(shards.root, 0)
    shards.store.ingest()
    shards.store.stores[1].backup(tmp_path / "backup")
    for version in (1, 2):
        write(shards.root, version)
    shards.store.ingest()
    put_back(shards, tmp_path / "backup")
    write(shards.root, 3)
    write(shards.root, 0, "other")
    lost = r"^shard 1: source 's' version 1 is lost: .*stores\[1\]\.ingest\('s', 1, \[\]\).*00001\."
    for _ in range(2):
        with pytest.raises(CorruptError, match=lost) as caught:
            shards.store.ingest()
        assert caught.value.got == "none"
    assert [list(one.ingested("s")) for one in shards.store.stores] == [
        [0, 1, 2, 3],
        [0],
        [0, 1, 2, 3],
    ]
    assert all(0 in one.ingested("other") for one in shards.store.stores)
    shards.store.stores[1].ingest("s", 1, [])
    with pytest.raises(CorruptError, match="shard 1: source 's' version 2 is lost"):
        shards.store.ingest()
    shards.store.stores[1].ingest("s", 2, [])
    assert [(one.shard, one.version) for one in shards.store.ingest()] == [(1, 3)]
    shards.turn()
    there = {k for k in range(120) if not 30 <= k < 90 or shards.store.shard_of(f"key-{k}") != 1}
    assert set(shards.counted()) == {b"body-%d" % k for k in there}
    assert list((shards.root / "_ingest/staging").rglob("*.arrow")) == []


def test_lost_version_is_ingested_again_from_rows(shards: ShardBench, tmp_path: Path) -> None:
    shards.store.stores[1].backup(tmp_path / "backup")
    write(shards.root, 0)
    shards.store.ingest()
    put_back(shards, tmp_path / "backup")
    shards.store.stores[1].ingest("s", 0, [])
    rows = batch_of(30, deliver_at=pa.array([0] * 30))
    keys = rows.column("key").to_pylist()
    mine = rows.filter(pa.array([shards.store.shard_of(one) == 1 for one in keys]))
    again = stage(shards.root, "s-again", 0, "p", [mine], clock=ManualClock(NOW))
    commit(shards.root, "s-again", 0, [again])
    shards.store.ingest()
    shards.turn()
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(30)}


def test_ingest_reports_removed_staged_file_when_no_shard_is_open(
    shards: ShardBench,
) -> None:
    done = write(shards.root, 0)
    shards.close()
    (shards.root / done.manifest.of_shard(2)[0].path).unlink()
    with pytest.raises(CorruptError, match="shard 2: source 's' version 0 is lost"):
        ingest(shards.root, shards=[2])
    with timerstore.open_shards(shards.root, threads=False) as store:
        store.stores[2].ingest("s", 0, [])
    assert [one.shard for one in ingest(shards.root).ingested] == [0, 1]
