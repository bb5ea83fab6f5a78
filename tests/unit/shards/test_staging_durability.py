"""Staging and commits after a process was killed before it synced."""

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.durable.names import DurableNames, killed_before_sync  # noqa: E402
from tests.support.staging import batch_of, make_root  # noqa: E402
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.shards import Staged, clean, commit, ingest, manifest, stage  # noqa: E402
from timerstore.shards.shard_paths import ShardsTree  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

CLOCK = ManualClock(NOW)


def part_of(root: Path, attempt: str) -> Staged:
    return stage(root, "s", 1, attempt, [batch_of(20)], clock=CLOCK)


def commit_and_die(monkeypatch: pytest.MonkeyPatch, root: Path, part: Staged) -> None:
    """The manifest has its name, and no sync covers that."""
    path = ShardsTree(root).manifest("s", 1)
    assert killed_before_sync(
        monkeypatch,
        lambda: commit(root, "s", 1, [part], clock=CLOCK),
        of=str(path.parent),
    )
    assert path.exists()


def test_commit_answers_replay_only_when_the_first_commit_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_root(tmp_path / "shards")
    first, second = part_of(root, "a"), part_of(root, "b")
    commit(root, "s", 0, [], clock=CLOCK)  # the source's folder is there, and durable
    names = DurableNames(tmp_path, monkeypatch)
    commit_and_die(monkeypatch, root, first)
    done = commit(root, "s", 1, [second], clock=CLOCK)
    assert done.is_replay
    names.cut()
    found = manifest.load(Disk(), ShardsTree(root), "s", 1)
    assert found is not None
    assert found == done.manifest
    assert sum(one.row_count for one in ingest(root, clock=CLOCK).ingested) == 20


def test_ingest_takes_rows_only_when_their_commit_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another commit of the version could deal its rows to other shards."""
    root = make_root(tmp_path / "shards")
    part = part_of(root, "a")
    commit(root, "s", 0, [], clock=CLOCK)
    names = DurableNames(tmp_path, monkeypatch)
    commit_and_die(monkeypatch, root, part)
    assert ingest(root, clock=CLOCK).row_count == 20
    names.cut()
    assert manifest.load(Disk(), ShardsTree(root), "s", 1) is not None


def test_clean_uses_only_durable_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root(tmp_path / "shards")
    first, second = part_of(root, "a"), part_of(root, "b")
    commit(root, "s", 0, [], clock=CLOCK)
    names = DurableNames(tmp_path, monkeypatch)
    commit_and_die(monkeypatch, root, first)
    removed = clean(root, old_ms=-86_400_000)
    assert removed == [str(Path(second.files[0].path).parent)]
    names.cut()
    assert manifest.load(Disk(), ShardsTree(root), "s", 1) is not None


@pytest.mark.parametrize("nth", range(1, 9))
def test_staged_files_are_durable_when_killed_process_created_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    root = make_root(tmp_path / "shards")
    names = DurableNames(tmp_path, monkeypatch)
    killed_before_sync(monkeypatch, lambda: part_of(root, "a"), nth=nth)
    part = part_of(root, "b")
    names.cut()
    assert all((root / one.path).exists() for one in part.files)


@pytest.mark.parametrize("nth", range(1, 8))
def test_open_shards_is_durable_when_a_killed_process_began_to_make_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    names = DurableNames(tmp_path, monkeypatch)
    root = tmp_path / "deep" / "shards"

    def make() -> timerstore.ShardedStore:
        return timerstore.open_shards(root, 2, small(), clock=CLOCK, threads=False)

    assert killed_before_sync(monkeypatch, make, nth=nth)
    with make() as store:
        store.put("t", b"x", flush="sync")
        names.cut()
        assert (root / "cluster.json").exists()
        assert all((root / f"shard-{k:05d}").is_dir() for k in range(2))
