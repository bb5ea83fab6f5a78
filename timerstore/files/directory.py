"""The store's directory: who holds it, and whether it was closed.

Data:     `lock` (byte 0 locked as a broker locks it), `abort` (there while a store is open).
Holds:    one writer for one directory, in this process and among all; the lock's file is opened
          once.
Fails:    LockedError, with the holder's process id where it says one.
"""

import os
import threading
from pathlib import Path

from timerstore.errors import FailedError, LockedError
from timerstore.files.disk import Disk, File
from timerstore.layout.tree import Tree

_held: dict[tuple[int, int], Path] = {}
_held_lock = threading.Lock()


def boot_id() -> bytes:
    """Give 16 bytes that change with every start of the machine."""
    text = Path("/proc/sys/kernel/random/boot_id").read_text()
    return bytes.fromhex(text.strip().replace("-", ""))


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


class Directory:
    """A locked store directory."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self.root = root
        self.tree = Tree(root)
        self.pid = os.getpid()
        disk.make_directory(root)
        self._identity = disk.identity(root)
        with _held_lock:
            # Before the file is touched: closing any descriptor of it would drop the lock.
            if self._identity in _held:
                raise LockedError("the directory is open in this process", where=root)
            _held[self._identity] = root
        self._file: File | None = None
        try:
            self._file = self._lock()
        except BaseException:
            with _held_lock:
                _held.pop(self._identity, None)
            raise

    def _lock(self) -> File:
        path = self.tree.lock
        file = self._disk.open(path, create=True)
        if not file.lock_first_byte():
            raise LockedError(
                "another process holds the directory", where=path, got=f"process {self._holder()}"
            )
        if file.identity() != self._disk.identity(path):
            raise LockedError("the lock file was replaced meanwhile", where=path)
        file.write(b"lock", 0)
        return file

    def _holder(self) -> str:
        text = self._disk.read_small(self.tree.abort)
        return text.decode("ascii", "replace").strip() if text else "unknown"

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
        self._file = None
        with _held_lock:
            _held.pop(self._identity, None)
