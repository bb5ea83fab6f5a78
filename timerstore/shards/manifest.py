"""Manifests: the file format, and the manifests in a directory of shards.

Invariants:
    A manifest never changes and is never withdrawn. `load` makes a manifest of another process
    durable before anything depends on it.
Raises: CorruptError.
On-disk format: _ingest/manifests/<source>/<version>.json has format, source, version, rows, digest,
files (staged_files.StagedFile), committed_ms, and the CRC-32 of its text.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError
from timerstore.shards.cluster import sealed, unsealed
from timerstore.shards.shard_paths import ShardsTree, manifest_version, source_of
from timerstore.shards.staged_files import QUARANTINE, StagedFile

FORMAT = 1
_HASH_MASK = 2**64 - 1


class Manifest(NamedTuple):
    """One committed version."""

    source: str
    version: int
    committed_ms: int
    files: tuple[StagedFile, ...]

    @property
    def row_count(self) -> int:
        """Rows for shards; rows in quarantine are not counted."""
        return sum(one.rows for one in self.files if one.shard != QUARANTINE)

    @property
    def digest(self) -> int:
        """The digest of all rows for shards, whatever their files and their order."""
        found = (one.digest for one in self.files if one.shard != QUARANTINE)
        return sum(found) & _HASH_MASK

    def of_shard(self, shard: int) -> tuple[StagedFile, ...]:
        """Return the files of one shard, always in the same order."""
        return tuple(one for one in self.files if one.shard == shard)


def write(manifest: Manifest) -> bytes:
    """Return the text of the file."""
    return sealed(
        {
            "format": FORMAT,
            "source": manifest.source,
            "version": manifest.version,
            "committed_ms": manifest.committed_ms,
            "rows": manifest.row_count,
            "digest": f"{manifest.digest:016x}",
            "files": [one._asdict() | {"digest": f"{one.digest:016x}"} for one in manifest.files],
        }
    )


def read(text: bytes, where: Path | str) -> Manifest:
    """Parse the text of the file."""
    table = unsealed(text, where, FORMAT)
    try:
        return Manifest(
            str(table["source"]),
            json_text.as_int(table["version"], "version"),
            json_text.as_int(table["committed_ms"], "committed_ms"),
            tuple(_file(one) for one in table["files"]),
        )
    except (CorruptError, KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"unreadable: {error!r}", where=where) from error


def _file(table: Json) -> StagedFile:
    numbers = {
        name: json_text.as_int(table[name], name)
        for name in StagedFile._fields
        if name not in ("path", "digest")
    }
    path = str(table["path"])
    if path.startswith("/") or ".." in path.split("/"):
        raise CorruptError("path: wanted one below the root", got=repr(path))
    return StagedFile(path=path, digest=int(table["digest"], 16), **numbers)


def load(disk: Disk, tree: ShardsTree, source: str, version: int) -> Manifest | None:
    """Read the manifest of a version. Return None if the version is not committed. The manifest is
    durable on return: the caller drops or ingests rows because of it.
    """
    path = tree.manifest(source, version)
    text = disk.read_created(path)
    return None if text is None else read_named(text, path, source, version)


def read_named(text: bytes, path: Path | str, source: str, version: int) -> Manifest:
    """Parse the text of the file of a version. Raise CorruptError if it names another version."""
    manifest = read(text, path)
    if (manifest.source, manifest.version) != (source, version):
        raise CorruptError(
            "manifest of another version",
            where=path,
            wanted=f"{source!r} {version}",
            got=f"{manifest.source!r} {manifest.version}",
        )
    return manifest


class Found(NamedTuple):
    """The sources that have committed something. `strays` are other entries in their folder."""

    sources: list[str]
    strays: list[Path]


def sources(disk: Disk, tree: ShardsTree) -> list[str]:
    """Return every source that has committed something."""
    return find_sources(disk, tree).sources


def find_sources(disk: Disk, tree: ShardsTree) -> Found:
    """Find sources. A stray entry, as file servers leave, does not stop the search."""
    found = Found([], [])
    for name in disk.list(tree.manifests):
        folder = tree.manifests / name
        try:
            source = source_of(name)
        except CorruptError:
            found.strays.append(folder)
            continue
        if disk.is_directory(folder):
            found.sources.append(source)
        elif disk.exists(folder):  # else it was removed in the meantime
            found.strays.append(folder)
    return found


def versions(disk: Disk, tree: ShardsTree, source: str) -> list[int]:
    """Return the committed versions of a source, ascending."""
    found = map(manifest_version, disk.list(tree.source_manifests(source)))
    return [one for one in found if one is not None]


def remove_empty(disk: Disk, tree: ShardsTree, folders: Iterable[Path]) -> None:
    """Remove empty folders of attempts, and empty folders above them."""
    for one in folders:
        folder = one
        while folder not in (tree.staging, tree.root) and disk.remove_empty(folder):
            folder = folder.parent
