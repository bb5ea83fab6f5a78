"""Backups in a bucket: copy one to this machine, and restore it, so that a reader finds a store.

A copy is kept in the folder of temporary files, and used by every process of this user on the
machine. Its name has a digest of the names and ETags of all objects. So a backup that changes gets
another copy, and a reader never sees parts of two states.

Thread safety: any thread and any process. A file lock lets one of them copy, while others wait.
Invariants:
    1. A copy is complete: `restore` checks every byte, and creates its folder last.
    2. A copy is removed when another one is made, if no process that used it runs, and it was not
       used for a day. So are the files of a copy that a killed process did not complete.
On-disk format: <digest>.store is the copy; .backup and .store.restoring are parts of one. A process
    has .lock locked alone while it makes or removes a copy, and .users shared until it ends.
Raises: ConfigError if there is no backup; CorruptError if it is damaged; BucketError.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from timerstore._engine.buckets.bucket import Bucket, StoredObject, in_parallel
from timerstore._engine.buckets.bucket_url import BucketUrl
from timerstore._engine.format.store_paths import shard_name, shard_number
from timerstore._engine.maintenance import restore
from timerstore._engine.maintenance.backup import MANIFEST
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.file import os_error
from timerstore.errors import BucketError, ConfigError

_DIGEST = re.compile(r"[0-9a-f]{32}")
_UNUSED_S = 86_400.0

_used: dict[Path, int] = {}
"""The descriptors of the locks of the copies that this process uses."""


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
        with _locked(folder / f"{self.digest}.lock"):
            if not disk.exists(store):
                _remove_unused(folder)
                self._make(disk, folder / f"{self.digest}.backup", store)
            os.utime(store)  # it is used now
            _use(folder / f"{self.digest}.users")
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
    places = (name.rpartition("/") for name in names)
    found = sorted(
        folder
        for folder, _, file in places
        if file == MANIFEST and shard_number(folder) is not None
    )
    if not found or found != [shard_name(number) for number in range(len(found))]:
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


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on a file, made if it is absent. Yield False if another one has it.

    The one that has the lock may remove the file. So its name is looked up again.
    """
    while True:
        fd, is_ours = _lock(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            if not is_ours or _names(path, fd):
                yield is_ours
                return
        finally:
            os.close(fd)


def _lock(path: Path, how: int) -> tuple[int, bool]:
    """Return a descriptor, and whether the lock is taken: it is not if another one has it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            return fd, False
    except OSError as error:
        raise os_error(error, "lock", path) from error
    return fd, True


def _names(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _use(path: Path) -> None:
    """Keep a copy until this process ends. The caller has the lock of the copy."""
    if path not in _used:
        _used[path], _ = _lock(path, fcntl.LOCK_SH)


def _remove_unused(folder: Path) -> None:
    """Remove the copies that no process uses, nor used for a day."""
    found = {one.name.partition(".")[0] for one in folder.iterdir()}
    for digest in sorted(found):
        if not _DIGEST.fullmatch(digest) or not _is_old(folder, digest):
            continue
        with (
            _locked(folder / f"{digest}.lock", wait=False) as is_ours,
            _locked(folder / f"{digest}.users", wait=False) as is_unused,
        ):
            if is_ours and is_unused and _is_old(folder, digest):
                _remove(folder, digest)


def _is_old(folder: Path, digest: str) -> bool:
    """Return whether no part of a copy was made or used for a day."""
    lock, users = folder / f"{digest}.lock", folder / f"{digest}.users"
    # To take a lock makes its file, so these count only without parts.
    parts = [one for one in folder.glob(f"{digest}.*") if one not in (lock, users)] or [lock]
    before_ms = (time.time() - _UNUSED_S) * 1000
    return all((Disk().modified_ms(one) or 0) < before_ms for one in parts)


def _remove(folder: Path, digest: str) -> None:
    """Remove the files of a copy. The caller has both locks; the file of the first goes last."""
    for one in folder.glob(f"{digest}.*"):
        if one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
    for kind in ("users", "lock"):
        (folder / f"{digest}.{kind}").unlink(missing_ok=True)
