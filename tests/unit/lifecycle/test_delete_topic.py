"""Delete a topic: the things that go with it, those that stay, and the state after a crash."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, copied_at, small
from tests.support.inside import inside
from timerstore import (
    AckResult,
    BusyError,
    CancelResult,
    ConfigError,
    FailedError,
    MessageError,
    ReadOnlyError,
)
from timerstore._engine.base import failpoints
from timerstore.testing import Stepper

POINTS = [*failpoints.DELETION_NAMES, "topics_json_written", "checkpoint_watermark_written"]
SYSTEM = {"rmq_sys_wheel_timer", "rmq_sys_timerstore_deleted", "SCHEDULE_TOPIC_XXXX"}


def fill(bench: Bench) -> None:
    """Put messages of each kind into `gone`, and some into `kept`."""
    store = bench.store
    for number in range(20):
        store.put("gone", b"now %d" % number, keys="k")
        store.put("gone", b"later %d" % number, delay=30, keys="k")
        store.put("kept", b"now %d" % number, keys="k")
        store.put("kept", b"later %d" % number, delay=30, keys="k")
    Stepper(store).settle()
    for topic in ("gone", "kept"):
        store.receive(topic, "g", max_count=3, lease=60)
        store.nack(store.receive(topic, "g")[0], delay=50)
        store.bury(store.receive(topic, "g")[0], error="broken")
        store.receive(topic, "g", max_attempts=1, lease=60)
        with store.consumer(topic, "h") as consumer:
            consumer.poll(2)
            consumer.commit()
    Stepper(store).settle()


def names(store: Any) -> set[str]:
    return set(store.topics()) - SYSTEM


def check_gone(store: Any) -> None:
    """Check that nothing of `gone` is left, and all of `kept`."""
    assert names(store) == {"kept", "%RETRY%g|kept", "%DLQ%g"}
    assert {one.topic for one in store.pending()} == {"kept", "%RETRY%g|kept", "%DLQ%g"}
    assert not store.query("gone", "k", max_count=100)
    assert len(store.query("kept", "k", max_count=100)) == 40
    assert [one.topic for one in store.dead_letters("g")] == ["kept"]
    assert store.committed("gone", "h") == store.committed("gone", "g") == {}
    assert store.committed("kept", "h") == {0: 2}
    backlog = store.backlog("gone", "g")
    assert (backlog.ready, backlog.leased, backlog.in_backoff, backlog.dead_letters) == (0, 0, 0, 0)
    backlog = store.backlog("kept", "g")
    assert (backlog.ready, backlog.leased, backlog.in_backoff, backlog.dead_letters) == (
        14,
        4,
        1,
        1,
    )


def check_whole(store: Any) -> None:
    """Check that all of `gone` is there."""
    assert len(store.query("gone", "k", max_count=100)) == 40
    backlog = store.backlog("gone", "g")
    assert (backlog.ready, backlog.leased, backlog.in_backoff, backlog.dead_letters) == (
        14,
        4,
        1,
        1,
    )


def check_new(bench: Bench) -> None:
    """Check that `gone` can be used again, from queue offset 0 on."""
    store = bench.store
    receipt = store.put("gone", b"new", keys="k")
    store.put("gone", b"new later", delay=1)
    bench.clock.advance(2000)
    Stepper(store).settle()
    assert receipt.queue_offset == 0
    assert [one.body for one in store.pull("gone", 0, 0).messages] == [b"new", b"new later"]
    assert [one.body for one in store.query("gone", "k")] == [b"new"]
    assert [one.body for one in store.receive("gone", "g", max_count=9)] == [b"new", b"new later"]
    with store.consumer("gone", "h") as consumer:
        assert [one.body for one in consumer.poll()] == [b"new", b"new later"]
    assert store.verify().clean


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Bench]:
    """Return a store with two topics."""
    bench = Bench(tmp_path / "store")
    fill(bench)
    yield bench
    bench.close()


def test_deletion_in_a_failed_store_says_that_it_has_failed(bench: Bench) -> None:
    """Otherwise it asks for a second call when the messages of a level are delivered."""
    bench.store.put("gone", b"waits", level=3)
    inside(bench.local).log.fail(FailedError("planted", where=bench.root))
    with pytest.raises(FailedError, match="planted"):
        bench.store.delete_topic("gone")


def test_delete_topic_removes_all_of_it_and_nothing_else(full: Bench) -> None:
    check_whole(full.store)
    assert full.store.delete_topic("gone") is True
    check_gone(full.store)
    assert {one.name for one in (full.root / "consumequeue").iterdir()} - SYSTEM == {
        "kept", "%DLQ%g",
    }  # fmt: skip
    full.reopen()
    check_gone(full.store)
    full.clock.advance(100_000)
    Stepper(full.store).settle()
    assert "gone" not in full.store.topics()
    check_new(full)


def test_delete_topic_is_false_without_the_topic_and_repeatable(full: Bench) -> None:
    assert full.store.delete_topic("never") is False
    assert [full.store.delete_topic("gone") for _ in "123"] == [True, False, False]
    check_new(full)
    assert full.store.delete_topic("gone") is True
    full.reopen()
    check_gone(full.store)


@pytest.mark.parametrize("point", POINTS)
def test_crash_leaves_topic_whole_or_deleted(
    full: Bench, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.store.flush()
    with copied_at(monkeypatch, point, full.root, tmp_path / "copy"):
        full.store.delete_topic("gone")
    crashed = Bench(tmp_path / "copy", now_ms=full.clock.now_ms)
    check_gone(crashed.store)
    assert crashed.store.delete_topic("gone") is False
    check_new(crashed)
    crashed.close()


@pytest.mark.parametrize("point", POINTS)
def test_crash_of_the_opening_that_completes_a_deletion(
    full: Bench, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copied_at(monkeypatch, "delete_topic_begun", full.root, tmp_path / "first"):
        full.store.delete_topic("gone")
    with copied_at(monkeypatch, point, tmp_path / "first", tmp_path / "second"):
        Bench(tmp_path / "first", now_ms=full.clock.now_ms).close()
    source = tmp_path / "second"
    if not source.exists():
        assert point == "delete_topic_begun"  # the opening does not begin it
        return
    crashed = Bench(source, now_ms=full.clock.now_ms)
    check_gone(crashed.store)
    check_new(crashed)
    crashed.close()


def test_topic_before_the_deletion_began_is_whole(full: Bench, tmp_path: Path) -> None:
    shutil.copytree(full.root, tmp_path / "copy")
    full.store.delete_topic("gone")
    crashed = Bench(tmp_path / "copy", now_ms=full.clock.now_ms)
    check_whole(crashed.store)
    crashed.close()


@pytest.mark.parametrize("lost", [["timerstore"], ["timerstore", "config/topics.json"]])
def test_rebuild_from_the_log_deletes_the_topic_again(
    full: Bench, lost: list[str], tmp_path: Path
) -> None:
    full.store.delete_topic("gone")
    check_new(full)
    full.store.put("gone", b"pending", delay=50, keys="p")
    assert full.store.delete_topic("kept")
    full.close()
    for name in lost:
        path = full.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    rebuilt = Bench(full.root, now_ms=full.clock.now_ms)
    assert names(rebuilt.store) == {"gone", "%RETRY%g|gone", "%DLQ%g"}
    assert [one.body for one in rebuilt.store.pull("gone", 0, 0).messages] == [b"new", b"new later"]
    assert [one.body for one in rebuilt.store.query("gone", "p")] == [b"pending"]
    assert not list(rebuilt.store.dead_letters("g"))
    assert rebuilt.store.committed("gone", "h") == {}
    rebuilt.close()
    full.open()


def test_delete_topic_refuses_topics_in_use_by_the_store(full: Bench) -> None:
    store = full.store
    for name in ("rmq_sys_wheel_timer", "rmq_sys_timerstore_deleted", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(MessageError, match="reserved for the engine"):
            store.delete_topic(name)
    for name in ("%RETRY%g|gone", "%DLQ%g", "%HALF%gone"):
        with pytest.raises(MessageError, match="goes with the topic of its messages"):
            store.delete_topic(name)
    store.put_every("gone", b"tick", every=60, name="job")
    with pytest.raises(MessageError, match="has recurring messages, got job; cancel_every"):
        store.delete_topic("gone")
    store.cancel_every("job")
    store.put("gone", b"on a level", level=1)
    with pytest.raises(BusyError, match="1 messages of a fixed level"):
        store.delete_topic("gone")
    check_whole(store)
    full.clock.advance(2000)
    Stepper(store).settle()
    assert store.delete_topic("gone")
    check_gone(store)


def test_put_during_the_deletion_raises_busy_error(
    full: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, errors = full.store, []

    def hook(name: str) -> None:
        if name in failpoints.DELETION_NAMES[1:3]:
            for put in (
                lambda: store.put("gone", b"plain"),
                lambda: store.put("gone", b"later", delay=5),
                lambda: store.put_many("gone", [b"many"]),
                lambda: store.put("gone", b"keyed", key="k", unique=True),
                lambda: store.put("gone", b"level", level=2),
                lambda: store.receive("gone", "g"),
            ):
                with pytest.raises(BusyError, match=r"'.*gone' is being deleted") as error:
                    put()
                errors.append(error)
            store.put("kept", b"another topic")

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        store.delete_topic("gone")
    assert len(errors) == 12
    check_new(full)


def test_consumers_and_receipts_of_before_go_on_with_the_new_topic(full: Bench) -> None:
    store = full.store
    leased = store.receive("gone", "g", lease=60)[0]
    pending = store.put("gone", b"pending", delay=20)
    with store.consumer("gone", "j") as consumer:
        assert len(consumer.poll(7)) == 7
        store.delete_topic("gone")
        assert consumer.poll() == []
        assert consumer.commit() == {}
        assert store.ack(leased) is AckResult.SETTLED
        assert store.cancel(pending) is CancelResult.ALREADY_CANCELLED
        store.put("gone", b"new")
        Stepper(store).settle()
        assert [one.body for one in consumer.poll()] == [b"new"]
        assert consumer.commit() == {0: 1}
    assert [one.body for one in store.receive("gone", "g")] == [b"new"]


def test_keys_of_deleted_messages_are_free(full: Bench) -> None:
    store = full.store
    store.put("gone", b"old", key="only", unique=True)
    assert store.put("gone", b"again", key="only", unique=True).duplicate
    store.delete_topic("gone")
    assert not store.put("gone", b"new", key="only", unique=True).duplicate


def test_message_group_of_a_deleted_topic_is_free(full: Bench) -> None:
    store = full.store
    for topic in ("ordered", "ordered", "other"):
        store.put(topic, b"old", message_group="a")
    Stepper(store).settle()
    assert len(store.receive("ordered", "g", ordered=True, max_count=9)) == 1
    store.delete_topic("ordered")
    store.put("ordered", b"new", message_group="a")
    Stepper(store).settle()
    found = store.receive("ordered", "g", ordered=True, max_count=9)
    assert [one.body for one in found] == [b"new"]


def test_half_messages_of_a_deleted_topic_are_gone(full: Bench) -> None:
    store = full.store
    half = store.put("gone", b"half", check_after=5)
    store.delete_topic("gone")
    check_gone(store)
    full.clock.advance(10_000)
    Stepper(store).settle()
    assert store.commit(half) is AckResult.SETTLED
    assert "gone" not in store.topics()


def test_queues_and_priorities_of_a_deleted_topic_are_forgotten(full: Bench) -> None:
    store = full.store
    store.put("ranked", b"high", priority=9)
    assert store.topics()["ranked"] == 10
    store.delete_topic("ranked")
    store.put("ranked", b"plain", queue_id=2)
    assert store.topics()["ranked"] == 3
    Stepper(store).settle()
    assert [one.body for one in store.receive("ranked", "g")] == [b"plain"]


def test_backup_read_only_store_and_verify_agree(full: Bench, tmp_path: Path) -> None:
    reader = timerstore.open(full.root, read_only=True, clock=full.clock)
    full.store.flush()
    assert "gone" in reader.topics()
    full.store.delete_topic("gone")
    assert "gone" not in reader.topics()
    assert not reader.query("gone", "k", max_count=100)
    assert [one.topic for one in reader.dead_letters("g")] == ["kept"]
    with pytest.raises(ReadOnlyError):
        reader.delete_topic("gone")
    full.store.put("gone", b"new", keys="k")
    full.store.flush()
    assert [one.body for one in reader.query("gone", "k")] == [b"new"]
    assert [one.body for one in reader.pull("gone", 0, 0).messages] == [b"new"]
    reader.close()
    full.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    restored = Bench(tmp_path / "restored", now_ms=full.clock.now_ms)
    assert [one.body for one in restored.store.query("gone", "k")] == [b"new"]
    restored.close()
    full.close()
    assert timerstore.verify_directory(full.root).clean
    timerstore.repair(full.root, tmp_path / "repaired")
    repaired = Bench(tmp_path / "repaired", now_ms=full.clock.now_ms)
    assert [one.body for one in repaired.store.query("gone", "k")] == [b"new"]
    repaired.close()
    full.open()


def test_sharded_store_deletes_the_topic_in_each_shard(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path, 3, small()) as store:
        store.put_many("gone", [b"x"] * 30, message_ids=[f"m{n}" for n in range(30)])
        assert store.delete_topic("gone") is True
        assert "gone" not in store.topics()
        assert store.delete_topic("gone") is False
    with pytest.raises(ConfigError):
        timerstore.open(tmp_path)


def test_retries_of_a_topic_that_was_created_again_are_received(bench: Bench) -> None:
    store = bench.store
    for body in (b"0", b"1", b"2"):
        store.put("orders", body)
    bench.turn()
    for one in store.receive("orders", "g", max_count=3):
        store.nack(one, delay=0)
    bench.turn()
    assert len(store.receive("orders", "g", max_count=3)) == 3
    assert store.delete_topic("orders")
    store.put("orders", b"new")
    bench.turn()
    found = [one for _ in range(2) for one in store.receive("orders", "g")]
    store.nack(found[0], delay=0)
    bench.turn()
    again = [one for _ in range(2) for one in store.receive("orders", "g")]
    assert [(one.body, one.attempt) for one in [*found, *again]] == [(b"new", 1), (b"new", 2)]


def test_last_check_of_a_half_message_is_deleted_with_its_topic(bench: Bench) -> None:
    store = bench.store
    store.put("orders", b"half", check_after=1)
    bench.turn(1000)
    (check,) = store.receive("%HALF%orders", "p", max_attempts=1)
    assert store.delete_topic("orders"), "the topic has only half messages"
    assert store.commit(check) is not AckResult.COMMITTED
    bench.turn(100_000)
    assert list(store.dead_letters("p")) == []
    assert "orders" not in store.topics()
