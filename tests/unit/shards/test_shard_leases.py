"""Leases over several shards: turns, receipts, failures."""

import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import DAY, NOW, small
from tests.support.inside import inside
from tests.support.shards import ShardBench
from tests.support.until import until
from timerstore import AckResult, ClosedError, LeaseLostError, MessageError, StoreConfig
from timerstore.errors import FullError
from timerstore.shards import ShardLeasedMessage


def put(shards: ShardBench, shard: int, *bodies: bytes) -> None:
    for body in bodies:
        shards.store.stores[shard].put("t", body)
    shards.turn()


def take(shards: ShardBench, count: int = 100, **asked: Any) -> list[ShardLeasedMessage]:
    shards.turn()
    return shards.store.receive("t", "g", max_count=count, **asked)


def bodies(messages: list[ShardLeasedMessage]) -> list[bytes]:
    return [one.body for one in messages]


def test_receipt_names_shard_and_is_valid_after_restart(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, b"%d" % shard)
    leased = take(shards, lease=60)
    assert sorted((one.shard, one.body) for one in leased) == [(0, b"0"), (1, b"1"), (2, b"2")]
    for one in leased:
        assert one.receipt.startswith(f"s{one.shard:05d}.")
        assert (one.attempt, one.lease_until_ms, one.topic) == (1, NOW + 60_000, "t")
    shards.reopen()
    assert take(shards) == []
    a, b, c = leased
    assert shards.store.ack(a.receipt) is AckResult.ACKED
    assert shards.store.ack(a) is AckResult.SETTLED
    longer = shards.store.extend(b.receipt, lease=100)
    assert longer.startswith(f"s{b.shard:05d}.")
    assert shards.store.nack(c.receipt, delay=1) is AckResult.NACKED
    shards.turn(1000)
    (again,) = take(shards, lease=1000)
    assert (again.body, again.shard, again.attempt) == (c.body, c.shard, 2)
    shards.turn(60_000)
    assert take(shards) == []
    shards.reopen()
    assert shards.store.ack_many([longer, again.receipt]) == [AckResult.ACKED] * 2
    shards.turn(DAY)
    assert take(shards) == []


def test_shards_acknowledge_before_any_of_them_receives(shards: ShardBench) -> None:
    for shard, body in enumerate((b"0", b"1", b"2")):
        shards.store.stores[shard].put("t", body)
    shards.turn()
    first = shards.store.receive("t", "g", max_count=2)
    assert len(shards.store.receive("t", "g", max_count=5, ack=first)) == 1
    assert shards.store.ack_many(first) == [AckResult.SETTLED] * 2


def test_receive_takes_shards_in_turn(shards: ShardBench) -> None:
    put(shards, 0, *(b"many" for _ in range(50)))
    put(shards, 2, b"x", b"y")
    seen = [take(shards, 1)[0].shard for _ in range(6)]
    assert seen == [0, 2, 0, 2, 0, 0]


def test_receive_of_batches_starves_no_shard(shards: ShardBench) -> None:
    put(shards, 0, *(b"many" for _ in range(50)))
    put(shards, 1, *(b"few" for _ in range(3)))
    first, second = take(shards, 10), take(shards, 10)
    assert Counter(one.shard for one in first) == {0: 10}
    assert Counter(one.shard for one in second) == {1: 3, 0: 7}


def test_each_group_has_own_turns(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, *(b"%d" % k for k in range(9)))
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for _ in range(3):
        for group, places in seen.items():
            places += [one.shard for one in shards.store.receive("t", group)]
    assert all(sorted(places) == [0, 1, 2] for places in seen.values())


def test_each_message_is_leased_once_from_many_threads(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, *(b"%d.%d" % (shard, k) for k in range(40)))
    found: list[bytes] = []

    def work() -> None:
        while got := shards.store.receive("t", "g", max_count=3):
            found.extend(bodies(got))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(found) == sorted(b"%d.%d" % (s, k) for s in range(3) for k in range(40))


def test_ack_many_returns_results_in_order(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, *(b"%d" % k for k in range(4)))
    leased = take(shards)
    assert len(leased) == 12
    shards.store.ack(leased[7])
    wrong = "s00001.bm8="
    with pytest.raises(MessageError, match=r"receipts\[2\]: receipt"):
        shards.store.ack_many([leased[0], leased[1].receipt, wrong])
    answers = shards.store.ack_many(reversed(leased))
    wanted = [AckResult.ACKED] * 12
    wanted[4] = AckResult.SETTLED
    assert answers == wanted
    assert shards.store.ack_many([]) == []


