"""Count the system calls that concern one folder, and let chosen ones fail.

    calls = FailingCalls(tmp_path)
    with calls.installed():
        calls.fail(7, errno.EIO, once=True)     # the 7th from here on; once, or from then on
        ...

The calls are all functions of `os` that take a path or a descriptor and that the engine uses, and
the calls of the modules in storage/: mmap, record locks and the C calls of file_io.c.

Invariants:
    1. Only paths below the folder count, and descriptors that were opened there. Python's own calls
       are not affected.
    2. A `close` that fails has closed the descriptor, as on Linux. A write that fails wrote
       nothing.
    3. Only calls that allocate space or a name fail with ENOSPC, and only those that take a
       descriptor with EMFILE.
"""

import errno
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from timerstore._engine.base.native import ffi
from timerstore._engine.storage import anchor, disk, file
from timerstore._engine.storage.guarded_map import GuardedMap

BY_PATH = (
    "open", "stat", "lstat", "statvfs", "listdir", "scandir", "mkdir", "unlink", "rename",
    "replace", "link", "rmdir",
)  # fmt: skip
BY_DESCRIPTOR = (
    "close", "fstat", "pwrite", "pread", "preadv", "lseek", "fdatasync", "fsync", "ftruncate",
    "posix_fallocate",
)  # fmt: skip
FROM_C = ("ts_zero_range", "ts_start_writing", "ts_punch", "ts_length_in_place")
OTHERS = ("mmap", "lockf", "flock")
TAKE_SPACE = {
    "create", "mkdir", "rename", "replace", "link", "pwrite", "fdatasync", "fsync", "ftruncate",
    "posix_fallocate", "ts_zero_range",
}  # fmt: skip
TAKE_DESCRIPTORS = {"open", "create", "listdir", "scandir", "mmap"}
ONLY = {errno.ENOSPC: TAKE_SPACE, errno.EMFILE: TAKE_DESCRIPTORS}
"""By error number, the calls that can fail with it; any call with another one."""
FOR_EVER = 1 << 60


class FailingCalls:
    """The system calls below one folder."""

    def __init__(self, folder: os.PathLike[str] | str) -> None:
        self._folder = os.fspath(folder)
        self._paths: dict[int, str] = {}  # paths of descriptors that were opened there
        self._real: dict[str, Callable[..., Any]] = {}
        self.count = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []  # names and paths of the calls that failed
        self._first = self._last = 0
        self._code = 0
        self._is_short = False

    def fail(self, nth: int, code: int, *, once: bool) -> None:
        """Let the n-th call from now on fail, or every call from the n-th on."""
        self._first = self.count + nth
        self._last = self._first if once else FOR_EVER
        self._code = code

    def shorten(self) -> None:
        """Let every read and write transfer half of the requested bytes, at least one."""
        self._is_short = True

    def heal(self) -> None:
        """Let no call fail any more."""
        self._first = self._last = 0
        self._is_short = False

    def _meets(self, name: str, path: str) -> bool:
        self.count += 1
        self.counts[name] += 1
        if not self._first <= self.count <= self._last or not self._first:
            return False
        if name not in ONLY.get(self._code, (name,)):
            if self._last == self._first:  # the next call that can fail with this error
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
            may_create = name == "open" and rest[0] & os.O_CREAT
            if self._meets("create" if may_create else name, where):
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
        """Intercept the calls within the block."""
        lib, fcntl = file.lib, file.fcntl
        self._real = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
        self._real |= {name: getattr(lib, name) for name in FROM_C}
        self._real |= {name: getattr(fcntl, name) for name in ("lockf", "flock")}
        saved = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
        try:
            for name in BY_PATH:
                setattr(os, name, self._by_path(name))
            for name in BY_DESCRIPTOR:
                setattr(os, name, self._by_descriptor(name))
            file.GuardedMap = self._map  # type: ignore[assignment,misc]
            from_c = {name: self._from_c(name) for name in FROM_C}
            file.lib = SimpleNamespace(**from_c, ts_write_each=_write_each)
            locks = {name: self._by_descriptor(name) for name in ("lockf", "flock")}
            replaced: Any = SimpleNamespace(**{**vars(fcntl), **locks})
            anchor.fcntl = disk.fcntl = file.fcntl = replaced
            yield
        finally:
            for name, real in saved.items():
                setattr(os, name, real)
            file.GuardedMap, file.lib = GuardedMap, lib  # type: ignore[misc]
            anchor.fcntl = disk.fcntl = file.fcntl = fcntl


def _write_each(fd: int, data: Any, size: int, count: int, offsets: Any) -> int:
    """Write each block, as C does, with calls that may fail."""
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
