"""Test calls that fail or overlap at a time that matters for a crash afterwards."""

import os
import shutil
import threading
from pathlib import Path

import pytest

import timerstore
from tests.support.driver import START_MS, abandon, tiny
from tests.support.inside import failpoints, inside, write_index_in_each_checkpoint
from timerstore import FullError
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.segments import Segments
from timerstore.testing import ManualClock, Stepper


@pytest.mark.parametrize("point", [n for n in failpoints.NAMES if n.startswith("checkpoint_")])
def test_checkpoint_on_a_full_disk_leaves_the_previous_one_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    clock = ManualClock(START_MS)
    store = timerstore.open(tmp_path / "a", tiny(10, "sync"), clock=clock, threads=False)
    write_index_in_each_checkpoint(inside(store).dispatch.index)
    put = [store.put("t", b"1", deliver_ms=START_MS + 500, message_id="1")]
    store.flush()

    def full(name: str) -> None:
        if name == point:
            raise FullError("no space")

    monkeypatch.setattr(failpoints, "hook", full)
    put.append(store.put("t", b"2", deliver_ms=START_MS + 500, message_id="2"))
    with pytest.raises(FullError):
        store.flush()

    def die(name: str) -> None:
        if name == point:
            shutil.copytree(tmp_path / "a", tmp_path / "b")

    monkeypatch.setattr(failpoints, "hook", die)
    put.append(store.put("t", b"3", deliver_ms=START_MS + 500, message_id="3"))
    store.flush()
    points: list[str] = []
    monkeypatch.setattr(failpoints, "hook", points.append)
    left = timerstore.open(tmp_path / "b", tiny(10, "sync"), clock=clock, threads=False)
    assert "recover_rebuild_begun" not in points, "the whole log was scanned"
    assert {p.message_id for p in left.pending()} == {p.message_id for p in put}
    left.close()
    abandon(store)


class _SlowFile(File):
    """A file that pauses in a write until it is released, and that counts syncs."""

    __slots__ = ("entered", "may_go", "synced_after")

    def __init__(self, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self.entered, self.may_go = threading.Event(), threading.Event()
        self.synced_after = False

    def write(self, data: bytes | memoryview, offset: int) -> None:
        self.entered.set()
        assert self.may_go.wait(10)
        super().write(data, offset)
        self.synced_after = False

    def sync(self) -> None:
        super().sync()
        self.synced_after = True


def test_write_during_a_sync_is_synced_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_SlowFile] = []

    def slow_open(self: Disk, path: Path, **_how: bool) -> File:
        one = _SlowFile(path, os.open(path, os.O_RDWR))
        made.append(one)
        return one

    segments = Segments(Disk(), tmp_path, 4096, 4096)
    segments.create(0)
    monkeypatch.setattr(Disk, "open", slow_open)
    writer = threading.Thread(target=segments.write, args=(0, b"x"))
    writer.start()
    while not made:
        pass
    assert made[0].entered.wait(10)
    segments.sync()  # of the earlier write
    made[0].may_go.set()
    writer.join()
    segments.sync()
    assert made[0].synced_after


def test_topic_that_could_not_be_saved_is_saved_with_the_next_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START_MS)
    store = timerstore.open(tmp_path / "a", tiny(10, "sync"), clock=clock, threads=False)
    write_small = Disk.write_small

    def full(self: Disk, path: Path, data: bytes) -> None:
        if path.name == "topics.json":
            raise FullError("no space")
        write_small(self, path, data)

    monkeypatch.setattr(Disk, "write_small", full)
    with pytest.raises(FullError):
        store.put("t", b"1", queue_id=3)
    monkeypatch.setattr(Disk, "write_small", write_small)
    assert "t" not in store.topics()
    store.put("t", b"2", queue_id=3)
    Stepper(store).settle()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    left = timerstore.open(tmp_path / "b", tiny(10, "sync"), clock=clock, threads=False)
    assert left.topics()["t"] == 4
    assert len(left.pull("t", 3, 0).messages) == 1
    assert left.pull("t", 1, 0).messages == ()
    left.close()
    abandon(store)
