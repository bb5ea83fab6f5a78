"""Build a directory under a temporary name, and give it its final name once it is complete.

Restore and repair use it. A directory that was interrupted keeps its temporary name, such as
`<name>.restoring`. The next restore or repair to that name clears it and starts again.

Locking: the directory is locked like a store's (directory.py). Two builders at once would remove
    and overwrite each other's files.
Invariants:
    1. The final name exists only when everything in the directory is durable.
Raises: ConfigError if the final name is taken. LockedError if another process builds there.
    FailedError with COMPLETE in its text if all is done but the last sync.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import is_mount_point, resolved_path
from timerstore.errors import ConfigError, FailedError, LockedError, TimerStoreError

COMPLETE = "the folder is complete, but a power cut may undo its name"
"""In the text of an error: only the last sync failed. Opening the folder repeats it."""


def check_target(disk: Disk, path: Path, what: str) -> None:
    """Raise ConfigError unless the path is free or an empty folder."""
    if disk.exists(path) and (not disk.is_directory(path) or disk.list(path)):
        raise ConfigError(f"{what}: wanted a new or empty folder, got {path}")


@contextmanager
def staged_directory(disk: Disk, path: Path, what: str, suffix: str) -> Iterator[Tree]:
    """Yield an empty folder to build a store in; rename it to `path`, durably, at the end.

    The caller makes the contents durable before the block ends.

    Raises:
        FailedError: the disk failed. With COMPLETE in its text the directory has its final name.
    """
    check_target(disk, path, what)  # also rejects a link without a target
    path = resolved_path(what, path)
    if path == resolved_path(what, Path()):
        raise ConfigError(
            f"{what}: wanted another folder than the one the process is in, got {path}"
        )
    if is_mount_point(path):  # checked before the copy: nothing can replace a mount point
        raise ConfigError(f"{what}: wanted a folder below a mount point, got one itself, {path}")
    directory = Directory(disk, path.with_name(path.name + suffix))
    try:
        if not directory.is_in_place():  # another builder has renamed it since
            raise LockedError("another process has just built there", where=directory.root)
        try:
            check_target(disk, path, what)
        except ConfigError:
            _clear(disk, directory.tree)
            disk.unlink(directory.tree.lock)
            disk.remove_empty(directory.root)
            raise
        _clear(disk, directory.tree)
        yield directory.tree
        if disk.exists(path):
            disk.remove_empty(path)
        disk.rename(directory.root, path)
        try:
            disk.sync_directory(path.parent)
        except TimerStoreError as error:
            raise FailedError(f"{what}: {COMPLETE}: {error}", where=path) from error
    finally:
        directory.release()


def _clear(disk: Disk, tree: Tree) -> None:
    """Remove the files of an interrupted builder, except the lock, which this process has."""
    for name in disk.list(tree.root):
        path = tree.root / name
        if path == tree.lock:
            continue
        if disk.is_directory(path):
            disk.remove_tree(path)
        else:
            disk.unlink(path)
