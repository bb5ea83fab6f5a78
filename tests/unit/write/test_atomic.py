"""Atomic batches: all messages or none are in the log after a crash."""

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.bench import NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import RECOVER_BATCH, inside
from timerstore import FullError, MessageError, StoreConfig
from timerstore._engine.base import failpoints
from timerstore.testing import ManualClock, Stepper


def test_atomic_batch_is_delivered_like_other_messages(bench: Bench) -> None:
    due = [0, NOW + 1000, NOW + 500, NOW - 1]
    batch = bench.store.put_many(
        "t", [b"0", b"1", b"2", b"3"], deliver_ms=due, keys=["k", (), "l", "k"], tags="a",
        atomic=True,
    )  # fmt: skip
    assert batch.queue_offsets.tolist() == [0, -1, -1, 1]
    assert batch.timer_ids.tolist() == [-1, 0, 1, -1]
    assert batch.due_ms.tolist() == [NOW, NOW + 1000, NOW + 500, NOW]
    assert bench.store.cancel(batch[1]) == "CANCELLED"
    bench.turn(1000)
    out = bench.out()
    assert [m.body for m in out] == [b"0", b"3", b"2"]
    assert [m.message_id for m in out] == [batch[k].message_id for k in (0, 3, 2)]
    assert "TS_GROUP" not in out[2].properties, "a copy is of no group"
    assert bench.store.reschedule is not None
    bench.close()
    groups = [r for r in disk.records(bench.root) if "TS_GROUP" in r.properties]
    assert [r.log_offset for r in groups] == batch.log_offsets.tolist()
    ends = [r.log_offset + r.size for r in groups]
    assert ends[:-1] == batch.log_offsets[1:].tolist(), "one behind the other"
    bench.open()


@pytest.mark.parametrize("count", [0, 1])
def test_atomic_batch_of_none_or_one(bench: Bench, count: int) -> None:
    assert len(bench.store.put_many("t", [b"x"] * count, atomic=True)) == count
    bench.turn()
    assert bench.bodies() == [b"x"] * count


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("queue_id", [None, 12])
def test_atomic_batch_is_rejected_above_the_group_limit(
    tmp_path: Path, known: bool, delay: int, queue_id: int | None
) -> None:
    """One byte more, and nothing is there."""
    config = small(commit_log_segment_bytes=64 * 1024, staging_bytes=4096)
    bench = Bench(tmp_path / "s", config)
    assert config.group_bytes_max == 64 * 1024 - 16
    if known:
        bench.store.put("t", b"first", queue_id=queue_id)
    bodies = [b"x" * 1000] * 40

    def put(last: int) -> Any:
        given = {"delay": delay, "queue_id": queue_id, "atomic": True}
        return bench.store.put_many("t", [*bodies, b"y" * last], **given)

    low, high = 0, 60_000  # low fits, high does not
    before = bench.shown()
    while high - low > 1:
        middle = (low + high) // 2
        copy = Bench(tmp_path / f"s{middle}", config)
        if known:
            copy.store.put("t", b"first", queue_id=queue_id)
        try:
            copy.store.put_many(
                "t", [*bodies, b"y" * middle], delay=delay, queue_id=queue_id, atomic=True
            )
        except MessageError:
            high = middle
        else:
            low = middle
        copy.close()
        shutil.rmtree(copy.root)
    with pytest.raises(MessageError, match=f"atomic: wanted at most {config.group_bytes_max}"):
        put(high)
    assert bench.shown() == before
    batch = put(low)
    assert batch.log_offsets[0] % config.commit_log_segment_bytes == 0
    bench.turn(5000)
    assert len(bench.bodies("t", queue_id or 0)) == 41 + (known and True)
    bench.close()


def test_atomic_batch_fills_the_default_group_limit() -> None:
    assert StoreConfig().group_bytes_max == 4 << 20
    assert StoreConfig(commit_log_segment_bytes=4096).group_bytes_max == 4080


def test_atomic_batch_stores_nothing_when_the_disk_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"first")

    def full(_offset: int) -> int:
        raise FullError("no space", where="test")

    monkeypatch.setattr(inside(bench.store).log.segments, "reserve", full)
    monkeypatch.setattr(inside(bench.store).log.native, "append_limit", 500)
    with pytest.raises(FullError) as caught:
        bench.store.put_many("t", [b"x" * 100] * 5, atomic=True)
    assert caught.value.stored_count == 0
    monkeypatch.undo()
    bench.store.put_many("t", [b"y"] * 2, atomic=True)
    bench.turn()
    assert bench.bodies() == [b"first", b"y", b"y"]


@pytest.mark.parametrize("segment_kib", [8, 16])
def test_atomic_batch_is_never_split_by_staging_or_segment(
    tmp_path: Path, segment_kib: int
) -> None:
    """Wherever the log stands, a group is in one segment, and one write brings all of it."""
    config = small(
        commit_log_segment_bytes=segment_kib * 1024, staging_bytes=4096, reserve_bytes=4096
    )
    bench = Bench(tmp_path / "s", config)
    ends: list[int] = []

    def note(name: str) -> None:
        if name in ("log_half_swapped", "log_rolled", "log_written_out", "log_synced"):
            ends.append(inside(bench.store).log.written)

    random, groups = Random(7), []
    failpoints.hook = note
    try:
        for _ in range(120):
            bodies = [bytes(random.randint(0, 400)) for _ in range(random.randint(2, 9))]
            delay = random.choice((0, 1000))
            batch = bench.store.put_many("t", bodies, delay=delay, atomic=True)
            groups.append(batch.log_offsets)
            bench.store.put("pad", bytes(random.randint(0, 300)))
    finally:
        failpoints.hook = None
    bench.close()
    sizes = {r.log_offset: r.size for r in disk.records(bench.root)}
    segment = config.commit_log_segment_bytes
    for offsets in groups:
        end = int(offsets[-1]) + sizes[int(offsets[-1])]
        assert int(offsets[0]) // segment == (end - 1) // segment
        assert [a + sizes[a] for a in offsets[:-1].tolist()] == offsets[1:].tolist()
        assert not any(offsets[0] < at < end for at in ends)


