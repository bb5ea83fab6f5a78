"""Files as a power cut leaves them: everything that was synced, and any part of the rest.

    with ShadowDisk(seed) as shadow:      # stores opened from here on use the shadow's file calls
        shadow.start(root)                # everything below root now counts as durable
        ...
        shadow.cut(to)                    # a directory as a power cut might leave it

Invariants:
    1. Each 512 bytes of a file are as of its last sync or as they are now, and so is its length.
       Pages of 4096 bytes mostly stay together.
    2. A name that was made, replaced or removed since its directory was synced exists or not.
    3. The same seed gives the same cut.

Not modelled: versions between the last sync and now; directories, which the engine syncs when it
makes them; and a file sync that makes a new name durable, which the engine must not rely on.
"""

import os
import random
from pathlib import Path
from types import TracebackType
from typing import Self

import timerstore._engine.engine
import timerstore._engine.storage.disk
from timerstore._engine.storage.disk import Disk, File

_PAGE = 4096
_SECTOR = 512


class _Node:
    """A file, independent of its name."""

    def __init__(self, path: Path, synced: bytes) -> None:
        self.path: Path | None = path  # None: it has no name
        self.synced = synced

    def now(self) -> bytes:
        """Return its bytes as the page cache has them."""
        return self.synced if self.path is None else self.path.read_bytes()


class ShadowDisk:
    """A record of the syncs and names below one directory."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._live: dict[Path, _Node] = {}
        self._durable: dict[Path, _Node] = {}
        self._seams = (
            timerstore._engine.storage.disk.File,
            timerstore._engine.engine.Disk,
        )
        self.root: Path | None = None

    # --- the seam ---

    def __enter__(self) -> Self:
        shadow = self

        class ShadowFile(File):
            """A file whose syncs are recorded instead of done."""

            __slots__ = ()

            def __init__(self, path: Path, fd: int) -> None:
                super().__init__(path, fd)
                shadow.opened(path)

            def sync(self) -> None:
                shadow.synced(self.fd)

        class ShadowedDisk(Disk):
            """A disk whose changes of names are recorded."""

            def unlink(self, path: Path) -> None:
                shadow.unlinked(path)
                super().unlink(path)

            def rename(self, old: Path, new: Path) -> None:
                super().rename(old, new)
                shadow.renamed(old, new)

            def sync_directory(self, path: Path) -> None:
                shadow.directory_synced(path)

        timerstore._engine.storage.disk.File = ShadowFile  # type: ignore[misc]
        timerstore._engine.engine.Disk = ShadowedDisk  # type: ignore[misc]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        file, disk = self._seams
        timerstore._engine.storage.disk.File = file  # type: ignore[misc]
        timerstore._engine.engine.Disk = disk  # type: ignore[misc]

    def opened(self, path: Path) -> None:
        """Record that a file was opened, and perhaps made."""
        if path not in self._live:
            self._live[path] = _Node(path, b"")

    def synced(self, fd: int) -> None:
        """Record that a file is durable as it is."""
        here = os.fstat(fd)
        for path, node in self._live.items():
            there = path.stat()
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                node.synced = path.read_bytes()
                return

    def unlinked(self, path: Path) -> None:
        """Record that a name is about to be removed."""
        node = self._live.pop(path)
        node.path = None

    def renamed(self, old: Path, new: Path) -> None:
        """Record that a name has replaced another."""
        if new in self._live:
            self._live[new].path = None
        self._live[new] = node = self._live.pop(old)
        node.path = new

    def directory_synced(self, folder: Path) -> None:
        """Record that the names in a directory are durable as they are."""
        for path in [p for p in self._durable if p.parent == folder]:
            del self._durable[path]
        self._durable.update({p: n for p, n in self._live.items() if p.parent == folder})

    # --- the cut ---

    def start(self, root: Path) -> None:
        """Count everything below root as durable as it is."""
        self.root = root
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        self._live = {path: _Node(path, path.read_bytes()) for path in files}
        self._durable = dict(self._live)

    def cut(self, to: Path) -> None:
        """Make `to` a directory as a power cut might leave root."""
        assert self.root is not None
        folders = [path for path in sorted(self.root.rglob("*")) if path.is_dir()]
        for folder in [self.root, *folders]:
            (to / folder.relative_to(self.root)).mkdir()
        for path in sorted(self._durable.keys() | self._live.keys()):
            found = self._durable.get(path), self._live.get(path)
            node = found[0] if found[0] is found[1] else self._random.choice(found)
            if node is not None:
                (to / path.relative_to(self.root)).write_bytes(self._compose(node))

    def _compose(self, node: _Node) -> bytes:
        old, new = node.synced, node.now()
        if old == new:
            return new
        draw = self._random
        kept = draw.choice([0.0, 0.1, 0.5, 0.9, 1.0])  # share of unsynced bytes that survive
        out = bytearray()
        for at in range(0, max(len(old), len(new)), _PAGE):
            pages = [version[at : at + _PAGE].ljust(_PAGE, b"\0") for version in (old, new)]
            if pages[0] != pages[1] and draw.random() < 0.2:
                for sector in range(0, _PAGE, _SECTOR):
                    out += pages[draw.random() < kept][sector : sector + _SECTOR]
            else:
                out += pages[draw.random() < kept]
        return bytes(out[: draw.choice([len(old), len(new)])])
