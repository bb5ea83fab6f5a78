"""Janitor: staging that nobody will commit, and what writing left behind.

Holds:    what a manifest names stays, whatever its age; so does what anybody may still commit: a
          commit looks at its files and makes its manifest in one hold of `_ingest/lock`, which is
          held alone while something is taken away.
Source:   decision 0019.
"""

import os
from pathlib import Path

from timerstore.clock import Clock, SystemClock
from timerstore.errors import CorruptError
from timerstore.files.disk import Disk
from timerstore.shards import manifest as manifests
from timerstore.shards.tree import ShardsTree, source_of

OLD_MS = 86_400_000
"""Longer than any job between its first row and its commit."""


def clean(
    path: str | os.PathLike[str], *, old_ms: int = OLD_MS, clock: Clock | None = None
) -> list[str]:
    """Remove attempts that no manifest names and nothing was written to for `old_ms`; their names.

    Ages go by the file system's times. A write that stages longer than `old_ms` finds its files
    gone when it commits, and fails; it may be done again.
    """
    disk, tree = Disk(), ShardsTree(Path(path))
    before_ms = (clock if clock is not None else SystemClock()).now_ms - old_ms
    removed: list[str] = []
    disk.remove_tree(tree.trash)  # what a janitor before this one did not finish
    for source_name in disk.list(tree.staging):
        for version_name in disk.list(tree.staging / source_name):
            folder = tree.staging / source_name / version_name
            removed += [
                (folder / attempt).relative_to(tree.root).as_posix()
                for attempt in disk.list(folder)
                if _clean_attempt(disk, tree, folder / attempt, before_ms)
            ]
            _clean_folder(disk, folder, before_ms)
        _clean_folder(disk, tree.staging / source_name, before_ms)
    for source_name in disk.list(tree.manifests):
        _clean_temporary(disk, tree.manifests / source_name, before_ms)
    return removed


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
    times = [disk.changed_ms(folder), *(disk.changed_ms(folder / n) for n in disk.list(folder))]
    return all(one is None or one < before_ms for one in times)


def _is_named(disk: Disk, tree: ShardsTree, folder: Path) -> bool:
    version_name, source_name = folder.parent.name, folder.parent.parent.name
    try:
        manifest = manifests.load(disk, tree, source_of(source_name), int(version_name))
    except (CorruptError, ValueError):
        return True  # who can say what it names
    if manifest is None:
        return False
    place = folder.relative_to(tree.root).as_posix()
    return any(one.path.startswith(f"{place}/") for one in manifest.files)


def _clean_folder(disk: Disk, folder: Path, before_ms: int) -> None:
    changed_ms = disk.changed_ms(folder)
    if changed_ms is not None and changed_ms < before_ms:
        disk.remove_empty(folder)


def _clean_temporary(disk: Disk, folder: Path, before_ms: int) -> None:
    for name in disk.list(folder):
        changed_ms = disk.changed_ms(folder / name)
        is_old = changed_ms is not None and changed_ms < before_ms
        if name.startswith(".") and name.endswith(".tmp") and is_old:
            disk.unlink(folder / name)
