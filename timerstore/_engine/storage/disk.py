"""Files and directories by name: open, list, make, rename, sync and remove them.

Every file call of the engine goes through this class, `File` (file.py) or `Anchor` (anchor.py).

Thread safety: any thread.
Invariants:
    1. Paths below an anchored root are reached without following a link (anchor.py).
    2. If no descriptor is free, files that are open only for a later use are closed, and the call
       is made again.
Raises: FullError on a full disk, quota or size limit, or without a free descriptor. FailedError,
    with path and error number, on every other error of the operating system.
See also: docs/decisions/0013-locks-and-re-entry.md.
"""

import errno
import fcntl
import os
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.anchor import FOLDER_FLAGS, Anchor, link_error, open_folder
from timerstore._engine.storage.file import (
    NO_DESCRIPTOR,
    File,
    check_of_system,
    close_descriptor,
    os_error,
    os_error_of,
    reserve_standard,
)
from timerstore.errors import CorruptError, FailedError, FullError, ReadOnlyError

# --- disk ---


__all__ = ["DIRECTORY_MODE", "FILE_MODE", "Anchor", "Disk", "File", "is_temporary_of"]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_MAKE_TRIES = 100
_SMALL_BYTES_MAX = 64 << 20


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class DescriptorCache(Protocol):
    """An object that keeps files open for a later use."""

    def release_descriptors(self) -> bool:
        """Close the files that are not in use; return whether there were any. From any thread."""


