"""Simulate a disk in memory that C cannot tell from the real one, and whose power can be cut.

    disk = SimDisk()                 # replaces the Disk of storage/disk.py
    later = disk.killed()            # the disk as another process finds it after kill -9
    later = disk.cut(random)         # the disk as the machine finds it after a power cut

A Node (files.py) is a file. Its `cache` is the content that processes see, its `platter` is the
content on the disk, and `versions` holds every state of a page of 4096 bytes that has not been
synced yet. The simulated faults are those of docs/guarantees.md. Paths are SimPath objects
(paths.py). They are typed as Any here, because they share no base class with pathlib's paths.

Invariants:
    1. After a cut, every page, or every sector of 512 bytes, has the state of its last sync or of
       any later write. Bytes that were not written keep their value.
    2. After a cut, a file has a length that it had at or after its last sync.
    3. A name that was made, replaced or removed after the last sync of its directory exists or not.
    4. After a failed sync, some pages are marked clean although they are not on the disk.
    5. The same random numbers give the same cut.

Not simulated: intermediate states of names between the last directory sync and now, and the loss of
a whole directory.
"""

import errno
import os
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.files import Node, SimFile
from tests.sim.lottery import PAGE, Lottery, lottery_of
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.file import os_error
from timerstore.errors import FailedError

KINDS = (
    "open", "write", "read", "sync", "start_writing", "resize", "reserve", "zero", "map",
    "unlink", "rename", "sync_directory", "make_directory", "list",
)  # fmt: skip
"""The calls that can fail, or that can be the last call of a process."""


class Fault:
    """Make the n-th call of a kind fail, once or from then on."""

    def __init__(self, kind: str, nth: int, code: int, *, once: bool) -> None:
        self.kind, self.left, self.code, self.once = kind, nth, code, once
        self.hits = 0

    def meets(self, kind: str) -> bool:
        if kind != self.kind:
            return False
        self.left -= 1
        hit = self.left == 0 or (self.left < 0 and not self.once)
        self.hits += hit
        return hit


class SimAnchor:
    """The root directory of a store. The simulation neither removes nor locks it."""

    def __init__(self, disk: "SimDisk", root: Any) -> None:
        self._disk, self._root = disk, root

    def identity(self) -> tuple[int, int]:
        return self._disk.identity(self._root)

    def lock(self, *, shared: bool = False) -> bool:
        return True

    def unlock(self) -> None:
        """Do nothing: no lock was taken."""

    def close(self) -> None:
        """Do nothing: no descriptor was opened."""


