"""Manifests: what of the staged rows is committed.

Data:     _ingest/manifests/<source>/<version>.json: format, source, version, rows, digest, files
          (staging.StagedFile), committed_ms, and the text's own CRC-32.
Holds:    (1) a version is committed when its manifest has its name, by create-if-absent: one commit
          wins, whoever tries; (2) a manifest never changes and is never taken back: what rests on
          one that another process made, `load` makes durable first; (3) its files are there when it
          is made, and until every shard has their rows.
Fails:    MessageError where one version was committed with other rows, or on parts of another one;
          CorruptError.
Source:   docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import anchored
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
        """Rows for shards."""
        return sum(one.rows for one in self.files if one.shard != QUARANTINE)

    @property
    def digest(self) -> int:
        """Of all rows for shards, in whatever files and order they are."""
        found = (one.digest for one in self.files if one.shard != QUARANTINE)
        return sum(found) & _HASH_MASK

    def of_shard(self, shard: int) -> tuple[StagedFile, ...]:
        """Give one shard's files, always in the same order."""
        return tuple(one for one in self.files if one.shard == shard)


class Committed(NamedTuple):
    """What `commit` answers. `is_replay`: the version was committed before; nothing was added."""

    manifest: Manifest
    is_replay: bool


def write(manifest: Manifest) -> bytes:
    """Give the file's text."""
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
    """Read the file."""
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
    """Read a version's manifest; None where it is not committed. The manifest is durable on return:
    whether rows are dropped, or taken, goes by it.
    """
    path = tree.manifest(source, version)
    text = disk.read_new(path)
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
    """Sources that have committed something; `strays`: what lies among them and is none's."""

    sources: list[str]
    strays: list[Path]


def sources(disk: Disk, tree: ShardsTree) -> list[str]:
    """Give every source that has committed something."""
    return find_sources(disk, tree).sources


def find_sources(disk: Disk, tree: ShardsTree) -> Found:
    """Look for sources. A stray name, as a file server leaves them, stops nobody."""
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
        elif disk.exists(folder):  # else it went meanwhile
            found.strays.append(folder)
    return found


def versions(disk: Disk, tree: ShardsTree, source: str) -> list[int]:
    """Give a source's committed versions, ascending."""
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
    """Make what was staged visible, all of it at once; durable on return.

    Where the version is committed already, what was staged here is dropped, and with `same_rows` a
    MessageError says so where the rows are others. A part that is given twice counts once; one of
    another version is a MessageError, and ConfigError a root that is no directory of shards.
    """
    root = anchored("root", root)
    disk, tree = Disk(), ShardsTree(root)
    require(disk, root)
    path = tree.manifest(source, version)
    files = _files_of(tree, source, version, parts)
    now_ms = (clock if clock is not None else SystemClock()).now_ms
    manifest = Manifest(source, version, now_ms, files)
    disk.make_directory(tree.ingest)
    # Shared: the janitor, who has it alone, takes nothing away between the look and the commit.
    with disk.locked(tree.ingest_lock, alone=False):
        disk.make_directory(path.parent)
        for folder in (tree.manifests, tree.ingest, tree.root):
            disk.sync_directory(folder)  # another may have made one, and not have synced it yet
        existing = load(disk, tree, source, version)
        if existing is None:
            _check_files(disk, root, files)
            reach("manifest_checked")
            if disk.write_new(path, write(manifest)):
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
    """Give the files of all parts, each once, in the order of their names.

    A replay removes those that the manifest does not name: another version's would be gone.
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
    """Remove files that an attempt staged, but for those that are committed; how many went."""
    root = anchored("root", root)
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
    """Remove attempts' folders in which nothing is left, and those above."""
    for one in folders:
        folder = one
        while folder not in (tree.staging, tree.root) and disk.remove_empty(folder):
            folder = folder.parent


def abort(root: str | os.PathLike[str], parts: Iterable[Staged | None]) -> None:
    """Remove what attempts staged; what is committed stays, whoever asks."""
    root = anchored("root", root)
    for part in parts:
        if part is not None:
            drop(root, part.source, part.version, part.files)


def quarantined(root: str | os.PathLike[str], source: str, version: int) -> Iterator[StagedFile]:
    """Give the files with rows of a version that were set aside."""
    manifest = load(Disk(), ShardsTree(anchored("root", root)), source, version)
    return iter(() if manifest is None else manifest.of_shard(QUARANTINE))
