"""Backups in a bucket: copy one to this machine, and restore it, so that a reader finds a store.

A copy is kept in the folder of temporary files, and used by every process of this user on the
machine. Its name has a digest of the names and ETags of all objects. So a backup that changes gets
another copy, and a reader never sees parts of two states.

Thread safety: any thread and any process. A file lock lets one of them copy, while others wait.
Invariants:
    1. A copy is complete: `restore` checks every byte, and creates its folder last.
    2. A copy that was not used for a day is removed when another one is made.
Raises: ConfigError if there is no backup; CorruptError if it is damaged; BucketError.
"""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from timerstore._engine.maintenance import restore
from timerstore._engine.maintenance.backup import MANIFEST
from timerstore._engine.storage.disk import Disk
from timerstore.buckets.bucket import Bucket, StoredObject, in_parallel
from timerstore.buckets.bucket_url import BucketUrl
from timerstore.errors import BucketError, ConfigError

_SHARD = re.compile(r"shard-[0-9]{5}")
_UNUSED_S = 86_400.0


@dataclass(frozen=True)
class BackupCopy:
    """A backup in a bucket, in the state that it had when it was found. It can be pickled."""

    url: BucketUrl
    objects: tuple[StoredObject, ...]
    storage: Mapping[str, str] = field(repr=False)

    @property
    def digest(self) -> str:
        """The name of the copy."""
        text = repr((str(self.url), [(one.path, one.bytes, one.e_tag) for one in self.objects]))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def ensure(self) -> Path:
        """Return the restored store on this machine. Make it if it is not there."""
        disk, folder = Disk(), _folder()
        store = folder / f"{self.digest}.store"
        with disk.locked(folder / f"{self.digest}.lock", alone=True):
            if not disk.exists(store):
                _remove_unused(folder)
                self._make(disk, folder / f"{self.digest}.backup", store)
            os.utime(store)  # it is used now
        return store

    def _make(self, disk: Disk, backup: Path, store: Path) -> None:
        disk.remove_tree(backup)  # of a process that was killed
        bucket = Bucket(self.url, self.storage)

        def fetch(one: StoredObject) -> None:
            disk.make_directory((backup / one.path).parent)
            if not bucket.download(one, disk.open(backup / one.path, create=True)):
                raise BucketError("backup: it was removed", where=bucket.where(one.path))

        try:
            in_parallel(fetch, self.objects)
            restore(backup, store)
        finally:
            disk.remove_tree(backup)


def find_backups(url: BucketUrl, storage: Mapping[str, str] | None = None) -> list[BackupCopy]:
    """Find the backup of a store at a URL, or one for each shard below it. Nothing is copied.

    A backup is what `store.backup` wrote. Those of shards are in shard-00000, shard-00001 and so
    on.

    Raises:
        ConfigError: there is no backup, or that of a shard is missing.
    """
    given = dict(storage or {})
    objects = Bucket(url, given).list()
    names = {one.path for one in objects}
    if MANIFEST in names:
        return [BackupCopy(url, _needed(objects, ""), given)]
    found = sorted(
        name.removesuffix(f"/{MANIFEST}")
        for name in names
        if name.endswith(f"/{MANIFEST}") and _SHARD.fullmatch(name.removesuffix(f"/{MANIFEST}"))
    )
    if not found or found != [f"shard-{number:05d}" for number in range(len(found))]:
        raise ConfigError(
            f"path: no backup in the bucket at {url}; wanted the files of store.backup(...) there, "
            f"or those of each shard in shard-00000, shard-00001 ...; got {found or 'none'}"
        )
    return [BackupCopy(url.below(name), _needed(objects, f"{name}/"), given) for name in found]


def _needed(objects: list[StoredObject], prefix: str) -> tuple[StoredObject, ...]:
    """Return the objects below a prefix, with paths relative to it."""
    return tuple(
        one._replace(path=one.path.removeprefix(prefix))
        for one in objects
        if one.path.startswith(prefix) and one.path != f"{prefix}lock"
    )


def _folder() -> Path:
    """Return the folder of the copies, which only this user can read."""
    folder = Path(tempfile.gettempdir()) / f"timerstore-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise ConfigError(f"{folder}: wanted a folder of user {os.getuid()}, got another one's")
    return folder


def _remove_unused(folder: Path) -> None:
    """Remove the copies that were not used for a day."""
    before_s = time.time() - _UNUSED_S
    for store in folder.glob("*.store"):
        if store.stat().st_mtime < before_s:
            shutil.rmtree(store)
