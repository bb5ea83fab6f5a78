"""A store, or a directory of shards, taken for a command that changes it.

Holds:    no command but `init` and `restore` makes a directory.
Fails:    CommandError where there is no store; LockedError where another process has it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore import store as single
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import CommandError
from timerstore.config import StoreConfig
from timerstore.shards import ShardedStore, cluster, open_shards
from timerstore.shards.kinds import Kind, kind_of
from timerstore.shards.shard_paths import ShardsTree
from timerstore.store import TimerStore

Store = TimerStore | ShardedStore


def require(path: Path, *kinds: Kind) -> Kind:
    """Tell what a folder is; CommandError where it is none of `kinds`."""
    found = kind_of(path)
    if found in kinds:
        return found
    wanted = " or ".join(_NAMES[one] for one in kinds)
    if found is not Kind.NOTHING:
        one = ShardsTree(path).shard(0)
        got = _NAMES[found]
        do = f"each shard by itself, as {one}" if found is Kind.SHARDS else ""
    elif not path.exists():
        got, do = "nothing", f"look at the path, or make a store there: timerstore init {path}"
    else:
        got = "a folder without one" if path.is_dir() else "a file"
        do = "look at the path"
    raise CommandError("no store there", where=path, wanted=wanted, got=got, do=do)


_NAMES = {
    Kind.STORE: "a store",
    Kind.SHARDS: "a directory of shards",
    Kind.BACKUP: "a backup",
}


@contextmanager
def opened(
    path: Path, config: StoreConfig | None = None, *, threads: bool = True
) -> Iterator[Store]:
    """Open what is there; its services run, unless `threads` is off."""
    if require(path, Kind.STORE, Kind.SHARDS) is Kind.SHARDS:
        with open_shards(path, None, config, threads=threads) as shards:
            yield shards
    else:
        with single.open(path, config, threads=threads) as store:
            yield store


@contextmanager
def opened_single(path: Path, config: StoreConfig | None = None) -> Iterator[TimerStore]:
    """Open a store that must not be a directory of shards."""
    require(path, Kind.STORE)
    with single.open(path, config) as store:
        yield store


def stores_in(path: Path) -> dict[int | None, Path]:
    """Give the folder of each store, by shard; None: there is one, without a number."""
    if require(path, Kind.STORE, Kind.SHARDS) is Kind.STORE:
        return {None: path}
    tree = ShardsTree(path)
    count = cluster.require(Disk(), path).shard_count
    return {shard: tree.shard(shard) for shard in range(count)}


def parts_of(store: Store) -> dict[int | None, TimerStore]:
    """Give each open store by shard, as `stores_in` does."""
    if isinstance(store, TimerStore):
        return {None: store}
    return dict(enumerate(store.stores))