TORN = [("", 20), ("", 0), ("timerstore", 0), ("timerstore", 20)]


@pytest.mark.parametrize(("lose", "delay"), sample(TORN, "ends"))
def test_torn_at_every_sector(tmp_path: Path, delay: int, lose: str) -> None:
    """Of the sectors of the group each is on the disk or is not: any combination of few of them,
    then some of many.
    """
    random, seen = Random(delay), set()
    for count, size, tries in ((2, 90, None), (7, 300, 40)):
        bench = Bench(tmp_path / f"s{count}", small(commit_log_segment_bytes=8192))
        bench.store.put("t", b"before", delay=delay)
        bench.store.flush()
        start = inside(bench.store).log.end
        bench.store.put_many(
            "t", [b"%d" % k * size for k in range(count)], delay=delay, atomic=True
        )
        log = inside(bench.store).log
        end, _ = log.end, log.write_out()
        left = tmp_path / f"left{count}"
        shutil.copytree(bench.root, left)
        bench.close()
        segment = next((left / "commitlog").iterdir())
        whole = segment.read_bytes()
        first, last = start // 512, (end - 1) // 512
        everything = (1 << (last - first + 1)) - 1
        for kept in range(everything + 1) if tries is None else some(random, everything, tries):
            torn = bytearray(whole)
            for k in range(last - first + 1):
                if not kept >> k & 1:
                    begin = max((first + k) * 512, start)
                    torn[begin : (first + k + 1) * 512] = bytes((first + k + 1) * 512 - begin)
            segment.write_bytes(torn)
            found = came(left, tmp_path / "try", lose)
            assert found in ({1, count + 1} if kept == everything else {1}), f"{found} came"
            seen.add(found)
    assert seen == {1, 3, 8}


def some(random: Random, everything: int, tries: int) -> list[int]:
    return [everything, *(random.randint(0, everything - 1) for _ in range(tries))]


def came(left: Path, to: Path, lose: str) -> int:
    """How many messages come out of a directory that a cut left."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(left, to)
    (to / "timerstore" / "staging").write_bytes(b"")  # lost
    if lose:
        shutil.rmtree(to / lose)
    clock = ManualClock(NOW)
    store = timerstore.open(to, small(commit_log_segment_bytes=8192), clock=clock, threads=False)
    clock.advance(60_000)
    Stepper(store).settle()
    count = len(store.pull("t", 0, 0).messages)
    assert store.verify().clean
    store.close()
    return count


@pytest.mark.parametrize("point", ["put_group_appended", "log_half_swapped", "log_written_out"])
def test_atomic_batch_is_whole_or_absent_when_killed(bench: Bench, point: str) -> None:
    """What the process wrote outlives it, all of it."""
    copy = bench.root.with_name("copy")

    def hook(name: str) -> None:
        if name == point and not copy.exists():
            shutil.copytree(bench.root, copy)

    bench.store.put("t", bytes(10_000))  # the group swaps the halves
    failpoints.hook = hook
    try:
        bench.store.put_many("t", [b"x" * 1000] * 9, atomic=True)
        bench.store.flush()
    finally:
        failpoints.hook = None
    abandon(bench.store)
    bench.root = copy
    bench.open()
    bench.turn()
    found = bench.bodies()
    assert len(found) in ({10} if point == "put_group_appended" else {1, 10})


def test_groups_of_many_sizes_survive_a_scan_in_small_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:

    for count in (2, 5, 9):
        bench.store.put_many("t", [b"x"] * count, delay=1, atomic=True)
    bench.store.flush()
    bench.close()
    monkeypatch.setattr(*RECOVER_BATCH, 3)
    shutil.rmtree(bench.root / "timerstore")
    bench.open()
    assert bench.store.stats()["pending_messages"] == 16
    assert np.all([a < b for a, b in pairwise(one.log_offset for one in bench.store.pending())])


def test_atomic_batch_with_a_level_and_with_ids(bench: Bench) -> None:
    bodies, ids = [b"%d" % k for k in range(4)], list("abcd")
    batch = bench.store.put_many("t", bodies, level=2, atomic=True, message_ids=ids)
    assert [r.waits_for_level for r in batch] == [True] * 4
    assert batch.due_ms.tolist() == [NOW + 5000] * 4
    assert bench.store.stats()["level_pending_messages"] == 4
    bench.clock.advance(100)
    again = bench.store.put_many("t", bodies, level=2, atomic=True, message_ids=ids)
    one_by_one = bench.store.put_many("t", bodies, level=3, message_ids=ids)
    for receipts in (again, one_by_one):
        assert [r.duplicate for r in receipts] == [True] * 4
        assert receipts.due_ms.tolist() == [NOW + 5000] * 4
        assert [r.waits_for_level for r in receipts] == [True] * 4
    assert bench.store.stats()["level_pending_messages"] == 4
    bench.turn(5000)
    assert bench.bodies() == bodies
    assert bench.store.stats()["level_pending_messages"] == 0
