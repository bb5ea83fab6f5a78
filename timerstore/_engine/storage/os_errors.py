"""Turn errors of the operating system into errors of the store.

Raises: nothing but errors of the program's signal handlers; `os_error` returns the error for its
caller to raise.
"""

import errno
import os
import resource
import stat
from contextlib import suppress
from pathlib import Path

from timerstore.errors import FailedError, FullError, TimerStoreError

NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
"""Error numbers that mean no free descriptor: of the process, or of the system."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} | NO_DESCRIPTOR
"""Error numbers that mean no space: on the disk, in a quota, below a limit of a file's size, or in
the table of descriptors. Nothing is wrong with the store then, and the call can be repeated."""


def check_of_system(error: OSError | ValueError | RuntimeError) -> None:
    """Raise an error that a signal handler of the program raised during a call of the operating
    system: no such call raises an OSError without a number.
    """
    if isinstance(error, OSError) and error.errno is None:
        raise error


def os_error(error: OSError, what: str, where: object) -> TimerStoreError:
    """Return the store's error for an OSError: FullError without space or a free descriptor, else
    FailedError.

    If the operating system denied access, the error names the owner and the mode of the path.

    Raises:
        OSError: a signal handler of the program raised it (check_of_system).
    """
    check_of_system(error)
    cls = FullError if error.errno in FULL else FailedError
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    wanted = got = None
    if error.errno in (errno.EACCES, errno.EPERM):
        wanted, got = f"access for user {os.geteuid()}", _access_of(where)
    elif error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = f"fewer than {limit} open files in this process (ulimit -n)"
    return cls(f"{what}: {error.strerror} ({name})", where=where, wanted=wanted, got=got)


def os_error_of(code: int) -> OSError:
    """Return the OSError of an error number, for a condition that was found without a call."""
    return OSError(code, os.strerror(code))


def _access_of(where: object) -> str | None:
    """Describe owner and mode of a path, or of the nearest folder above it that can be read."""
    path = Path(str(where))
    for one in (path, *path.parents):
        with suppress(OSError, ValueError):
            status = one.stat()
            mode = stat.filemode(status.st_mode)
            return f"{one} of user {status.st_uid}, group {status.st_gid}, mode {mode}"
    return None


def close_descriptor(fd: int) -> None:
    """Close a descriptor. Errors are ignored: data that matters was synced before, with a check."""
    try:
        os.close(fd)
    except OSError as error:
        check_of_system(error)
