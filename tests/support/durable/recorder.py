"""A recorder of durability: the file contents and names that a power cut could still revert.

    with recording(tmp_path) as recorder:     # everything below tmp_path now counts as durable
        store = timerstore.open(tmp_path / "store")
        store.put("t", b"m")
        recorder.check(ANSWER)                # fails on anything unsynced that is not allowed

It works at the boundary to the operating system. It replaces `os.fsync` and `os.fdatasync`, and
keeps the bytes of each file and the entries of each directory as of their last sync. Everything
that differs from the present state is unsynced. Because it compares states, it also finds bytes
that were written through a shared map or by C.

A call must not only leave nothing unsynced when it returns, its effect must be on the disk: `cut`
makes the directory that the worst power cut leaves, which has the synced state only.

Invariants:
    1. A file sync makes contents durable, never a name. A directory sync makes its entries durable,
       and nothing below them.
    2. `Barrier`s are checked before each act they name, so that an act before its
       sync fails.
    3. The syncs are recorded and not done: tests stay fast.
    4. A sync that fails (`fault`) writes nothing and leaves its pages clean: the next sync of that
       file writes only pages that were written again.
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
from typing import NamedTuple

_LINK, _UNLINK = os.link, os.unlink
_PAGE = 4096

Inode = int

Entries = dict[str, tuple[Inode, bool]]
"""The names of a directory, each with an inode and whether that is a directory."""


class Unsynced(NamedTuple):
    """One change that a power cut may revert."""

    kind: str
    """contents: of a file. name: a directory entry that was made or replaced. removed: an entry
    that was removed.
    """
    path: str
    """Relative to the folder that is recorded."""


class Allowed(NamedTuple):
    """Unsynced changes that the result of a call does not depend on."""

    kind: str
    pattern: str
    reason: str

    def covers(self, one: Unsynced) -> bool:
        return self.kind in (one.kind, "*") and fnmatch(one.path, self.pattern)


class Barrier(NamedTuple):
    """An act that must not come before certain other changes are durable."""

    act: str
    """write, zero, punch, resize, unlink, rename, rename_folder or link."""
    pattern: str
    levels: int
    """The number of folders from the act's path up to the folder of `needs`."""
    needs: Sequence[str]
    """Patterns, relative to that folder, of the files that must be durable."""
    reason: str
    allowed: Sequence[Allowed] = ()

    def is_free(self, one: Unsynced, base: str) -> bool:
        """Return whether the act may come before this is durable."""
        inner = one._replace(path=one.path.removeprefix(f"{base}/"))
        return any(a.covers(inner) for a in self.allowed)


class Fault(NamedTuple):
    """A fault: the next act of a kind on a file fails."""

    act: str
    """write or sync."""
    pattern: str
    how: str
    """torn: half of a write is done; full: none of it; failed: of a sync."""


