"""Order of durable writes: retention, later backups, and files saved before the log."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import SECOND, Bench, small
from tests.support.driver import abandon
from tests.support.durable.files import (
    ANSWER,
    BARRIERS,
    CHECKPOINT,
    CLOSED,
    HALF_WRITTEN,
    IDS,
    LOCK,
    OLD_NAME,
    RECOVERED,
    RECOVERY_BARRIERS,
)
from tests.support.durable.recorder import Recorder
from tests.support.inside import inside
from tests.support.leasing import bodies, take
from tests.support.retaining import SIZES, begin_of
from tests.support.staging import make_root
from timerstore import StoreConfig
from timerstore._engine.base import failpoints
from timerstore._engine.storage.disk import Disk
from timerstore.shards.cluster import ensure

RETAINING = replace(SIZES, flush="sync", dedupe_window_ms=3_600_000)


def drop_one(bench: Bench) -> None:
    """Put messages until retention removes the log's first file."""
    begin = begin_of(bench)
    for lap in range(100):
        if begin_of(bench) > begin:
            return
        for k in range(5):
            bench.store.put("other", bytes(1200), message_id=f"{begin}.{lap}.{k}")
        bench.turn()
    raise AssertionError("nothing was dropped")


def cut(bench: Bench, recorder: Recorder, to: Path, config: StoreConfig) -> Bench:
    return Bench(recorder.cut(bench.root, to), config, bench.clock.now_ms)


def test_retention_is_durable(recorder: Recorder, disk: Path, tmp_path: Path) -> None:
    bench = Bench(disk / "store", RETAINING)
    bench.store.put("t", b"waits", delay=1000)
    for number in range(3):
        drop_one(bench)
        recorder.check(ANSWER, "store")
        found = cut(bench, recorder, tmp_path / f"{number}", RETAINING)
        assert begin_of(found) == begin_of(bench)
        assert [one.topic for one in found.store.pending()] == ["t"]
        found.close()
    bench.close()
    recorder.check(CLOSED, "store")
    assert any("first file" in one.reason for one in recorder.passed)


