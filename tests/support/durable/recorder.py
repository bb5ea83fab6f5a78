"""Recorder of durability: which file contents and names a power cut could still take back.

    with recording(tmp_path) as recorder:     # what is below tmp_path now counts as durable
        store = timerstore.open(tmp_path / "store")
        store.put("t", b"m")
        recorder.check(ANSWER)                # fails on anything unsynced that is not allowed

It works at the boundary to the operating system: it replaces `os.fsync` and `os.fdatasync` and
keeps, for each file, its bytes as of its last sync and, for each directory, its entries as of its
last sync. What differs from the present state is unsynced. Because it compares states it also sees
bytes that were written through a shared map or by C.

An answer must not only leave nothing unsynced, its effect must be on the disk: `cut` makes the
directory that the worst power cut leaves, which has what was synced and nothing else.

Invariants:
    1. A file sync makes contents durable, never a name. A directory sync makes its entries durable,
       and nothing below them.
    2. `Barrier`s are checked before each act they name, so that an act that must follow a sync
       fails when it comes first.
    3. The syncs are recorded and not done: tests stay fast.
    4. A sync that fails (`fault`) writes nothing, and leaves its pages clean: only what is written
       again is on the disk after the next sync of that file.
"""

import errno
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

import timerstore._engine.storage.file
from timerstore._engine.base.native import lib

_LINK, _UNLINK = os.link, os.unlink
_PAGE = 4096

Inode = int

Entries = dict[str, tuple[Inode, bool]]
"""Of a directory: its names, each with an inode and whether that is a directory."""


class Unsynced(NamedTuple):
    """One thing that a power cut may take back."""

    kind: str
    """contents: of a file. name: a directory entry that was made or replaced. removed: an entry
    that was removed.
    """
    path: str
    """Relative to the folder that is recorded."""


class Allowed(NamedTuple):
    """Unsynced things that an answer does not depend on."""

    kind: str
    pattern: str
    reason: str

    def covers(self, one: Unsynced) -> bool:
        return self.kind in (one.kind, "*") and fnmatch(one.path, self.pattern)


class Barrier(NamedTuple):
    """An act that must not come before certain other things are durable."""

    act: str
    """write, zero, punch, resize, unlink, rename, rename_folder or link."""
    pattern: str
    levels: int
    """How many folders up from the act's path the things lie that it depends on."""
    needs: Sequence[str]
    """Patterns, relative to that folder, of what must be durable."""
    reason: str
    allowed: Sequence[Allowed] = ()

    def is_free(self, one: Unsynced, base: str) -> bool:
        """Return whether the act may come before this is durable."""
        inner = one._replace(path=one.path.removeprefix(f"{base}/"))
        return any(a.covers(inner) for a in self.allowed)


class Fault(NamedTuple):
    """The next act of a kind on a file fails."""

    act: str
    """write or sync."""
    pattern: str
    how: str
    """torn: half of a write is done; full: none of it; failed: of a sync."""


