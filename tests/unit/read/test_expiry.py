"""Messages with an expiry: dropped by groups and queries, kept by pulls."""

from typing import Any

import pytest

import timerstore
from tests.support.bench import NOW, Bench
from timerstore import MessageError
from timerstore.testing import Stepper


def bodies(messages: Any) -> list[bytes]:
    return [one.body for one in messages]


def put_three(bench: Bench) -> None:
    bench.store.put("t", b"brief", expires_ms=NOW + 1000, keys="k")
    bench.store.put("t", b"long", expires_ms=NOW + 90_000, keys="k")
    bench.store.put("t", b"plain", keys="k")
    bench.turn()


def test_receive_drops_expired_messages_and_counts_them(bench: Bench) -> None:
    put_three(bench)
    bench.turn(1000)
    assert bodies(bench.store.receive("t", "g", max_count=9)) == [b"long", b"plain"]
    assert bench.store.stats()["expired_messages"] == 1
    assert not list(bench.store.dead_letters("g"))


def test_message_is_received_until_the_millisecond_before_it_expires(bench: Bench) -> None:
    put_three(bench)
    bench.turn(999)
    (found,) = bench.store.receive("t", "g")
    assert (found.body, found.expires_ms) == (b"brief", NOW + 1000)


def test_buffered_messages_expire_too(bench: Bench) -> None:
    for number in range(8):
        bench.store.put("t", b"%d" % number, expires_ms=NOW + 1000 if number % 2 else None)
    bench.turn()
    assert bodies(bench.store.receive("t", "g", max_count=1)) == [b"0"]
    with bench.store.consumer("t", "h") as consumer:
        assert bodies(consumer.poll(1)) == [b"0"]
        bench.turn(1000)
        assert bodies(consumer.poll(9)) == [b"2", b"4", b"6"]
        assert consumer.commit() == {0: 8}
    assert bodies(bench.store.receive("t", "g", max_count=9)) == [b"2", b"4", b"6"]
    assert bench.store.stats()["expired_messages"] == 8


def test_retry_of_an_expired_message_is_dropped(bench: Bench) -> None:
    put_three(bench)
    bench.store.receive("t", "g", max_count=1, lease=30)
    bench.turn(30_000)
    assert bodies(bench.store.receive("t", "g", max_count=9)) == [b"long", b"plain"]
    assert bench.store.stats()["expired_messages"] == 1


def test_group_is_past_expired_messages_after_a_restart(bench: Bench) -> None:
    for _ in range(5):
        bench.store.put("t", b"brief", expires_ms=NOW + 1000)
    bench.turn(2000)
    assert bench.store.receive("t", "g") == []
    assert bench.store.backlog("t", "g").ready == 0
    bench.reopen()
    assert bench.store.backlog("t", "g").ready == 0
    assert bench.store.committed("t", "g") == {0: 5}


def test_query_drops_expired_messages_and_pull_keeps_them(bench: Bench) -> None:
    put_three(bench)
    assert bodies(bench.store.query("t", "k")) == [b"brief", b"long", b"plain"]
    bench.turn(1000)
    bench.store.flush()
    assert bodies(bench.store.query("t", "k")) == [b"long", b"plain"]
    with timerstore.open(bench.root, read_only=True, clock=bench.clock) as reader:
        assert bodies(reader.query("t", "k")) == [b"long", b"plain"]
    assert bodies(bench.store.pull("t", 0, 0).messages) == [b"brief", b"long", b"plain"]
    assert [one.expires_ms for one in bench.out("t")] == [NOW + 1000, NOW + 90_000, None]


def test_delayed_message_expires_after_its_due_time(bench: Bench) -> None:
    for priority in (None, 3):
        topic = f"t{priority}"
        bench.store.put(topic, b"a", delay=10, expires_ms=NOW + 10_001, priority=priority)
        bench.store.put(topic, b"b", delay=10, expires_ms=NOW + 20_000, priority=priority)
        bench.store.put(topic, b"c", delay=10, priority=priority)
    bench.turn(10_001)
    for priority in (None, 3):
        assert bodies(bench.store.receive(f"t{priority}", "g", max_count=9)) == [b"b", b"c"]


def test_expiry_is_kept_by_restart_rebuild_and_reschedule(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=10, expires_ms=NOW + 20_000)
    bench.reopen()
    bench.store.reschedule(receipt, delay=30)
    bench.turn(40_000)
    assert bench.store.receive("t", "g") == []
    assert [one.expires_ms for one in bench.out("t")] == [NOW + 20_000]


@pytest.mark.parametrize(
    "options",
    [
        {"expires_ms": NOW},
        {"expires_ms": NOW - 5},
        {"expires_ms": NOW + 10_000, "delay": 10},
        {"expires_ms": NOW + 10_000, "deliver_ms": NOW + 20_000},
        {"expires_ms": 1.5},
        {"expires_ms": "soon"},
        {"expires_ms": True},
        {"expires_ms": 2**63},
        {"expires_ms": NOW + 90_000, "level": 1},
        {"expires_ms": NOW + 90_000, "spread": 5},
        {"expires_ms": NOW + 90_000, "unique": True, "key": "k"},
        {"properties": {"TS_EXPIRES": "1"}},
    ],
)
def test_wrong_expiry_is_an_error_of_put(bench: Bench, options: dict[str, Any]) -> None:
    with bench.refused(MessageError, "expires_ms"):
        bench.store.put("t", b"x", **options)


def test_expiry_goes_with_ids_keys_and_replacing(bench: Bench) -> None:
    store, later = bench.store, NOW + 5000
    store.put("t", b"id", message_id="a", expires_ms=later)
    assert store.put("t", b"id", message_id="a", expires_ms=later).duplicate
    store.put("t", b"key", key="k", replace=True, delay=1, expires_ms=later)
    Stepper(store).settle()
    bench.turn(5000)
    assert store.receive("t", "g", max_count=9) == []
    assert store.stats()["expired_messages"] == 2
