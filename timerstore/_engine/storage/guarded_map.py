"""Maps of files that another program may truncate or replace while they are mapped.

    memory = GuardedMap(fd, size, ...)
    memory.watch(path)
    ...                        # a page after the file's end reads as zeros, without SIGBUS
    if fault_count[0] != before: truncated_below(root)

Thread safety: any thread. `_lock`, which no signal handler takes, protects the tables.
Invariants:
    1. Code that reads a map checks `fault_count` before it uses the result. So zeros in place of a
       file's bytes are never taken for the contents of the file.

A fault still ends the process in two cases. Another SIGBUS handler was installed after this one
(faulthandler.enable() after the first store was opened), or there are more than 16,384 maps.

See also: docs/decisions/0013-locks-and-re-entry.md.
"""

import mmap
import os
import threading
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import FailedError

_lock = threading.RLock()  # the garbage collector may unmap while its own thread holds it
_paths: dict[int, Path] = {}  # by number in C's table
_truncated: set[Path] = set()  # of maps that were closed


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)

fault_count = memoryview(ffi.buffer(lib.ts_guard_hits(), 4)).cast("i")
"""One number: how many faults were caught in maps of truncated files, in this process."""


class GuardedMap(NotCopyable, mmap.mmap):
    """A map of a file. Call `watch` once, right after it is made."""

    _number = -1

    def watch(self, path: Path) -> None:
        """Catch faults in this map from now on."""
        view = ffi.from_buffer(self)
        try:
            with _lock:
                lib.ts_guard_install()
                self._number = int(lib.ts_guard_add(ffi.cast("uint8_t *", view), len(self)))
                if self._number >= 0:
                    _paths[self._number] = path
        finally:
            ffi.release(view)

    def _unwatch(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            with _lock:
                if lib.ts_guard_is_hit(number):
                    _truncated.add(_paths[number])
                lib.ts_guard_remove(number)
                del _paths[number]

    def close(self) -> None:
        """Unmap. No buffer of the map may be in use."""
        self._unwatch()
        super().close()

    def __del__(self) -> None:
        self._unwatch()


def truncated_below(root: Path) -> Path | None:
    """Return a file below a folder that was truncated while it was mapped; None without one."""
    with _lock:
        paths = _paths.copy()
        found = [path for number, path in paths.items() if lib.ts_guard_is_hit(number)]
        return next((path for path in (*found, *_truncated) if path.is_relative_to(root)), None)


class TruncationWatch(NotCopyable):
    """Checks whether a mapped file below a folder was found truncated since the last check."""

    __slots__ = ("_root", "_seen")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = fault_count[0]

    def check(self) -> None:
        """Raise FailedError, once, if zeros may have been read in place of a file's bytes."""
        if fault_count[0] == self._seen:
            return
        self._seen = fault_count[0]
        path = truncated_below(self._root)
        if path is not None:
            raise FailedError("a file was truncated while it was open", where=path)


def forget_below(root: Path) -> None:
    """Drop records of truncated files below a folder, because a store is opened there again."""
    with _lock:
        _truncated.difference_update([path for path in _truncated if path.is_relative_to(root)])