def _spared(
    method: Callable[Concatenate["Disk", Arguments], Answer],
) -> Callable[Concatenate["Disk", Arguments], Answer]:
    """Make a method, which may be repeated, use `Disk.spared`."""

    @wraps(method)
    def call(self: "Disk", /, *args: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return self.spared(lambda: method(self, *args, **named))

    return call


def is_temporary_of(name: str, path: Path) -> bool:
    """Return whether this is a temporary name of `create_small`; a killed process leaves one."""
    return name.startswith(f".{path.name}.") and name.endswith(".tmp")


class Disk(NotCopyable):
    """Files and directories by name."""

    _anchors: tuple[Anchor, ...] = ()

    def __init__(self) -> None:
        self._caches: weakref.WeakSet[DescriptorCache] = weakref.WeakSet()
        try:
            reserve_standard()
        except OSError as error:
            raise os_error(error, "open", Path(os.devnull)) from error

    # --- descriptors ---

    def add_cache(self, one: DescriptorCache) -> None:
        """Add an object that keeps files open, without keeping it alive."""
        self._caches.add(one)

    def spared(self, call: Callable[[], Answer]) -> Answer:
        """Make a call that may be repeated. If no descriptor is free, close cached files first."""
        try:
            return call()
        except FullError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in NO_DESCRIPTOR:
                raise
            released = [one.release_descriptors() for one in list(self._caches)]  # of all of them
            if not any(released):
                raise
        return call()

    # --- paths ---

    def anchor(self, root: Path) -> Anchor:
        """Open a root directory. Every path below it is reached from there until it is closed."""
        anchor = Anchor(root)
        self._anchors = (*(one for one in self._anchors if one.fd >= 0), anchor)
        return anchor

    def _anchor_of(self, path: Path) -> Anchor | None:
        text = str(path)
        for anchor in self._anchors:
            if anchor.fd >= 0 and text.startswith(anchor.prefix):
                return anchor
        return None

    def _parent_of(self, path: Path) -> AbstractContextManager[tuple[int | None, str]]:
        """Open a path's parent folder; yield its descriptor (None: none) and the name in it."""
        anchor = self._anchor_of(path)
        return nullcontext((None, str(path))) if anchor is None else anchor.parent_of(path)

    @contextmanager
    def _directory(self, path: Path) -> Iterator[int]:
        """Open a directory; yield its descriptor."""
        with self._parent_of(path) as (folder, name):
            if folder is None:
                fd = os.open(name, FOLDER_FLAGS & ~os.O_NOFOLLOW)
            else:
                fd = open_folder(folder, name, path)
        try:
            yield fd
        finally:
            close_descriptor(fd)

    @_spared
    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> File:
        """Open a regular file, for reading and writing unless `read_only`.

        Raises:
            FailedError: the path is not a regular file. Or the file is in an anchored root, is to
                be written, and has a second name (a hard link): a write would change another file.
        """
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        try:
            with self._parent_of(path) as (folder, name):
                fd = os.open(name, flags, FILE_MODE, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "open", path) from error
        file = File(path, fd)
        status = file.status()
        if not stat.S_ISREG(status.st_mode):
            is_folder = stat.S_ISDIR(status.st_mode)
            raise FailedError(
                "open",
                where=path,
                wanted="a regular file",
                got="a folder" if is_folder else "something else",
            ) from (os_error_of(errno.EISDIR) if is_folder else None)
        if status.st_nlink > 1 and not read_only and self._anchor_of(path) is not None:
            raise FailedError(
                "a file with another name (a hard link) is not written",
                where=path,
                wanted="1 name",
                got=status.st_nlink,
            )
        return file

    # --- status ---

    def exists(self, path: Path) -> bool:
        """Return whether a file, directory or link has this name.

        FailedError if the operating system cannot tell.
        """
        return self._status(path) is not None

    @_spared
    def _status(self, path: Path, *, follows: bool = False) -> os.stat_result | None:
        """Return the status of a path, or of a link's target if `follows`; None if it is absent."""
        try:
            with self._parent_of(path) as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=follows)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            check_of_system(error)
            return None
        except OSError as error:
            if error.errno == errno.ELOOP and follows:  # links in a circle have no target
                return None
            raise os_error(error, "stat", path) from error

    def is_directory(self, path: Path) -> bool:
        """Return whether this is a directory. FailedError on a link below an anchored root."""
        if self._anchor_of(path) is not None:
            self.check_no_link(path)
        status = self._status(path, follows=self._anchor_of(path) is None)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def check_no_link(self, path: Path) -> None:
        """Raise FailedError if this is a symbolic link: no name in a store may lead out of it."""
        status = self._status(path)
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise link_error(path) from os_error_of(errno.ELOOP)

    def file_bytes(self, path: Path) -> int | None:
        """Return a file's length, bytes; None if the path is not a regular file."""
        status = self._status(path)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    @_spared
    def identity(self, path: Path) -> tuple[int, int]:
        """Return device and inode, which identify a file or directory whatever its name is."""
        try:
            with self._parent_of(path) as (folder, name):
                status = os.stat(name, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "stat", path) from error
        return status.st_dev, status.st_ino

    @_spared
    def identities(self, folder: Path, names: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return device and inode of files in a folder; None if there is none with the name.

        The folder is opened once.
        """
        found: list[tuple[int, int] | None] = []
        name = ""
        try:
            with self._directory(folder) as fd:
                for name in names:
                    try:
                        status = os.stat(name, dir_fd=fd)
                    except FileNotFoundError as error:
                        check_of_system(error)
                        found.append(None)
                    else:
                        found.append((status.st_dev, status.st_ino))
        except OSError as error:
            raise os_error(error, "stat", folder / name) from error
        return found

    def modified_ms(self, path: Path) -> int | None:
        """Return when a file or directory was modified, ms since 1970; None if it is absent."""
        status = self._status(path, follows=True)
        return None if status is None else status.st_mtime_ns // 1_000_000

    def used_percent(self, path: Path) -> float:
        """Return how full the file system is, as `df` counts: without space reserved for root."""
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise os_error(error, "statvfs", path) from error
        used = status.f_blocks - status.f_bfree
        return 100 * used / max(1, used + status.f_bavail)

    @_spared
    def list(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; an empty list if the directory is absent."""
        try:
            with self._directory(path) as fd:
                return sorted(os.listdir(fd))
        except FileNotFoundError as error:
            check_of_system(error)
            return []
        except OSError as error:
            raise os_error(error, "list", path) from error

    # --- names ---

    @_spared
    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents. Names that this call makes are durable on return.

        Each level is synced before the next is made, even if another process made it and was killed
        before its sync. So a directory that contains another one is durable. If the last level
        existed before, only `sync_name` makes its name durable. If another process removes an empty
        level during the call, the level is made again.
        """
        for is_last in (*[False] * _MAKE_TRIES, True):
            missing, above = [], path
            while not self.is_directory(above):
                missing.append(above)
                above = above.parent
            if missing:
                self.sync_name(above)
            if self._make_all(missing[::-1], is_last=is_last):
                return

    def _make_all(self, paths: Sequence[Path], *, is_last: bool) -> bool:
        """Make nested directories; return False if one was removed during the call."""
        for one in paths:
            try:
                with self._parent_of(one) as (folder, name):
                    os.mkdir(name, DIRECTORY_MODE, dir_fd=folder)
            except FileExistsError as error:
                check_of_system(error)  # another process made it, and may not have synced it yet
            except OSError as error:
                check_of_system(error)
                if isinstance(error, FileNotFoundError) and not is_last:
                    return False
                raise os_error(error, "make directory", one) from error
            try:
                self.sync_directory(one.parent)
            except FailedError:
                if is_last or self.is_directory(one):
                    raise
                return False
        return True

    @_spared
    def unlink(self, path: Path) -> None:
        """Remove a name; durable after `sync_directory`."""
        try:
            with self._parent_of(path) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise os_error(error, "unlink", path) from error

    def remove(self, path: Path) -> None:
        """Remove a name; durable on return. It may be repeated after an error."""
        if self.exists(path):
            self.unlink(path)
        self.sync_directory(path.parent)

    @_spared
    def rename(self, old: Path, new: Path) -> None:
        """Rename `old` to `new`, which is replaced; durable after `sync_directory`."""
        try:
            with self._parent_of(old) as (source, name), self._parent_of(new) as (target, new_name):
                os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            raise os_error(error, "rename", old) from error

    @_spared
    def link(self, old: Path, new: Path) -> bool:
        """Give a file a second name; return False if the name is taken. Durable in both cases.

        FailedError where the file system has no hard links (some network file systems).
        """
        try:
            with self._parent_of(old) as (source, name), self._parent_of(new) as (target, new_name):
                os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target)
            is_new = True
        except FileExistsError as error:
            check_of_system(error)
            # A network file system may lose the answer to a link that succeeded, and try again.
            is_new = self.identity(new) == self.identity(old)
        except OSError as error:
            raise os_error(error, "link", new) from error
        self.sync_directory(new.parent)
        return is_new

    @_spared
    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        try:
            with self._directory(path) as fd:
                os.fsync(fd)
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # it was not opened
                raise os_error(error, "sync directory", path) from error
            check_of_system(error)
            raise FailedError(f"sync directory: {error.strerror}", where=path) from error

    def sync_name(self, path: Path) -> None:
        """Make the name of a file or directory durable.

        Three cases need no sync: a mount point, whose name is not on this file system; a name that
        is gone; and a parent that this process may not read, because a process with the same rights
        cannot have written it.
        """
        is_inner = self._anchor_of(path) is not None
        parent = path.parent if is_inner else Path(os.path.realpath(path)).parent
        try:
            if self.identity(parent)[0] == self.identity(path)[0]:
                self.sync_directory(parent)
        except FailedError as error:
            if not isinstance(error.__cause__, PermissionError | FileNotFoundError):
                raise

    @_spared
    def remove_empty(self, path: Path) -> bool:
        """Remove an empty directory; return False if it is not empty, or absent."""
        try:
            with self._parent_of(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise os_error(error, "remove directory", path) from error
        return True

    @_spared
    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything in it; do nothing if it is absent."""
        try:
            with self._parent_of(path) as (folder, name):
                shutil.rmtree(name, dir_fd=folder)
        except FileNotFoundError as error:
            check_of_system(error)
            return
        except OSError as error:
            raise os_error(error, "remove", path) from error

    # --- small files ---

    @property
    def small_bytes_max(self) -> int:
        """The largest size of a file that `read_small` reads, bytes."""
        return _SMALL_BYTES_MAX

    def read_small(self, path: Path) -> bytes | None:
        """Return the contents of a small file; None if it is absent. CorruptError above 64 MiB."""
        if not self.exists(path):
            return None
        try:
            file = self.open(path, read_only=True)
        except FailedError:
            if self.exists(path):
                raise
            return None  # another process removed it since
        if (size := file.size()) > _SMALL_BYTES_MAX:
            raise CorruptError(
                "a side file is too large",
                where=path,
                wanted=f"{_SMALL_BYTES_MAX} bytes or fewer",
                got=size,
            )
        return file.read(0, size)

    def write_small(self, path: Path, data: bytes) -> None:
        """Replace a small file; durable on return. After a crash it is the old or the new one.

        Raises:
            FullError: `read_small` would not read it; the old file stays.
        """
        _check_small(path, data)
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        file.resize(0)
        file.write(data, 0)
        file.sync()
        del file
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def create_small(self, path: Path, data: bytes) -> bool:
        """Create a small file, complete and durable; return False if the name is taken.

        Of several processes that create it at once, exactly one gets True.

        Raises:
            FullError: `read_small` would not read it.
        """
        _check_small(path, data)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        file = self.open(temporary, create=True)
        try:
            file.write(data, 0)
            file.sync()
            return self.link(temporary, path)
        finally:
            self.unlink(temporary)

    def read_created(self, path: Path) -> bytes | None:
        """Return the contents of a file of `create_small`, and make its name durable; None: absent.

        The process that created it may have been killed before it synced the directory. A power cut
        must not undo a decision that the caller takes from the file.
        """
        data = self.read_small(path)
        if data is not None:
            self.sync_directory(path.parent)
        return data

    @contextmanager
    def locked(self, path: Path, *, alone: bool) -> Iterator[None]:
        """Hold a lock on a file (flock), made if it is absent; wait until the lock is free.

        The lock belongs to the open file, so it also excludes other threads of this process.
        `alone` makes it exclusive.
        """
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except OSError as error:
            raise os_error(error, "lock", path) from error
        try:
            yield
        finally:
            del file  # closing it releases the lock


def _check_small(path: Path, data: bytes) -> None:
    if len(data) > _SMALL_BYTES_MAX:
        raise FullError(
            "a side file would be too large",
            where=path,
            wanted=f"{_SMALL_BYTES_MAX} bytes or fewer",
            got=len(data),
            retryable=False,
        )


# --- read only disk ---
# A disk that only reads: every call that would write, make or remove something raises an error.
#
# Thread safety: any thread.
# Invariants:
#     1. No file is opened for writing, no name is made or removed, nothing is locked.
# Raises: ReadOnlyError, with the operation and the path.


def _rejected(what: str, path_at: int = 0) -> Callable[..., NoReturn]:
    """Return a method that raises ReadOnlyError; `path_at`: which of its arguments is the path."""

    def reject(_self: Disk, *arguments: object, **_named: object) -> NoReturn:
        raise ReadOnlyError(f"{what}: the store is opened read-only", where=arguments[path_at])

    return reject


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
            self._make_file(path)
        return super().open(path, read_only=True)

    _make_file = _rejected("make a file")
    make_directory = _rejected("make a folder")
    unlink = remove = remove_empty = remove_tree = _rejected("remove")
    rename = _rejected("rename")
    sync_directory = sync_name = _rejected("sync")
    read_created = _rejected("sync")  # it would make the name durable
    write_small = create_small = _rejected("write")
    link = _rejected("link", path_at=1)
    locked = _rejected("lock")
