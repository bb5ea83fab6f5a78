"""Untaken: what is committed, and is not yet in the log of every shard.

Who reads the shards' files alone, to move what waits elsewhere, would leave it behind.

Threads:  none; nothing here takes a lock or writes.
Holds:    what was committed before the call is named here, or is in the files of every shard.
Source:   docs/decisions/0008-deduplication-and-ingest.md.
"""

import time
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part
from timerstore._engine.snapshot.columns.transactions import transactions
from timerstore._engine.snapshot.position import take
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards import cluster as cluster_json
from timerstore.shards import manifest as manifests
from timerstore.shards.shard_paths import ShardsTree

_SHOWN = 3  # versions that an error names
_LOOK_S = 0.25

_Version = tuple[str, int]  # of a source


class PendingPart(NamedTuple):
    """A committed version, and the shards whose logs have it not, or not whole."""

    source: str
    version: int
    shards: tuple[int, ...]


def pending_parts(root: Path) -> list[PendingPart]:
    """Give them by source and version; of what is no directory of shards, none."""
    disk, tree = Disk(), ShardsTree(root)
    shards = _shards(disk, tree)
    return _left(disk, shards, _committed(disk, tree)) if shards else []


def _shards(disk: Disk, tree: ShardsTree) -> list[Path]:
    cluster = cluster_json.load(disk, tree)
    return [] if cluster is None else [tree.shard(k) for k in range(cluster.shard_count)]


def _committed(disk: Disk, tree: ShardsTree) -> list[_Version]:
    return [
        (source, version)
        for source in sorted(manifests.sources(disk, tree))
        for version in manifests.versions(disk, tree, source)
    ]


def _left(disk: Disk, shards: list[Path], committed: list[_Version]) -> list[PendingPart]:
    """What of these is not in every log, which are looked at after them: what an owner takes in
    between is in them then.
    """
    if not committed:
        return []
    taken = [_taken(disk, shard) for shard in shards]
    found = (
        PendingPart(*one, tuple(shard for shard, known in enumerate(taken) if one not in known))
        for one in committed
    )
    return [one for one in found if one.shards]


def _taken(disk: Disk, shard: Path) -> set[_Version]:
    files = Tree(shard)
    if not disk.exists(files.commit_log) and not disk.exists(files.watermark):
        return set()  # nobody has opened it yet
    store = take(shard)
    part = Part.whole(store, "transactions")
    return {(one.source, one.version) for one in transactions(part, Bounds())}


def refuse_pending(root: Path, patience_s: float = 0.0) -> None:
    """Raise ConfigError where something is committed by now and not taken in. So long is waited for
    who has the shards open: he takes it in, and his next checkpoint shows it.
    """
    disk, tree = Disk(), ShardsTree(root.absolute())
    shards = _shards(disk, tree)
    if not shards:
        return
    until_s = time.monotonic() + patience_s
    found = _left(disk, shards, _committed(disk, tree))
    while found and time.monotonic() < until_s and _is_open(disk, shards):
        time.sleep(_LOOK_S)
        found = _left(disk, shards, [(one.source, one.version) for one in found])
    if not found:
        return
    some = "; ".join(
        f"source {one.source!r} version {one.version} is not in shards {list(one.shards)}"
        for one in found[:_SHOWN]
    )
    count = (
        f"{len(found):,} committed versions were" if len(found) > 1 else "1 committed version was"
    )
    raise ConfigError(
        f"{root}: {count} not taken in: run ingest first (`timerstore-spark ingest --path {root}`, "
        f"timerstore.shards.ingest), which says what holds them up; who has it open takes them in "
        f"by itself, within seconds: {some}"
    )


def _is_open(disk: Disk, shards: list[Path]) -> bool:
    """Whether one of the shards has its mark of being open."""
    return any(disk.exists(Tree(shard).abort) for shard in shards)
