"""Manifests and staging that ingest no longer needs, and errors in the background."""

import os
import threading
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")


import timerstore  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.inside import ingest_in_background, is_ingested  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import (  # noqa: E402
    batch_of,
    staged_names,
    write_rows,
)
from timerstore import (  # noqa: E402
    ConfigError,
    CorruptError,
    FailedError,
    MessageError,
)
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.shards import (  # noqa: E402
    WriteOptions,
    background_ingest,
    commit,
    janitor,
    manifest,
    prune,
    stage,
)
from timerstore.shards.shard_paths import ShardsTree  # noqa: E402
from timerstore.shards.write_options import draw_name  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

UUID = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"


def test_prune_removes_old_manifests_and_late_replay_adds_nothing(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "KEPT_COUNT", 2)
    for version in range(5):
        write_rows(shards.root, [batch_of(20, 20 * version)], version)
    unnamed, aside = draw_name(), draw_name()
    write_rows(shards.root, [batch_of(20, 100)], 0, unnamed)
    broken = batch_of(20, 120, key=["two words"] * 20)
    write_rows(shards.root, [broken], 0, aside, on_invalid="quarantine")
    disk, tree = Disk(), ShardsTree(shards.root)

    def left() -> dict[str, list[int]]:
        return {s: manifest.versions(disk, tree, s) for s in manifest.sources(disk, tree)}

    everything = {"s": [0, 1, 2, 3, 4], unnamed: [0], aside: [0]}
    done = is_ingested(shards.store)
    assert prune(shards.root, done, old_ms=-60_000) == 0  # no shard has them yet
    assert left() == everything
    shards.store.ingest()
    assert prune(shards.root, done) == 0  # too young
    assert left() == everything
    assert prune(shards.root, done, old_ms=-60_000) == 4
    assert left() == {"s": [3, 4], aside: [0]}
    write_rows(shards.root, [batch_of(20, 20)], 1)  # a driver that slept for days
    assert shards.store.ingest() == []
    assert staged_names(shards.root) == ["quarantine.arrow"]
    shards.turn(1_000_000)
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(120)}


def test_prune_keeps_unreadable_manifest(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "KEPT_COUNT", 0)
    for source in ("a", "b"):
        write_rows(shards.root, [batch_of(5)], source=source)
    shards.store.ingest()
    tree = ShardsTree(shards.root)
    tree.manifest("a", 0).write_bytes(b"{")
    assert prune(shards.root, is_ingested(shards.store), old_ms=-60_000) == 1
    assert tree.manifest("a", 0).exists()
    assert not tree.manifest("b", 0).exists()


@pytest.mark.parametrize(
    "name", ["batch-june", "batch-", "batch-1f2e3d4c", f"batch-{UUID}x", f"june-{UUID}"]
)
def test_prune_keeps_manifest_when_name_only_resembles_drawn_name(
    shards: ShardBench, name: str
) -> None:
    WriteOptions(write_id=name)
    write_rows(shards.root, [batch_of(20)], 0, name)
    shards.store.ingest()
    assert prune(shards.root, is_ingested(shards.store), old_ms=-60_000) == 0
    other = stage(shards.root, name, 0, "other", [batch_of(30)], clock=ManualClock(NOW))
    with pytest.raises(MessageError, match="committed with other rows"):
        commit(shards.root, name, 0, [other], same_rows=True)


def test_write_id_rejects_drawn_name() -> None:
    assert draw_name() != draw_name()
    for name in (draw_name(), f"batch-{UUID}"):  # as older releases drew them
        with pytest.raises(ConfigError, match=r"write_id: wanted another form.*got 'batch-"):
            WriteOptions(write_id=name)


def test_stats_show_error_of_background_ingest(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with timerstore.open_shards(root, 1, small(), ingest_every=0.01) as store:
        (root / "_ingest/manifests/s").mkdir(parents=True)
        ShardsTree(root).manifest("s", 0).write_bytes(b"{")
        told = threading.Event()
        for _ in range(6000):
            if "unreadable" in store.stats()["ingest_error"]:
                break
            told.wait(0.01)
        assert "00000.json" in store.stats()["ingest_error"]
        store.put("t", b"x")  # the store goes on
        ShardsTree(root).manifest("s", 0).unlink()
        for _ in range(6000):
            if not store.stats()["ingest_error"]:
                break
            told.wait(0.01)
        assert store.stats()["ingest_error"] == ""


def test_clean_up_runs_when_source_fails(shards: ShardBench) -> None:
    done = write_rows(shards.root, [batch_of(20)], source="lost")
    for one in done.manifest.files:
        (shards.root / one.path).unlink()
    left = stage(shards.root, "s", 0, "a", [batch_of(20)])
    for path in (shards.root / "_ingest/staging").rglob("*"):
        os.utime(path, (0, 0))
    with pytest.raises(CorruptError, match="'lost' version 0 is lost"):
        ingest_in_background(shards.store)
    assert not (shards.root / left.files[0].path).exists()


def test_error_of_source_is_raised_when_clean_up_fails(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write_rows(shards.root, [batch_of(20)], source="lost")
    for one in done.manifest.files:
        (shards.root / one.path).unlink()

    def fails(*_: object) -> None:
        raise FailedError("cannot be removed", where="here")

    monkeypatch.setattr(background_ingest, "clean", fails)
    with pytest.raises(CorruptError, match="'lost' version 0 is lost") as caught:
        ingest_in_background(shards.store)
    assert "cannot be removed" in caught.value.__notes__[0]
