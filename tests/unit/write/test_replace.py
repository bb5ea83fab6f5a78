"""put(key=, replace=True): only the newest message is delivered, no later than its limit."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import KNOWN_KEYS_MAX, inside, known_keys
from timerstore import CancelResult, ConfigError, MessageError, PutReceipt, StoreConfig
from timerstore._engine.base import failpoints
from timerstore.errors import FlowControlError

SECOND = 1000


def put(bench: Bench, body: bytes, key: str = "k", **more: Any) -> PutReceipt:
    return bench.store.put("t", body, key=key, replace=True, **{"delay": 10, **more})


def test_only_the_newest_message_is_delivered(bench: Bench) -> None:
    first = put(bench, b"1")
    bench.turn(4 * SECOND)
    second = put(bench, b"2", keys=["other"], tags="Aa", properties={"p": "v"})
    assert first.message_id != second.message_id
    assert (second.queue_offset, second.due_ms) == (None, NOW + 14 * SECOND)
    assert [one.handle for one in bench.store.pending()] == [second.handle]
    assert bench.store.cancel(first) is CancelResult.ALREADY_CANCELLED
    bench.turn(10 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    (message,) = bench.out()
    assert (message.body, message.message_id) == (b"2", second.message_id)
    assert (message.keys, message.tags, message.properties["p"]) == (("k", "other"), "Aa", "v")
    assert (message.due_ms, message.delivered_ms) == (second.due_ms, second.due_ms)
    assert message.born_ms == NOW + 4 * SECOND
    assert "TS_GROUP" not in message.properties
    bench.turn(DAY)
    assert bench.bodies() == [b"2"]
    assert bench.store.cancel(second) is CancelResult.ALREADY_DELIVERED


@pytest.mark.parametrize("given", [{}, {"delay": 5}], ids=["now", "later"])
def test_replacing_put_is_durable_on_return(tmp_path: Path, given: dict[str, Any]) -> None:
    """The first of a key goes another way than those that take its place."""
    bench = Bench(tmp_path / "store", small(flush="sync"))
    for _ in range(2):
        bench.store.put("t", b"x", key="k", replace=True, **given)
        stats = bench.store.stats()
        assert stats["log_durable_bytes"] == stats["log_end_bytes"]
    bench.close()


def test_keys_and_topics_are_independent(bench: Bench) -> None:
    put(bench, b"a", "a")
    put(bench, b"b", "b")
    bench.store.put("u", b"c", key="a", replace=True, delay=10)
    bench.store.put("t", b"d", keys="a", delay=10)
    bench.turn()
    put(bench, b"A", "a")
    bench.turn(10 * SECOND)
    assert sorted(bench.bodies()) == [b"A", b"b", b"d"]
    assert bench.bodies("u") == [b"c"]


def test_wait_at_most_limits_the_due_time(bench: Bench) -> None:
    """A burst that never ends comes all the same."""
    for k in range(6):
        put(bench, b"%d" % k, wait_at_most=20)
        bench.turn(4 * SECOND)
    # The last put before the limit comes at the limit: 20 s after the first.
    (message,) = bench.out()
    assert (message.body, message.delivered_ms) == (b"4", NOW + 20 * SECOND)
    bench.turn(6 * SECOND)
    assert bench.bodies() == [b"4", b"5"]


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_replacing_put_at_the_limit(bench: Bench, edge: int) -> None:
    put(bench, b"1", wait_at_most=10, delay=10)
    bench.clock.advance(10 * SECOND + edge)  # no service has run since: it still waits
    receipt = put(bench, b"2", wait_at_most=10)
    assert (receipt.queue_offset is None) == (edge < 0)
    bench.turn()
    assert bench.bodies() == ([] if edge < 0 else [b"2"])
    bench.turn(1)
    assert bench.bodies() == [b"2"]
    bench.turn(DAY)
    assert bench.bodies() == [b"2"]


def test_shortest_limit_applies(bench: Bench) -> None:
    put(bench, b"1", wait_at_most=60, delay=50)
    put(bench, b"2", wait_at_most=20, delay=50)
    assert put(bench, b"3", delay=50).due_ms == NOW + 20 * SECOND
    bench.turn(15 * SECOND)
    receipt = put(bench, b"4", wait_at_most=timedelta(seconds=100), delay=50)
    assert receipt.due_ms == NOW + 20 * SECOND
    bench.turn(5 * SECOND)
    assert bench.bodies() == [b"4"]
    assert put(bench, b"5", wait_at_most=60, delay=60).due_ms == NOW + 80 * SECOND  # a new round


def test_limit_that_a_later_put_sets_counts_from_the_first(bench: Bench) -> None:
    for k in range(3):
        put(bench, b"%d" % k, delay=50)
        bench.turn(5 * SECOND)
    assert put(bench, b"3", wait_at_most=20, delay=50).due_ms == NOW + 20 * SECOND


def test_immediate_put_replaces_the_pending_message(bench: Bench) -> None:
    first = put(bench, b"1")
    now = bench.store.put("t", b"2", key="k", replace=True)
    assert (now.queue_offset, now.due_ms) == (0, NOW)
    bench.turn(DAY)
    assert bench.bodies() == [b"2"]
    assert bench.store.cancel(first) is CancelResult.ALREADY_CANCELLED
    put(bench, b"3", wait_at_most=0)
    bench.turn()
    assert bench.bodies() == [b"2", b"3"]


@pytest.mark.parametrize(
    "given",
    [{"delay": timedelta(seconds=9)}, {"deliver_ms": NOW + 9000, "delay": None},
     {"deliver_at": datetime.fromtimestamp(NOW / 1000 + 9, UTC), "delay": None}],
)  # fmt: skip
def test_replacing_put_accepts_all_forms_of_times(bench: Bench, given: dict[str, Any]) -> None:
    put(bench, b"1")
    assert put(bench, b"2", **given).due_ms == NOW + 9000
    bench.turn(9000)
    assert bench.bodies() == [b"2"]


def test_replacing_put_after_a_cancel_and_after_a_reschedule(bench: Bench) -> None:
    first = put(bench, b"1", wait_at_most=30)
    bench.store.cancel(first)
    bench.turn(20 * SECOND)
    second = put(bench, b"2", wait_at_most=30, delay=100)
    assert second.due_ms == NOW + 50 * SECOND  # its own first put, not the cancelled one's
    moved = bench.store.reschedule(second, delay=5)
    third = put(bench, b"3", delay=8)
    assert third.due_ms == NOW + 28 * SECOND
    assert bench.store.cancel(moved) is CancelResult.ALREADY_CANCELLED
    bench.turn(DAY)
    assert bench.bodies() == [b"3"]


@pytest.mark.parametrize("how", ["close", "kill", "index lost", "side files lost"])
def test_keys_are_found_after_reopening(bench: Bench, tmp_path: Path, how: str) -> None:
    put(bench, b"1", wait_at_most=30)
    put(bench, b"2", wait_at_most=30)
    for k in range(300):  # several index files, among many keys
        put(bench, b"%d" % k, f"key-{k % 100}")
    if how == "kill":
        bench.kill(tmp_path / "killed")
    else:
        bench.close()
        if how == "index lost":
            shutil.rmtree(bench.root / "index")
        if how == "side files lost":
            shutil.rmtree(bench.root / "timerstore")
        bench.open()
    bench.turn(20 * SECOND - 10 * SECOND - 1)
    third = put(bench, b"3", delay=100)
    assert third.due_ms == NOW + 30 * SECOND
    assert put(bench, b"new", "key-5", delay=1).due_ms
    bench.turn(DAY)
    assert sum(body == b"3" for body in bench.bodies()) == 1
    assert b"2" not in [m.body for m in bench.out() if m.keys == ("k",)]
    assert len(bench.bodies()) == 101
    assert b"205" not in bench.bodies()


def test_key_is_found_after_its_message_rolled_and_was_moved(tmp_path: Path) -> None:
    config = small(commit_log_segment_bytes=1 << 16, retention_ms=60_000)
    bench = Bench(tmp_path / "s", config)
    put(bench, b"far", delay=timedelta(days=40), wait_at_most=timedelta(days=41))
    for _ in range(6):
        bench.store.put_many("fill", [b"x" * 1000] * 100)
        bench.turn(2 * DAY)
    assert bench.store.stats()["log_begin_bytes"] > 0
    bench.reopen()
    put(bench, b"new", delay=timedelta(days=40))
    assert len(list(bench.store.pending())) == 1
    bench.turn(29 * DAY)
    assert bench.bodies() == [b"new"]
    bench.close()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_keys_not_in_memory_are_found_in_the_index(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(*KNOWN_KEYS_MAX, size)
    for round_number in range(3):
        for k in range(5):
            put(bench, b"%d-%d" % (round_number, k), f"key-{k}")
    assert len(known_keys(inside(bench.store).replacing)) <= size
    bench.turn(10 * SECOND)
    assert sorted(bench.bodies()) == [b"2-%d" % k for k in range(5)]


def _cut_points() -> list[str]:
    return ["replace_appended", "log_half_swapped", "log_written_out", "log_synced"]


@pytest.mark.parametrize("point", _cut_points())
@pytest.mark.parametrize("is_due", [False, True])
def test_one_message_is_pending_when_killed_during_a_replace(
    tmp_path: Path, point: str, is_due: bool
) -> None:
    """The old one waits, or the new one does; never both, never neither."""
    bench = Bench(tmp_path / "s", small(flush="sync", staging_bytes=4096))
    put(bench, b"1" * 100, wait_at_most=5 if is_due else None)
    if is_due:
        bench.clock.advance(5000)

    def hook(name: str) -> None:
        if name == point and not (tmp_path / "k").exists():
            shutil.copytree(bench.root, tmp_path / "k")

    failpoints.hook = hook
    try:
        put(bench, b"2" * 3000)
        put(bench, b"3" * 3000)
    finally:
        failpoints.hook = None
    abandon(bench.store)
    bench.root = tmp_path / "k"
    bench.open()
    waiting = list(bench.store.pending())
    bench.turn(DAY)
    out = [body[:1] for body in bench.bodies()]
    assert len(out) == 1 or (is_due and out == [b"2", b"3"])
    assert len(waiting) <= 1
    bench.close()


def test_new_message_and_delete_record_are_one_group(bench: Bench) -> None:
    """Each cut of the log between them leaves the old one waiting."""
    put(bench, b"old")
    begin = bench.store.stats()["log_end_bytes"]
    put(bench, b"new")
    end = bench.store.stats()["log_end_bytes"]
    bench.close()
    path = next(iter(sorted((bench.root / "commitlog").iterdir())))
    raw = path.read_bytes()
    records = [one for one in disk.records(bench.root) if begin <= one.log_offset < end]
    assert len(records) == 2
    for cut in {records[1].log_offset, records[1].log_offset + 50, begin + 10}:
        copy = bench.root.parent / f"cut-{cut}"
        shutil.copytree(bench.root, copy)
        for name in ("timerstore", "timerwheel", "index", "consumequeue", "timerlog"):
            target = copy / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        (copy / "abort").write_bytes(b"1")
        (copy / "commitlog" / path.name).write_bytes(raw[:cut] + bytes(len(raw) - cut))
        store = timerstore.open(copy, bench.config, clock=bench.clock, threads=False)
        assert len(list(store.pending())) == 1
        store.close()
    bench.open()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": None}, "key"), ({"key": ""}, "key"), ({"key": "a b"}, "key"), ({"key": 5}, "key"),
        ({"replace": False}, "replace"), ({"replace": 1}, "replace"),
        ({"replace": False, "key": None, "wait_at_most": 5}, "replace"),
        ({"level": 3, "delay": None}, "level"), ({"message_id": "m"}, "message_id"),
        ({"wait_at_most": -1}, "wait_at_most"), ({"wait_at_most": "5"}, "wait_at_most"),
        ({"wait_at_most": float("nan")}, "wait_at_most"), ({"wait_at_most": True}, "wait_at_most"),
        ({"wait_at_most": 41 * 366 * 86_400}, "wait_at_most"), ({"delay": -1}, "delay"),
        ({"flush": "x"}, "flush"), ({"queue_id": -1}, "queue_id"), ({"tags": ""}, "TAGS"),
        ({"keys": ["a b"]}, "keys"), ({"keys": 5}, "keys: wanted text or several, got int"),
        ({"keys": None}, "keys: wanted text or several"), ({"keys": b"a"}, "keys"),
        ({"keys": [np.arange(2)]}, "keys: wanted text"), ({"keys": [5]}, "keys"),
        ({"key": "k" * 33_000}, "properties"),
    ],
)  # fmt: skip
def test_invalid_arguments_change_nothing(bench: Bench, given: dict[str, Any], said: str) -> None:
    put(bench, b"1")
    arguments: dict[str, Any] = {"key": "k", "replace": True, "delay": 5, **given}
    with bench.refused(MessageError, said):
        bench.store.put("t", b"2", **arguments)
    assert len(list(bench.store.pending(topic="t"))) == 1


def test_replacing_put_rejects_invalid_bodies_and_topics(bench: Bench) -> None:
    for topic, body in (("ä", b""), ("t", "text"), ("t", b"x" * (4 * 1024 * 1024 + 1))):
        with bench.refused(MessageError):
            bench.store.put(topic, body, key="k", replace=True)  # type: ignore[arg-type]


def test_another_queue_id_is_rejected(bench: Bench) -> None:
    put(bench, b"1", queue_id=1)
    with bench.refused(MessageError, "queue 1"):
        put(bench, b"2", queue_id=0)
    assert put(bench, b"3", queue_id=1).queue_id == 1
    assert put(bench, b"4").queue_id == 1


def test_replace_needs_the_key_index(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(index_enabled=False))
    with bench.refused(ConfigError, "index"):
        put(bench, b"1")
    bench.close()


def test_replacing_put_obeys_flow_control(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=2))
    put(bench, b"1", "a", delay=10)
    put(bench, b"2", "b", delay=10)
    put(bench, b"3", "a", delay=10)  # within its slot it may always
    with pytest.raises(FlowControlError):
        put(bench, b"4", "c", delay=10)
    put(bench, b"5", "c", delay=20)
    with pytest.raises(FlowControlError):
        put(bench, b"6", "c", delay=10)
    put(bench, b"7", "a", delay=20)
    put(bench, b"8", "d", delay=10)
    bench.turn(20 * SECOND)
    assert sorted(bench.bodies()) == [b"2", b"5", b"7", b"8"]
    bench.close()


@pytest.mark.parametrize("config", [{"property_crc": True}, {"property_crc": False},
                                    {"precision_ms": 100}])  # fmt: skip
def test_records_of_replacing_puts_verify(tmp_path: Path, config: dict[str, Any]) -> None:
    bench = Bench(tmp_path / "s", small(**config))
    for k in range(50):
        put(bench, b"%d" % k * (k * 20), f"key-{k % 3}", wait_at_most=k % 4)
    bench.turn()
    assert bench.store.verify().clean
    bench.reopen()
    assert bench.store.verify().clean
    bench.turn(DAY)
    assert len(bench.store.query("t", "key-1")) >= 1
    bench.close()


def test_concurrent_replacing_puts_leave_one_message(tmp_path: Path) -> None:
    """Many put with few keys; for each key one waits at any time."""
    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:

        def work(which: int) -> None:
            for k in range(200):
                store.put("t", b"%d" % (which * 1000 + k), key=f"k{k % 3}", replace=True, delay=60)

        threads = [Thread(target=work, args=(n,)) for n in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert store.stats()["pending_messages"] == 3
        assert store.stats()["put_messages"] + store.stats()["rescheduled_messages"] == 800


def test_replacing_puts_are_counted(bench: Bench) -> None:
    put(bench, b"1")
    put(bench, b"2")
    stats = bench.store.stats()
    assert (stats["put_messages"], stats["rescheduled_messages"]) == (1, 1)
    assert stats["pending_by_topic"] == {"t": 1}
    bench.turn()
    assert bench.store.query("t", "k")[0].body == b"2"
