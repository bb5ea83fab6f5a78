"""Checks of the parts of a commit: version, files, directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import batch_of, counted, make_root, staged_rows  # noqa: E402
from timerstore import ConfigError, MessageError  # noqa: E402
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.shards import Staged, commit, manifest, stage  # noqa: E402
from timerstore.shards.shard_paths import ShardsTree  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402


def part_of(root: Path, version: int = 0, source: str = "s") -> Staged:
    rows = batch_of(20, deliver_at=pa.array([0] * 20))
    return stage(root, source, version, "part-0", [rows], clock=ManualClock(NOW))


def test_part_given_twice_is_committed_once(shards: ShardBench) -> None:
    part, other = part_of(shards.root), part_of(shards.root)
    done = commit(shards.root, "s", 0, [part, part, Staged("s", 0, part.files[:1])])
    assert done.manifest.row_count == 20
    again = commit(shards.root, "s", 0, [other, other], same_rows=True)
    assert again.is_replay
    shards.store.ingest()
    shards.turn()
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(20)}


@pytest.mark.parametrize("is_replay", [False, True])
def test_commit_rejects_parts_of_another_version(shards: ShardBench, is_replay: bool) -> None:
    root = shards.root
    part = part_of(root)
    done = commit(root, "s", 0, [part])
    if is_replay:
        for source, version in (("s", 1), ("z", 0)):
            commit(root, source, version, [])
    for source, version in (("s", 1), ("z", 0)):
        why = f"parts: of another version; wanted '{source}' {version}; got 's' 0"
        with pytest.raises(MessageError, match=why):
            commit(root, source, version, [part])
        # What says that it is of this version, and is not.
        with pytest.raises(MessageError, match=r"another place; wanted one below _ingest/"):
            commit(root, source, version, [Staged(source, version, part.files)])
    assert counted(staged_rows(root, done.manifest.files)) == {b"body-%d" % k: 1 for k in range(20)}
    assert (manifest.load(Disk(), ShardsTree(root), "s", 1) is not None) == is_replay
    assert sum(one.row_count for one in shards.store.ingest()) == 20


_WRONG: list[tuple[str, Callable[[Any], Any]]] = [
    ("wanted one below", lambda one: one._replace(path=f"/{one.path}")),
    ("wanted one below", lambda one: one._replace(path="cluster.json")),
    (
        "wanted one below",
        lambda one: one._replace(path=one.path.rpartition("/")[0] + "/../../../../../cluster.json"),
    ),
    ("wanted one below", lambda one: one._replace(path=one.path.replace("/part", "//part"))),
    ("two of them have one file", lambda one: one._replace(rows=one.rows + 1)),
]


@pytest.mark.parametrize(("why", "change"), _WRONG)
def test_commit_rejects_files_of_other_places(
    tmp_path: Path, why: str, change: Callable[[Any], Any]
) -> None:
    root = make_root(tmp_path / "s")
    part = part_of(root)
    wrong = Staged("s", 0, (change(part.files[0]),))
    with pytest.raises(MessageError, match=why):
        commit(root, "s", 0, [part, wrong])
    assert manifest.load(Disk(), ShardsTree(root), "s", 0) is None
    assert not commit(root, "s", 0, [part]).is_replay


def test_commit_rejects_directory_without_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a directory of shards"):
        commit(tmp_path / "typo", "s", 0, [])
    assert not (tmp_path / "typo").exists()
    make_root(tmp_path / "s")
    assert not commit(tmp_path / "s", "s", 0, []).is_replay
