"""Listen on a unix socket or a TCP port.

A file that a killed server left is replaced. A socket on which a server listens is an error.

Locking: `PATH.lock` (flock) while the old file is checked and replaced, so that of two servers that
    start at once one gets the error.
Raises: ConfigError if the address cannot be used.
"""

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerstore.errors import ConfigError, cannot_listen
from timerstore.net.endpoints import Endpoint, connected_socket, unix_address

_BACKLOG = 1024
_PROBE_S = 1.0
_LOCK_S = 5.0


def listen_unix(
    path: Path, mode: int, group: int | None = None, *, is_guarded: bool = False
) -> tuple[socket.socket, tuple[int, int]]:
    """Return a socket that listens on a path, and the identity of its file (`identity_of`).

    mode, group: of the file.

    is_guarded: a lock of the caller excludes other servers.
    """
    try:
        if is_guarded:
            path.unlink(missing_ok=True)
            return _bound(path, mode, group)
        with _lock_beside(path):
            _remove_stale(path)
            return _bound(path, mode, group)
    except OSError as error:
        raise ConfigError(f"socket: cannot listen on {path} ({error.strerror or error})") from error


def _bound(path: Path, mode: int, group: int | None) -> tuple[socket.socket, tuple[int, int]]:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(one.fileno(), mode)  # Linux creates the file with this mode, less the umask
        with unix_address(path) as address:
            one.bind(address)
        with _removed_after_error(path):
            if group is not None:
                _give_to_group(path, group)
            if mode & 0o077:
                path.chmod(mode)
            found = path.lstat()
            one.listen(_BACKLOG)  # from now on clients can connect
    except BaseException:
        one.close()
        raise
    return one, (found.st_dev, found.st_ino)


@contextmanager
def _removed_after_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _give_to_group(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group, follow_symlinks=False)
    except PermissionError as error:
        raise ConfigError(
            f"group: wanted a group that this process is a member of, or root, got group {group}; "
            f"at {path}"
        ) from error


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"socket: wanted a new path or an unused socket, got a file; at {path}")
    try:
        connected_socket(Endpoint(path), _PROBE_S).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    raise ConfigError(f"socket: another server listens there; at {path}")


@contextmanager
def _lock_beside(path: Path) -> Iterator[None]:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"socket: another server starts there; at {path}.lock"
                    ) from error
                time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also in a child that was just forked
    finally:
        os.close(lock)


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a TCP port; 0 is a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:
        raise cannot_listen(host, port, error) from error


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a socket's file; None if it cannot be found."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def forget_unix(path: Path, identity: tuple[int, int]) -> None:
    """Remove the file of a socket that is still open, unless another server has replaced it."""
    if identity_of(path) == identity:
        path.unlink(missing_ok=True)
