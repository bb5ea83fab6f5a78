"""Names as a power cut leaves them: without those that no sync of a directory covered.

    names = DurableNames(root, monkeypatch)   # everything below root now counts as durable
    ...
    names.cut()                               # removes every name that is not

A sync of a file does not make its name durable, as in POSIX, although most file systems do so.
Not modelled: a removed name stays removed, and a renamed one is removed from its old place.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.inside import Disk


class KilledError(BaseException):
    """The process is killed here."""


class DurableNames:
    """A record of the durable names below one directory."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root.resolve()
        self._durable: dict[int, set[str]] = {}  # by inode: a folder may be renamed
        for folder in self._folders():
            self._note(folder)
        sync = os.fsync

        def synced(fd: int) -> None:
            sync(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path.is_dir():
                self._note(path)

        monkeypatch.setattr(os, "fsync", synced)

    def _folders(self) -> list[Path]:
        return [self._root, *(one for one in self._root.rglob("*") if one.is_dir())]

    def _note(self, folder: Path) -> None:
        self._durable[folder.stat().st_ino] = {one.name for one in folder.iterdir()}

    def cut(self) -> None:
        """Remove every name that is not durable, with everything below it."""
        for folder in self._folders():
            if not folder.exists():
                continue  # removed with its parent
            durable = self._durable.get(folder.stat().st_ino, set())
            for one in folder.iterdir():
                if one.name in durable:
                    continue
                if one.is_dir():
                    shutil.rmtree(one)
                else:
                    one.unlink()


def killed_before_sync(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], *, nth: int = 1, of: str = ""
) -> bool:
    """Let a call end as it is about to sync a directory: the nth that has a name like `of`; whether
    it came so far.
    """
    seen = 0
    sync_directory = Disk.sync_directory

    def dies(self: Disk, path: Path) -> None:
        nonlocal seen
        seen += of in str(path)
        if seen >= nth:
            raise KilledError  # nothing is synced after this
        sync_directory(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "sync_directory", dies)
        try:
            call()
        except KilledError:
            return True
    return False
