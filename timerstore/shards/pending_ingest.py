"""Find committed rows that are not in the log of every shard yet.

A program that reads only the files of the shards, to move pending messages elsewhere, would miss
these rows.

Thread safety: any thread; nothing here takes a lock or writes.
Invariants: every version that was committed before the call is returned, or is in the files of
every shard.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import time
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, transactions
from timerstore._engine.snapshot.position import take
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError
from timerstore.shards import cluster as cluster_json
from timerstore.shards import manifest as manifests
from timerstore.shards.shard_paths import ShardsTree

_SHOWN = 3  # versions that an error names
_POLL_S = 0.25

_Version = tuple[str, int]  # of a source


class PendingPart(NamedTuple):
    """A committed version, and the shards whose logs do not have all its rows."""

    source: str
    version: int
    shards: tuple[int, ...]


def pending_parts(root: Path) -> list[PendingPart]:
    """Return the pending parts by source and version; none if `root` has no cluster.json."""
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
    """Return the versions that are not in every log. The logs are read after the manifests, so they
    contain the versions that an owner ingests in between.
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
        return set()  # it has never been opened
    store = take(shard)
    part = Part.whole(store, "transactions")
    return {(one.source, one.version) for one in transactions(part, Bounds())}


def refuse_pending(root: Path, patience_s: float = 0.0) -> None:
    """Raise ConfigError if committed rows are not ingested yet.

    If a process has the shards open, wait up to `patience_s` seconds: it ingests the rows, and its
    next checkpoint shows them.
    """
    disk, tree = Disk(), ShardsTree(root.absolute())
    shards = _shards(disk, tree)
    if not shards:
        return
    until_s = time.monotonic() + patience_s
    found = _left(disk, shards, _committed(disk, tree))
    while found and time.monotonic() < until_s and _is_open(disk, shards):
        time.sleep(_POLL_S)
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
        f"{root}: {count} not ingested: run ingest first (`timerstore-spark ingest --path {root}`, "
        f"timerstore.shards.ingest), which shows what prevents it; a process that has the shards "
        f"open ingests them by itself, within seconds: {some}"
    )


def _is_open(disk: Disk, shards: list[Path]) -> bool:
    """Return whether one of the shards has the mark of an open store."""
    return any(disk.exists(Tree(shard).abort) for shard in shards)
