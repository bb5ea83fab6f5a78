"""A directory of shards as the place where rows are staged and committed.

See also: shard_paths.py, docs/decisions/0008-deduplication-and-ingest.md.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timerstore._engine.storage.disk import Disk, File
from timerstore.shards import manifest as manifests
from timerstore.shards.cluster import Cluster, require
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import ShardsTree, manifest_version, source_component
from timerstore.shards.staged_files import StagedFile
from timerstore.shards.staging_area import Attempt, CommittedVersions, FetchedFiles, StagingArea

_TICK_MS = 2000  # coarser than any file system's times


class FolderAttempt(Attempt):
    """Files in a folder of the directory."""

    def __init__(self, disk: Disk, root: Path, folder: Path) -> None:
        self._disk = disk
        self._root = root
        self._folder = folder
        self._is_used = False

    def create(self, name: str) -> File:
        """Create a file."""
        self._disk.make_directory(self._folder)
        self._is_used = True
        return self._disk.open(self._folder / name, create=True)

    def finish(self, *, synced: bool) -> None:
        """Make the names durable, if `synced`. Each file was synced before."""
        if not self._is_used or not synced:
            return
        # Another process may have made a folder of these, and not have synced it yet.
        folder = self._folder
        while folder != self._root:
            self._disk.sync_directory(folder)
            folder = folder.parent
        self._disk.sync_directory(self._root)

    def abandon(self) -> None:
        """Remove the folder."""
        self._disk.remove_tree(self._folder)


class FolderVersions(CommittedVersions):
    """Reads the folders when it is asked."""

    def __init__(self, disk: Disk, tree: ShardsTree) -> None:
        self._disk = disk
        self._tree = tree
        found = manifests.find_sources(disk, tree)
        self.sources = found.sources
        self.strays = found.strays

    def versions(self, source: str) -> list[int]:
        """Return the committed versions of a source, ascending."""
        return manifests.versions(self._disk, self._tree, source)

    def staged(self, source: str) -> set[int]:
        """Return the versions that have a staging folder."""
        names = self._disk.list(self._tree.staging / source_component(source))
        found = (manifest_version(f"{name}.json") for name in names)
        return {one for one in found if one is not None}

    def stamp(self, source: str) -> int:
        """Return the time of the source's folder."""
        return self._disk.modified_ms(self._tree.source_manifests(source)) or 0

    def is_final(self, stamp: Hashable, now_ms: int) -> bool:
        """Return False for a folder that changed just now: it may change again within the same tick
        of its clock.
        """
        return isinstance(stamp, int) and stamp < now_ms - _TICK_MS


class FolderStaging(StagingArea):
    """A directory of shards."""

    removes_aborted = True

    def __init__(self, root: Path) -> None:
        self._disk = Disk()
        self.tree = ShardsTree(root)

    def where(self, path: str) -> Path:
        """Return the path of a file."""
        return self.tree.root / path

    def cluster(self) -> Cluster:
        """Read cluster.json of the directory."""
        return require(self._disk, self.tree.root)

    def attempt(self, path: str) -> FolderAttempt:
        """Return a new attempt, whose folder has this path."""
        return FolderAttempt(self._disk, self.tree.root, self.tree.root / path)

    def staged_bytes(
        self,
        source: str,  # noqa: ARG002 - the paths have it
        version: int,  # noqa: ARG002
        files: Sequence[StagedFile],
    ) -> dict[str, int | None]:
        """Return the present size of each staged file of a version; None if it is absent."""
        return {one.path: self._bytes_of(self.tree.root / one.path) for one in files}

    def _bytes_of(self, path: Path) -> int | None:
        return self._disk.open(path, read_only=True).size() if self._disk.exists(path) else None

    @contextmanager
    def committing(self, source: str) -> Iterator[None]:
        """Hold the lock that the janitor takes exclusively, and make the folders."""
        disk, tree = self._disk, self.tree
        disk.make_directory(tree.ingest)
        with disk.locked(tree.ingest_lock, alone=False):
            disk.make_directory(tree.source_manifests(source))
            for folder in (tree.manifests, tree.ingest, tree.root):
                disk.sync_directory(folder)  # another may have made one, and not have synced it yet
            yield

    def create_manifest(self, manifest: Manifest) -> bool:
        """Commit a version; durable on return. Return False if it was committed before."""
        path = self.tree.manifest(manifest.source, manifest.version)
        return self._disk.create_small(path, manifests.write(manifest))

    def load(self, source: str, version: int) -> Manifest | None:
        """Return the manifest of a version, durable. None: it is not committed."""
        return manifests.load(self._disk, self.tree, source, version)

    def committed(self) -> FolderVersions:
        """Return the versions that are committed now."""
        return FolderVersions(self._disk, self.tree)

    @contextmanager
    def fetched(
        self,
        shard: int,  # noqa: ARG002 - all shards have their files in one place
        files: Sequence[StagedFile],
        is_stopped: Callable[[], bool],  # noqa: ARG002 - nothing is copied
    ) -> Iterator[FetchedFiles]:
        """Find the staged files; nothing is copied."""
        missing = [one for one in files if not self._disk.exists(self.tree.root / one.path)]
        yield FetchedFiles(self.tree.root, missing)

    def remove(self, files: Iterable[StagedFile]) -> int:
        """Remove staged files, and folders that are empty then. Return how many were there."""
        paths = [self.tree.root / one.path for one in files]
        there = [path for path in paths if self._disk.exists(path)]
        for path in there:
            self._disk.unlink(path)
        manifests.remove_empty(self._disk, self.tree, {path.parent for path in paths})
        return len(there)