def test_leased_message_equals_stored_message(shards: ShardBench) -> None:
    shards.store.put("t", b"x", delay=3, tags="Aa", keys=["k1", "k2"], properties={"a": "b"})
    shards.turn(4000)
    (one,) = take(shards)
    assert (one.tags, one.keys, one.properties["a"]) == ("Aa", ("k1", "k2"), "b")
    assert one.shard == shards.store.shard_of("k1")


def test_dead_letters_stay_in_shard(shards: ShardBench) -> None:
    put(shards, 1, b"a")
    for attempt in (1, 2):
        (one,) = take(shards, lease=1, max_attempts=2)
        assert (one.attempt, one.is_last_attempt) == (attempt, attempt == 2)
        shards.turn(1000)
    assert take(shards, max_attempts=2) == []
    assert shards.bodies("%DLQ%g") == [[], [b"a"], []]


def test_receive_loses_no_message_when_shard_fails(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leased messages are returned; the next call raises the error, the one after it continues."""
    for shard in range(3):
        put(shards, shard, b"%d" % shard, b"again")

    def full(*_args: object, **_given: object) -> object:
        raise FullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(shards.store.stores[1], "receive", full)
        assert bodies(take(shards)) == [b"0", b"again"]
        with pytest.raises(FullError, match=r"^shard 1: no room"):
            take(shards)
        assert bodies(take(shards)) == [b"2", b"again"]
    assert bodies(take(shards)) == [b"1", b"again"]


def test_lease_consumer_iterates_over_all_shards(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, b"%d" % shard)
    consumer = shards.store.lease_consumer("t", "g", wait=0, lease=5)
    seen = []
    for message in consumer:
        if message.shard == 1:
            with pytest.raises(ZeroDivisionError), consumer.handling(message):
                raise ZeroDivisionError
            continue
        with consumer.handling(message):
            seen.append(message.body)
    assert sorted(seen) == [b"0", b"2"]
    shards.turn(2000)
    (again,) = take(shards)
    assert (again.body, again.attempt) == (b"1", 2)


def test_lease_consumer_rejects_max_count(shards: ShardBench) -> None:
    for asked in ({"max_count": 5}, {"wiat": 1.0}):
        with pytest.raises(MessageError, match=next(iter(asked))):
            shards.store.lease_consumer("t", "g", **asked)


def test_receive_wakes_for_message_of_any_shard(shards: ShardBench) -> None:
    found: list[ShardLeasedMessage] = []
    begun = threading.Event()

    def work() -> None:
        begun.set()
        found.extend(shards.store.receive("t", "g", wait=60))

    for shard in (2, 0):
        found.clear()
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(10)
        put(shards, shard, b"%d" % shard)
        while thread.is_alive():
            shards.turn()
            thread.join(0.01)
        assert [(one.shard, one.body) for one in found] == [(shard, b"%d" % shard)]


def test_begin_receive_waits_in_event_loop(shards: ShardBench) -> None:
    waiting = shards.store.begin_receive("t", "g", wait=60, max_count=5)
    rung = []
    assert waiting.enter(lambda: rung.append(1))
    put(shards, 1, b"a")
    assert rung
    waiting.leave()
    (one,) = waiting.look()
    assert (one.shard, one.body) == (1, b"a")
    assert waiting.answer([one]) == [one]
    waiting.end()


def test_close_wakes_receive(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, b"x")
    assert len(take(shards)) == 3
    answers: list[object] = []
    thread = threading.Thread(
        target=lambda: answers.append(shards.store.receive("t", "g", wait=60))
    )
    thread.start()
    until(lambda: all(inside(one).long_polls.count for one in shards.store.stores))
    shards.close()
    thread.join(10)
    assert answers == [[]]
    for call in (
        lambda: shards.store.receive("t", "g"),
        lambda: shards.store.lease_consumer("t", "g"),
    ):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"lease": 0}, "lease: wanted more than 0"),
        ({"lease": "x"}, "lease:"),
        ({"max_count": 0}, "max_count: wanted 1 to 10000, got 0"),
        ({"max_count": "3"}, "max_count: wanted 1 to 10000, got '3'"),
        ({"wait": -1}, "wait"),
        ({"wait": "x"}, "wait"),
        ({"max_attempts": 0}, "max_attempts: wanted 1 to"),
        ({"backoff": -1}, "backoff"),
        ({"sql": "a >"}, "sql"),
    ],
)
def test_receive_rejects_invalid_arguments(
    shards: ShardBench, asked: dict[str, Any], text: str
) -> None:
    put(shards, 0, b"a")
    with pytest.raises(MessageError, match=text):
        shards.store.receive("t", "g", **asked)
    with pytest.raises(MessageError, match=r"receive: wanted some of .*, got leese"):
        shards.store.begin_receive("t", "g", leese=1)
    assert bodies(take(shards)) == [b"a"]


@pytest.mark.parametrize("names", [(5, "g"), ("t", None), ("t", "a|b"), ([], "g"), ("", "g")])
def test_receive_rejects_invalid_names(shards: ShardBench, names: tuple[Any, Any]) -> None:
    with pytest.raises(MessageError, match=r"topic|group"):
        shards.store.receive(*names)


@pytest.mark.parametrize(
    "receipt", ["", "bDEg", "s00003.bDEg", "s3.bDEg", "s00000.", "s00001.@", 5, None]
)
def test_ack_rejects_invalid_receipt(shards: ShardBench, receipt: Any) -> None:
    for call in (shards.store.ack, shards.store.nack, shards.store.extend):
        with pytest.raises(MessageError, match="receipt"):
            call(receipt)
    with pytest.raises(MessageError, match=r"receipts\[0\]"):
        shards.store.ack_many([receipt])


def test_ack_rejects_receipt_without_shard(shards: ShardBench) -> None:
    """It does not say whose it is."""
    put(shards, 1, b"a")
    (one,) = shards.store.stores[1].receive("t", "g")
    with pytest.raises(MessageError, match="wanted one that names its shard"):
        shards.store.ack(one)
    assert shards.store.ack(f"s00000.{one.receipt}") is AckResult.UNKNOWN
    assert shards.store.ack(f"s00001.{one.receipt}") is AckResult.ACKED


def test_extend_reports_lost_lease(shards: ShardBench) -> None:
    put(shards, 2, b"a")
    (one,) = take(shards, lease=1)
    shards.turn(1000)
    with pytest.raises(LeaseLostError, match="shard 2: ") as caught:
        shards.store.extend(one, lease=timedelta(seconds=5))
    assert caught.value.result == AckResult.EXPIRED
    assert shards.store.nack(one) is AckResult.EXPIRED


def test_group_cannot_lease_and_consume(shards: ShardBench) -> None:
    put(shards, 0, b"a")
    with shards.store.consumer("t", "read"), pytest.raises(MessageError, match="consumer of group"):
        shards.store.receive("t", "read")
    take(shards)
    with pytest.raises(MessageError, match="leases 't' in this process"):
        shards.store.consumer("t", "g")


def test_leases_are_as_durable_as_puts(tmp_path: Path) -> None:
    config: StoreConfig = small(flush="sync")
    bench = ShardBench(tmp_path / "sync", 2, config)
    put(bench, 0, b"a")
    put(bench, 1, b"b")
    leased = take(bench)
    for shard in bench.store.stores:
        stats = shard.stats()
        assert stats["log_durable_bytes"] == stats["log_end_bytes"]
    assert bench.store.ack_many(leased) == [AckResult.ACKED] * 2
    bench.close()


def test_dead_letters_of_all_shards(shards: ShardBench) -> None:
    for shard in range(3):
        put(shards, shard, b"%d" % shard, b"%d" % (shard + 3))
    for one in take(shards, lease=60):
        assert shards.store.bury(one) is AckResult.BURIED
    shards.turn()
    found = list(shards.store.dead_letters("g"))
    assert [(one.shard, one.body) for one in found] == [
        (0, b"0"), (0, b"3"), (1, b"1"), (1, b"4"), (2, b"2"), (2, b"5")
    ]  # fmt: skip
    for one in found:
        assert one.receipt.startswith(f"s{one.shard:05d}.")
    wrong = [found[0], found[1].receipt.partition(".")[2]]
    with pytest.raises(MessageError, match=r"letters\[1\]: dead letter: wanted one that names"):
        shards.store.requeue("g", wrong)
    with pytest.raises(MessageError, match="topic"):
        shards.store.requeue("g", topic="a b")
    assert shards.store.requeue("g", [found[5], found[0].receipt, found[5]]) == 2
    shards.reopen()
    assert shards.store.requeue("g", found[0]) == 0
    assert shards.store.requeue("g", topic="u") == 0
    assert shards.store.requeue("g", []) == 0
    assert {one.body for one in shards.store.dead_letters("g", topic="t")} == {
        b"1", b"2", b"3", b"4"
    }  # fmt: skip
    assert shards.store.requeue("g") == 4
    assert list(shards.store.dead_letters("g")) == []
    again = take(shards, lease=60)
    assert sorted((one.shard, one.body, one.attempt) for one in again) == [
        (0, b"0", 1), (0, b"3", 1), (1, b"1", 1), (1, b"4", 1), (2, b"2", 1), (2, b"5", 1)
    ]  # fmt: skip


def test_dead_letters_raise_when_the_shards_are_closed(shards: ShardBench) -> None:
    found = shards.store.dead_letters("g")
    shards.close()
    with pytest.raises(ClosedError):
        next(found)
    with pytest.raises(ClosedError):
        shards.store.dead_letters("g")
    shards.open()


def test_shards_receive_over_topics(shards: ShardBench) -> None:
    for shard in range(3):
        for topic in "ab":
            shards.store.stores[shard].put(topic, f"{topic}{shard}".encode())
    shards.turn()
    with pytest.raises(MessageError, match="each topic once"):
        shards.store.receive(["a", "a"], "g")
    got = [shards.store.receive(["a", "b"], "g", lease=60)[0] for _ in range(6)]
    assert sorted(one.body for one in got) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    assert Counter(one.topic for one in got[:3]) != Counter()
    waiting = shards.store.begin_receive(["a", "b"], "g", wait=100)
    wakes: list[int] = []
    assert waiting.enter(lambda: wakes.append(1))
    shards.store.stores[1].put("b", b"late")
    shards.turn()
    assert len(wakes) == 1
    waiting.leave()
    assert [(one.shard, one.body) for one in waiting.look()] == [(1, b"late")]
    waiting.end()


def test_priorities_in_shards(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"%d" % (k % 4), keys=f"k{k}", priority=k % 4)
    batch = shards.store.put_many("t", [b"9", b"0", b"9"], keys=["a", "b", "c"], priority=[9, 0, 9])
    assert [one.queue_id for one in batch] == [9, 0, 9]
    shards.store.put_many("t", [b"8", b"8"], priority=8)
    shards.turn()
    for store in shards.store.stores:
        own = [one.body for one in store.receive("t", "own", max_count=50, lease=60)]
        head = own[:9]
        assert head == sorted(head, reverse=True)
    got = take(shards, lease=60)
    assert Counter(one.body for one in got) == {
        b"0": 4, b"1": 3, b"2": 3, b"3": 3, b"8": 2, b"9": 2
    }  # fmt: skip
    assert all(one.priority == int(one.body) for one in got)
    with pytest.raises(MessageError, match=r"priority\[1\]"):
        shards.store.put_many("t", [b"a", b"b"], priority=[1, 11])
    with pytest.raises(MessageError, match="priority, queue_id"):
        shards.store.put("t", b"a", priority=1, queue_id=1)


def test_message_group_is_in_one_shard_and_received_in_order(shards: ShardBench) -> None:
    names = [f"n{k}" for k in range(12)]
    for number in range(3):
        for name in names:
            shards.store.put(
                "t", f"{name} {number}".encode(), message_group=name, keys=f"k{number}"
            )
    shard_of = {}
    for number in range(3):
        found = take(shards, ordered=True)
        assert sorted(bodies(found)) == sorted(f"{name} {number}".encode() for name in names)
        assert take(shards, ordered=True) == []
        for one in found:
            assert shard_of.setdefault(one.message_group, one.shard) == one.shard
        shards.store.ack_many(found)
    assert set(shard_of.values()) == {0, 1, 2}
    with pytest.raises(MessageError, match="message_group: wanted text"):
        shards.store.put("t", b"x", message_group="")
