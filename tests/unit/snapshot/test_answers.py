"""A read-only store returns the same as its owner."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.reader_and_owner import fill, same
from timerstore import (
    GoneError,
    MessageError,
    ReadOnlyStore,
)
from timerstore._engine.snapshot.snapshot_log import SnapshotQueue
from timerstore._engine.timer.level_pending import LevelPending


def test_read_only_store_returns_what_owner_returns(bench: Bench, read: ReadOnlyStore) -> None:
    same(read, bench.store)
    assert read.verify().clean
    assert read.stats()["open_in"] == os.getpid()


def test_explain_returns_what_owner_explains(bench: Bench) -> None:
    known = fill(bench)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        for name in ("waits", "now"):
            for receipt in known[name]:
                assert one.explain(receipt) == bench.store.explain(receipt)
        for name in ("far", "level", "moved", "short"):
            assert one.explain(known[name]) == bench.store.explain(known[name]), name
        assert one.explain("none", topic="t").state == "unknown"


def test_read_only_store_follows_owner_when_it_reopens(bench: Bench, read: ReadOnlyStore) -> None:
    bench.reopen()
    same(read, bench.store)
    bench.turn(70_000)
    bench.store.put("later", b"new topic")
    bench.turn()
    bench.store.flush()
    same(read, bench.store)
    assert [message.body for message in read.follow("later")] == [b"new topic"]


def test_read_only_store_follows_retention(bench: Bench) -> None:
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        waits = bench.store.put("t", b"waits", delay=500, keys=("w",))
        for turn in range(6):
            for k in range(40):
                bench.store.put("t", b"%d %d" % (turn, k) + bytes(20_000))
            bench.turn(60_000)
            bench.store.flush()
            assert one.pull("t", 0, 0, max_count=1) == bench.store.pull("t", 0, 0, max_count=1)
            offset = one.pull("t", 0, 0).min_offset
            assert one.pull("t", 0, offset) == bench.store.pull("t", 0, offset)
            assert list(one.pending()) == list(bench.store.pending())
        assert one.stats()["log_begin_bytes"] > 0
        assert one.explain(waits) == bench.store.explain(waits)
        assert [message.body for message in one.query("t", "w")] == [b"waits"]


def test_query_finds_a_message_that_retention_moves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader knows its position, and looks for the files of the queues after it."""

    def turn(ms: int) -> int:
        for _ in range(60):  # more than a file of the log
            bench.store.put("t", bytes(20_000))
        bench.turn(ms)
        bench.store.flush()
        return int(bench.store.stats()["log_begin_bytes"])

    for _ in range(3):
        before = turn(60_000)
    bench.store.put("t", b"waits", delay=5000, keys=("w",))
    bench.store.put_many("t", [bytes(1)] * 150, delay=5)  # a file of a queue has 100 units
    turn(50_000)
    turn(1000)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert one.query("t", "w")  # from now on the files of the log are mapped
        bench.store.put("t", b"more")
        bench.store.flush()
        begins: list[int] = []
        take = SnapshotQueue.settle

        def settle(queue: SnapshotQueue, *given: Any) -> None:
            if not begins:
                begins.append(turn(60_000))
            take(queue, *given)

        monkeypatch.setattr(SnapshotQueue, "settle", settle)
        assert [message.body for message in one.query("t", "w")] == [b"waits"]
        assert begins[0] > before


@pytest.mark.parametrize("seed", range(4))
def test_pending_message_is_found_after_each_step_of_retention(bench: Bench, seed: int) -> None:
    """A checkpoint has the copies before the log begins after their originals."""
    draw = random.Random(seed)
    bench.store.put("t", b"waits", delay=5000, keys=("w",))
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        begins = set()
        for _ in range(8):
            bench.store.put_many("t", [bytes(20_000)] * 40)
            bench.clock.advance(60_000)
            for name in draw.choices(bench.stepper.names, k=60):
                if bench.stepper.step(name):
                    assert [each.topic for each in one.pending()] == ["t"], name
                    assert [each.body for each in one.query("t", "w")] == [b"waits"], name
                    begins.add(one.stats()["log_begin_bytes"])
        assert len(begins) > 3


