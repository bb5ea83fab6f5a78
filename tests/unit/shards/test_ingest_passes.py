"""Passes over a source's folder that changes within one tick of the file system's time.

The time of a folder counts only when it is older than any file system's tick. A full pass finds a
change that was missed all the same.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW
from tests.support.staging import batch_of, make_root
from timerstore import ShardedStore
from timerstore._engine.storage.disk import Disk
from timerstore._engine.write.row_batch import IngestReceipt
from timerstore.shards import commit, stage
from timerstore.shards.shard_ingest import ShardIngester
from timerstore.shards.shard_paths import ShardsTree
from timerstore.testing import ManualClock

CLOCK = ManualClock(NOW)
TICK_MS = 2000  # of the coarsest file system
LOOK_AT_ALL = 64  # passes


class Source:
    """One source of a directory of one shard, and the pass over it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: ShardedStore = timerstore.open_shards(root, clock=CLOCK, threads=False)
        self.ingester = ShardIngester(root, dict(enumerate(self.store.stores)))
        self.folder = ShardsTree(root).source_manifests("s")

    def commit(self, version: int, *, modified_ms: int | None = None) -> None:
        """Commit a version; the folder's time is this one afterwards."""
        commit(
            self.root, "s", version, [stage(self.root, "s", version, "a", [batch_of()])],
            clock=CLOCK,
        )  # fmt: skip
        if modified_ms is not None:
            os.utime(self.folder, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
            assert Disk().modified_ms(self.folder) == modified_ms

    def taken(self, now_ms: int) -> list[int]:
        """The versions that a pass at this time takes in."""
        return [one.version for one in self.ingester.run(now_ms)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    one = Source(make_root(tmp_path / "shards", 1))
    yield one
    one.store.close()


@pytest.mark.parametrize("age_ms", [-10_000, -1, 0, 1, 999, 1000, TICK_MS - 1, TICK_MS])
def test_recently_changed_source_is_read_again(source: Source, age_ms: int) -> None:
    source.commit(1, modified_ms=NOW)
    assert source.taken(NOW + age_ms) == [1]
    assert source.taken(NOW + age_ms) == []  # this pass left nothing, and settles no more than that
    source.commit(2, modified_ms=NOW)
    assert source.taken(NOW + age_ms) == [2]
    source.commit(3, modified_ms=NOW)
    assert source.taken(NOW + TICK_MS + 1) == [3]


def test_settled_source_is_read_when_its_time_changes(source: Source) -> None:
    source.commit(1, modified_ms=NOW)
    assert source.taken(NOW + 10 * TICK_MS) == [1]
    for version, modified_ms in ((2, NOW + 1), (3, NOW - 60_000), (4, NOW)):
        source.commit(version, modified_ms=modified_ms)
        assert source.taken(NOW + 10 * TICK_MS) == [version]


def test_change_without_new_time_is_found_by_full_pass(source: Source) -> None:
    """The clock of a file server is behind, or stood still."""
    source.commit(1, modified_ms=NOW)
    assert source.taken(NOW + 10 * TICK_MS) == [1]
    source.commit(2, modified_ms=NOW)
    passes = [source.taken(NOW + 10 * TICK_MS) for _ in range(LOOK_AT_ALL)]
    assert [found for found in passes if found] == [[2]]


def _amid(source: Source, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The act runs once, when a pass has listed the source's versions and takes the first in."""
    store, left = source.store.stores[0], [act]
    ingest = store.ingest

    def between(*given: object) -> IngestReceipt:
        if left:
            left.pop()()
        return ingest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "ingest", between)


@pytest.mark.parametrize("modified_ms", [NOW, NOW + 1])
def test_commit_during_pass_is_found_by_next_pass(
    source: Source, monkeypatch: pytest.MonkeyPatch, modified_ms: int
) -> None:
    source.commit(1, modified_ms=NOW)
    _amid(source, lambda: source.commit(2, modified_ms=modified_ms), monkeypatch)
    now_ms = NOW + (0 if modified_ms == NOW else 10 * TICK_MS)
    assert source.taken(now_ms) == [1]
    assert source.taken(now_ms) == [2]


def test_source_with_an_error_does_not_settle(source: Source) -> None:
    source.commit(1, modified_ms=NOW)
    (staged,) = source.root.glob("_ingest/staging/s/*/*/*.arrow")
    hidden = staged.with_suffix(".hidden")
    staged.rename(hidden)
    for _ in range(2):
        with pytest.raises(timerstore.CorruptError):
            source.taken(NOW + 10 * TICK_MS)
    hidden.rename(staged)
    assert source.taken(NOW + 10 * TICK_MS) == [1]
