"""receive, ack and extend: a message has one lease at a time, and none is lost."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.inside import LEASING_ROW, body_of
from tests.support.leasing import RETRY, bodies, put, take
from timerstore import AckResult, LeaseLostError, MessageError, StoreConfig
from timerstore._engine.format.lease import Receipt
from timerstore._engine.leases.lease_appender import LeaseAppender
from timerstore._engine.leases.lease_timers import LeaseTimers


def test_acked_message_is_not_delivered_again(bench: Bench) -> None:
    put(bench, b"a", b"b")
    (a, b) = take(bench, lease=30)
    assert (a.body, a.attempt, a.lease_until_ms, a.is_last_attempt) == (
        b"a",
        1,
        NOW + 30_000,
        False,
    )
    assert take(bench) == []
    assert bench.store.ack(a) is AckResult.ACKED
    assert bench.store.ack(json.loads(json.dumps(b.receipt))) is AckResult.ACKED
    bench.turn(DAY)
    assert take(bench) == []
    assert list(bench.store.pending()) == []
    assert bench.out(RETRY) == []


def test_a_lease_that_is_over_before_it_is_appended_cancels_no_other_timer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is short and the clock is set forward; the lease still becomes a timer."""
    bench.store.put("t", b"other", delay=60)
    put(bench, b"a")
    row = LEASING_ROW.value

    def late(self: LeaseAppender, *given: Any) -> Any:
        bench.clock.set(bench.clock.now_ms + 10)
        return row(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(*LEASING_ROW, late)
        (a,) = take(bench, lease=0.005)
    bench.turn()
    (again,) = take(bench, lease=60)
    assert (again.body, again.attempt) == (b"a", 2)
    assert bench.store.ack(a) is AckResult.EXPIRED
    assert bench.store.ack(again) is AckResult.ACKED
    bench.turn(60_000)
    assert sorted(bench.bodies()) == [b"a", b"other"]


@pytest.mark.parametrize("call", ["extend", "renew"])
def test_a_longer_lease_that_is_over_before_it_is_appended_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(bench, b"a")
    (a,) = take(bench, lease=60)
    timer_of = LeaseTimers.timer_of

    def late(self: LeaseTimers, receipt: Receipt) -> Any:
        bench.clock.set(bench.clock.now_ms + 10)
        return timer_of(self, receipt)

    with monkeypatch.context() as patch:
        patch.setattr(LeaseTimers, "timer_of", late)
        with pytest.raises(LeaseLostError) as caught:
            getattr(bench.store, call)(a, lease=0.005)
    assert caught.value.result == AckResult.EXPIRED
    bench.turn()
    assert [(one.body, one.attempt) for one in take(bench)] == [(b"a", 2)]


def test_message_is_delivered_again_at_the_end_of_its_lease(bench: Bench) -> None:
    put(bench, b"a")
    (first,) = take(bench, lease=2.5)
    bench.turn(2499)
    assert take(bench) == []
    bench.turn(1)
    (second,) = take(bench, lease=timedelta(seconds=1))
    assert (second.body, second.attempt, second.lease_until_ms) == (b"a", 2, NOW + 3500)
    assert bench.store.ack(first) is AckResult.EXPIRED
    assert bench.store.ack(second) is AckResult.ACKED
    assert bench.store.ack(second) is AckResult.SETTLED
    assert bench.store.ack(first) is AckResult.EXPIRED
    bench.turn(DAY)
    assert take(bench) == []


def test_leased_message_keeps_its_fields_at_each_attempt(bench: Bench) -> None:
    bench.turn(5)
    bench.store.put(
        "t", b"x" * 1000, delay=3, tags="Aa", keys=["k1", "k2"], properties={"colour": "grün"},
        message_id="order-17",
    )  # fmt: skip
    bench.turn(4000)
    (plain,) = bench.out()
    assert plain.delivered_ms != plain.born_ms
    shown = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "message_id", "due_ms",
             "delivered_ms", "born_ms", "flag")  # fmt: skip
    for attempt in range(1, 5):
        (leased,) = take(bench, lease=1)
        assert leased.attempt == attempt == leased.reconsume_times + 1
        for name in shown:
            assert getattr(leased, name) == getattr(plain, name), name
        assert leased.properties["colour"] == "grün"
        assert "TS_LEASE" not in leased.properties
        assert "RETRY_TOPIC" not in leased.properties
        bench.turn(1000)


