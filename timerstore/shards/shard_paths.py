"""Names of the files and folders of a directory of shards.

Invariants: no name leaves the root. Only `source_component` turns a source into a path component.
On-disk format: cluster.json; shard-00000, shard-00001 and so on, a store each; _ingest/ with the
rows that other processes have staged and committed (row_staging.py, manifest.py).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from timerstore._engine.format.store_paths import CLUSTER_JSON, shard_name
from timerstore.errors import ConfigError, CorruptError, MessageError, quoted

SHARD_COUNT_MAX = 1024
"""The largest number of shards. Each open shard has files, memory and usually threads of its own.
"""

VERSION_MAX = 2**63 - 1
SOURCE_BYTES_MAX = 240
"""The longest folder name of a source. File systems allow 255 bytes; this leaves space for a
suffix."""

_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MANIFEST = re.compile(r"([0-9]{20})\.json")


def source_component(source: object) -> str:
    """Return a source's name as one path component. Different sources have different components.

    A source is any text whose component has 1 to 240 bytes. Characters other than letters, digits,
    `_`, `-` and `~` are percent-encoded. Raise MessageError for other values.
    """
    if not isinstance(source, str):
        raise MessageError(f"source: wanted text, got {type(source).__name__}")
    try:
        name = quote(source, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        raise MessageError(f"source: half a surrogate pair in {source!r}") from None
    if not 1 <= len(name) <= SOURCE_BYTES_MAX:
        raise MessageError(
            f"source: wanted 1 to {SOURCE_BYTES_MAX} bytes, each other than A-Za-z0-9_-~ counting "
            f"3, got {len(name)}: {source[:80]!r}"
        )
    return name


def source_of(component: str) -> str:
    """Return the source of a folder name. Raise CorruptError for a name that is not a source's."""
    source = unquote(component, errors="surrogateescape")
    try:
        if source_component(source) == component:
            return source
    except MessageError:
        pass
    raise CorruptError("stray folder among sources", got=repr(component))


def check_version(version: object) -> int:
    """Return the version. Raise MessageError unless it is a whole number from 0 to 2^63 - 1."""
    if type(version) is not int or not 0 <= version <= VERSION_MAX:
        raise MessageError(
            f"version: wanted a whole number from 0 to 2^63 - 1, got {quoted(version)}"
        )
    return version


def check_attempt(attempt: object) -> str:
    """Return the name of an attempt. Raise MessageError if a folder's name cannot begin with it."""
    if not isinstance(attempt, str) or not _ATTEMPT.fullmatch(attempt):
        raise MessageError(f"attempt: wanted 1 to 200 of A-Za-z0-9_-, got {quoted(attempt)}")
    return attempt


def manifest_version(name: str) -> int | None:
    """Return the version of a manifest's file name, or None for another name."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= VERSION_MAX else None


def check_shard_count(n: object) -> int:
    """Return the number of shards. Raise ConfigError unless it is 1 to 1024."""
    if type(n) is not int or not 1 <= n <= SHARD_COUNT_MAX:
        raise ConfigError(f"n: wanted 1 to {SHARD_COUNT_MAX} shards, got {quoted(n)}")
    return n


@dataclass(frozen=True, slots=True)
class ShardsTree:
    """All paths of one directory of shards."""

    root: Path

    @property
    def cluster_json(self) -> Path:
        """The file with the number of shards and the hash of keys."""
        return self.root / CLUSTER_JSON

    def shard(self, shard: int) -> Path:
        """Return the folder of a shard, which is a store."""
        return self.root / shard_name(shard)

    @property
    def ingest(self) -> Path:
        """The folder of rows from other processes."""
        return self.root / "_ingest"

    @property
    def owner_id(self) -> Path:
        """The file with the id by which a bucket knows this directory."""
        return self.ingest / "owner"

    @property
    def fetched(self) -> Path:
        """Staged files that were downloaded from a bucket, by shard."""
        return self.ingest / "fetched"

    @property
    def ingest_lock(self) -> Path:
        """The lock that is shared while a manifest is committed, and exclusive while staging is
        cleaned.
        """
        return self.ingest / "lock"

    @property
    def staging(self) -> Path:
        """Staged rows: <source>/<version>/<attempt>.<random>/<shard>.arrow."""
        return self.ingest / "staging"

    @property
    def manifests(self) -> Path:
        """Manifests of committed versions: <source>/<version>.json."""
        return self.ingest / "manifests"

    @property
    def trash(self) -> Path:
        """Staging that is being removed."""
        return self.ingest / "trash"

    def version_staging(self, source: str, version: int) -> Path:
        """Return the folder of all attempts at one version."""
        return self.staging / source_component(source) / f"{check_version(version):020d}"

    def source_manifests(self, source: str) -> Path:
        """Return the folder of one source's manifests."""
        return self.manifests / source_component(source)

    def manifest(self, source: str, version: int) -> Path:
        """Return the file whose existence means that a version is committed."""
        return self.source_manifests(source) / f"{check_version(version):020d}.json"


NAMES = ShardsTree(Path())
"""All names relative to the root. With slashes, they are those of objects in a bucket."""
