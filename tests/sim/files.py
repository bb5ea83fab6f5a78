"""Simulate the files of a disk in memory, with the states of their unsynced pages.

See also: disk.py, which has the invariants of a power cut.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.sim.lottery import PAGE, Lottery, lottery_of
from timerstore.errors import FailedError

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

_VERSIONS_MAX = 6  # of a page: the newest state, and a random choice of the earlier ones


class Memory(bytearray):
    """A memory map of a file: the bytes of the file itself, or a copy if the map is private."""

    def close(self) -> None:
        """Do nothing: the map holds no resource."""

    def madvise(self, _advice: int) -> None:
        """Do nothing: the advice has no effect here."""


class Node:
    """One file, under any number of names."""

    __slots__ = ("cache", "is_shared", "number", "platter", "sizes", "taken", "versions")

    def __init__(self, number: int) -> None:
        self.number = number
        self.cache = Memory()
        self.platter = bytearray()
        self.versions: dict[int, list[bytes]] = {}
        self.sizes = [0]  # first the length on the disk, then all later ones
        self.taken: set[int] = set()  # pages that have blocks
        self.is_shared = False  # a map may have changed any of its pages

    def killed(self) -> Node:
        """Return the file as another process finds it; cache and disk stay as they are."""
        one = Node(self.number)
        one.cache, one.platter = Memory(self.cache), bytearray(self.platter)
        one.versions = {page: list(known) for page, known in self.versions.items()}
        one.sizes, one.taken, one.is_shared = list(self.sizes), set(self.taken), self.is_shared
        return one

    def resize(self, size: int) -> None:
        old = len(self.cache)
        if size == old:
            return
        if size < old:
            del self.cache[size:]
            self.taken = {page for page in self.taken if page * PAGE < size}
        else:
            self.cache.extend(bytes(size - old))
        self.sizes.append(size)
        for page in range(min(size, old) // PAGE, (max(old, size) + PAGE - 1) // PAGE):
            if page in self.versions or page * PAGE < len(self.platter):
                self._note(page)

    def write(self, offset: int, data: Any) -> None:
        end = offset + len(data)
        if end > len(self.cache):
            self.cache.extend(bytes(end - len(self.cache)))
            self.sizes.append(end)
        self.cache[offset:end] = data
        for page in range(offset // PAGE, (end + PAGE - 1) // PAGE):
            self._note(page)
            self.taken.add(page)

    def _note(self, page: int) -> None:
        known = self.versions.setdefault(page, [])
        if len(known) >= _VERSIONS_MAX:
            del known[len(known) // 2]
        known.append(bytes(self.cache[page * PAGE : (page + 1) * PAGE]))

    def note_shared(self) -> None:
        """Record that changes made through a map may have reached the disk."""
        if self.is_shared:
            for page in range((len(self.cache) + PAGE - 1) // PAGE):
                self._note(page)

    def sync(self, lost: Callable[[], bool] | None = None) -> None:
        """Make all content durable.

        If the sync fails, the pages in `lost` do not become durable.
        """
        self.note_shared()
        size = len(self.cache)
        self.platter = self.platter[:size].ljust(size, b"\0")
        for page in sorted(self.versions):
            begin = page * PAGE
            if begin < size and (lost is None or not lost()):
                self.platter[begin : begin + PAGE] = self.cache[begin : begin + PAGE]
        self.versions.clear()
        self.sizes = [size]

    def write_back(self, draw: Random) -> None:
        """Write some pages to the disk in their present state, as the kernel may do at any time."""
        self.note_shared()
        size = len(self.cache)
        self.platter = self.platter.ljust(size, b"\0")
        for page in sorted(self.versions):
            if draw.random() < 0.5:
                begin, end = page * PAGE, min((page + 1) * PAGE, size)
                self.platter[begin:end] = self.cache[begin:end]
                del self.versions[page]

    def cut(self, draw: Random | Lottery) -> Node:
        """Return the file as the disk may have it after a power cut."""
        self.note_shared()
        one, lottery = Node(self.number), lottery_of(draw)
        lottery.begin()
        size = lottery.size(self.sizes)
        found = self.platter[:size].ljust(size, b"\0")
        for page in sorted(self.versions):
            begin = page * PAGE
            if begin >= size:
                continue
            old = bytes(self.platter[begin : begin + PAGE])
            states = [old, *self.versions[page]]
            chosen = lottery.page([state.ljust(PAGE, b"\0") for state in states])
            found[begin : begin + PAGE] = chosen[: min(PAGE, size - begin)]
        one.platter, one.cache, one.sizes = found, Memory(found), [size]
        one.taken = {page for page in self.taken if page * PAGE < size}
        return one


class SimFile:
    """One open file."""

    __slots__ = ("_disk", "fd", "node", "path")

    def __init__(self, disk: SimDisk, path: Any, node: Node) -> None:
        self._disk, self.path, self.node = disk, path, node
        self.fd = -1

    def write(self, data: Any, offset: int) -> None:
        view = memoryview(data).cast("B")
        self._disk.writing(self, view, offset)
        self._disk.call("write", self.path, offset)
        self._disk.take(self.node, offset, len(view), "write", self.path)
        self.node.write(offset, view)

    def write_each(self, data: memoryview, size: int, offsets: list[int]) -> None:
        assert len(data) == size * len(offsets)
        for at, offset in enumerate(offsets):
            self.write(data[at * size : (at + 1) * size], offset)

    def read(self, offset: int, size: int) -> bytes:
        self._disk.call("read", self.path, offset)
        data = bytes(self.node.cache[offset : offset + size])
        if len(data) < size:
            raise FailedError(
                "file is short", where=f"{self.path} offset {offset}", wanted=size, got=len(data)
            )
        return data

    def next_data(self, offset: int) -> int | None:
        pages = [page for page in self.node.taken if (page + 1) * PAGE > offset]
        found = max(offset, min(pages) * PAGE) if pages else None
        return found if found is None or found < len(self.node.cache) else None

    def first_hole(self, offset: int) -> int:
        page = offset // PAGE
        while page in self.node.taken:
            page += 1
        return min(max(offset, page * PAGE), len(self.node.cache))

    def sync(self) -> None:
        self._disk.syncing(self.node, self.path)

    def start_writing(self, offset: int, size: int) -> None:
        del size
        self._disk.call("start_writing", self.path, offset, FailedError)

    def size(self) -> int:
        return len(self.node.cache)

    def check_in_place(self, size: int | None = None) -> None:
        assert size is None or size == len(self.node.cache)

    def identity(self) -> tuple[int, int]:
        return self._disk.number, self.node.number

    def resize(self, size: int) -> None:
        self._disk.call("resize", self.path)
        self.node.resize(size)

    def reserve(self, offset: int, size: int) -> None:
        self._disk.call("reserve", self.path, offset)
        self._disk.take(self.node, offset, size, "reserve", self.path)
        if offset + size > len(self.node.cache):
            self.node.resize(offset + size)

    def zero(self, offset: int, size: int) -> None:
        if size > 0:
            self._disk.call("zero", self.path, offset)
            self.node.write(offset, bytes(size))

    def punch(self, offset: int, size: int) -> None:
        self._disk.call("zero", f"{self.path} offset {offset}")
        end = min(offset + size, len(self.node.cache))
        if offset < end:
            self.node.write(offset, bytes(end - offset))

    def map_read(self, size: int) -> Memory:
        return self._map(size)

    def map_shared(self, size: int) -> Memory:
        self.node.is_shared = True
        return self._map(size)

    def map_private(self, size: int) -> Memory:
        return Memory(self._map(size)[:size])

    def _map(self, size: int) -> Memory:
        self._disk.call("map", self.path, always=FailedError)
        assert len(self.node.cache) >= size, f"{self.path}: a map beyond the end is a SIGBUS"
        return self.node.cache

    def lock_first_byte(self) -> bool:
        return True
