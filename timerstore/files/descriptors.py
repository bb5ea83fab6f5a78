"""Descriptors: none of a store's is 0, 1 or 2.

The system gives the lowest number that is free. In a process that has closed its standard input,
output and error, as daemons do, files would get these numbers, and what anybody prints, or a
library says on standard error, would land in a store.

Threads:  any.
Locks:    `_lock`, around a duplicate that somebody else makes; nothing is called upward in it.
Source:   decision 0034.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD = 3  # that many, from 0 on
_lock = threading.Lock()


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def opened(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *,
           dir_fd: int | None = None) -> int:  # fmt: skip
    """Open as os.open does, under another number than those; OSError."""
    fd = os.open(path, flags, mode, dir_fd=dir_fd)
    if fd >= _STANDARD:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STANDARD)
    finally:
        os.close(fd)


@contextmanager
def duplicated_above(fd: int) -> Iterator[None]:
    """Have what duplicates a descriptor by itself, as mmap does, get another number, too; OSError.

    What is free of the standard ones is /dev/null so long.
    """
    with _lock:
        taken = []
        try:
            lowest = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
            os.close(lowest)
            while lowest < _STANDARD:
                lowest = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                taken.append(lowest)
            yield
        finally:
            for one in taken:
                os.close(one)
