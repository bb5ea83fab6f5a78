"""A disk that only reads: whatever would make, change or remove something is refused.

Threads:  any.
Holds:    no file is opened for writing, no name is made or removed, nothing is locked.
Fails:    ReadOnlyError, with what was asked and the path.
"""

from pathlib import Path
from typing import NoReturn

from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import ReadOnlyError


def _refuse(what: str, path: Path) -> NoReturn:
    raise ReadOnlyError(f"{what}: the store is opened read-only", where=path)


class ReadOnlyDisk(Disk):
    """Files and directories by name, as they are."""

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = True,  # noqa: ARG002 - it always is
    ) -> File:
        """Open a regular file for reading, whatever is asked for."""
        if create:
            _refuse("make a file", path)
        return super().open(path, read_only=True)

    def make_directory(self, path: Path) -> None:
        """Refuse."""
        _refuse("make a folder", path)

    def unlink(self, path: Path) -> None:
        """Refuse."""
        _refuse("remove", path)

    def rename(self, old: Path, new: Path) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse("rename", old)

    def sync_directory(self, path: Path) -> None:
        """Refuse."""
        _refuse("sync", path)

    def sync_name(self, path: Path) -> None:
        """Refuse."""
        _refuse("sync", path)

    def read_new(self, path: Path) -> NoReturn:
        """Refuse: it makes the name durable."""
        _refuse("sync", path)

    def write_small(self, path: Path, data: bytes) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse("write", path)

    def write_new(self, path: Path, data: bytes) -> bool:  # noqa: ARG002
        """Refuse."""
        _refuse("write", path)

    def link(self, old: Path, new: Path) -> bool:  # noqa: ARG002
        """Refuse."""
        _refuse("link", new)

    def locked(self, path: Path, *, alone: bool) -> NoReturn:  # noqa: ARG002
        """Refuse."""
        _refuse("lock", path)

    def remove_empty(self, path: Path) -> bool:
        """Refuse."""
        _refuse("remove", path)

    def remove_tree(self, path: Path) -> None:
        """Refuse."""
        _refuse("remove", path)
