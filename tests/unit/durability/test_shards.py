"""Shards: staged, committed and ingested rows are durable when the call returns."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.durable.files import ANSWER, CHECKPOINT, DROPPED, LOCK, OLD_NAME
from tests.support.durable.recorder import Recorder
from tests.support.ingesting import Version
from tests.support.inside import inside
from tests.support.staging import batch_of, make_root, staged_rows
from tests.unit.durability.conftest import Machine
from timerstore._engine.storage.disk import Disk
from timerstore.shards import Staged, clean, commit, ingest, stage
from timerstore.shards.manifest import load
from timerstore.shards.shard_paths import ShardsTree
from timerstore.testing import ManualClock

SHARDS = (*ANSWER, LOCK, OLD_NAME, DROPPED)
CLOCK = ManualClock(NOW)


@pytest.fixture
def root(disk: Path, recorder: Recorder) -> Path:
    """Make a directory of one shard, as several shards are handled by threads."""
    return make_root(disk / "shards", 1, flush="sync")


def staged(root: Path, attempt: str = "a", version: int = 1) -> Staged:
    return stage(root, "source", version, attempt, [batch_of()], clock=CLOCK)


def rows(root: Path) -> int:
    """Return the number of rows of a shard after a power cut."""
    with timerstore.open_shards(root, clock=CLOCK, threads=False) as store:
        return sum(one.stats()["pending_messages"] for one in store.stores)


def test_staged_rows_are_durable(recorder: Recorder, root: Path, tmp_path: Path) -> None:
    part = staged(root)
    recorder.check(SHARDS, "shards")
    cut = recorder.cut(root, tmp_path / "cut")
    assert len(staged_rows(cut, part.files)) == 20


def test_staged_rows_are_durable_after_a_killed_stager(
    recorder: Recorder, root: Path, disk: Path
) -> None:
    found = recorder.killed_before_each_sync(root, disk / "killed", lambda: staged(root))
    for copy in found:
        staged(copy, "b")
        unfinished = [one for one in recorder.unsynced(f"killed/{copy.name}") if "/a." in one.path]
        others = [
            one
            for one in recorder.unsynced(f"killed/{copy.name}")
            if one not in unfinished and not any(a.covers(one) for a in SHARDS)
        ]
        assert not others
    assert found


def committed(root: Path) -> int:
    manifest = load(Disk(), ShardsTree(root), "source", 1)
    return -1 if manifest is None else manifest.row_count


def test_commit_is_durable(recorder: Recorder, root: Path, tmp_path: Path) -> None:
    commit(root, "source", 1, [staged(root)], clock=CLOCK)
    recorder.check(SHARDS, "shards")
    cut = recorder.cut(root, tmp_path / "cut")
    assert committed(cut) == 20
    assert ingest(cut, clock=CLOCK).row_count == 20


def test_replayed_commit_is_durable(recorder: Recorder, root: Path, tmp_path: Path) -> None:
    commit(root, "source", 1, [staged(root)], clock=CLOCK)
    assert commit(root, "source", 1, [staged(root, "b")], clock=CLOCK).is_replay
    recorder.check(SHARDS, "shards")
    assert committed(recorder.cut(root, tmp_path / "cut")) == 20


def test_replayed_commit_is_durable_after_the_first_was_killed(
    recorder: Recorder, root: Path, disk: Path, tmp_path: Path
) -> None:
    part = staged(root)
    found = recorder.killed_before_each_sync(
        root, disk / "killed", lambda: commit(root, "source", 1, [part], clock=CLOCK)
    )
    for copy in found:
        commit(copy, "source", 1, [staged(copy, "b")], clock=CLOCK)
        assert committed(recorder.cut(copy, tmp_path / copy.name)) == 20


def test_ingest_of_what_is_committed_is_durable(
    recorder: Recorder, root: Path, tmp_path: Path
) -> None:
    commit(root, "source", 1, [staged(root)], clock=CLOCK)
    with timerstore.open_shards(root, clock=CLOCK, threads=False) as store:
        (done,) = store.ingest()
        assert done.row_count == 20
        recorder.check(SHARDS, "shards")
        assert rows(recorder.cut(root, tmp_path / "first")) == 20
        assert store.ingest() == []
    commit(root, "source", 2, [staged(root, "c", 2)], clock=CLOCK)
    assert ingest(root, clock=CLOCK).row_count == 20
    assert rows(recorder.cut(root, tmp_path / "second")) == 40


def test_replayed_ingest_of_a_store_is_durable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.bench.store
    version = Version([(b"%06d" % k, NOW + 60_000) for k in range(40)])

    def cut_off(_offset: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # the rows are in the log, and not on the disk
        patch.setattr(inside(store).log, "sync_through", cut_off)
        with pytest.raises(KeyboardInterrupt):
            store.ingest("s", 1, version.batches(7))
    receipt: Any = store.ingest("s", 1, version.batches(9))
    assert receipt.row_count == 40
    found = machine.answered()
    assert 1 in found.store.ingested("s")
    assert found.store.stats()["pending_messages"] == 40
    found.close()
    store.ingest("s", 1, version.batches(40))
    machine.answered().close()


def test_versions_are_reported_when_durable(machine: Machine) -> None:
    store = machine.bench.store
    store.ingest("s", 1, Version([(b"%06d" % 1, NOW + 60_000)]).batches(1))
    told = store.ingested("s")
    found = machine.answered()
    assert found.store.ingested("s") == told
    assert 1 in told
    found.close()
    store.flush()
    machine.answered(CHECKPOINT).close()


def test_cleaning_takes_nothing_that_is_committed(
    recorder: Recorder, root: Path, tmp_path: Path
) -> None:
    commit(root, "source", 1, [staged(root)], clock=CLOCK)
    staged(root, "left", 2)
    assert clean(root, old_ms=0, clock=ManualClock(2**42)) != []
    left = [
        one
        for one in recorder.unsynced("shards")
        if not any(a.covers(one) for a in SHARDS) and "trash" not in one.path
    ]
    assert not left
    assert ingest(recorder.cut(root, tmp_path / "cut"), clock=CLOCK).row_count == 20


def test_geometry_of_shards_is_kept(recorder: Recorder, root: Path, tmp_path: Path) -> None:
    cut = recorder.cut(root, tmp_path / "cut")
    with timerstore.open_shards(cut, clock=CLOCK, threads=False) as store:
        assert store.config == small(flush="sync")
