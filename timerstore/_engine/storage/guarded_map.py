"""Guarded maps: of files that somebody may cut, or replace, while they are mapped.

    memory = GuardedMap(fd, size, ...)
    memory.watch(path)
    ...                              # a page behind the file's end reads as zeros
    if hits[0] != known: cut_below(root)

Threads:  any; the table is changed under `_lock`, which no signal handler takes.
Holds:    whoever used a map looks at `hits` before it acts on what it read: what zeros said is not
          taken for what the file holds.
Fails:    where another SIGBUS handler is set after ours (faulthandler.enable() after the first
          store was opened), or there are more than 16,384 maps, a fault ends the process as ever.
Source:   docs/decisions/0013-locks-and-re-entry.md.
"""

import mmap
import os
import threading
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore.errors import FailedError

_lock = threading.RLock()  # a collection may unmap while its own thread holds it
_paths: dict[int, Path] = {}  # by number in C's table
_cut: set[Path] = set()  # of maps that are gone


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)

hits = memoryview(ffi.buffer(lib.ts_guard_hits(), 4)).cast("i")
"""One number: how often a map was found cut, in this process."""


class GuardedMap(Owner, mmap.mmap):
    """A map of a file; `watch` is called once, right after it is made."""

    _number = -1

    def watch(self, path: Path) -> None:
        """Answer faults in it from now on."""
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
                    _cut.add(_paths[number])
                lib.ts_guard_remove(number)
                del _paths[number]

    def close(self) -> None:
        """Unmap. Nobody may hold a view."""
        self._unwatch()
        super().close()

    def __del__(self) -> None:
        self._unwatch()


def cut_below(root: Path) -> Path | None:
    """Give a file below a folder that was found cut while it was mapped."""
    with _lock:
        paths = _paths.copy()
        found = [path for number, path in paths.items() if lib.ts_guard_is_hit(number)]
        return next((path for path in (*found, *_cut) if path.is_relative_to(root)), None)


class CutWatch(Owner):
    """Raises once where a file below a folder was found cut since the last look."""

    __slots__ = ("_root", "_seen")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = hits[0]

    def check(self) -> None:
        """FailedError where what was read meanwhile may have been zeros in place of a file's."""
        if hits[0] == self._seen:
            return
        self._seen = hits[0]
        path = cut_below(self._root)
        if path is not None:
            raise FailedError("a file was cut while it was open", where=path)


def forget_below(root: Path) -> None:
    """A store that is opened anew reads its files anew: nothing of the last one's counts."""
    with _lock:
        _cut.difference_update([path for path in _cut if path.is_relative_to(root)])
