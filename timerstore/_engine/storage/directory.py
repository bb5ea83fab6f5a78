"""Lock the directory of a store, and record whether the store was closed.

Locking: a directory has three locks, because each alone has a gap
    (docs/decisions/0013-locks-and-re-entry.md):

    table of this process   by device and inode. Record locks do not exclude their own process. The
                            table is checked before `lock` is opened, because closing any
                            descriptor of that file drops the record lock.
    record lock             on byte 0 of `lock`: the one that a broker takes. It is lost when any
                            code in this process closes that file, and has no effect once the file
                            is removed or replaced.
    flock                   on the directory itself. It cannot be replaced under its owner, and no
                            other descriptor drops it. A forked child shares it, so the child closes
                            its copy at once.

    A reader of a directory that must not be written (a backup) shares the flock with other readers.
Invariants:
    1. A directory has one writer, in this process and among all processes. `kill -9` releases all
       three locks.
Raises: LockedError, with the owner's process id if it is known. FailedError from `check_held` if
    the directory was taken away from its owner.
On-disk format: `lock` (byte 0 is locked as a broker locks it); `abort`, which exists while a store
    is open and contains the process id.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.anchor import is_mount_point, resolved_path
from timerstore._engine.storage.disk import Anchor, Disk, File
from timerstore.errors import ConfigError, FailedError, LockedError, TimerStoreError

# --- directory ---


_held: dict[tuple[int, int], Anchor] = {}  # the table of this process
_held_lock = Lock()
_read: set[Anchor] = set()  # directories that this process reads: see `locked_for_reading`


def _forget_in_child() -> None:
    """Drop the parent's locks in a forked child.

    The child must not find its parent's table, wait for its lock, or keep its flock alive after the
    parent has ended.
    """
    global _held_lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _held_lock = Lock()
    for anchor in (*_held.values(), *_read):
        anchor.close()
    _held.clear()
    _read.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def owner_pid(disk: Disk, tree: Tree) -> int | None:
    """Return the id of the process that has a store open; None if it is closed.

    Return 0 if the owner's id is unknown. The lock is not taken.
    """
    if not disk.exists(tree.lock):
        return None
    with _held_lock:
        # The file is not opened here: closing any descriptor of it would drop the record lock.
        if disk.identity(tree.root) in _held:
            return os.getpid()
        pid = disk.open(tree.lock, read_only=True).first_byte_holder()
    if pid == 0:
        text = disk.read_small(tree.abort) or b""
        return int(text) if text.strip().isdigit() else 0
    return pid


@contextmanager
def locked_for_reading(disk: Disk, root: Path) -> Iterator[None]:
    """Prevent writers of a directory during the block; other readers may read it as well.

    No file is written, because the directory may be read-only. Pass a Disk of its own: it reaches
    the directory without following a link.

    Raises:
        LockedError: a writer has the directory.
    """
    anchor = disk.anchor(root)
    _read.add(anchor)
    try:
        if not anchor.lock(shared=True):
            if anchor.identity() in _held:
                raise LockedError("the directory is open in this process", where=root)
            raise _locked_by_another(disk, Tree(root))
        yield
    finally:
        _read.discard(anchor)
        anchor.unlock()
        anchor.close()


def _locked_by_another(disk: Disk, tree: Tree) -> LockedError:
    text = disk.read_small(tree.abort)
    holder = text.decode("ascii", "replace").strip() if text else "unknown"
    return LockedError(
        "another process holds the directory", where=tree.lock, got=f"process {holder}"
    )


class Directory(NotCopyable):
    """A locked store directory."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self.root = root
        self.tree = Tree(root)
        self.pid = os.getpid()
        disk.make_directory(root)
        self._anchor = disk.anchor(root)
        self._identity = self._anchor.identity()
        self._file: File | None = None
        try:
            with _held_lock:
                if self._identity in _held:
                    raise LockedError("the directory is open in this process", where=root)
                _held[self._identity] = self._anchor
            self._file = self._lock()
            disk.sync_name(root)  # a process that was killed may have made or renamed it
        except BaseException:
            self._unlock()
            raise

    def _lock(self) -> File:
        path = self.tree.lock
        if not self._anchor.lock():
            if any(one.identity() == self._identity for one in list(_read)):
                raise LockedError("the directory is read in this process", where=self.root)
            raise _locked_by_another(self._disk, self.tree)
        file = self._disk.open(path, create=True)
        if not file.lock_first_byte():
            raise _locked_by_another(self._disk, self.tree)
        if file.identity() != self._disk.identity(path):
            raise LockedError("the lock file was replaced during the opening", where=path)
        file.write(b"lock", 0)
        return file

    def _unlock(self) -> None:
        self._file = None
        # Without `_held_lock`: a finalizer may run while its own thread has it. No other thread
        # changes an entry while it belongs to this anchor.
        if _held.get(self._identity) is self._anchor:
            del _held[self._identity]
        self._anchor.unlock()
        self._anchor.close()

    def __del__(self, *, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Release the locks of a store that was dropped without a close.

        Do nothing in a forked child, which would unlock the directory for its parent, or once the
        interpreter has cleared modules.
        """
        if getattr(self, "_file", None) is None or is_ending():
            return
        if os.getpid() == self.pid:
            self._unlock()

    @property
    def is_held(self) -> bool:
        """Whether the locks are still held."""
        return self._file is not None

    def check_held(self) -> None:
        """Take the record lock again, in case code in this process closed `lock` and so dropped it.

        Raises:
            FailedError: another process has taken the lock since, or `lock` was replaced.
        """
        file = self._file
        assert file is not None, "the directory was released"
        try:
            is_same = file.identity() == self._disk.identity(self.tree.lock)
        except FailedError:
            is_same = False
        if not is_same:
            raise FailedError("the lock file was removed or replaced", where=self.tree.lock)
        if not file.lock_first_byte():
            raise FailedError(
                "another process took the directory's lock, which was dropped because code in this "
                "process had opened and closed the lock file",
                where=self.tree.lock,
            )

    def is_in_place(self) -> bool:
        """Return whether the directory still has its name, and was not renamed after the lock."""
        try:
            return self._disk.identity(self.root) == self._identity
        except FailedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise

    @property
    def was_open(self) -> bool:
        """Whether the last owner did not close the store."""
        return self._disk.exists(self.tree.abort)

    def mark_open(self) -> None:
        """Write `abort`; durable on return."""
        path = self.tree.abort
        file = self._disk.open(path, create=True)
        file.resize(0)
        file.write(str(self.pid).encode("ascii"), 0)
        file.sync()
        self._disk.sync_directory(self.root)

    def mark_closed(self) -> None:
        """Remove `abort`; durable on return."""
        self._disk.unlink(self.tree.abort)
        self._disk.sync_directory(self.root)

    def release(self) -> None:
        """Release the locks. FailedError in a forked child, which does not have them."""
        if os.getpid() != self.pid:
            raise FailedError("a child does not hold its parent's lock", where=self.root)
        self._unlock()


# --- staged directory ---
# Build a directory under a temporary name, and give it its final name once it is complete.
#
# Restore and repair use it. A directory that was interrupted keeps its temporary name, such as
# `<name>.restoring`. The next restore or repair to that name clears it and starts again.
#
# Locking: the directory is locked like a store's (Directory). Two builders at once would remove
#     and overwrite each other's files.
# Invariants:
#     1. The final name exists only when everything in the directory is durable.
# Raises: ConfigError if the final name is taken. LockedError if another process builds there.
#     FailedError with COMPLETE in its text if all is done but the last sync.
# See also: docs/decisions/0012-snapshots-and-retention.md.


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