@pytest.mark.more
def test_retention_that_was_killed_is_gone_on_with_in_order(
    recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    bench = Bench(disk / "store", RETAINING)
    bench.store.put("t", b"waits", delay=1000)
    drop_one(bench)
    found = recorder.killed_before_each_sync(
        disk / "store", disk / "killed", lambda: drop_one(bench)
    )
    abandon(bench.store)
    recorder.barriers = RECOVERY_BARRIERS
    for root in found[-25:]:  # the last ones include the drop
        opened = Bench(root, RETAINING, bench.clock.now_ms)
        recorder.check(RECOVERED, f"killed/{root.name}")
        after = cut(opened, recorder, tmp_path / root.name, RETAINING)
        assert after.shown() == opened.shown()
        after.close()
        opened.close()


def test_copies_of_a_store_that_dropped_files_are_durable(recorder: Recorder, disk: Path) -> None:
    """A backup has the ids of removed messages, and drops files that the store dropped."""
    bench = Bench(disk / "store", RETAINING)
    for _ in range(3):
        drop_one(bench)
        bench.store.backup(disk / "backup")
        recorder.check((LOCK, IDS), "backup")
    assert len(list((disk / "backup" / "commitlog").iterdir())) < 5
    assert list((disk / "backup" / "timerstore").glob("ids-*"))
    timerstore.restore(disk / "backup", disk / "restored")
    recorder.check((LOCK, IDS), "restored")
    bench.close()
    timerstore.repair(disk / "store", disk / "repaired")
    recorder.check((LOCK, IDS), "repaired")


def test_store_that_was_moved_is_durable_when_it_is_open(recorder: Recorder, disk: Path) -> None:
    """Its new name, which was not synced, becomes durable as well."""
    Bench(disk / "store", RETAINING).close()
    (disk / "store").rename(disk / "moved")
    bench = Bench(disk / "moved", RETAINING)
    recorder.check(CHECKPOINT, "moved")
    bench.close()


def test_shards_that_were_moved_are_durable_when_they_are_open(
    recorder: Recorder, disk: Path
) -> None:
    make_root(disk / "shards", 2)
    (disk / "shards").rename(disk / "moved")
    ensure(Disk(), disk / "moved", None, None)
    recorder.check((*CHECKPOINT, LOCK, OLD_NAME), "moved")


def test_delivery_is_durable_before_its_source_is_given_up(
    recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    """Retention makes no copy of it, and waits for a checkpoint that has its delivery."""
    config = replace(RETAINING, flush="async")
    bench = Bench(disk / "store", config)
    bench.store.put("t", b"due", delay=5)
    for _ in range(40):
        bench.store.put("other", bytes(1200))
    services = ("dispatch", "enqueue_get", "enqueue_put", "dequeue_get", "dequeue_get_message",
                "dequeue_put")  # fmt: skip

    def step_all() -> None:
        while sum(bench.stepper.step(name) for name in services):
            pass

    step_all()
    bench.store.flush()
    bench.clock.set(bench.clock.now_ms + 7 * SECOND)
    step_all()
    stats = bench.store.stats()
    assert stats["dequeue_put_messages"] == 1
    assert stats["log_durable_bytes"] < stats["log_end_bytes"]
    # Write the watermark of the last checkpoint again; the queues have grown since.
    recorder.barriers = BARRIERS[1:]
    cuts: list[Path] = []

    def hook(name: str) -> None:
        if name == "retention_begin_raised":
            cuts.append(recorder.cut(bench.root, tmp_path / f"{len(cuts)}"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hook", hook)
        while not cuts:
            assert any(bench.stepper.step(name) for name in ("retention", "flush"))
    found = Bench(cuts[0], config, bench.clock.now_ms)
    found.turn()
    assert found.bodies() == [b"due"]
    found.close()
    bench.close()


def test_segments_of_a_log_that_is_not_synced_have_their_length(
    recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    """A power cut after several new segments leaves a log that can be opened."""
    config = replace(RETAINING, flush="async", retention_log_bytes=0)
    bench = Bench(disk / "store", config)
    for k in range(60):
        bench.store.put("t", bytes(1200), delay=10 + k)
    found = cut(bench, recorder, tmp_path / "cut", config)
    assert found.store.stats()["log_end_bytes"] <= bench.store.stats()["log_end_bytes"]
    found.close()
    bench.close()


# --- saved ahead of the log ---


@pytest.fixture
def unsynced(disk: Path, recorder: Recorder) -> Iterator[Bench]:
    """Open a store whose calls do not wait for a sync."""
    bench = Bench(disk / "store", small(flush="async"))
    yield bench
    bench.close()


def test_group_commits_no_lease_that_a_power_cut_takes_back(
    unsynced: Bench, recorder: Recorder, tmp_path: Path
) -> None:
    bench = unsynced
    bench.store.put("t", b"a")
    bench.turn()
    bench.store.flush()
    assert bodies(take(bench, 1, lease=5)) == [b"a"]
    inside(bench.store).lease_progress.commit()
    assert bench.store.committed("t", "g") == {0: 1}
    found = cut(bench, recorder, tmp_path / "cut", bench.config)
    assert found.store.committed("t", "g") in ({}, {0: 1})
    found.turn(6 * SECOND)
    assert bodies(take(found, 10, lease=5)) == [b"a"]
    found.close()


def test_checkpoint_covers_no_record_that_a_power_cut_takes_back(
    unsynced: Bench, recorder: Recorder, tmp_path: Path
) -> None:
    """A put makes the checkpoint itself, because the log has grown."""
    bench = unsynced
    for k in range(20):
        bench.store.put("t", b"%d" % k, delay=10)
    inside(bench.store).checkpoint.run()
    found = cut(bench, recorder, tmp_path / "cut", bench.config)
    assert len(list(found.store.pending())) == 20
    found.close()


def test_recurring_messages_are_saved_after_their_runs(
    unsynced: Bench, recorder: Recorder, tmp_path: Path
) -> None:
    bench = unsynced
    bench.store.put_every("t", b"run", every=5, name="e")
    bench.turn(5 * SECOND)
    bench.clock.set(bench.clock.now_ms + 5 * SECOND)
    for name in ("dequeue_get", "dequeue_get_message", "dequeue_put", "dispatch", "recurring"):
        while bench.stepper.step(name):
            pass
    stats = bench.store.stats()
    assert stats["log_durable_bytes"] < stats["log_end_bytes"]  # the next run is put, not synced
    inside(bench.store).definitions.save()
    found = cut(bench, recorder, tmp_path / "cut", bench.config)
    found.turn(5 * SECOND)
    bench.turn(5 * SECOND)
    assert found.bodies() == bench.bodies() == [b"run"] * 3
    found.close()


@pytest.mark.more
def test_store_that_was_killed_while_it_closed_is_durable(
    recorder: Recorder, disk: Path, tmp_path: Path
) -> None:
    config = small(flush="sync", far_wheel="shared")
    bench = Bench(disk / "store", config)
    receipts = [bench.store.put("t", b"%d" % k, delay=5 * (k // 2)) for k in range(20)]
    bench.store.put("t", b"far", delay=500)
    bench.turn(3 * SECOND)
    for one in receipts[6::2]:  # close takes their units out of the chains
        bench.store.cancel(one)
    found = recorder.killed_before_each_sync(disk / "store", disk / "killed", bench.store.close)
    recorder.barriers = RECOVERY_BARRIERS
    for root in found:
        opened = Bench(root, config, bench.clock.now_ms)
        recorder.check((*RECOVERED, HALF_WRITTEN), f"killed/{root.name}")
        after = cut(opened, recorder, tmp_path / root.name, config)
        assert after.shown() == opened.shown()
        after.close()
        opened.close()
