"""Calls to several shards: handles, queries, pulls, statistics, groups."""

import threading
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.shards import ShardBench, shard_of
from timerstore import (
    CancelResult,
    ClosedError,
    MessageError,
)


def test_handle_names_shard_and_is_valid_after_reopening(shards: ShardBench) -> None:
    receipts = [shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=60) for k in range(12)]
    assert {one.shard for one in receipts} == {0, 1, 2}
    for one in receipts:
        assert one.handle.startswith(f"s{one.shard:05d}.")
    shards.reopen()
    assert shards.store.cancel(receipts[0].handle) == CancelResult.CANCELLED
    assert shards.store.cancel(receipts[0]) == CancelResult.ALREADY_CANCELLED
    moved = shards.store.reschedule(receipts[1].handle, delay=90)
    assert moved.shard == receipts[1].shard
    assert moved.handle != receipts[1].handle
    assert moved.message_id == receipts[1].message_id
    shards.turn(60_000)
    assert shards.counted() == {b"%d" % k: 1 for k in range(2, 12)}
    shards.turn(30_000)
    assert shards.counted() == {b"%d" % k: 1 for k in range(1, 12)}


def test_cancel_many_returns_results_in_order(shards: ShardBench) -> None:
    receipts = [shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=60) for k in range(12)]
    shards.store.cancel(receipts[5])
    asked = [receipts[11], *(one.handle for one in receipts[4:7]), receipts[0]]
    wrong = "s00002.@"
    with pytest.raises(MessageError, match=r"receipts_or_handles\[5\]: handle"):
        shards.store.cancel_many([*asked, wrong])
    answers = shards.store.cancel_many(asked)
    wanted = [CancelResult.CANCELLED] * 5
    wanted[2] = CancelResult.ALREADY_CANCELLED
    assert answers == wanted
    shards.turn(60_000)
    assert shards.counted() == {b"%d" % k: 1 for k in (1, 2, 3, 7, 8, 9, 10)}


@pytest.mark.parametrize(
    "handle", ["", "djEgb3JkZXJz", "s00003.djEg", "s3.djEg", "s00000.", "s00001.@", 5, None]
)
def test_cancel_rejects_handle_without_shard(shards: ShardBench, handle: object) -> None:
    with pytest.raises(MessageError, match="handle"):
        shards.store.cancel(handle)  # type: ignore[arg-type]


def test_histogram_begins_at_store_clock(shards: ShardBench) -> None:
    for k in range(9):
        shards.store.put("t", b"x", keys=f"k{k}", deliver_ms=NOW + 60_000 * (k + 1))
    shards.turn()
    found = shards.store.histogram()
    alone = shards.store.stores[0].histogram()
    assert found.edges.tolist() == alone.edges.tolist()
    assert int(found.counts.sum()) == 9


def test_pending_is_ordered_by_due_time_over_all_shards(shards: ShardBench) -> None:
    for k in (5, 3, 9, 1, 7, 2, 8):
        shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=k)
    shards.turn()
    found = list(shards.store.pending())
    assert [one.due_ms for one in found] == [NOW + 1000 * k for k in (1, 2, 3, 5, 7, 8, 9)]
    assert [one.due_ms for one in shards.store.pending(begin_ms=NOW + 8000)] == [
        NOW + 8000, NOW + 9000,
    ]  # fmt: skip
    assert {shards.store.cancel(one.handle) for one in found} == {CancelResult.CANCELLED}


def test_query_merges_all_shards(shards: ShardBench) -> None:
    for k in range(6):
        shards.store.put("t", b"%d" % k, keys=[f"k{k}", "common"])
    shards.store.put("t", b"waits", keys="common", delay=60)
    shards.turn()
    found = shards.store.query("t", "common")
    assert {one.body for one in found} == {b"waits", *(b"%d" % k for k in range(6))}
    for one in found:
        first = one.keys[0]
        assert one.shard == shard_of(first)
    waiting = next(one for one in found if one.waits)
    assert shards.store.cancel(waiting.handle) == CancelResult.CANCELLED
    assert len(shards.store.query("t", "common", max_count=2)) == 2


def test_query_keeps_order_of_each_shard_when_clock_was_set_back(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"%d" % k, keys=[f"k{k}", "common"])
        shards.clock.set(shards.clock.now_ms - 1000)
    shards.turn()
    found = shards.store.query("t", "common")
    assert len(found) == 12
    for shard in range(3):
        bodies = [int(one.body) for one in found if one.shard == shard]
        assert bodies == sorted(bodies)