def test_follow_returns_each_message_once_from_given_offsets(
    bench: Bench, read: ReadOnlyStore
) -> None:
    every = [message.body for message in read.follow("t")]
    assert every == bench.bodies("t")
    assert [message.body for message in read.follow("t", {0: 2})] == every[2:]
    assert [message.body for message in read.follow("t", tags="g0")] == every[::2]
    assert list(read.follow("none")) == []
    for wrong in ({0: "a"}, {"a": 0}, 5, "t", [1], [], np.array([1, 2])):
        with pytest.raises(MessageError, match="offsets"):
            read.follow("t", wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="wait"):
        read.follow("t", wait=-1)


def test_level_messages_have_due_times_of_owner(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(level_delays="7s 9s"))
    bench.store.put("t", b"x", level=2, keys=("x",))
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, read_only=True, clock=bench.clock) as one:
        assert [each.due_ms for each in one.pending()] == [NOW + 9000]
        assert [each.due_ms for each in one.query("t", "x")] == [NOW + 9000]
    bench.close()


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_pending_returns_messages_on_far_wheel(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path / "s", small(far_wheel=kind))
    far = [bench.store.put("t", b"%d" % k, delay=3600 * k + 600, keys=("f",)) for k in range(5)]
    bench.store.cancel(far[1])
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, read_only=True, clock=bench.clock) as one:
        assert list(one.pending()) == list(bench.store.pending())
        assert one.query("t", "f") == bench.store.query("t", "f")
        assert one.explain(far[2]).where == bench.store.explain(far[2]).where == "far wheel"
        assert one.explain(far[1]) == bench.store.explain(far[1])
        bench.turn(600_000)
        bench.store.flush()
        assert list(one.pending()) == list(bench.store.pending())
        assert [each.body for each in one.follow("t")] == [b"0"]
    bench.close()


def test_ingested_returns_complete_versions(bench: Bench) -> None:
    batch = timerstore.RowBatch("t", b"ab", [0, 1, 2], [0, 0])
    for version in (0, 1, 3):
        bench.store.ingest("source", version, [batch])
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        assert one.ingested("source").ranges == bench.store.ingested("source").ranges
        assert one.ingested("other").ranges == ()


def test_read_only_store_rejects_arguments_like_a_store(read: ReadOnlyStore) -> None:
    with pytest.raises(MessageError, match="topic 'none' has 0 queues"):
        read.pull("none", 0, 0)
    with pytest.raises(MessageError, match=r"offset: .*max_count: .*wait: "):
        read.pull("t", 0, -1, max_count=0, wait=-1)
    with pytest.raises(MessageError, match="begin_ms"):
        read.pending(begin_ms="x")  # type: ignore[arg-type]
    for topic in (np.array(["a", "b"]), "a.b", ""):
        with pytest.raises(MessageError, match="topic"):
            read.pending(topic=topic)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="key"):
        read.query("t", "")


def test_message_that_is_gone_is_not_taken_for_one_of_another_level(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"first", delay=0.5)
    bench.store.put("t", b"delivered meanwhile", level=1)
    bench.store.put("t", b"waits", level=18)  # at the same place of its level
    bench.turn()
    bench.store.flush()
    describe = LevelPending.describe

    def described(reader: LevelPending, entry: Any) -> Any:
        if entry["due_ms"] == NOW + 1000:
            raise GoneError("by a test")
        return describe(reader, entry)

    monkeypatch.setattr(LevelPending, "describe", described)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        listing = one.pending()
        found = [next(listing).due_ms - NOW]
        bench.turn(2000)
        bench.store.flush()
        found += [pending.due_ms - NOW for pending in listing]
    assert found == [500, 7_200_000]


@pytest.mark.parametrize(("gone_count", "is_answered"), [(20, True), (10**9, False)])
def test_call_is_made_again_while_files_are_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, gone_count: int, is_answered: bool
) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    bench.store.flush()
    settle, left = SnapshotQueue.settle, [gone_count]

    def settled(queue: SnapshotQueue, *given: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise GoneError("by a test")
        settle(queue, *given)

    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        monkeypatch.setattr(SnapshotQueue, "settle", settled)
        if is_answered:
            assert [message.body for message in one.pull("t", 0, 0).messages] == [b"x"]
        else:
            with pytest.raises(GoneError, match="by a test"):
                one.pull("t", 0, 0)
