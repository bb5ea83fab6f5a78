"""Replace, spread, levels and rates over several shards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, small
from tests.support.shards import ShardBench
from timerstore import CancelResult, ConfigError, MessageError, StoreConfig, open_shards
from timerstore.shards.rate_share import share_of, shared_out

# --- the newest of a key --------------------------------------------------------------------------


def test_replace_delivers_newest_message_of_key(shards: ShardBench) -> None:
    store = shards.store
    receipts = {}
    for k in range(10):
        for version in (b"old", b"new"):
            key = f"k{k}"
            receipt = store.put("t", version + b"%d" % k, key=key, replace=True, delay=30)
            assert receipt.shard == store.shard_of(key)
            receipts[version, k] = receipt
    assert store.cancel(receipts[b"old", 3]) == CancelResult.ALREADY_CANCELLED
    shards.reopen()
    again = shards.store.put("t", b"last", key="k5", keys=["zz"], replace=True, delay=30)
    assert again.shard == shards.store.shard_of("k5")
    shards.turn(30_000)
    wanted = {b"new%d" % k: 1 for k in range(10) if k != 5}
    assert shards.counted() == {**wanted, b"last": 1}


def test_wait_at_most_bounds_replaced_messages(shards: ShardBench) -> None:
    for _ in range(3):
        shards.store.put("t", b"x", key="k", replace=True, delay=30, wait_at_most=60)
        shards.turn(20_000)
    assert shards.counted() == {b"x": 1}
    assert [one.due_ms for one in shards.store.query("t", "k")] == [NOW + 60_000]


def test_unique_put_finds_the_message_in_the_shard_of_its_key(shards: ShardBench) -> None:
    store = shards.store
    first = [store.put("t", b"1", key=f"k{k}", keys=["zz"], unique=True) for k in range(8)]
    again = [store.put("t", b"2", key=f"k{k}", unique=True) for k in range(8)]
    assert [one.message_id for one in again] == [one.message_id for one in first]
    assert all(
        one.duplicate and one.shard == store.shard_of(f"k{k}") for k, one in enumerate(again)
    )
    shards.turn()
    store.ack_many(store.receive("t", "g", max_count=100))
    shards.reopen()
    assert not any(
        shards.store.put("t", b"3", key=f"k{k}", unique=True).duplicate for k in range(8)
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"replace": True}, "key: wanted one with replace=True"),
        ({"key": "k"}, "replace: wanted True with key"),
        ({"wait_at_most": 5}, "replace: wanted True with wait_at_most"),
        ({"key": "a b", "replace": True}, "key: wanted text without spaces"),
        ({"key": 5, "replace": True}, "key: wanted text"),
        ({"key": "", "replace": True}, "key: wanted text"),
        ({"key": "k", "replace": 1}, "replace: wanted True or False, got 1"),
        ({"key": "k", "replace": True, "level": 2}, "level: does not go with"),
        ({"key": "k", "replace": True, "message_id": "i"}, "message_id: does not go with"),
        ({"key": "k", "replace": True, "wait_at_most": -1}, "wait_at_most"),
    ],
)
def test_put_rejects_conflicting_arguments(
    shards: ShardBench, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        shards.store.put("t", b"x", **given)
    shards.turn()
    assert not list(shards.store.pending())
    assert shards.counted() == {}


# --- spread, level --------------------------------------------------------------------------------


@pytest.fixture
def seeded(tmp_path: Path) -> ShardBench:
    return ShardBench(tmp_path / "seeded", 3, replace(small(), spread_seed=7))


def test_spread_put_is_due_within_window(seeded: ShardBench) -> None:
    due = [seeded.store.put("t", b"x", delay=60, spread=10).due_ms for _ in range(120)]
    assert len(set(due)) > 100, "shards with one seed draw one after the other, not alike"
    assert NOW + 60_000 <= min(due) < NOW + 60_500
    assert NOW + 69_500 < max(due) < NOW + 70_000
    seeded.close()


def test_spread_put_many_is_even_over_all_shards(seeded: ShardBench) -> None:
    keys = [f"k{k}" for k in range(100)]
    batch = seeded.store.put_many("t", [b"x"] * 100, keys=keys, delay=60, spread=10)
    assert len({one.shard for one in batch}) == 3
    due = np.array([one.due_ms for one in batch])
    assert set(np.diff(due).tolist()) <= {99, 100, 101}
    assert NOW + 60_000 <= due[0] < NOW + 60_100
    assert len(seeded.store.put_many("t", [], spread=10)) == 0
    seeded.close()


def test_put_many_with_level(shards: ShardBench) -> None:
    keys = [f"k{k}" for k in range(12)]
    batch = shards.store.put_many("t", [key.encode() for key in keys], keys=keys, level=1)
    assert {one.shard for one in batch} == {0, 1, 2}
    assert {one.due_ms for one in batch} == {NOW + 1000}
    assert set(batch.handles) == {""}
    shards.turn(999)
    assert shards.counted() == {}
    shards.turn(1)
    assert shards.counted() == {key.encode(): 1 for key in keys}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"spread": -1}, "spread"),
        ({"spread": "x"}, "spread"),
        ({"spread": 5, "level": 2}, "spread: a fixed level has its own time"),
        ({"spread": 1e12, "delay": 1}, "spread"),
        ({"level": 0}, "level: wanted a whole number from 1 on"),
        ({"level": 2, "delay": 5}, "time: wanted one of"),
    ],
)
def test_put_rejects_invalid_spread_and_level(
    shards: ShardBench, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        shards.store.put("t", b"x", **given)
    with pytest.raises(MessageError, match=text):
        shards.store.put_many("t", [b"x"] * 4, keys=list("abcd"), **given)
    assert not list(shards.store.pending())


# --- pace -----------------------------------------------------------------------------------------


def burst(shards: ShardBench, count: int = 40) -> None:
    for store in shards.store.stores:
        store.put_many("t", [b"%d" % k for k in range(count)], deliver_ms=NOW + 1000)
    shards.turn()


def come(shards: ShardBench, ms: int, step_ms: int = 100) -> int:
    for _ in range(ms // step_ms):
        shards.turn(step_ms)
    return sum(shards.counted().values())


def test_rate_of_all_shards_never_exceeds_limit(shards: ShardBench) -> None:
    shards.store.pace("t", 10)
    burst(shards)
    assert come(shards, 1000) == 3  # one of each
    for second in range(1, 5):
        assert 5 * second < come(shards, 1000) - 3 <= 10 * second
    for shard in shards.bodies():
        assert shard == [b"%d" % k for k in range(len(shard))]  # in order
    assert shards.store.explain(next(shards.store.pending())).state == "pending"
    shards.store.pace("t", None)
    shards.turn()
    assert sum(shards.counted().values()) == 120


def test_shard_delivers_only_its_share_of_rate(shards: ShardBench) -> None:
    shards.store.pace("t", 30)
    shards.store.stores[1].put_many("t", [b"x"] * 100, deliver_ms=NOW + 1000)
    shards.turn()
    assert come(shards, 3000) == 1 + 20


def test_topic_rates_are_divided_among_shards(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "rates", 4, small(topic_rates="t=10 mail=0.5"))
    assert bench.store.config.topic_rates == "t=10 mail=0.5"
    assert {one.config.topic_rates for one in bench.store.stores} == {"t=2.500 mail=0.125"}
    burst(bench)
    assert come(bench, 1000) == 4
    assert come(bench, 4000) - 4 <= 40
    bench.reopen()
    assert bench.store.config.topic_rates == "t=10 mail=0.5"
    bench.close()


def test_rate_shares_are_rounded_down() -> None:
    assert share_of(1, 3) == 0.333
    assert share_of(0.3, 3) == 0.1
    assert share_of(1_000_000, 1) == 1_000_000
    assert share_of(0.004, 4) == 0.001
    for rate in (0.003, 0.0039):
        with pytest.raises(MessageError, match=r"wanted at least 0.001 for each of 4 shards"):
            share_of(rate, 4)
    assert shared_out(StoreConfig(), 4) == StoreConfig()
    wide = shared_out(StoreConfig(topic_rates="a=1000000 b=0.1"), 3)
    assert wide.topic_rates == "a=333333.333 b=0.033"


def test_pace_rejects_rate_that_cannot_be_divided(shards: ShardBench, tmp_path: Path) -> None:
    for rate in (0, -1, 1_000_001, "5", True, float("nan")):
        with pytest.raises(MessageError, match="per_second: wanted"):
            shards.store.pace("t", rate)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match=r"for each of 3 shards, got 0\.002"):
        shards.store.pace("t", 0.002)
    with pytest.raises(MessageError, match="topic"):
        shards.store.pace("no topic", 1)
    config = small(topic_rates="t=0.002 mail=0.001")
    with pytest.raises(ConfigError, match="topic_rates: mail: wanted at least") as caught:
        open_shards(tmp_path / "few", 3, config, threads=False)
    assert len(caught.value.problems) == 2
    open_shards(tmp_path / "few", 3, small(), threads=False).close()  # none stayed open
