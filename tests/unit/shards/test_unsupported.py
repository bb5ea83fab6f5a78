"""ShardedStore has every call of TimerStore, or a documented reason."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.bench import NOW
from tests.support.shards import ShardBench
from timerstore import MessageError, ShardedStore, TimerStore
from timerstore.shards.unsupported import UNSUPPORTED, UNSUPPORTED_ARGUMENTS


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _arguments(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method).parameters)


def test_every_public_name_exists_or_has_reason() -> None:
    assert _public(TimerStore) - _public(ShardedStore) == UNSUPPORTED.keys()
    assert all(len(why) > 30 for why in UNSUPPORTED.values())


def test_every_argument_exists_or_has_reason() -> None:
    lacking = set()
    for name in _public(TimerStore) & _public(ShardedStore):
        ours, theirs = getattr(ShardedStore, name), getattr(TimerStore, name)
        if isinstance(theirs, property):
            continue
        taken = _arguments(ours)
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
            continue  # handed on as they are
        lacking |= {f"{name} {one}" for one in _arguments(theirs).keys() - taken.keys()}
    renamed = {  # a receipt that names its shard, by position
        one for one in lacking if one.endswith((" receipt_or_handle", " receipts_or_handles"))
    }
    assert lacking - renamed == UNSUPPORTED_ARGUMENTS.keys()


def test_missing_call_names_reason_and_alternative(shards: ShardBench) -> None:
    store: Any = shards.store
    for name, why in UNSUPPORTED.items():
        with pytest.raises(AttributeError) as caught:
            getattr(store, name)
        assert str(caught.value) == f"a ShardedStore has no {name!r}: {why}"
        assert not hasattr(store, name)
    with pytest.raises(AttributeError, match=r"^a ShardedStore has no 'puut'$"):
        store.puut("t", b"x")


def test_counts_are_summed_over_shards(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"x", keys=f"k{k}", delay=4 if k % 2 else 30)
    shards.turn()
    spread = shards.store.timing_distribution()
    assert spread[5_000 if 5_000 in spread else 5] == 6
    assert sum(spread.values()) == 12
    slots = shards.store.congestion()
    assert list(slots) == sorted(slots)
    assert list(slots.values()) == [6, 6]
    assert (shards.store.path, shards.store.clock) == (shards.root, shards.clock)


def test_offset_at_reads_queue_of_shard(shards: ShardBench) -> None:
    receipt = shards.store.put("t", b"x", keys="k")
    shards.turn()
    assert shards.store.offset_at("t", 0, NOW, shard=receipt.shard) == 0
    assert shards.store.offset_at("t", 0, NOW + 1, shard=receipt.shard) == 1
    with pytest.raises(MessageError, match="shard: wanted 0 to 2, got 3"):
        shards.store.offset_at("t", 0, NOW, shard=3)
    begun = shards.store.begin_pull("t", 0, 0, shard=receipt.shard)
    assert [one.body for one in begun.look().messages] == [b"x"]
    assert len(shards.store.begin_pull_batch("t", 0, 0, shard=receipt.shard).look()) == 1


def test_consumer_of_shards_rejects_queues(shards: ShardBench) -> None:
    with pytest.raises(MessageError, match="queues: a queue is one of a shard"):
        shards.store.consumer("t", "g", queues=[0])


def test_pull_of_single_store_rejects_shard(shards: ShardBench) -> None:
    shards.store.put("t", b"x", keys="k")
    single = shards.store.stores[0]
    for call in (single.pull, single.pull_batch, single.begin_pull, single.begin_pull_batch):
        with pytest.raises(MessageError, match="shard: this store has no shards, got 0"):
            call("t", 0, 0, shard=0)
    with pytest.raises(MessageError, match="shard: this store has no shards"):
        single.offset_at("t", 0, NOW, shard=0)
