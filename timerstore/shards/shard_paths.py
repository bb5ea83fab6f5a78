"""Names of the files and folders of a directory of shards.

Data:     cluster.json; shard-00000 and on, a store each; _ingest/: what other processes hand over
          (row_staging.py, manifest.py).
Holds:    no name leaves the root: a source becomes a path component in `source_component` alone.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from timerstore._engine.format.store_paths import CLUSTER_JSON
from timerstore.errors import ConfigError, CorruptError, MessageError, quoted

SHARD_COUNT_MAX = 1024
"""Shards of one directory: each open one has files, memory and, mostly, threads of its own."""

VERSION_MAX = 2**63 - 1
SOURCE_BYTES_MAX = 240
"""Longest folder name of a source, with room for a suffix in the 255 that file systems take."""

_SHARD = re.compile(r"shard-([0-9]{5})")
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,200}")
_MANIFEST = re.compile(r"([0-9]{20})\.json")


def shard_name(shard: int) -> str:
    """Name the folder of a shard."""
    return f"shard-{shard:05d}"


def shard_number(name: str) -> int | None:
    """Give the shard that a folder is for; None where it is for none."""
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found else None


def source_component(source: object) -> str:
    """Turn a source's name into one path component, and no two into the same.

    Any text of 1 to 240 bytes, percent-encoded where it is more than letters, digits, `_`, `-` and
    `~`, goes; anything else is a MessageError.
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
    """Give the source whose folder this is; CorruptError on a folder that is none's."""
    source = unquote(component, errors="surrogateescape")
    try:
        if source_component(source) == component:
            return source
    except MessageError:
        pass
    raise CorruptError("stray folder among sources", got=repr(component))


def check_version(version: object) -> int:
    """Give the version; MessageError unless it is a whole number from 0 to 2^63 - 1."""
    if type(version) is not int or not 0 <= version <= VERSION_MAX:
        raise MessageError(
            f"version: wanted a whole number from 0 to 2^63 - 1, got {quoted(version)}"
        )
    return version


def check_attempt(attempt: object) -> str:
    """Give the name of an attempt; MessageError on what cannot begin a folder's name."""
    if not isinstance(attempt, str) or not _ATTEMPT.fullmatch(attempt):
        raise MessageError(f"attempt: wanted 1 to 200 of A-Za-z0-9_-, got {quoted(attempt)}")
    return attempt


def manifest_version(name: str) -> int | None:
    """Give the version that a manifest's file name says; None on any other name."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= VERSION_MAX else None


def check_shard_count(n: object) -> int:
    """Give the number of shards; ConfigError unless it is 1 to 1024."""
    if type(n) is not int or not 1 <= n <= SHARD_COUNT_MAX:
        raise ConfigError(f"n: wanted 1 to {SHARD_COUNT_MAX} shards, got {quoted(n)}")
    return n


@dataclass(frozen=True, slots=True)
class ShardsTree:
    """All paths of one directory of shards."""

    root: Path

    @property
    def cluster_json(self) -> Path:
        """How many shards there are, and which key belongs to which."""
        return self.root / CLUSTER_JSON

    def shard(self, shard: int) -> Path:
        """The store that is this shard."""
        return self.root / shard_name(shard)

    @property
    def ingest(self) -> Path:
        """What other processes hand over."""
        return self.root / "_ingest"

    @property
    def ingest_lock(self) -> Path:
        """Held shared while a manifest is committed, alone while staging is cleaned."""
        return self.ingest / "lock"

    @property
    def staging(self) -> Path:
        """Staged rows: <source>/<version>/<attempt>.<random>/<shard>.arrow."""
        return self.ingest / "staging"

    @property
    def manifests(self) -> Path:
        """What is committed: <source>/<version>.json."""
        return self.ingest / "manifests"

    @property
    def trash(self) -> Path:
        """Staging that nobody wants, on its way out."""
        return self.ingest / "trash"

    def version_staging(self, source: str, version: int) -> Path:
        """Folder of all attempts at one version."""
        return self.staging / source_component(source) / f"{check_version(version):020d}"

    def source_manifests(self, source: str) -> Path:
        """Folder of one source's manifests."""
        return self.manifests / source_component(source)

    def manifest(self, source: str, version: int) -> Path:
        """The file whose being there says that a version is committed."""
        return self.source_manifests(source) / f"{check_version(version):020d}.json"