class Recorder:
    """Knows what is durable below one folder."""

    def __init__(self, top: Path, barriers: Sequence[Barrier]) -> None:
        self._top = top.resolve()
        self._lock = threading.RLock()
        self._contents: dict[Inode, bytes] = {}  # compressed
        self._entries: dict[Inode, Entries] = {}
        self.barriers = barriers
        self.fault: Fault | None = None
        """Set by a test; None again when it was met."""
        self.before_write: Callable[[str, Sequence[int]], None] = lambda _path, _offsets: None
        """Called with a file and the offsets of the pieces that are about to be written."""
        self._lost: dict[Inode, set[int]] = {}  # pages that a failed sync left clean
        self.before_sync: Callable[[], None] = lambda: None
        """Called before each sync: a test may look at the files, or have them copied."""
        self.passed: set[Barrier] = set()
        """Barriers that were met at least once."""
        self.settle()

    # --- what is durable ---

    def settle(self) -> None:
        """Everything below the folder counts as durable as it is now."""
        for folder, files in self._walk():
            self._entries[folder.stat().st_ino] = _entries_of(folder)
            for path in files:
                self._contents[path.stat().st_ino] = zlib.compress(path.read_bytes(), 1)

    def name_is_durable(self, path: Path) -> None:
        """What has this name counts as durable, as an entry of its folder."""
        self._entries[path.parent.stat().st_ino] = _entries_of(path.parent)

    def synced(self, fd: int) -> None:
        """A file or a directory was synced."""
        if not Path(_name_of(fd)).is_relative_to(self._top):
            return
        with self._lock:  # of two threads that sync one file the later state stays
            self._synced(fd)

    def _synced(self, fd: int) -> None:
        self.before_sync()
        status = os.fstat(fd)
        inode = status.st_ino
        if stat.S_ISDIR(status.st_mode):
            self._entries[inode] = _entries_of(fd)
            return
        now, before = _bytes_of(fd), self.durable(inode)
        if self.meets("sync", _name_of(fd)) is not None:
            pages = range(-(-max(len(now), len(before)) // _PAGE))
            news = {k for k in pages if _page(now, k) != _page(before, k)}
            self._lost.setdefault(inode, set()).update(news)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        kept = bytearray(now)
        for page in self._lost.get(inode, ()):
            old = _page(before, page)
            kept[page * _PAGE : page * _PAGE + len(old)] = old
        self._contents[inode] = zlib.compress(kept, 1)

    def durable(self, file: Inode | Path) -> bytes:
        """Give a file's bytes as a power cut leaves them."""
        raw = self._contents.get(file.stat().st_ino if isinstance(file, Path) else file)
        return b"" if raw is None else zlib.decompress(raw)

    def wrote(self, fd: int, offset: int, size: int) -> None:
        """A range is dirty, and will be on the disk with the next sync."""
        lost = self._lost.get(os.fstat(fd).st_ino)
        if lost:
            lost.difference_update(range(offset // _PAGE, (offset + size - 1) // _PAGE + 1))

    def meets(self, act: str, path: str) -> str | None:
        """How this act fails; None: it does not."""
        fault = self.fault
        if fault is None or fault.act != act or not fnmatch(path, fault.pattern):
            return None
        self.fault = None
        return fault.how

    @contextmanager
    def going(self, path: str | Path) -> Iterator[None]:
        """A name goes inside: the inode's number may serve another file then."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            yield
            return
        yield
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
            self._contents.pop(status.st_ino, None)
            self._lost.pop(status.st_ino, None)
            self._entries.pop(status.st_ino, None)

    def cut(self, root: Path, to: Path) -> Path:
        """Make `to` what the worst power cut leaves of `root`: what was synced, nothing else."""
        to.mkdir(parents=True)
        if self._is_named(root):
            self._restore(root.stat().st_ino, to)
        return to

    def _restore(self, folder: Inode, to: Path) -> None:
        for name, (inode, is_folder) in self._entries.get(folder, {}).items():
            if is_folder:
                (to / name).mkdir()
                self._restore(inode, to / name)
            else:
                (to / name).write_bytes(self.durable(inode))

    # --- what is not ---

    def unsynced(self, base: str = "", needs: Sequence[str] = ("*",)) -> list[Unsynced]:
        """Give what a power cut may take back: below the folder `base`, of what fits `needs`, which
        are relative to it.
        """
        top = self._top / base
        found: list[Unsynced] = []

        def add(kind: str, path: Path) -> None:
            inner = path.relative_to(top).as_posix()
            if any(fnmatch(inner, pattern) for pattern in needs):
                found.append(Unsynced(kind, self._relative(path)))

        for folder, files in self._walk(top):
            durable = self._entries.get(folder.stat().st_ino, {})
            now = _entries_of(folder)
            for name in sorted(now.keys() | durable.keys()):
                if now.get(name) != durable.get(name):
                    add("name" if name in now else "removed", folder / name)
            for path in files:
                inner = path.relative_to(top).as_posix()
                if any(fnmatch(inner, one) for one in needs) and not self._is_synced(path):
                    add("contents", path)
        return found

    def _is_named(self, folder: Path) -> bool:
        """Return whether a folder's own name, and those above it, are durable."""
        while folder != self._top:
            durable = self._entries.get(folder.parent.stat().st_ino, {})
            if durable.get(folder.name) != (folder.stat().st_ino, True):
                return False
            folder = folder.parent
        return True

    def _is_synced(self, path: Path) -> bool:
        inode = path.stat().st_ino
        return inode in self._contents and self.durable(inode) == path.read_bytes()

    def check(self, allowed: Sequence[Allowed] = (), base: str = "") -> None:
        """Fail where the answer that was just given depends on something that is not durable below
        the folder `base`, or in the names that lead to it.
        """
        assert self._is_named(self._top / base), f"answered before {base} had its name, durably"
        wrong = [one for one in self.unsynced(base) if not any(a.covers(one) for a in allowed)]
        assert not wrong, f"answered before it was durable: {wrong}"

    def reached(self, act: str, path: str | Path) -> None:
        """An act is about to happen: it must not come before what it depends on is durable."""
        place = Path(path)
        if not place.is_relative_to(self._top):
            return
        relative = self._relative(place)
        for barrier in self.barriers:
            if barrier.act != act or not fnmatch(relative, barrier.pattern):
                continue
            self.passed.add(barrier)
            base = self._relative([place, *place.parents][barrier.levels])
            base = "" if base == "." else base
            found = self.unsynced(base, barrier.needs)
            wrong = [one for one in found if not barrier.is_free(one, base)]
            assert not wrong, f"{act} {relative} ({barrier.reason}), before a sync of {wrong}"

    def writing(self, path: str, offsets: Sequence[int]) -> None:
        """Pieces of a file are about to be written."""
        self.reached("write", path)
        if Path(path).is_relative_to(self._top):
            self.before_write(path, offsets)

    def killed(self, root: Path, copy: Path) -> Path:
        """Make `copy` what a kill leaves of `root`: all that was written, durable only where it was
        synced.
        """
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(root, copy)
        copies: dict[Inode, Path] = {}
        for old, files in self._walk(root):
            for one in (old, *files, old / "lock"):
                new = copy / one.relative_to(root)
                if new.exists():
                    first = copies.setdefault(one.stat().st_ino, new)
                    if first is not new:  # a second name of one file
                        _UNLINK(new)
                        _LINK(first, new)
        inodes = {inode: new.stat().st_ino for inode, new in copies.items()}
        for old_inode, new_inode in inodes.items():
            if old_inode in self._contents:
                self._contents[new_inode] = self._contents[old_inode]
            if old_inode in self._lost:
                self._lost[new_inode] = set(self._lost[old_inode])
            if old_inode in self._entries:
                self._entries[new_inode] = {
                    name: (inodes.get(inode, inode), is_folder)
                    for name, (inode, is_folder) in self._entries[old_inode].items()
                }
        if self._is_named(root):
            for folder in (copy, *copy.parents):
                if folder == self._top:
                    break
                self._entries[folder.parent.stat().st_ino] = _entries_of(folder.parent)
        return copy

    def killed_before_each_sync(
        self, root: Path, copies: Path, act: Callable[[], object]
    ) -> list[Path]:
        """Do something below `root`, and give what a kill before each of its syncs leaves."""
        found: list[Path] = []

        def kill() -> None:
            if root.exists():
                found.append(self.killed(root, copies / f"{len(found)}"))

        copies.mkdir()
        self.before_sync = kill
        try:
            act()
        finally:
            self.before_sync = lambda: None
        return found

    # --- files ---

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._top).as_posix()

    def _walk(self, top: Path | None = None) -> Iterator[tuple[Path, list[Path]]]:
        for name, _, files in os.walk(top or self._top):
            folder = Path(name)
            # Another descriptor of `lock` that closes would drop the store's record lock on it.
            yield folder, [folder / one for one in files if one != "lock"]


def _entries_of(folder: Path | int) -> Entries:
    with os.scandir(folder) as entries:
        return {one.name: (one.inode(), one.is_dir(follow_symlinks=False)) for one in entries}


def _page(data: bytes, number: int) -> bytes:
    return data[number * _PAGE : (number + 1) * _PAGE]


def _bytes_of(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _name_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _place(path: Any, dir_fd: int | None) -> str:
    folder = Path.cwd() if dir_fd is None else Path(_name_of(dir_fd))
    return str(folder / os.fspath(path))


@contextmanager
def recording(top: Path, barriers: Sequence[Barrier] = ()) -> Iterator[Recorder]:
    """Record every sync of this process while inside."""
    recorder = Recorder(top, barriers)
    with pytest.MonkeyPatch.context() as patch:
        _replace_syncs(patch, recorder)
        _replace_names(patch, recorder)
        _replace_writes(patch, recorder)
        yield recorder


def _replace_syncs(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    patch.setattr(os, "fsync", recorder.synced)
    patch.setattr(os, "fdatasync", recorder.synced)


def _replace_names(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    unlink, rmdir, rename, link = os.unlink, os.rmdir, os.rename, os.link

    def removing(act: str, call: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            place = _place(path, dir_fd)
            recorder.reached(act, place)
            with recorder.going(place):
                call(path, dir_fd=dir_fd)

        return remove

    def renaming(
        old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        place, before = _place(new, dst_dir_fd), _place(old, src_dir_fd)
        if Path(before).is_dir():
            recorder.reached("rename_folder", before)
        else:
            recorder.reached("rename", place)
        with recorder.going(place):
            rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def linking(old: Any, new: Any, **how: Any) -> None:
        recorder.reached("link", _place(new, how.get("dst_dir_fd")))
        link(old, new, **how)

    patch.setattr(os, "unlink", removing("unlink", unlink))
    patch.setattr(os, "rmdir", removing("rmdir", rmdir))
    patch.setattr(os, "rename", renaming)
    patch.setattr(os, "replace", renaming)
    patch.setattr(os, "link", linking)


def _replace_writes(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    pwrite, ftruncate = os.pwrite, os.ftruncate

    def writing(fd: int, data: Any, offset: int, /) -> int:
        place = _name_of(fd)
        raw = memoryview(data).cast("B")
        if os.pread(fd, len(raw), offset) != raw:  # the same bytes again change nothing
            recorder.writing(place, [offset])
        how = recorder.meets("write", place)
        if how is None:
            done = pwrite(fd, data, offset)
            recorder.wrote(fd, offset, done)
            return done
        if how == "torn":
            part = memoryview(data).cast("B")
            pwrite(fd, part[: len(part) // 2], offset)
        code = errno.ENOSPC if how == "full" else errno.EIO
        raise OSError(code, os.strerror(code))

    def resizing(fd: int, size: int, /) -> None:
        recorder.reached("resize", _name_of(fd))
        ftruncate(fd, size)

    patch.setattr(os, "pwrite", writing)
    patch.setattr(os, "ftruncate", resizing)
    patch.setattr(timerstore._engine.storage.file, "lib", _NativeCalls(recorder))


class _NativeCalls:
    """The compiled calls of the disk layer, each recorded as an act."""

    _ACTS: ClassVar[dict[str, str]] = {
        "ts_write_each": "write",
        "ts_zero_range": "zero",
        "ts_punch": "punch",
    }

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        call = getattr(lib, name)
        act = self._ACTS.get(name)
        if act is None:
            return call

        def recorded(fd: int, *arguments: Any) -> int:
            self._recorder.reached(act, _name_of(fd))
            return int(call(fd, *arguments))

        return self._write_each if act == "write" else recorded

    def _write_each(self, fd: int, pieces: Any, size: int, count: int, offsets: Any) -> int:
        place, recorder = _name_of(fd), self._recorder
        recorder.writing(place, list(offsets[0:count]))
        how = recorder.meets("write", place)
        done = count if how is None else count // 2 if how == "torn" else 0
        status = int(lib.ts_write_each(fd, pieces, size, done, offsets))
        for at in range(done):
            recorder.wrote(fd, offsets[at], size)
        if how is None:
            return status
        return -(errno.ENOSPC if how == "full" else errno.EIO)
