"""Untaken: what is committed, and is not yet in the log of every shard.

Who reads the shards' files alone, to move what waits elsewhere, would leave it behind.

Threads:  none; nothing here takes a lock or writes.
Holds:    what was committed before the call is named here, or is in the files of every shard.
Source:   decision 0019.
"""

from pathlib import Path
from typing import NamedTuple

from timerstore.columns.scan import Bounds, Part
from timerstore.columns.snapshot import take
from timerstore.columns.transactions import transactions
from timerstore.errors import ConfigError
from timerstore.files.disk import Disk
from timerstore.shards import cluster as cluster_json
from timerstore.shards import manifest as manifests
from timerstore.shards.tree import ShardsTree

_SHOWN = 3  # versions that an error names


class Untaken(NamedTuple):
    """A committed version, and the shards whose logs have it not, or not whole."""

    source: str
    version: int
    shards: tuple[int, ...]


def untaken(root: Path) -> list[Untaken]:
    """Give them by source and version; of what is no directory of shards, none."""
    disk, tree = Disk(), ShardsTree(root)
    cluster = cluster_json.load(disk, tree)
    if cluster is None:
        return []
    # Before the logs are looked at: what an owner takes in between is in them then.
    committed = [
        (source, version)
        for source in sorted(manifests.sources(disk, tree))
        for version in manifests.versions(disk, tree, source)
    ]
    if not committed:
        return []
    taken = [_taken(tree.shard(shard)) for shard in range(cluster.shard_count)]
    found = (
        Untaken(*one, tuple(shard for shard, known in enumerate(taken) if one not in known))
        for one in committed
    )
    return [one for one in found if one.shards]


def _taken(shard: Path) -> set[tuple[str, int]]:
    store = take(shard)
    part = Part(0, store, store.log_begin, store.log_end)
    return {(one.source, one.version) for one in transactions(part, Bounds())}


def refuse_untaken(root: Path) -> None:
    """Raise ConfigError where something is committed and not taken in."""
    found = untaken(root)
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
        f"timerstore.shards.ingest); who has it open takes it in by itself, within seconds: {some}"
    )
