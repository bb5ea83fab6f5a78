"""A disk that only reads: every call that would write, make or remove something raises an error.

Thread safety: any thread.
Invariants:
    1. No file is opened for writing, no name is made or removed, nothing is locked.
Raises: ReadOnlyError, with the operation and the path.
"""

from pathlib import Path
from typing import NoReturn

from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import ReadOnlyError


def _reject(what: str, path: Path) -> NoReturn:
    raise ReadOnlyError(f"{what}: the store is opened read-only", where=path)


class ReadOnlyDisk(Disk):
    """Files and directories by name, for reading only."""

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = True,  # noqa: ARG002 - it always is
    ) -> File:
        """Open a regular file for reading, even if `read_only` is False."""
        if create:
            _reject("make a file", path)
        return super().open(path, read_only=True)

    def make_directory(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("make a folder", path)

    def unlink(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("remove", path)

    def remove(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("remove", path)

    def rename(self, old: Path, new: Path) -> None:  # noqa: ARG002
        """Raise ReadOnlyError."""
        _reject("rename", old)

    def sync_directory(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("sync", path)

    def sync_name(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("sync", path)

    def read_created(self, path: Path) -> NoReturn:
        """Raise ReadOnlyError: this call would make the name durable."""
        _reject("sync", path)

    def write_small(self, path: Path, data: bytes) -> None:  # noqa: ARG002
        """Raise ReadOnlyError."""
        _reject("write", path)

    def create_small(self, path: Path, data: bytes) -> bool:  # noqa: ARG002
        """Raise ReadOnlyError."""
        _reject("write", path)

    def link(self, old: Path, new: Path) -> bool:  # noqa: ARG002
        """Raise ReadOnlyError."""
        _reject("link", new)

    def locked(self, path: Path, *, alone: bool) -> NoReturn:  # noqa: ARG002
        """Raise ReadOnlyError."""
        _reject("lock", path)

    def remove_empty(self, path: Path) -> bool:
        """Raise ReadOnlyError."""
        _reject("remove", path)

    def remove_tree(self, path: Path) -> None:
        """Raise ReadOnlyError."""
        _reject("remove", path)
