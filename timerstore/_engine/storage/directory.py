"""The store's directory: who holds it, and whether it was closed.

Data:     `lock` (byte 0 locked as a broker locks it), `abort` (there while a store is open).
Locks:    three, since each has a hole that another covers
          (docs/decisions/0013-locks-and-re-entry.md):
          (1) the table of this process, by device and inode: record locks do not shut out their own
              process; looked at before `lock` is opened, as closing any descriptor of that file
              drops the lock;
          (2) a record lock on byte 0 of `lock`: the one a broker takes. It is gone when anybody in
              this process closes that file, and useless when the file is removed or replaced;
          (3) flock on the directory itself: it cannot be replaced under a holder, and no other
              descriptor drops it. A forked child shares it, so the child closes its copy at once.
          Who reads one that is not to be written meanwhile shares (3) with all who do so.
Holds:    one writer for one directory, in this process and among all; kill -9 frees all three.
Fails:    LockedError, with the holder's process id where it says one; FailedError from
          `check_held` where the directory was taken from under the holder.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.storage.disk import Anchor, Disk, File
from timerstore.errors import FailedError, LockedError

_held: dict[tuple[int, int], Anchor] = {}
_held_lock = Lock()
_read: set[Anchor] = set()  # by this process, each for as long as `unwritten` holds it


def _forget_in_child() -> None:
    """A child holds nothing of its parent's: it must not find its table, nor wait for its lock, nor
    keep its flock alive when the parent is gone.
    """
    global _held_lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _held_lock = Lock()
    for anchor in (*_held.values(), *_read):
        anchor.close()
    _held.clear()
    _read.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def holder_of(disk: Disk, tree: Tree) -> int | None:
    """Give the process that has a store open, without touching its lock; None where none has.

    0 where one has it of which nothing is known.
    """
    if not disk.exists(tree.lock):
        return None
    with _held_lock:
        # Not asked of the file: closing any descriptor of it would drop the lock.
        if disk.identity(tree.root) in _held:
            return os.getpid()
        pid = disk.open(tree.lock, read_only=True).first_byte_holder()
    if pid == 0:
        text = disk.read_small(tree.abort) or b""
        return int(text) if text.strip().isdigit() else 0
    return pid


@contextmanager
def unwritten(disk: Disk, root: Path) -> Iterator[None]:
    """Keep a directory from being written while it is read; others may read it, too. Nothing is
    put in it: it may be one that can only be read. LockedError where somebody holds it. Give a disk
    of its own: what is reached by this one is reached through no link.
    """
    anchor = disk.anchor(root)
    _read.add(anchor)
    try:
        if not anchor.lock(shared=True):
            if anchor.identity() in _held:
                raise LockedError("the directory is open in this process", where=root)
            raise _held_by_another(disk, Tree(root))
        yield
    finally:
        _read.discard(anchor)
        anchor.unlock()
        anchor.close()


def _is_read_here(identity: tuple[int, int]) -> bool:
    return any(one.identity() == identity for one in list(_read))


def _held_by_another(disk: Disk, tree: Tree) -> LockedError:
    text = disk.read_small(tree.abort)
    holder = text.decode("ascii", "replace").strip() if text else "unknown"
    return LockedError(
        "another process holds the directory", where=tree.lock, got=f"process {holder}"
    )


class Directory(Owner):
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
            self._let_go()
            raise

    def _lock(self) -> File:
        path = self.tree.lock
        if not self._anchor.lock():
            if _is_read_here(self._identity):
                raise LockedError("the directory is read in this process", where=self.root)
            raise _held_by_another(self._disk, self.tree)
        file = self._disk.open(path, create=True)
        if not file.lock_first_byte():
            raise _held_by_another(self._disk, self.tree)
        if file.identity() != self._disk.identity(path):
            raise LockedError("the lock file was replaced meanwhile", where=path)
        file.write(b"lock", 0)
        return file

    def _let_go(self) -> None:
        self._file = None
        # Without the lock: a finalizer may run while its own thread has it. While the entry is of
        # this anchor, no other thread changes it.
        if _held.get(self._identity) is self._anchor:
            del _held[self._identity]
        self._anchor.unlock()
        self._anchor.close()

    def __del__(self, *, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let go of the lock: the store was dropped without a close. Not in a forked child, which
        would unlock it for its parent, nor once modules are cleared.
        """
        if getattr(self, "_file", None) is None or is_ending():
            return
        if os.getpid() == self.pid:
            self._let_go()

    @property
    def is_held(self) -> bool:
        """Whether it was not let go of."""
        return self._file is not None

    def check_held(self) -> None:
        """Take the record lock again, where somebody in this process has closed `lock` and so let
        go of it. FailedError where another process was quicker, or where `lock` is not the one that
        was locked.
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
                "another process took the directory's lock: somebody in this one had opened and "
                "closed the lock file, which drops it",
                where=self.tree.lock,
            )

    def is_in_place(self) -> bool:
        """Whether its name still leads to it: who locks a folder that another gives a name holds
        that one's.
        """
        try:
            return self._disk.identity(self.root) == self._identity
        except FailedError:
            return False

    @property
    def was_open(self) -> bool:
        """Whether the last one who had it open did not close it."""
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
        """Let go of the lock."""
        if os.getpid() != self.pid:
            raise FailedError("a child does not hold its parent's lock", where=self.root)
        self._let_go()
