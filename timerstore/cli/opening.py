"""Open a store, or a directory of shards, for a command, or connect to a served store.

Nothing here creates a directory.

Raises: CommandError if the path has no store; LockedError if another process has it open;
UnavailableError if no server listens at an address.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore import store as single
from timerstore._engine.base.net_loader import load_net
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import CommandError
from timerstore.cli.params import StorePlace, StoreUrl
from timerstore.shards import ShardedStore, cluster, open_shards
from timerstore.shards.kinds import Kind, kind_of
from timerstore.shards.shard_paths import ShardsTree
from timerstore.store import ConnectedStore, TimerStore, connect
from timerstore.types.config import StoreConfig

Store = TimerStore | ShardedStore | ConnectedStore

_CONNECT_S = 5.0  # a person waits for a command


def require(path: Path, *kinds: Kind) -> Kind:
    """Return the kind of a directory; raise CommandError unless it is one of `kinds`."""
    found = kind_of(path)
    if found in kinds:
        return found
    wanted = " or ".join(_NAMES[one] for one in kinds)
    if found is not Kind.NOTHING:
        one = ShardsTree(path).shard(0)
        got = _NAMES[found]
        do = f"give one shard, such as {one}" if found is Kind.SHARDS else ""
    elif not path.exists():
        got, do = "nothing", f"check the path, or create a store: timerstore init {path}"
    else:
        got = "a directory without a store" if path.is_dir() else "a file"
        do = "check the path"
    raise CommandError("no store at this path", where=path, wanted=wanted, got=got, do=do)


_NAMES = {
    Kind.STORE: "a store",
    Kind.SHARDS: "a directory of shards",
    Kind.BACKUP: "a backup",
}


@contextmanager
def opened(
    place: StorePlace, config: StoreConfig | None = None, *, threads: bool = True
) -> Iterator[Store]:
    """Open a store or shards, or connect to a server.

    The services run on threads unless `threads` is False. Those of a server run in its process.
    """
    if isinstance(place, StoreUrl):
        with connected(place, config) as found:
            yield found
    elif require(place, Kind.STORE, Kind.SHARDS) is Kind.SHARDS:
        with open_shards(place, None, config, threads=threads) as shards:
            yield shards
    else:
        with single.open(place, config, threads=threads) as store:
            yield store


@contextmanager
def opened_single(path: Path, config: StoreConfig | None = None) -> Iterator[TimerStore]:
    """Open a store that must not be a directory of shards."""
    require(path, Kind.STORE)
    with single.open(path, config) as store:
        yield store


@contextmanager
def connected(
    place: StoreUrl, config: StoreConfig | None = None, *, connect_timeout_s: float = _CONNECT_S
) -> Iterator[ConnectedStore]:
    """Connect to a server."""
    if config is not None:
        raise CommandError(
            "-c: settings are those of the process that has the store open",
            where=place,
            do="leave out -c, or give it to `timerstore serve`",
        )
    is_tls = place.url.lower().startswith("tls:")
    token = None
    if place.token_file is not None:
        token = load_net("access").read_token(place.token_file)
    with connect(
        place.url,
        token=token,
        tls=_tls(place.tls_ca) if is_tls else None,
        connect_timeout=connect_timeout_s,
    ) as store:
        yield store


def _tls(authorities: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise CommandError(
            "the certificates cannot be read",
            where=authorities,
            wanted="certificates in PEM",
            got=error.strerror or str(error),
        ) from error


def stores_in(path: Path) -> dict[int | None, Path]:
    """Return the directory of each store by shard number; a single store has the key None."""
    if require(path, Kind.STORE, Kind.SHARDS) is Kind.STORE:
        return {None: path}
    tree = ShardsTree(path)
    count = cluster.require(Disk(), path).shard_count
    return {shard: tree.shard(shard) for shard in range(count)}


def parts_of(store: Store) -> dict[int | None, TimerStore | ConnectedStore]:
    """Return each open store by shard number, with the keys of `stores_in`."""
    if isinstance(store, ShardedStore):
        return dict(enumerate(store.stores))
    return {None: store}
