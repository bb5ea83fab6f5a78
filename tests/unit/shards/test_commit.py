"""Commit of staged rows, and removal of old staging."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW  # noqa: E402
from tests.support.staging import (  # noqa: E402  # noqa: E402
    batch_of,
    counted,
    flipped,
    names_in,
    stage,
    staged_rows,
)
from timerstore import (  # noqa: E402
    CorruptError,
    MessageError,
    TimerStoreError,
)
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.errors import FormatVersionError  # noqa: E402
from timerstore.shards import (  # noqa: E402
    Stager,
    abort,
    clean,
    commit,
    manifest,
)
from timerstore.shards.cluster import sealed  # noqa: E402
from timerstore.shards.shard_paths import ShardsTree, source_component, source_of  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402
from timerstore.types.clock import SystemClock  # noqa: E402


def test_replayed_commit_drops_its_files(root: Path) -> None:
    first = stage(root, [batch_of(50)])
    second = stage(root, [batch_of(50).slice(0, 20), batch_of(50).slice(20)])
    done = commit(root, "s", 0, [first], same_rows=True)
    assert (done.is_replay, done.manifest.row_count) == (False, 50)
    again = commit(root, "s", 0, [second], same_rows=True)
    assert again.is_replay
    assert again.manifest == done.manifest
    assert not any((root / one.path).exists() for one in second.files)
    assert counted(staged_rows(root, again.manifest.files)) == {
        b"body-%d" % k: 1 for k in range(50)
    }
    once_more = commit(root, "s", 0, [first])  # the very same files: its own commit asked again
    assert once_more.is_replay
    assert all((root / one.path).exists() for one in first.files)


def test_commit_rejects_other_rows_when_same_rows_is_given(root: Path) -> None:
    commit(root, "s", 0, [stage(root, [batch_of(50)])], same_rows=True)
    for other in (batch_of(49), batch_of(50, body=[b"x"] * 50)):
        with pytest.raises(MessageError, match=r"committed with other rows.*another write_id"):
            commit(root, "s", 0, [stage(root, [other])], same_rows=True)
    assert commit(root, "s", 0, [stage(root, [batch_of(49)])]).is_replay
    assert not commit(root, "s", 1, [stage(root, [batch_of(49)], 1)]).is_replay


def test_write_without_rows_leaves_its_name_free(root: Path) -> None:
    nothing = stage(root, [])
    done = commit(root, "s", 0, [nothing], same_rows=True)
    assert (done.manifest.row_count, done.is_replay) == (0, False)
    assert manifest.load(Disk(), ShardsTree(root), "s", 0) is None
    assert manifest.sources(Disk(), ShardsTree(root)) == []
    assert not commit(root, "s", 0, [stage(root, [batch_of(5)])], same_rows=True).is_replay
    with pytest.raises(MessageError, match="committed with other rows"):
        commit(root, "s", 0, [nothing], same_rows=True)


def test_version_of_a_stream_without_rows_is_committed(root: Path) -> None:
    assert not commit(root, "s", 0, [stage(root, [])]).is_replay
    assert commit(root, "s", 0, [stage(root, [batch_of(5)])]).is_replay


def test_abort_keeps_committed_files(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    late = stage(root, [batch_of(50)])
    commit(root, "s", 0, [staged])
    abort(root, [staged, None, late])
    assert all((root / one.path).exists() for one in staged.files)
    assert not any((root / one.path).exists() for one in late.files)
    other = stage(root, [batch_of(50)], 1)
    abort(root, [other])
    assert not (root / other.files[0].path).parent.exists()
    assert manifest.versions(Disk(), ShardsTree(root), "s") == [0]


def test_late_attempt_changes_nothing_after_commit(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    zombie = Stager(root, "s", 0, "zombie", clock=ManualClock(NOW))
    zombie.add(batch_of(50))
    commit(root, "s", 0, [staged])
    late = zombie.finish()
    done = commit(root, "s", 0, [late])
    assert done.is_replay
    assert done.manifest.files == tuple(sorted(staged.files))


def test_commit_rejects_missing_or_short_files(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    path = root / staged.files[1].path
    data = path.read_bytes()
    for damage in (lambda: path.write_bytes(data[:-1]), path.unlink):
        damage()
        with pytest.raises(CorruptError, match="to be committed"):
            commit(root, "s", 0, [staged])
    assert manifest.load(Disk(), ShardsTree(root), "s", 0) is None
    path.write_bytes(data)
    assert not commit(root, "s", 0, [staged]).is_replay


def _race(root: str, staged: Any, gate: Any, answers: Any) -> None:
    gate.wait()
    answers.put((os.getpid(), commit(Path(root), "s", 0, [staged]).is_replay))


@pytest.mark.more
def test_concurrent_commits_succeed_once(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(4), context.Queue()
    parts = [stage(root, [batch_of(50)]) for _ in range(4)]
    children = [
        context.Process(target=_race, args=(str(root), part, gate, answers)) for part in parts
    ]
    for child in children:
        child.start()
    replays = [answers.get(timeout=60)[1] for _ in children]
    for child in children:
        child.join(60)
    assert sorted(replays) == [False, True, True, True]
    found = manifest.load(Disk(), ShardsTree(root), "s", 0)
    assert found is not None
    assert counted(staged_rows(root, found.files)) == {b"body-%d" % k: 1 for k in range(50)}
    left = [str(one.relative_to(root)) for one in (root / "_ingest/staging").rglob("*.arrow")]
    assert sorted(left) == sorted(one.path for one in found.files)
    assert names_in(ShardsTree(root).source_manifests("s")) == [
        "00000000000000000000.json"
    ]  # no temporary file is left


@pytest.mark.parametrize("version", [-1, 2**63, 1.0, "1", True, None])
def test_commit_rejects_version_that_is_no_whole_number(root: Path, version: Any) -> None:
    with pytest.raises(MessageError, match="version"):
        commit(root, "s", version, [])


def test_source_component_round_trips(root: Path) -> None:
    sources = ["s", "query/7", "..", ".", "a.b", "é" * 40, "%2E", "x" * 240, "a b\n"]
    for k, source in enumerate(sources):
        name = source_component(source)
        assert "/" not in name
        assert not name.startswith(".")
        assert source_of(name) == source
        commit(root, source, k, [])
    assert sorted(manifest.sources(Disk(), ShardsTree(root))) == sorted(sources)
    for wrong in ("", "x" * 241, "é" * 41, "\ud800", 5, None):
        with pytest.raises(MessageError, match="source"):
            source_component(wrong)
    for stray in ("a.b", "%2", "a%2eb", "%41"):
        with pytest.raises(CorruptError, match="stray"):
            source_of(stray)


def test_load_reports_damaged_manifest(root: Path) -> None:
    commit(root, "s", 0, [stage(root, [batch_of(5)])])
    tree = ShardsTree(root)
    path = tree.manifest("s", 0)
    good = path.read_bytes()
    for k in range(0, len(good), 3):
        path.write_bytes(flipped(good, k))
        if path.read_text("latin-1").split() != good.decode("latin-1").split():
            with pytest.raises(TimerStoreError, match=r"00000\.json"):
                manifest.load(Disk(), tree, "s", 0)
    path.write_bytes(sealed({"format": 2}))
    with pytest.raises(FormatVersionError):
        manifest.load(Disk(), tree, "s", 0)
    table = json.loads(good)
    del table["crc"]
    for wrong in ("/etc/passwd", "../x", "a/../../b"):
        table["files"][0]["path"] = wrong
        path.write_bytes(sealed(table))
        with pytest.raises(CorruptError, match="below the root"):
            manifest.load(Disk(), tree, "s", 0)
    path.write_bytes(good)
    path.rename(tree.manifest("s", 1))
    with pytest.raises(CorruptError, match="another version"):
        manifest.load(Disk(), tree, "s", 1)


def _age(root: Path, hours: float) -> None:
    then = SystemClock().now_ms / 1000 - 3600 * hours
    for folder in ("staging", "manifests"):
        for path in sorted((root / "_ingest" / folder).rglob("*"), reverse=True):
            os.utime(path, (then, then))


def test_clean_removes_old_uncommitted_attempts(root: Path) -> None:
    kept = stage(root, [batch_of(5)])
    commit(root, "s", 0, [kept])
    lost = stage(root, [batch_of(5)])
    other = stage(root, [batch_of(5)], 3, "query/1")
    _age(root, 23.9)
    assert clean(root) == []
    _age(root, 24.1)
    young = stage(root, [batch_of(5)])
    removed = clean(root)
    assert sorted(removed) == sorted(
        Path(one.files[0].path).parent.as_posix() for one in (lost, other)
    )
    for one in (kept, young):
        assert all((root / file.path).exists() for file in one.files)
    assert names_in(root / "_ingest/trash") == []
    assert clean(root) == []


def test_clean_keeps_attempt_with_new_file(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    _age(root, 30)
    os.utime(root / staged.files[0].path)
    assert clean(root) == []


def test_clean_keeps_attempts_when_manifest_is_unreadable(root: Path) -> None:
    staged = stage(root, [batch_of(5)])
    commit(root, "s", 0, [staged])
    ShardsTree(root).manifest("s", 0).write_bytes(b"{")
    _age(root, 30)
    assert clean(root) == []


def test_clean_removes_temporary_files_of_commits(root: Path) -> None:
    commit(root, "s", 0, [])
    left = ShardsTree(root).source_manifests("s") / ".00000000000000000001.json.7.ab.tmp"
    left.write_bytes(b"{")
    clean(root)
    assert left.exists()
    _age(root, 30)
    clean(root)
    assert names_in(left.parent) == ["00000000000000000000.json"]
