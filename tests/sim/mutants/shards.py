"""Plant bugs in timerstore/shards. Only schedules with several shards can detect them."""

from collections.abc import Sequence
from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    ShardConsumer,
    ShardedStore,
    TimerStore,
    shard_pending,
    sharded,
)
from tests.support.inside.methods import (
    SHARD_CONSUMER_BY_SHARD,
    SHARDED_CHECKED_PLACE,
    SHARDED_CLOSE_ALL,
)
from tests.support.inside.parts import release_unclosed
from timerstore.errors import TimerStoreError

_NEEDS = '"shards": {'


@mutant("SH-1", "each shard gets the whole rate instead of its share", needs='"pace_wide"')
def _not_shared_out() -> Patches:
    yield swap(shard_pending, "share_of", lambda rate, _count: rate)
    yield swap(sharded, "shared_out", lambda config, _count: config)


@mutant("SH-2", "a key belongs to another shard after reopening", needs=_NEEDS)
def _routed_anew() -> Patches:
    opened, original = ShardedStore.__init__, ShardedStore.shard_of

    def init(self: ShardedStore, path: Any, *given: Any, **named: Any) -> None:
        is_old = sharded.Disk().exists(sharded.ShardsTree(sharded.Path(path)).cluster_json)
        opened(self, path, *given, **named)
        vars(self)["shift"] = int(is_old)

    def shard_of(self: ShardedStore, key: str) -> int:
        return (original(self, key) + vars(self)["shift"]) % len(self.stores)

    yield swap(ShardedStore, "__init__", init)
    yield swap(ShardedStore, "shard_of", shard_of)


@mutant("SH-3", "handles of several shards all go to the first shard", needs='"cancel_many_wide"')
def _cancelled_elsewhere() -> Patches:
    original = SHARDED_CHECKED_PLACE.value

    def place(self: ShardedStore, given: object) -> tuple[int, Any]:
        shard, handle = original(self, given)
        return (0, handle) if isinstance(handle, str) else (shard, handle)

    yield swap(*SHARDED_CHECKED_PLACE, place)


@mutant("SH-4", "a group commits in one shard only", needs=_NEEDS)
def _committed_in_one() -> Patches:
    original = SHARD_CONSUMER_BY_SHARD.value

    def by_shard(self: ShardConsumer, through: Any) -> Any:
        return dict(list(original(self, through).items())[:1])

    yield swap(*SHARD_CONSUMER_BY_SHARD, by_shard)


@mutant("SH-5", "the last shard is neither synced nor closed", needs=_NEEDS)
def _last_not_closed() -> Patches:
    original = SHARDED_CLOSE_ALL.value

    def close_all(stores: Sequence[TimerStore]) -> list[BaseException]:
        for last in stores[-1:]:
            release_unclosed(last)
        return original(stores[:-1])

    yield swap(*SHARDED_CLOSE_ALL, close_all)


class _Lying:
    """A disk whose explicit syncs of names have no effect."""

    sync_directory = staticmethod(nothing)

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


@mutant("SH-6", "the name of an existing cluster.json is not made durable", needs=_NEEDS)
def _name_not_durable() -> Patches:
    original = sharded.cluster_json.ensure
    yield swap(sharded.cluster_json, "ensure", lambda disk, *given: original(_Lying(disk), *given))


@mutant("SH-7", "a shard that cannot be closed keeps the following shards open", needs=_NEEDS)
def _others_stay_open() -> Patches:
    def close_all(stores: Sequence[TimerStore]) -> list[BaseException]:
        for store in stores:
            try:
                store.close()
            except TimerStoreError as error:
                return [error]
        return []

    yield swap(*SHARDED_CLOSE_ALL, close_all)
