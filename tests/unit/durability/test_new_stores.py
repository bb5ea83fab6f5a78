"""A store, or a directory of shards, that is made has its name durably when it answers."""

from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.durable.files import LOCK, OLD_NAME, RECOVERED, RECOVERY_BARRIERS
from tests.support.durable.recorder import Recorder
from timerstore._engine.storage.disk import Disk
from timerstore.shards.cluster import ensure, require
from timerstore.testing import ManualClock

MADE = (*RECOVERED, LOCK, OLD_NAME)


def open_single(root: Path) -> None:
    timerstore.open(root, small(), clock=ManualClock(NOW), threads=False).close()


def open_shards(root: Path) -> None:
    timerstore.open_shards(root, 2, small(), clock=ManualClock(NOW), threads=False).close()


def make_cluster(root: Path) -> None:
    ensure(Disk(), root, 2, small())


@pytest.mark.parametrize("make", [open_single, open_shards, make_cluster])
def test_new_store_is_durable(recorder: Recorder, disk: Path, make: Callable[[Path], None]) -> None:
    make(disk / "a" / "b" / "store")
    recorder.check(MADE, "a/b/store")


@pytest.mark.parametrize("make", [open_single, make_cluster])
def test_new_store_is_durable_after_one_was_killed(
    recorder: Recorder, disk: Path, make: Callable[[Path], None]
) -> None:
    """Existing folders of the path may not be durable yet."""
    (disk / "first").mkdir()
    recorder.name_is_durable(disk / "first")
    found = recorder.killed_before_each_sync(
        disk / "first", disk / "killed", lambda: make(disk / "first" / "a" / "b" / "store")
    )
    recorder.barriers = RECOVERY_BARRIERS
    for copy in found:
        root = copy / "a" / "b" / "store"
        make(root)
        recorder.check(MADE, root.relative_to(disk).as_posix())


def test_cluster_is_required_where_it_is_durable(recorder: Recorder, disk: Path) -> None:
    make_cluster(disk / "store")
    cut = recorder.cut(disk / "store", disk.parent / "cut")
    assert require(Disk(), cut).shard_count == 2