def test_extend(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=10)
    bench.turn(9000)
    second = bench.store.extend(one, lease=10)
    assert bench.store.ack(one) is AckResult.SETTLED
    bench.turn(9999)
    assert take(bench) == []
    third = bench.store.extend(second, lease=timedelta(seconds=1))
    with pytest.raises(LeaseLostError, match="SETTLED") as caught:
        bench.store.extend(second)
    assert caught.value.result is AckResult.SETTLED
    bench.turn(1000)
    with pytest.raises(LeaseLostError) as caught:
        bench.store.extend(third)
    assert caught.value.result is AckResult.EXPIRED
    (again,) = take(bench)
    assert again.attempt == 2
    bench.store.ack(again)
    with pytest.raises(LeaseLostError) as caught:
        bench.store.extend(again)
    assert caught.value.result is AckResult.SETTLED


def test_groups_are_independent(bench: Bench) -> None:
    put(bench, b"a")
    (mine,) = bench.store.receive("t", "g", lease=1)
    (theirs,) = bench.store.receive("t", "h", lease=1)
    assert bench.store.ack(mine) is AckResult.ACKED
    bench.turn(1000)
    assert bench.store.receive("t", "g") == []
    (again,) = bench.store.receive("t", "h")
    assert (again.attempt, again.body) == (2, b"a")
    assert bench.store.ack(theirs) is AckResult.EXPIRED


def test_topics_of_a_group_are_independent(bench: Bench) -> None:
    put(bench, b"a")
    bench.store.put("u", b"b")
    bench.turn()
    bench.store.receive("t", "g", lease=1)
    bench.store.receive("u", "g", lease=1)
    bench.turn(1000)
    assert bodies(bench.store.receive("u", "g", max_count=9)) == [b"b"]
    assert bodies(bench.store.receive("t", "g", max_count=9)) == [b"a"]


def test_receive_reads_queues_in_turn(bench: Bench) -> None:
    for k in range(12):
        bench.store.put("t", b"%d" % k, queue_id=k % 3)
    bench.turn()
    found = [one for _ in range(12) for one in take(bench, 1, lease=5)]
    assert sorted(int(one.body) for one in found) == list(range(12))
    for queue_id in range(3):
        offsets = [one.queue_offset for one in found if one.queue_id == queue_id]
        assert offsets == [0, 1, 2, 3]
    assert bench.store.ack_many(found[:6]) == [AckResult.ACKED] * 6
    bench.turn(5000)
    assert sorted(bodies(take(bench, 100))) == sorted(bodies(found[6:]))


def test_redelivered_messages_do_not_starve_the_topic(bench: Bench) -> None:
    put(bench, b"bad", *(b"%d" % k for k in range(5)))
    seen = []
    for _ in range(12):
        for one in take(bench, 1, lease=60, max_attempts=None):
            seen.append(one.body)
            if one.body == b"bad":
                bench.store.nack(one, delay=0)
                bench.turn()
            else:
                bench.store.ack(one)
    assert [body for body in seen if body != b"bad"] == [b"%d" % k for k in range(5)]
    assert seen.count(b"bad") >= 4


def test_receive_with_filters(bench: Bench) -> None:
    for k, tag in enumerate(("Aa", "c", "Aa")):
        bench.store.put("t", b"%d" % k, tags=tag)
    bench.turn()
    assert bodies(take(bench, lease=1, tags="Aa")) == [b"0", b"2"]
    bench.turn(1000)
    assert bodies(take(bench, tags="Aa")) == [b"0", b"2"]
    bench.store.put("t", b"3", tags="c")
    bench.turn()
    assert bodies(take(bench, tags="c")) == [b"3"]  # others: from where the group is
    assert take(bench) == []


def test_consumer_and_receive_of_one_group_exclude_each_other(bench: Bench) -> None:
    put(bench, b"a")
    consumer = bench.store.consumer("t", "h")
    with pytest.raises(MessageError, match="consumer"):
        bench.store.receive("t", "h")
    consumer.close()
    (one,) = bench.store.receive("t", "h")
    with pytest.raises(MessageError, match="leases"):
        bench.store.consumer("t", "h")
    assert bench.store.ack(one) is AckResult.ACKED


