"""Remove staging that no writer will commit, manifests that are no longer needed, temporary files.

Invariants:
    1. Files that a manifest names stay, whatever their age. So do files that a writer may still
       commit: a commit checks its files and creates its manifest under a shared `_ingest/lock`, and
       this module removes under the exclusive lock.
    2. A manifest is removed only when the ledger of every shard has its version. A replay that
       comes later is committed again, and no shard ingests its rows twice.
See also: docs/decisions/0008-deduplication-and-ingest.md.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError, MessageError, quoted
from timerstore.shards import manifest as manifests
from timerstore.shards.bucket_janitor import clean_bucket, prune_bucket
from timerstore.shards.bucket_staging import BucketStaging
from timerstore.shards.folder_staging import FolderStaging
from timerstore.shards.shard_paths import ShardsTree, source_of
from timerstore.shards.staging_area import StagingArea
from timerstore.shards.staging_location import area_at
from timerstore.shards.write_options import is_drawn
from timerstore.types.clock import Clock, SystemClock

OLD_MS = 86_400_000
"""Longer than any job takes from its first row to its commit."""
KEPT_COUNT = 100
"""The newest manifests of a source are kept: Spark replays the last batch, and a named write has
one version."""


def clean(
    path: str | os.PathLike[str] | StagingArea,
    *,
    old_ms: int = OLD_MS,
    clock: Clock | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[str]:
    """Remove attempts that no manifest names and that were not written to for `old_ms`. Return
    their names.

    Ages are those of the file system, or of the bucket's service. A write that stages for longer
    than `old_ms` finds its files missing when it commits, and fails; it can be repeated.

    path, storage_options: as for `stage`.

    old_ms: milliseconds.

    Raises:
        MessageError: `old_ms` is not a whole number.
        ConfigError: the path is not a directory of shards.
    """
    before_ms = _before_ms(old_ms, clock)
    area = area_at("path", path, storage_options)
    area.cluster()
    if isinstance(area, BucketStaging):
        return clean_bucket(area, old_ms)
    assert isinstance(area, FolderStaging), area
    disk, tree = Disk(), area.tree
    removed: list[str] = []
    disk.remove_tree(tree.trash)  # left by an earlier clean-up that was interrupted
    for source in _folders(disk, tree.staging):
        for folder in _folders(disk, source):
            removed += [
                attempt.relative_to(tree.root).as_posix()
                for attempt in _folders(disk, folder)
                if _clean_attempt(disk, tree, attempt, before_ms)
            ]
            _clean_folder(disk, tree, folder, before_ms)
        _clean_folder(disk, tree, source, before_ms)
    for folder in _folders(disk, tree.manifests):
        _clean_temporary(disk, folder, before_ms)
    return removed


def _folders(disk: Disk, path: Path) -> list[Path]:
    """Return the folders in a folder. Files are skipped: file servers leave such files."""
    return [path / name for name in disk.list(path) if disk.is_directory(path / name)]


def _before_ms(old_ms: object, clock: Clock | None) -> int:
    if not isinstance(old_ms, int) or isinstance(old_ms, bool):
        raise MessageError(f"old_ms: wanted a whole number of ms, got {quoted(old_ms)}")
    return (clock if clock is not None else SystemClock()).now_ms - old_ms


def prune(
    path: str | os.PathLike[str] | StagingArea,
    is_done: Callable[[str, int], bool],
    *,
    old_ms: int = OLD_MS,
    clock: Clock | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Remove manifests that are older than `old_ms` and not among the newest of their source.
    Return how many were removed.

    A manifest is removed only if `is_done(source, version)` returns that every shard has the rows.
    Of a write without a name, all manifests can be removed, because it cannot be repeated.
    Manifests with quarantined rows stay: nothing else names those rows. In a bucket, files that an
    interrupted pass left are removed too.

    old_ms: milliseconds.
    """
    before_ms = _before_ms(old_ms, clock)
    area = area_at("path", path, storage_options)
    area.cluster()
    if isinstance(area, BucketStaging):
        return prune_bucket(area, is_done, old_ms, KEPT_COUNT)
    assert isinstance(area, FolderStaging), area
    disk, tree = Disk(), area.tree
    removed = 0
    for source in manifests.sources(disk, tree):
        versions = manifests.versions(disk, tree, source)
        kept = 0 if is_drawn(source) else KEPT_COUNT
        for version in versions[: len(versions) - kept]:
            file = tree.manifest(source, version)
            modified_ms = disk.modified_ms(file)
            is_old = modified_ms is not None and modified_ms < before_ms
            if is_old and is_done(source, version):
                removed += _remove_manifest(disk, tree, source, version)
        _clean_folder(disk, tree, tree.source_manifests(source), before_ms)
    return removed


def _remove_manifest(disk: Disk, tree: ShardsTree, source: str, version: int) -> int:
    with disk.locked(tree.ingest_lock, alone=True):
        try:
            manifest = manifests.load(disk, tree, source, version)
        except CorruptError:
            return 0  # unreadable: it may name files that are needed
        if manifest is None or any(disk.exists(tree.root / one.path) for one in manifest.files):
            return 0
        disk.unlink(tree.manifest(source, version))
        disk.sync_directory(tree.source_manifests(source))
    return 1


def _clean_attempt(disk: Disk, tree: ShardsTree, folder: Path, before_ms: int) -> bool:
    if not _is_old(disk, folder, before_ms):
        return False
    if not disk.exists(tree.ingest):
        return False
    with disk.locked(tree.ingest_lock, alone=True):
        if _is_named(disk, tree, folder) or not _is_old(disk, folder, before_ms):
            return False
        disk.make_directory(tree.trash)
        trash = tree.trash / f"{folder.name}-{os.urandom(4).hex()}"
        disk.rename(folder, trash)
        disk.sync_directory(folder.parent)
    disk.remove_tree(trash)
    return True


def _is_old(disk: Disk, folder: Path, before_ms: int) -> bool:
    times = [disk.modified_ms(folder), *(disk.modified_ms(folder / n) for n in disk.list(folder))]
    return all(one is None or one < before_ms for one in times)


def _is_named(disk: Disk, tree: ShardsTree, folder: Path) -> bool:
    version_name, source_name = folder.parent.name, folder.parent.parent.name
    try:
        manifest = manifests.load(disk, tree, source_of(source_name), int(version_name))
    except (CorruptError, ValueError):
        return True  # unreadable: it may name this folder
    if manifest is None:
        return False
    place = folder.relative_to(tree.root).as_posix()
    return any(one.path.startswith(f"{place}/") for one in manifest.files)


def _clean_folder(disk: Disk, tree: ShardsTree, folder: Path, before_ms: int) -> None:
    if disk.list(folder):
        return
    with disk.locked(tree.ingest_lock, alone=True):  # a commit may be about to use it
        modified_ms = disk.modified_ms(folder)
        if modified_ms is not None and modified_ms < before_ms:
            disk.remove_empty(folder)


def _clean_temporary(disk: Disk, folder: Path, before_ms: int) -> None:
    for name in disk.list(folder):
        modified_ms = disk.modified_ms(folder / name)
        is_old = modified_ms is not None and modified_ms < before_ms
        if name.startswith(".") and name.endswith(".tmp") and is_old:
            disk.unlink(folder / name)
