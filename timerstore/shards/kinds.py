"""Determine what a folder holds, without opening it."""

from enum import StrEnum
from pathlib import Path

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.maintenance.backup import MANIFEST
from timerstore._engine.storage.disk import Disk
from timerstore.shards.shard_paths import ShardsTree


class Kind(StrEnum):
    """What a folder holds."""

    STORE = "store"
    SHARDS = "shards"
    BACKUP = "backup"
    NOTHING = "nothing"


def kind_of(path: Path) -> Kind:
    """Return what a folder holds, without opening it."""
    disk, tree = Disk(), Tree(path)
    if disk.exists(ShardsTree(path).cluster_json):
        return Kind.SHARDS
    if disk.exists(path / MANIFEST):
        return Kind.BACKUP
    if disk.is_directory(tree.commit_log) or disk.is_directory(tree.side):
        return Kind.STORE
    return Kind.NOTHING
