"""Counts the calls to the operating system that concern one folder, and fails chosen ones.

    calls = FailingCalls(tmp_path)
    with calls.installed():
        calls.fail(7, errno.EIO, once=True)     # the 7th from here on; once, or from then on
        ...

Data:     every function of `os` that takes a path or a descriptor and that something here calls,
          and, as storage/file.py sees them, mmap and the C calls of sync.c; and locks.
Holds:    (1) only paths below the folder count, and descriptors that were opened there: Python's
          own calls go through; (2) a `close` that fails has closed, as Linux does; a write that
          fails has written nothing; (3) ENOSPC is only said by calls that take space or a name.
"""

import errno
import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import timerstore._engine.storage.file as file_module
from timerstore._engine.base.native import ffi
from timerstore._engine.storage.guarded_map import GuardedMap

BY_PATH = (
    "open", "stat", "lstat", "statvfs", "listdir", "scandir", "mkdir", "unlink", "rename", "link",
    "rmdir",
)  # fmt: skip
BY_DESCRIPTOR = (
    "close", "fstat", "pwrite", "pread", "preadv", "lseek", "fdatasync", "fsync", "ftruncate",
    "posix_fallocate",
)  # fmt: skip
FROM_C = ("ts_zero_range", "ts_start_writing", "ts_punch")
OTHERS = ("mmap", "lockf", "flock")
TAKE_SPACE = {
    "open", "mkdir", "rename", "link", "pwrite", "fdatasync", "fsync", "ftruncate",
    "posix_fallocate", "ts_zero_range",
}  # fmt: skip
FOR_EVER = 1 << 60


class FailingCalls:
    """The calls below one folder."""

    def __init__(self, folder: os.PathLike[str] | str) -> None:
        self._folder = os.fspath(folder)
        self._paths: dict[int, str] = {}  # of descriptors that were opened there
        self._real: dict[str, Callable[..., Any]] = {}
        self.count = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []  # what was asked of what, of those that failed
        self._first = self._last = 0
        self._code = 0
        self._is_short = False

    def fail(self, nth: int, code: int, *, once: bool) -> None:
        """Fail the n-th call from here on, or all from the n-th on."""
        self._first = self.count + nth
        self._last = self._first if once else FOR_EVER
        self._code = code

    def shorten(self) -> None:
        """Have every write and read do the half of what is asked, at least a byte."""
        self._is_short = True

    def heal(self) -> None:
        """Nothing fails any more."""
        self._first = self._last = 0
        self._is_short = False

    def _meets(self, name: str, path: str) -> bool:
        self.count += 1
        self.counts[name] += 1
        if not self._first <= self.count <= self._last or not self._first:
            return False
        if self._code == errno.ENOSPC and name not in TAKE_SPACE:
            if self._last == self._first:  # the next one that can
                self._first = self._last = self._first + 1
            return False
        self.failed.append(f"{name} {path.removeprefix(self._folder)}")
        return True

    def _error(self, path: str) -> OSError:
        return OSError(self._code, os.strerror(self._code), path)

    def _of(self, given: Any, folder: int | None = None) -> str | None:
        if isinstance(given, int):
            return self._paths.get(given)
        if folder is not None:
            return None if folder not in self._paths else f"{self._paths[folder]}/{given}"
        path = os.fsdecode(os.fspath(given))
        return path if path.startswith(self._folder) else None

    # --- the calls ---

    def _by_path(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(path: Any, *rest: Any, **given: Any) -> Any:
            where = self._of(path, given.get("dir_fd", given.get("src_dir_fd")))
            if where is None:
                return real(path, *rest, **given)
            if self._meets(name, where):
                raise self._error(where)
            got = real(path, *rest, **given)
            if name == "open":
                self._paths[got] = where
            return got

        return call

    def _by_descriptor(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(fd: int, *rest: Any, **given: Any) -> Any:
            where = self._paths.get(fd)
            if where is None:
                return real(fd, *rest, **given)
            fails = self._meets(name, where)
            if name == "close":
                del self._paths[fd]
                real(fd)
            if fails:
                raise self._error(where)
            if name == "close":
                return None
            if self._is_short and name in ("pwrite", "pread", "preadv"):
                return real(fd, *_halved(name, rest), **given)
            return real(fd, *rest, **given)

        return call

    def _map(self, fd: int, *rest: Any, **given: Any) -> mmap.mmap:
        where = self._paths.get(fd)
        if where is not None and self._meets("mmap", where):
            raise self._error(where)
        return GuardedMap(fd, *rest, **given)

    def _from_c(self, name: str) -> Callable[..., int]:
        real = self._real[name]

        def call(fd: int, *rest: Any) -> int:
            where = self._paths.get(fd)
            if where is not None and self._meets(name, where):
                return -self._code
            return int(real(fd, *rest))

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stand between the engine and the system for a while."""
        lib = file_module.lib
        self._real = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
        self._real |= {name: getattr(lib, name) for name in FROM_C}
        self._real |= {name: getattr(fcntl, name) for name in ("lockf", "flock")}
        saved = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
        locks = {name: getattr(fcntl, name) for name in ("lockf", "flock")}
        try:
            for name in BY_PATH:
                setattr(os, name, self._by_path(name))
            for name in BY_DESCRIPTOR:
                setattr(os, name, self._by_descriptor(name))
            file_module.GuardedMap = self._map  # type: ignore[assignment,misc]
            from_c = {name: self._from_c(name) for name in FROM_C}
            file_module.lib = SimpleNamespace(**from_c, ts_write_each=_write_each)
            for name in locks:
                setattr(fcntl, name, self._by_descriptor(name))
            yield
        finally:
            for name, real in saved.items():
                setattr(os, name, real)
            for name, real in locks.items():
                setattr(fcntl, name, real)
            file_module.GuardedMap, file_module.lib = GuardedMap, lib  # type: ignore[misc]


def _write_each(fd: int, data: Any, size: int, count: int, offsets: Any) -> int:
    """As in C, by way of calls that may fail."""
    pieces = memoryview(ffi.buffer(data, size * count))
    try:
        for k in range(count):
            done = 0
            while done < size:
                piece = pieces[k * size + done : (k + 1) * size]
                done += os.pwrite(fd, piece, offsets[k] + done)
    except OSError as error:
        return -(error.errno or 0)
    return 0


def _halved(name: str, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "pwrite":
        return (memoryview(rest[0])[: max(1, len(rest[0]) // 2)], *rest[1:])
    if name == "pread":
        return (max(1, rest[0] // 2), *rest[1:])
    [buffer] = rest[0]
    return ([buffer[: max(1, len(buffer) // 2)]], *rest[1:])