class SimDisk(Disk):
    """Hold the names and files, count every call, and end a process or fail at a chosen call."""

    last_number = 0

    def __init__(self) -> None:
        super().__init__()
        SimDisk.last_number += 1
        # no two directories may look the same to storage/directory.py
        self.number = SimDisk.last_number
        # by folder; None stands for a folder
        self.names: dict[str, dict[str, Node | None]] = {"/": {}}
        self.synced: dict[str, dict[str, Node]] = {}  # the files among them, as of the last sync
        self.count = 0  # number of calls
        self.crash_at = 0  # the call before which `on_crash` is called
        self.is_torn = False
        self.torn_left = 0  # after this many writes of more than one page; the last of them is torn
        self.torn = 0  # how many eighths of the last write are done
        self.on_crash: Callable[[], None] = lambda: None
        self.fault: Fault | None = None
        self.free_pages: int | None = None  # None means unlimited space
        self.lottery = Random(0)
        self.crowded_percent = 0  # reported size of the file system
        self.sync_failures = 0
        self._nodes = 0

    # --- faults ---

    def call(
        self,
        kind: str,
        path: Any,
        offset: int | None = None,
        always: type[FailedError] | None = None,
    ) -> None:
        """Count a call, which may be the last one of the process, or fail."""
        self.count += 1
        if self.count == self.crash_at:
            self.on_crash()
        if self.fault is not None and self.fault.meets(kind):
            where = path if offset is None else f"{path} offset {offset}"
            error = OSError(self.fault.code, os.strerror(self.fault.code))
            if always is not None:
                raise always(f"{kind}: {error.strerror}", where=where, got=self.fault.code)
            raise os_error(error, kind, where)

    def writing(self, file: SimFile, view: memoryview, offset: int) -> None:
        """Count a write, and do a part of it if it is the last call.

        The part ends at the edge of a page, because the kernel copies page by page.
        """
        if (offset + len(view) - 1) // PAGE > offset // PAGE:
            self.torn_left -= 1
            if self.torn_left == 0:
                self.crash_at = self.count + 1
        if self.count + 1 == self.crash_at and self.torn:
            end = (offset + len(view) * self.torn // 8) // PAGE * PAGE
            if end > offset:
                self.is_torn = True
                file.node.write(offset, view[: end - offset])

    def syncing(self, node: Node, path: Any) -> None:
        """Sync a file. A sync that fails marks pages as clean that are not on the disk."""
        try:
            self.call("sync", path, always=FailedError)
        except FailedError:
            self.sync_failures += 1
            node.sync(lost=lambda: self.lottery.random() < 0.6)
            raise
        node.sync()

    def take(self, node: Node, offset: int, size: int, what: str, where: object) -> None:
        """Allocate blocks for a range."""
        pages = range(offset // PAGE, (offset + size + PAGE - 1) // PAGE)
        if self.free_pages is None:
            node.taken.update(pages)
            return
        pages = set(pages) - node.taken
        if pages:
            if len(pages) > self.free_pages:
                raise os_error(OSError(errno.ENOSPC, "No space left on device"), what, where)
            self.free_pages -= len(pages)
        node.taken |= pages

    # --- names ---

    def _lookup(self, path: Any) -> tuple[dict[str, Node | None], str]:
        parent, name = path.parts_of
        folder = self.names.get(parent)
        if folder is None:
            raise os_error(OSError(errno.ENOENT, "No such file or directory"), "open", path)
        return folder, name

    def open(self, path: Any, *, create: bool = False, read_only: bool = False) -> Any:
        del read_only
        folder, name = self._lookup(path)
        self.call("open", path)
        node = folder.get(name)
        if node is None:
            if name in folder:
                raise FailedError("open", where=path, wanted="a regular file", got="a directory")
            if not create:
                raise os_error(OSError(errno.ENOENT, "No such file"), "open", path)
            if self.free_pages == 0:
                raise os_error(OSError(errno.ENOSPC, "No space left on device"), "open", path)
            self._nodes += 1
            node = folder[name] = Node(self._nodes)
        return SimFile(self, path, node)

    def anchor(self, root: Any) -> Any:
        return SimAnchor(self, root)

    def exists(self, path: Any) -> bool:
        parent, name = path.parts_of
        return name in self.names.get(parent, ())

    def used_percent(self, path: Any) -> float:
        return float(self.crowded_percent)

    def check_no_link(self, path: Any) -> None:
        """Accept every path: the simulation has no symbolic links."""

    def is_directory(self, path: Any) -> bool:
        return path in self.names

    def file_bytes(self, path: Any) -> int | None:
        node = self.names.get(path.parent, {}).get(path.name)
        return None if node is None else len(node.cache)

    def identity(self, path: Any) -> tuple[int, int]:
        node = self.names.get(path.parent, {}).get(path.name)
        return self.number, -zlib.crc32(path.encode()) if node is None else node.number

    def identities(self, folder: Any, names: Any) -> Any:
        return [self.identity(folder / name) for name in names]

    def list(self, path: Any) -> list[str]:
        self.call("list", path)
        return sorted(self.names.get(path, ()))

    def make_directory(self, path: Any) -> None:
        if path in self.names:
            return
        if path.parent not in self.names:
            self.make_directory(path.parent)
        self.call("make_directory", path)
        self.names[path.parent][path.name] = None
        self.names[path] = {}

    def sync_name(self, path: Any) -> None:
        """Sync the entry of a file. Folders are durable as soon as they are made."""

    def unlink(self, path: Any) -> None:
        folder, name = self._lookup(path)
        self.call("unlink", path)
        if folder.pop(name, None) is None:
            raise os_error(OSError(errno.ENOENT, "No such file"), "unlink", path)

    def rename(self, old: Any, new: Any) -> None:
        source, name = self._lookup(old)
        target, new_name = self._lookup(new)
        self.call("rename", old)
        target[new_name] = node = source.pop(name)
        if node is None:
            self._rename_below(old, new)

    def link(self, old: Any, new: Any) -> bool:
        """Give a file a second name, and count it as a rename for the faults."""
        source, name = self._lookup(old)
        target, new_name = self._lookup(new)
        self.call("rename", old)
        is_new = new_name not in target
        if is_new:
            target[new_name] = source[name]
        self.sync_directory(new.parent)
        return is_new

    def _rename_below(self, old: str, new: str) -> None:
        """Rename a folder with all its contents, atomically and durably."""
        for of in (self.names, self.synced):
            for folder in [f for f in of if f == old or f.startswith(old + "/")]:
                of[new + folder[len(old) :]] = of.pop(folder)  # type: ignore[attr-defined]

    def remove_empty(self, path: Any) -> bool:
        if self.names.get(path, True):
            return False
        self.remove_tree(path)
        return True

    def remove_tree(self, path: Any) -> None:
        """Remove a folder with all its contents, atomically and durably."""
        for folder in [f for f in self.names if f == path or f.startswith(f"{path}/")]:
            del self.names[folder]
            self.synced.pop(folder, None)
        self.names.get(path.parent, {}).pop(path.name, None)
        self.synced.get(path.parent, {}).pop(path.name, None)

    def sync_directory(self, path: Any) -> None:
        try:
            self.call("sync_directory", path, always=FailedError)
        except FailedError:
            self.sync_failures += 1
            raise
        files = self.names[path].items()
        self.synced[path] = {name: node for name, node in files if node is not None}

    # --- ends of a process ---

    def _bare(self) -> "SimDisk":
        one = SimDisk()
        one.free_pages = self.free_pages
        one.lottery, one._nodes = self.lottery, self._nodes
        one.crowded_percent = self.crowded_percent
        return one

    def killed(self) -> "SimDisk":
        """Return the disk and the page cache as another process finds them."""
        one, copies = self._bare(), dict[int, Node]()

        def copy(node: Node) -> Node:
            if node.number not in copies:
                copies[node.number] = node.killed()
            return copies[node.number]

        for folder, names in self.names.items():
            one.names[folder] = {k: None if n is None else copy(n) for k, n in names.items()}
        for folder, synced in self.synced.items():
            one.synced[folder] = {name: copy(node) for name, node in synced.items()}
        return one

    def note_shared(self) -> None:
        """Apply the changes of all maps, which are closed now, so that `cut` can be called
        repeatedly.
        """
        for names in (*self.names.values(), *self.synced.values()):
            for node in names.values():
                if node is not None:
                    node.note_shared()
                    node.is_shared = False

    def cut(self, draw: Random | Lottery) -> "SimDisk":
        """Return the disk as the machine finds it when the power is back."""
        one, copies, lottery = self._bare(), dict[int, Node](), lottery_of(draw)
        for folder in sorted(self.names):
            live, synced = self.names[folder], self.synced.get(folder, {})
            found: dict[str, Node | None] = {}
            for name in sorted(live.keys() | synced.keys()):
                if name in live and live[name] is None:
                    found[name] = None
                    continue
                choice = live.get(name), synced.get(name)
                node = choice[0] if choice[0] is choice[1] else lottery.name(choice)
                if node is not None:
                    if node.number not in copies:
                        copies[node.number] = node.cut(lottery)
                    found[name] = copies[node.number]
            one.names[folder] = found
            one.synced[folder] = {k: node for k, node in found.items() if node is not None}
        return one

    def write_back(self, draw: Random) -> None:
        """Write back some pages of some files, as the kernel does. Nothing is synced."""
        for folder in sorted(self.names):
            for _, node in sorted(self.names[folder].items()):
                if node is not None and draw.random() < 0.5:
                    node.write_back(draw)

    def drop_cache(self, draw: Random) -> None:
        """Drop clean pages from the cache.

        A page that was only marked clean gets its old bytes back.
        """
        for folder in sorted(self.names):
            for _, node in sorted(self.names[folder].items()):
                if node is None or node.is_shared:
                    continue
                for page in range((len(node.cache) + PAGE - 1) // PAGE):
                    if page not in node.versions and draw.random() < 0.8:
                        begin, end = page * PAGE, min((page + 1) * PAGE, len(node.cache))
                        node.cache[begin:end] = node.platter[begin:end].ljust(end - begin, b"\0")
