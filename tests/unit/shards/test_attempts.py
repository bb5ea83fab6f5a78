"""Attempts with the same name do not affect the files of each other."""

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import batch_of, counted, make_root, staged_rows  # noqa: E402
from timerstore import MessageError  # noqa: E402
from timerstore.shards import Staged, Stager, abort, commit, stage  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

_ALL = {b"body-%d" % k: 1 for k in range(20)}


def part_of(root: Path, batches: list[Any]) -> Staged:
    """A part of version 0, always by the same attempt."""
    return stage(root, "import-7", 0, "part-0", batches, clock=ManualClock(NOW))


def stager_of(root: Path) -> Stager:
    return Stager(root, "import-7", 0, "part-0", clock=ManualClock(NOW))


def files(root: Path) -> list[str]:
    """All that is staged."""
    staging = root / "_ingest/staging"
    return sorted(one.relative_to(root).as_posix() for one in staging.rglob("*.arrow"))


def test_repeated_write_adds_and_loses_nothing(shards: ShardBench) -> None:
    rows = batch_of(20, deliver_at=pa.array([0] * 20))
    first = part_of(shards.root, [rows])
    commit(shards.root, "import-7", 0, [first])
    for end in (7, 8):  # it died before it ingested; the rows come in another order than then
        again = part_of(shards.root, [rows.slice(end), rows.slice(0, end)])
        assert commit(shards.root, "import-7", 0, [again]).is_replay
    assert files(shards.root) == sorted(one.path for one in first.files)
    assert sum(one.row_count for one in shards.store.ingest()) == 20
    shards.turn()
    assert shards.counted() == _ALL


def test_failed_attempt_keeps_files_of_others(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    first = part_of(root, [batch_of()])
    done = commit(root, "import-7", 0, [first])
    with pytest.raises(MessageError, match="20 of 40 rows are invalid"):
        part_of(root, [batch_of(), batch_of(key=["two words"] * 20)])
    stager_of(root).abandon()
    assert files(root) == sorted(one.path for one in first.files)
    assert counted(staged_rows(root, done.manifest.files)) == _ALL


def test_concurrent_attempts_of_one_name_are_separate(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    one, two = stager_of(root), stager_of(root)
    for batch in (batch_of(10), batch_of(10, 10)):
        one.add(batch)
        two.add(batch)
    parts = [one.finish(), two.finish()]
    assert not {file.path for file in parts[0].files} & {file.path for file in parts[1].files}
    for part in parts:
        assert counted(staged_rows(root, part.files)) == _ALL
    abort(root, parts[1:])
    assert files(root) == sorted(file.path for file in parts[0].files)


def test_finished_files_are_neither_changed_nor_removed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    stager = stager_of(root)
    stager.add(batch_of())
    part = stager.finish()
    stager.add(batch_of(20, 20))
    second = stager.finish()
    stager.add(batch_of(20, 40))
    stager.abandon()
    assert counted(staged_rows(root, part.files)) == _ALL
    assert files(root) == sorted(file.path for file in (*part.files, *second.files))


def test_files_are_ordered_by_attempt_name(tmp_path: Path) -> None:
    """A shard takes them so: of one key the rows of part 1 come before those of part 2."""
    root = make_root(tmp_path / "s", 1)
    names = ["a-b", "a", "a0", "part-1", "part-10", "part-2", "part_1"]
    staged = {
        stage(root, "s", 0, name, [batch_of(1)], clock=ManualClock(NOW)).files[0].path: name
        for name in reversed(names)
    }
    assert [staged[path] for path in sorted(staged)] == names
