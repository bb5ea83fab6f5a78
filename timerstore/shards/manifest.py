"""Manifests: commit staged rows.

Invariants:
    1. A version is committed when its manifest has its name. The name is created if absent, so
       exactly one commit of a version succeeds.
    2. A manifest never changes and is never withdrawn. `load` makes a manifest of another process
       durable before anything depends on it.
    3. The files of a manifest exist when it is created, and until every shard has their rows.
Raises: MessageError if a version was committed with other rows, or for parts of another version;
CorruptError.
On-disk format: _ingest/manifests/<source>/<version>.json has format, source, version, rows, digest,
files (staged_files.StagedFile), committed_ms, and the CRC-32 of its text.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import absolute_path
from timerstore.clock import Clock, SystemClock
from timerstore.errors import CorruptError, MessageError
from timerstore.shards.cluster import require, sealed, unsealed
from timerstore.shards.shard_paths import ShardsTree, manifest_version, source_of
from timerstore.shards.staged_files import QUARANTINE, Staged, StagedFile

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


class Committed(NamedTuple):
    """The result of `commit`. `is_replay`: the version was committed before; nothing was added."""

    manifest: Manifest
    is_replay: bool


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


def read(text: bytes, where: Path) -> Manifest:
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
    if text is None:
        return None
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


def commit(
    root: str | os.PathLike[str],
    source: str,
    version: int,
    parts: Iterable[Staged],
    *,
    same_rows: bool = False,
    clock: Clock | None = None,
) -> Committed:
    """Make all staged rows of some parts visible at once; durable on return.

    If the version is already committed, the staged files are removed. A part that is given twice
    counts once.

    same_rows: for a version that is already committed, check that the rows are the same. Without
        any row, nothing is committed, and the version stays free.

    Raises:
        MessageError: a part belongs to another version, or `same_rows` and the rows differ.
        ConfigError: `root` is not a directory of shards.
        CorruptError: a staged file is missing or has another size.
    """
    root = absolute_path("root", root)
    disk, tree = Disk(), ShardsTree(root)
    require(disk, root)
    path = tree.manifest(source, version)
    files = _files_of(tree, source, version, parts)
    now_ms = (clock if clock is not None else SystemClock()).now_ms
    manifest = Manifest(source, version, now_ms, files)
    if same_rows and not files and load(disk, tree, source, version) is None:
        return Committed(manifest, is_replay=False)
    disk.make_directory(tree.ingest)
    # The janitor takes this lock exclusively: so it removes nothing between check and commit.
    with disk.locked(tree.ingest_lock, alone=False):
        disk.make_directory(path.parent)
        for folder in (tree.manifests, tree.ingest, tree.root):
            disk.sync_directory(folder)  # another may have made one, and not have synced it yet
        existing = load(disk, tree, source, version)
        if existing is None:
            _check_files(disk, root, files)
            reach("manifest_checked")
            if disk.create_small(path, write(manifest)):
                reach("manifest_committed")
                return Committed(manifest, is_replay=False)
            existing = load(disk, tree, source, version)
            assert existing is not None, "a manifest is never taken back"
    drop(root, source, version, files)
    reach("manifest_replayed")
    if same_rows and (existing.row_count, existing.digest) != (
        manifest.row_count,
        manifest.digest,
    ):
        raise MessageError(
            f"write {source!r} version {version} is committed with other rows, and stays as it is: "
            f"it has {existing.row_count} with digest {existing.digest:016x}, got "
            f"{manifest.row_count} with {manifest.digest:016x}; other rows need another write_id"
        )
    return Committed(existing, is_replay=True)


def _files_of(
    tree: ShardsTree, source: str, version: int, parts: Iterable[Staged]
) -> tuple[StagedFile, ...]:
    """Return the files of all parts, each once, ordered by name.

    A replay removes the files that the manifest does not name, so files of another version must be
    rejected.
    """
    place = tree.version_staging(source, version).relative_to(tree.root)
    known: dict[str, StagedFile] = {}
    for part in parts:
        if (part.source, part.version) != (source, version):
            raise MessageError(
                "parts: of another version",
                wanted=f"{source!r} {version}",
                got=f"{part.source!r} {part.version}",
            )
        for one in part.files:
            path = PurePosixPath(one.path)
            is_below = path.parent.parent == PurePosixPath(place) and ".." not in path.parts
            if not is_below or str(path) != one.path:
                raise MessageError(
                    "parts: a file of another place",
                    wanted=f"one below {place.as_posix()}/<attempt>",
                    got=repr(one.path),
                )
            if known.setdefault(one.path, one) != one:
                raise MessageError(f"parts: two of them have one file, {one.path}, and differ")
    return tuple(sorted(known.values()))


def _check_files(disk: Disk, root: Path, files: Iterable[StagedFile]) -> None:
    for one in files:
        path = root / one.path
        size = disk.open(path, read_only=True).size() if disk.exists(path) else None
        if size != one.bytes:
            raise CorruptError(
                "staged file that is to be committed",
                where=path,
                wanted=f"{one.bytes} bytes",
                got="none" if size is None else size,
            )


def drop(
    root: str | os.PathLike[str], source: str, version: int, files: Iterable[StagedFile]
) -> int:
    """Remove the files of an attempt, except committed ones. Return how many were removed."""
    root = absolute_path("root", root)
    disk, tree = Disk(), ShardsTree(root)
    manifest = load(disk, tree, source, version)
    kept = set() if manifest is None else {one.path for one in manifest.files}
    dropped = 0
    for one in files:
        path = root / one.path
        if one.path not in kept and disk.exists(path):
            disk.unlink(path)
            dropped += 1
    remove_empty(disk, tree, {(root / one.path).parent for one in files})
    return dropped


def remove_empty(disk: Disk, tree: ShardsTree, folders: Iterable[Path]) -> None:
    """Remove empty folders of attempts, and empty folders above them."""
    for one in folders:
        folder = one
        while folder not in (tree.staging, tree.root) and disk.remove_empty(folder):
            folder = folder.parent


def abort(root: str | os.PathLike[str], parts: Iterable[Staged | None]) -> None:
    """Remove the staged files of attempts. Committed files stay."""
    root = absolute_path("root", root)
    for part in parts:
        if part is not None:
            drop(root, part.source, part.version, part.files)


def quarantined(root: str | os.PathLike[str], source: str, version: int) -> Iterator[StagedFile]:
    """Return the files with the quarantined rows of a version."""
    manifest = load(Disk(), ShardsTree(absolute_path("root", root)), source, version)
    return iter(() if manifest is None else manifest.of_shard(QUARANTINE))
