"""Building: a folder that gets its name when it is whole, as restore and repair make one.

Locks:    the folder that is built, as a store's is (directory.py): two at once would remove and
          write each other's files.
Holds:    the name is there only when all below it is durable; what was cut off keeps a name of its
          own, as `<name>.restoring`, and the next one of its kind begins it anew.
Fails:    ConfigError where the name is taken; LockedError where somebody else is at it.
Source:   docs/decisions/0012-snapshots-and-retention.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import is_mount_point, led_to
from timerstore.errors import ConfigError, LockedError


def refuse_taken(disk: Disk, path: Path, what: str) -> None:
    """ConfigError where something is there, but an empty folder."""
    if disk.exists(path) and (not disk.is_directory(path) or disk.list(path)):
        raise ConfigError(f"{what}: wanted a new or empty folder, got {path}")


@contextmanager
def built(disk: Disk, path: Path, what: str, ending: str) -> Iterator[Tree]:
    """Give an empty folder to put a store together in; durable it is to be on the way out, and then
    it gets its name, durably.
    """
    refuse_taken(disk, path, what)  # a link that leads nowhere, too
    path = led_to(what, path)
    if path == led_to(what, Path()):
        raise ConfigError(
            f"{what}: wanted another folder than the one the process is in, got {path}"
        )
    if is_mount_point(path):  # told before all is copied: nothing can take its place
        raise ConfigError(f"{what}: wanted a folder below a mount point, got one itself, {path}")
    directory = Directory(disk, path.with_name(path.name + ending))
    try:
        if not directory.is_in_place():  # who built there has given it its name meanwhile
            raise LockedError("another one has just built there", where=directory.root)
        try:
            refuse_taken(disk, path, what)
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
        disk.sync_directory(path.parent)
    finally:
        directory.release()


def _clear(disk: Disk, tree: Tree) -> None:
    """Remove what one that was cut off has left, but for the lock, which is held."""
    for name in disk.list(tree.root):
        path = tree.root / name
        if path == tree.lock:
            continue
        if disk.is_directory(path):
            disk.remove_tree(path)
        else:
            disk.unlink(path)