def test_receive_from_a_topic_that_is_created_later(bench: Bench) -> None:
    assert take(bench) == []
    put(bench, b"a")
    assert bodies(take(bench)) == [b"a"]


def test_long_lease_rolls_and_its_receipt_stays_valid(tmp_path: Path) -> None:
    """A lease of months rolls around the wheel; its receipt stays good."""
    bench = Bench(tmp_path / "s")
    put(bench, b"a", b"b")
    a, b = take(bench, lease=timedelta(days=90))
    for _ in range(9):
        bench.turn(10 * DAY - 1)
    assert take(bench) == []
    assert bench.store.ack(a) is AckResult.ACKED
    longer = bench.store.extend(b, lease=timedelta(days=90))
    bench.turn(DAY)
    assert take(bench) == []
    bench.turn(89 * DAY)
    (again,) = take(bench)
    assert (again.body, again.attempt) == (b"b", 2)
    assert bench.store.ack(longer) is AckResult.EXPIRED
    bench.close()


def test_compressed_broker_body_is_inflated(bench: Bench) -> None:
    """The copy has no flag for a compressed body, so its body is inflated."""
    import zlib
    from dataclasses import replace

    put(bench, b"a")
    (message,) = bench.out()
    packed = replace(message, raw_body=zlib.compress(b"long" * 50), sys_flag=0x301)
    assert body_of(packed) == b"long" * 50
    lz4 = replace(message, raw_body=b"??", sys_flag=0x101)
    assert body_of(lz4) == b"??"


def test_foreign_message_in_the_retry_topic_is_leased(bench: Bench) -> None:
    bench.store.put(RETRY, b"s", properties={"TS_LEASE": "00000001 7 0 0 0 0 0 0 0 0 0"})
    bench.turn()
    (one,) = take(bench, lease=1)
    assert (one.body, one.attempt, one.topic) == (b"s", 1, "t")
    bench.turn(1000)
    (again,) = take(bench)
    assert again.attempt == 2


def test_lease_is_durable_in_a_sync_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    put(bench, b"a", b"b")
    found = take(bench)
    assert bench.store.stats()["log_durable_bytes"] == bench.store.stats()["log_end_bytes"]
    bench.store.ack_many(found)
    assert bench.store.stats()["log_durable_bytes"] == bench.store.stats()["log_end_bytes"]
    bench.close()


def test_threads_receive_each_message_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:
        store.put_many("t", [b"%d" % k for k in range(500)])

        got: list[int] = []

        def work(_: int) -> None:
            while len(got) < 500:
                found = store.receive("t", "g", max_count=7, lease=60, wait=0.2)
                got.extend(int(one.body) for one in found)
                assert store.ack_many(found) == [AckResult.ACKED] * len(found)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert sorted(got) == list(range(500))
        assert store.stats()["pending_messages"] == 0


def test_receive_waits_for_new_and_redelivered_messages(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", StoreConfig(flush="async")) as store:
        assert store.receive("t", "g", wait=0.01) == []
        store.put("t", b"a", delay=0.05)
        (a,) = store.receive("t", "g", wait=30, lease=0.05)
        assert a.body == b"a"
        (again,) = store.receive("t", "g", wait=30)
        assert (again.body, again.attempt) == (b"a", 2)


def test_property_with_the_name_of_a_lease_is_the_callers_in_its_topic(bench: Bench) -> None:
    put(bench, b"a", properties={"RETRY_TOPIC": "of another store"})
    (a,) = take(bench)
    assert a.properties["RETRY_TOPIC"] == "of another store"


def test_equal_values_of_other_types_are_checked_each(bench: Bench) -> None:
    bench.store.receive("t", "g", max_count=1)
    with pytest.raises(MessageError, match="max_count"):
        bench.store.receive("t", "g", max_count=True)
    with pytest.raises(MessageError, match="tags"):
        bench.store.receive("t", "g", tags=memoryview(bytearray(b"x")))  # type: ignore[arg-type]


def test_number_that_changes_is_read_by_each_receive(bench: Bench) -> None:
    class Count:
        value = 1

        def __index__(self) -> int:
            return self.value

    count: Any = Count()
    for _ in range(3):
        bench.store.put("t", b"x")
    bench.turn()
    assert len(bench.store.receive("t", "g", max_count=count)) == 1
    count.value = 2
    assert len(bench.store.receive("t", "g", max_count=count)) == 2
