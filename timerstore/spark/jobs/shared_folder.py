"""Where jobs keep files that several processes use: a mounted folder, or a prefix of a bucket.

Names are relative, with slashes.

Thread safety: any thread. An object can be pickled for the tasks.
Invariants:
    1. `create` makes a complete and durable file for one of several callers with different data.
    2. A file that `writing` wrote is complete and durable after the `with` block.
Raises: errors of the disk, or BucketError.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from timerstore._engine.buckets import Bucket, BucketUrl
from timerstore._engine.buckets.bucket import BucketFile, in_parallel
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError


class SharedFolder(ABC):
    """Files below one root."""

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the path or URL of a file, for errors and reports."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a small file; None if it is absent. Its name is durable if `names` gave it."""

    @abstractmethod
    def read_created(self, name: str) -> bytes | None:
        """Return a file of `create`, and make its name durable; None if it is absent."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a small file. Return False if the name is taken."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted. They are durable."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> int:
        """Remove files, and return how many there were."""

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its files. An absent folder is no error."""

    @abstractmethod
    def move(self, names: Mapping[str, str]) -> None:
        """Give files other names, durably. Replace files that have these names."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file to write."""

    @abstractmethod
    def files(self, names: Sequence[str]) -> list[Path | BucketFile]:
        """Return files to read."""


@dataclass(frozen=True, slots=True)
class _MountedFolder(SharedFolder):
    root: Path

    def where(self, name: str) -> str:
        return str(self.root / name)

    def read(self, name: str) -> bytes | None:
        return Disk().read_small(self.root / name)

    def read_created(self, name: str) -> bytes | None:
        return Disk().read_created(self.root / name)

    def create(self, name: str, data: bytes) -> bool:
        path = self.root / name
        self._make_folder(path.parent)
        return Disk().create_small(path, data)

    def names(self, folder: str = "") -> list[str]:
        disk, path = Disk(), self.root / folder
        found = disk.list(path)
        if found:
            disk.sync_directory(path)
        return found

    def _make_folder(self, folder: Path) -> None:
        """Make a folder whose name is durable, so that the names in it can be.

        Another process may have made it, and have been killed before its sync.
        """
        disk = Disk()
        disk.make_directory(folder)
        disk.sync_name(folder)

    def remove(self, names: Sequence[str]) -> int:
        disk = Disk()
        found = [path for name in names if disk.exists(path := self.root / name)]
        for path in found:
            disk.unlink(path)
        return len(found)

    def remove_folder(self, folder: str) -> None:
        Disk().remove_tree(self.root / folder)

    def move(self, names: Mapping[str, str]) -> None:
        disk = Disk()
        folders = {(self.root / new).parent for new in names.values()}
        for folder in folders:
            self._make_folder(folder)
        for old, new in names.items():
            disk.rename(self.root / old, self.root / new)
        for folder in folders:
            disk.sync_directory(folder)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        disk, path = Disk(), self.root / name
        disk.make_directory(path.parent)
        with path.open("wb") as file:
            yield file
        disk.open(path).sync()

    def files(self, names: Sequence[str]) -> list[Path | BucketFile]:
        return [self.root / name for name in names]


@dataclass(frozen=True, slots=True)
class _BucketFolder(SharedFolder):
    url: BucketUrl

    def where(self, name: str) -> str:
        return str(self.url.below(name))

    def read(self, name: str) -> bytes | None:
        return Bucket(self.url).get(name)

    def read_created(self, name: str) -> bytes | None:
        return self.read(name)

    def create(self, name: str, data: bytes) -> bool:
        return Bucket(self.url).create(name, data)

    def names(self, folder: str = "") -> list[str]:
        begin = f"{folder}/" if folder else ""
        paths = [one.path.removeprefix(begin) for one in Bucket(self.url).list(folder)]
        return sorted({path.partition("/")[0] for path in paths})

    def remove(self, names: Sequence[str]) -> int:
        bucket = Bucket(self.url)
        found = [one for one in in_parallel(bucket.head, names) if one is not None]
        bucket.delete([one.path for one in found])
        return len(found)

    def remove_folder(self, folder: str) -> None:
        bucket = Bucket(self.url)
        bucket.delete([one.path for one in bucket.list(folder)])

    def move(self, names: Mapping[str, str]) -> None:
        bucket = Bucket(self.url)
        in_parallel(lambda one: bucket.copy(*one), names.items())
        bucket.delete(list(names))

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            Bucket(self.url).put(name, file)

    def files(self, names: Sequence[str]) -> list[Path | BucketFile]:
        bucket = Bucket(self.url)
        found: list[Path | BucketFile] = []
        for name, one in zip(names, in_parallel(bucket.head, names), strict=True):
            if one is None:
                raise ConfigError(f"{self.where(name)}: no such object")
            found.append(BucketFile(self.url, one))
        return found


def shared_folder(root: Path | BucketUrl) -> SharedFolder:
    """Return the files below a directory or a URL."""
    return _BucketFolder(root) if isinstance(root, BucketUrl) else _MountedFolder(root)
