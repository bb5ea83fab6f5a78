"""Find the stores of a path, and take snapshots of shards, for readers without a lock.

Thread safety: any thread; the functions only read.
"""

from collections.abc import Sequence
from pathlib import Path

from timerstore._engine.format.store_paths import shard_number
from timerstore._engine.snapshot.position import Snapshot, empty, take
from timerstore._engine.storage.disk import Disk
from timerstore.shards import cluster
from timerstore.shards.shard_paths import ShardsTree

_FIRST_NAMES = frozenset({"lock"})
"""Files that an owner creates before any other file of a store."""


def find_stores(paths: Sequence[Path]) -> dict[int, Path]:
    """Return each store by shard number. Numbers continue from one path to the next."""
    disk = Disk()
    found: dict[int, Path] = {}
    for path in paths:
        known = cluster.load(disk, ShardsTree(path))
        first = len(found)
        if known is None:
            found[first] = path
            continue
        tree = ShardsTree(path)
        found.update({first + n: tree.shard(n) for n in range(known.shard_count)})
    return found


def is_unopened(root: Path) -> bool:
    """Return whether a store is a shard that was never opened, or that is being created."""
    disk, tree = Disk(), ShardsTree(root.parent)
    is_shard = shard_number(root.name) is not None and disk.exists(tree.cluster_json)
    return is_shard and disk.is_directory(root) and {*disk.list(root)} <= _FIRST_NAMES


def take_shard(root: Path, precision_ms: int | None = None) -> Snapshot:
    """Take a snapshot of a store. A shard that was never opened, or is being created, is empty."""
    return empty(root) if is_unopened(root) else take(root, precision_ms)