class Recorder:
    """A record of the durable state below one folder."""

    def __init__(self, top: Path, barriers: Sequence[Barrier]) -> None:
        self._top = top.resolve()
        self._lock = threading.RLock()
        self._contents: dict[Inode, bytes] = {}  # compressed
        self._entries: dict[Inode, Entries] = {}
        self.holds_folders = False
        """Whether folders stay open: then none gets the number of one that pyarrow removes."""
        self._held: dict[Inode, int] = {}
        self.barriers = barriers
        self.fault: Fault | None = None
        """Set by a test; None again after it was applied."""
        self.before_write: Callable[[str, Sequence[int]], None] = lambda _path, _offsets: None
        """Called before a write with the file and the offsets of the pieces."""
        self._lost: dict[Inode, set[int]] = {}  # pages that a failed sync left clean
        self.before_sync: Callable[[], None] = lambda: None
        """Called before each sync: a test may look at the files, or have them copied."""
        self.after_sync: Callable[[str], None] = lambda _path: None
        """Called with the path of a file or folder that is synced, before the sync returns."""
        self.passed: set[Barrier] = set()
        """Barriers that were met at least once."""
        self.settle()

    # --- durable state ---

    def settle(self) -> None:
        """Count everything below the folder as durable as it is now."""
        for folder, files in self._walk():
            self._entries[folder.stat().st_ino] = _entries_of(folder)
            for path in files:
                self._contents[path.stat().st_ino] = zlib.compress(path.read_bytes(), 1)

    def _hold(self, folder: Path) -> None:
        """Keep a folder and those in it open, so that their numbers are not used again."""
        for one in (folder, *folder.iterdir()) if self.holds_folders else ():
            if one.is_dir() and (inode := one.stat().st_ino) not in self._held:
                self._held[inode] = os.open(one, os.O_RDONLY)

    def close(self) -> None:
        """Close the folders that are kept open."""
        while self._held:
            os.close(self._held.popitem()[1])

    def name_is_durable(self, path: Path) -> None:
        """Count this name as durable, as an entry of its folder."""
        self._entries[path.parent.stat().st_ino] = _entries_of(path.parent)

    def synced(self, fd: int) -> None:
        """Record the sync of a file or a directory."""
        if not Path(name_of(fd)).is_relative_to(self._top):
            return
        with self._lock:  # if two threads sync one file, the later state must stay
            self._synced(fd)
        self.after_sync(name_of(fd))

    def _synced(self, fd: int) -> None:
        self.before_sync()
        status = os.fstat(fd)
        inode = status.st_ino
        if stat.S_ISDIR(status.st_mode):
            self._entries[inode] = _entries_of(fd)
            self._hold(Path(name_of(fd)))
            return
        now, before = _bytes_of(fd), self.durable(inode)
        if self.meets("sync", name_of(fd)) is not None:
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
        """Return a file's bytes as a power cut leaves them."""
        raw = self._contents.get(file.stat().st_ino if isinstance(file, Path) else file)
        return b"" if raw is None else zlib.decompress(raw)

    def durable_files(self, folder: Path) -> dict[str, bytes]:
        """Return the files of a folder by name, as a power cut leaves them."""
        entries = self._entries.get(folder.stat().st_ino, {})
        return {
            name: self.durable(inode)
            for name, (inode, is_folder) in sorted(entries.items())
            if not is_folder
        }

    def wrote(self, fd: int, offset: int, size: int) -> None:
        """Record that a range is dirty, so that the next sync writes it."""
        lost = self._lost.get(os.fstat(fd).st_ino)
        if lost:
            lost.difference_update(range(offset // _PAGE, (offset + size - 1) // _PAGE + 1))

    def meets(self, act: str, path: str) -> str | None:
        """Return how this act fails, or None."""
        fault = self.fault
        if fault is None or fault.act != act or not fnmatch(path, fault.pattern):
            return None
        self.fault = None
        return fault.how

    @contextmanager
    def going(self, path: str | Path) -> Iterator[None]:
        """Forget an inode whose name is removed inside, as its number may be reused."""
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
        """Make `to` the directory that the worst power cut leaves of `root`: its synced state."""
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

    # --- unsynced changes ---

    def unsynced(self, base: str = "", needs: Sequence[str] = ("*",)) -> list[Unsynced]:
        """Return the changes below the folder `base` that a power cut may revert.

        `needs` are patterns of their paths, relative to `base`.
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
        """Fail if the call that just returned depends on an unsynced change.

        It looks below the folder `base`, and at the names of the path to it.
        """
        assert self._is_named(self._top / base), f"returned before the name of {base} was durable"
        wrong = [one for one in self.unsynced(base) if not any(a.covers(one) for a in allowed)]
        assert not wrong, f"returned before it was durable: {wrong}"

    def reached(self, act: str, path: str | Path) -> None:
        """Check the barriers of an act that is about to happen."""
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
        """Check a write of pieces of a file that is about to happen."""
        self.reached("write", path)
        if Path(path).is_relative_to(self._top):
            self.before_write(path, offsets)

    def killed(self, root: Path, copy: Path) -> Path:
        """Make `copy` the directory that a kill leaves of `root`.

        It has everything that was written; only synced changes count as durable.
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
        """Run `act` on `root`, and return copies of `root` as kills before each sync leave it."""
        found: list[Path] = []

        def kill() -> None:
            if root.exists():
                copy = self.killed(root, copies / f"{len(found)}")
                found.append(copy)
                for folder, _ in self._walk(copy):
                    self._hold(folder)

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


def name_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())
