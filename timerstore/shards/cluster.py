"""cluster.json: the number of shards, the hash of keys, and the configuration of a directory.

A process that opens a shard without a configuration uses the one in this file. Writers of rows,
which open no store, take the limits of a row from it.

Invariants:
    1. The file is written once, by create-if-absent, after the folder of every shard. If two
       processes create the same directory, one succeeds, and the other uses its file.
    2. If the file exists, the folder of every shard exists. A missing folder is lost data and is
       never created again.
    3. The name of the file is durable before a shard is opened, whichever process wrote it.
Raises: ConfigError if n or a limit contradicts the file, with both values; CorruptError;
FormatVersionError.
On-disk format: {"format": 1, "shards": n, "hash": "crc32", "shard_by": "key", "config": {...},
"crc": c}. `config` has the fields of the StoreConfig that differ from the defaults. `c` is the
CRC-32 of the text without it. The copy in a bucket also has "owner", see bucket_binding.py.
See also: docs/decisions/0010-shards-and-spark.md.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.format.store_paths import shard_number
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError, newer_format
from timerstore.shards.shard_paths import (
    SHARD_COUNT_MAX,
    ShardsTree,
    check_shard_count,
)
from timerstore.types.config import StoreConfig

FORMAT = 1
HASH = "crc32"
SHARD_BY = "key"
"""The key of a row: its first key, or its message id if it has no key. Rows with neither are
distributed round robin."""


_LIMITS = ("message_bytes_max", "properties_bytes_max", "record_bytes_max", "delay_ms_max")
"""The limits of a row. A configuration may only raise them."""


class Cluster(NamedTuple):
    """The contents of the file."""

    shard_count: int
    config: StoreConfig
    owner: str = ""
    """In a bucket: the id of the directory of shards that reads it."""


def write(cluster: Cluster) -> bytes:
    """Return the text of the file."""
    table: Json = {
        "format": FORMAT,
        "shards": cluster.shard_count,
        "hash": HASH,
        "shard_by": SHARD_BY,
        "config": _changed(cluster.config),
    }
    if cluster.owner:
        table["owner"] = cluster.owner
    return sealed(table)


def _changed(config: StoreConfig) -> Json:
    return {
        one.name: getattr(config, one.name)
        for one in fields(StoreConfig)
        if getattr(config, one.name) != one.default
    }


def sealed(table: Json) -> bytes:
    """Return a JSON text that ends with its own CRC-32."""
    return json.dumps(table | {"crc": _crc(table)}, indent=1).encode() + b"\n"


def unsealed(text: bytes, where: Path | str, version: int) -> Json:
    """Parse such a text. Raise CorruptError if it is damaged, FormatVersionError if its format is
    another.
    """
    try:
        table = json_text.loads(text)
        crc = table.pop("crc", None)
        if crc != _crc(table):
            raise CorruptError("its CRC does not match", wanted=_crc(table), got=crc)
        got = json_text.as_int(table.get("format"), "format")
    except CorruptError as error:
        raise CorruptError(f"unreadable: {error}", where=where) from error
    if got != version:
        release = table.get("release")
        raise newer_format("unknown format", release, where=where, wanted=version, got=got)
    return table


def _crc(table: Json) -> int:
    return zlib.crc32(json.dumps(table).encode())


def read(text: bytes, where: Path | str) -> Cluster:
    """Parse the text of the file."""
    table = unsealed(text, where, FORMAT)
    try:
        count = json_text.as_int(table.get("shards"), "shards")
        given = json_text.as_table(table.get("config"), "config")
    except CorruptError as error:
        raise CorruptError(f"unreadable: {error}", where=where) from error
    for name, wanted in (("hash", HASH), ("shard_by", SHARD_BY)):
        if table.get(name) != wanted:
            release = table.get("release")
            raise newer_format(name, release, where=where, wanted=wanted, got=table.get(name))
    if not 1 <= count <= SHARD_COUNT_MAX:
        raise CorruptError("shards", where=where, wanted=f"1 to {SHARD_COUNT_MAX}", got=count)
    unknown = sorted(set(given) - {one.name for one in fields(StoreConfig)})
    if unknown:
        wanted = "settings that this release knows"
        release = table.get("release")
        raise newer_format("config", release, where=where, wanted=wanted, got=unknown)
    try:
        return Cluster(count, StoreConfig(**given), str(table.get("owner", "")))
    except ConfigError as error:
        raise CorruptError(f"unreadable: {error}", where=where) from error


def load(disk: Disk, tree: ShardsTree) -> Cluster | None:
    """Read the file. Return None if the directory is not a directory of shards (yet)."""
    text = disk.read_small(tree.cluster_json)
    return None if text is None else read(text, tree.cluster_json)


def require(disk: Disk, root: Path) -> Cluster:
    """Read the file. Raise ConfigError if the directory is not a directory of shards."""
    cluster = load(disk, ShardsTree(root))
    if cluster is None:
        raise ConfigError(
            "path: not a directory of shards (no cluster.json); timerstore.open_shards(path, n) "
            f"makes one, got {str(root)!r}"
        )
    return cluster


def ensure(disk: Disk, root: Path, n: int | None, config: StoreConfig | None) -> Cluster:
    """Return the cluster of a directory. With `n`, create it if it does not exist. Durable on
    return.
    """
    tree = ShardsTree(root)
    wanted = None if n is None else check_shard_count(n)
    cluster = load(disk, tree)
    if cluster is None:
        if wanted is None:
            raise ConfigError(
                f"n: {str(root)!r} is not a directory of shards yet; wanted the number of shards"
            )
        cluster = _make(disk, tree, Cluster(wanted, config or StoreConfig()))
    if wanted is not None and wanted != cluster.shard_count:
        raise ConfigError(
            f"n: {tree.cluster_json} has {cluster.shard_count} shards, got {wanted}; keys would "
            "belong to other shards, so another number needs another directory (reshard)"
        )
    require_shards(disk, tree, cluster, range(cluster.shard_count))
    disk.sync_name(root)  # its creator may have died before the names were durable
    disk.sync_directory(root)
    return cluster


def require_shards(disk: Disk, tree: ShardsTree, cluster: Cluster, shards: Iterable[int]) -> None:
    """Raise CorruptError if the folder of one of these shards is missing. Check this before opening
    one: opening creates a missing folder, and an empty shard would hide the loss.
    """
    for shard in shards:
        if not disk.exists(tree.shard(shard)):
            raise CorruptError(
                f"shard {shard} of {cluster.shard_count} is lost", where=tree.shard(shard)
            )


def _make(disk: Disk, tree: ShardsTree, cluster: Cluster) -> Cluster:
    here = disk.list(tree.root)
    if "commitlog" in here or "lock" in here:
        raise ConfigError(f"path: {str(tree.root)!r} is a single store, not a directory of shards")
    used = [n for n in here if shard_number(n) is not None and disk.list(tree.root / n)]
    if used:
        if (found := load(disk, tree)) is not None:
            return found  # another process has created it since the look above
        raise CorruptError(
            "shards with something in them, and no cluster.json", where=tree.root / used[0]
        )
    for shard in range(cluster.shard_count):
        disk.make_directory(tree.shard(shard))
    disk.sync_directory(tree.root)  # a process that was killed may have made some of them
    if disk.create_small(tree.cluster_json, write(cluster)):
        return cluster
    found = load(disk, tree)
    assert found is not None, "a file that was there is gone"
    return found


def config_for(cluster: Cluster, config: StoreConfig | None, where: Path) -> StoreConfig:
    """Return the configuration to open a shard with. Without `config` it is that of the file. Raise
    ConfigError if `config` lowers a limit that writers rely on.
    """
    if config is None:
        return cluster.config
    problems = [
        f"{name}: {where} promises writers {getattr(cluster.config, name)}, got "
        f"{getattr(config, name)}"
        for name in _LIMITS
        if getattr(config, name) < getattr(cluster.config, name)
    ]
    if problems:
        raise ConfigError(problems)
    return config