def test_pull_requires_shard(shards: ShardBench) -> None:
    shard = shards.store.put("t", b"x", keys="a").shard
    shards.turn()
    assert [m.body for m in shards.store.pull("t", 0, 0, shard=shard).messages] == [b"x"]
    assert shards.store.pull_batch("t", 0, 0, shard=shard)[0].body == b"x"
    for wrong in (3, -1, "0", True):
        with pytest.raises(MessageError, match="shard: wanted 0 to 2"):
            shards.store.pull("t", 0, 0, shard=wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match=f"shard {shard}: .*queue"):
        shards.store.pull("t", 5, 0, shard=shard)


def test_stats_are_sums_and_largest_times(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"x", keys=f"k{k}", delay=60)
    shards.turn()
    stats = shards.store.stats()
    assert stats["pending_messages"] == 12
    assert stats["pending_by_topic"] == {"t": 12}
    assert stats["shard_count"] == 3
    assert sum(one["pending_messages"] for one in stats["by_shard"]) == 12
    assert stats["delivery_lag_ms"] == 0
    for k in range(12):
        shards.store.put("t", b"x", keys=f"k{k}")
    for one in shards.store.stats()["by_shard"]:
        assert one["log_durable_bytes"] < one["log_end_bytes"]
    shards.store.flush()
    flushed = shards.store.stats()
    assert flushed["log_durable_bytes"] == flushed["log_end_bytes"]
    assert shards.store.topics()["t"] == 1


def test_consumer_reads_all_shards_and_continues_at_committed_offsets(shards: ShardBench) -> None:
    for k in range(30):
        shards.store.put("t", b"%d" % k, keys=f"k{k}")
    shards.turn()
    with shards.store.consumer("t", "g", wait=0) as consumer:
        first = consumer.poll(10)
        assert len(first) == 10
        consumer.commit()
        rest = consumer.poll(7)
        done = consumer.commit(rest[0])
        assert list(done) == [(rest[0].shard, 0)]
    shards.reopen()
    assert sum(shards.store.committed("t", "g").values()) == 11
    with shards.store.consumer("t", "g", wait=0) as consumer:
        again = list(consumer)
        bodies = {m.body for m in [*first, rest[0], *again]}
        assert len(bodies) == 30
        assert len(again) == 19
        assert consumer.seek(time_ms=0) == {(k, 0): 0 for k in range(3)}
        assert len(list(consumer)) == 30
        consumer.commit({(1, 0): 2})
        assert shards.store.committed("t", "g")[1, 0] >= 2
        for wrong in ({0: 1}, {(3, 0): 1}, {(0,): 1}, 5, "x", []):
            with pytest.raises(MessageError, match="commit"):
                consumer.commit(wrong)  # type: ignore[arg-type]


def test_consumer_reads_other_shards_when_one_is_long(shards: ShardBench) -> None:
    per_shard: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for k in range(60):
        per_shard[shard_of(f"k{k}")].append(f"k{k}")
    for keys in per_shard.values():
        for key in keys[:10]:
            shards.store.put("t", key.encode(), keys=key)
    shards.turn()
    with shards.store.consumer("t", "g", wait=0) as consumer:
        assert {consumer.poll(10)[0].shard for _ in range(3)} == {0, 1, 2}


def test_consumer_wakes_for_message_of_any_shard(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "s", 3, small()) as store:
        for shard in range(3):
            key = next(f"k{k}" for k in range(99) if shard_of(f"k{k}") == shard)
            with store.consumer("t", f"g{shard}") as consumer:
                consumer.poll(100)
                got: list[timerstore.Message] = []
                waiter = threading.Thread(target=lambda c=consumer, g=got: g.append(next(c)))
                waiter.start()
                store.put("t", b"x", keys=key)
                waiter.join(30)
                assert [one.body for one in got] == [b"x"]
                consumer.commit()


def test_close_ends_waiting_consumers(tmp_path: Path) -> None:
    store = timerstore.open_shards(tmp_path / "s", 2, small())
    consumer = store.consumer("t", "g")
    ended = threading.Event()

    def wait() -> None:
        assert list(consumer) == []
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    store.close()
    assert ended.wait(30)
    waiter.join()
    for call in (store.flush, store.stats, lambda: store.put("t", b"x"), lambda: consumer.poll(1)):
        with pytest.raises(ClosedError):
            call()
    store.close()
