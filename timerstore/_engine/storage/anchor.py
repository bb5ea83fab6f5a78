"""Open a root directory and reach the files below it without following a symbolic link.

Invariants:
    1. A path below an anchored root is resolved folder by folder from the open root. No link is
       followed on the way, even if one replaces a folder after a check.
Raises: FailedError on a link in the path, or on a name that leads out of the root.
See also: docs/decisions/0013-locks-and-re-entry.md.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.storage.file import check_of_system, close_descriptor, os_error
from timerstore.errors import ConfigError, FailedError, quoted

# --- anchor ---


FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a directory, but no link to one."""


class Anchor(NotCopyable):
    """An open root directory. Paths below it stay in it if the root is renamed or replaced."""

    __slots__ = ("fd", "prefix", "root")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = f"{root}/"
        try:
            self.fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise os_error(error, "open", root) from error

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Its lock ends unless a forked child still has a copy of it."""
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            self.fd = -1
            close_descriptor(fd)

    def identity(self) -> tuple[int, int]:
        """Return device and inode, which identify the directory whatever its name is."""
        try:
            status = os.fstat(self.fd)
        except OSError as error:
            raise os_error(error, "stat", self.root) from error
        return status.st_dev, status.st_ino

    def lock(self, *, shared: bool = False) -> bool:
        """Lock the directory (flock); return False if another descriptor has a conflicting lock.

        Without `shared` the lock is exclusive. Where the file system has no such lock for a
        directory (NFS requires a writable file) return True without a lock.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            check_of_system(error)
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def unlock(self) -> None:
        """Release the lock, even if a forked child has a copy of the descriptor."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError as error:
            check_of_system(error)

    @contextmanager
    def parent_of(self, path: Path) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a path below the root; yield its descriptor and the name."""
        *folders, name = str(path)[len(self.prefix) :].split("/")
        fd = self.fd
        try:
            for folder in folders:
                inner = open_folder(fd, folder, path)
                if fd != self.fd:
                    close_descriptor(fd)
                fd = inner
            yield fd, name
        finally:
            if fd != self.fd:
                close_descriptor(fd)


def open_folder(fd: int, folder: str, path: Path) -> int:
    """Open a folder of an open directory; return its descriptor. `path` is for error texts."""
    if folder in ("", ".", ".."):
        raise FailedError("a name leads out of the store", where=path)
    try:
        return os.open(folder, FOLDER_FLAGS, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, fd):
            raise link_error(path) from error
        raise


def link_error(path: Path) -> FailedError:
    """Return the error for a symbolic link inside a store."""
    return FailedError(
        "a link in a store is not followed",
        where=path,
        wanted="a folder or a mount point; only the root of a store may be a link",
    )


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError as error:
        check_of_system(error)
        return False


# --- paths ---
# Check paths that callers pass: a path that no file can have raises ConfigError.
#
# Without these checks the operating system's calls would raise ValueError for NUL, RuntimeError for
# links in a circle, and other errors for a working directory that was removed.


_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")


def path_text(what: str, path: object) -> str:
    """Return a folder's path as text. `what` names the argument in the error.

    Raises:
        ConfigError: not a path, empty, a URL, with a NUL, or not encodable for the file system.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ConfigError(f"{what}: wanted text or a path, got {quoted(path)}")
    if not text:  # as a Path it would be the working directory
        raise ConfigError(f"{what}: wanted a folder, got {quoted(path)}")
    if text is path and (url := _URL.match(text)):  # not shown whole: it may have a password
        raise ConfigError(f"{what}: wanted a path of this machine, got a URL, {url[0]}...")
    if "\0" in text:
        raise ConfigError(f"{what}: wanted a path without NUL, got {quoted(text)}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what}: wanted a path that the file system can encode, got {text!a}"
        ) from error
    return text


def absolute_path(what: str, path: object) -> Path:
    """Return a folder's absolute path, so that a later change of directory does not change it.

    Links in the path are followed at each use.

    Raises:
        ConfigError: not a path, or relative to a working directory that was removed.
    """
    text = path_text(what, path)
    try:
        return Path(text).absolute()
    except OSError as error:
        check_of_system(error)
        raise ConfigError(
            f"{what}: wanted an absolute path, as the working directory is gone, got {quoted(text)}"
        ) from error


MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and the like, as octal numbers


def is_mount_point(path: Path) -> bool:
    """Return whether a path that `resolved_path` returned is a mount point.

    This includes a folder of the same disk that is mounted there (a bind mount). Its device number
    is the same, so /proc/self/mountinfo is read.
    """
    if path.is_mount():
        return True
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError as error:
        check_of_system(error)
        return False
    expected = os.fsencode(path)
    fields = (line.split(b" ")[4:5] for line in lines)
    return any(_ESCAPED.sub(_unescaped, one) == expected for field in fields for one in field)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8) & 0xFF])


def resolved_path(what: str, path: Path) -> Path:
    """Return the absolute path without links and dots.

    Raises:
        ConfigError: links lead in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        check_of_system(error)
        raise ConfigError(f"{what}: wanted a path without a circle of links, got {path}") from error
