"""What writers and owners need of the place where rows are staged and committed.

A place is a directory of shards (folder_staging.py) or a prefix of a bucket (bucket_staging.py).
Names below it are the same in both (shard_paths.py), and so are the bytes of each file.

Invariants:
    1. A file of an attempt is complete when `Attempt.finish` returns, and not visible.
    2. `create_manifest` succeeds for exactly one manifest of a version.
See also: docs/decisions/0015-object-storage.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from timerstore._engine.base.owner import NotCopyable
from timerstore.shards.cluster import Cluster
from timerstore.shards.manifest import Manifest
from timerstore.shards.staged_files import StagedFile


class StagedOutput(Protocol):
    """One file that is being written."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write at an offset."""

    def sync(self) -> None:
        """Make the data durable, if the file is in its final place."""


class Attempt(NotCopyable, ABC):
    """The files that one Stager writes, in a folder of their own."""

    @abstractmethod
    def create(self, name: str) -> StagedOutput:
        """Create a file."""

    @abstractmethod
    def finish(self, *, synced: bool) -> None:
        """Put all files in their place, complete. They are durable if `synced`."""

    @abstractmethod
    def abandon(self) -> None:
        """Give up all files. No manifest can name them. In a bucket the janitor removes them."""


class CommittedVersions(ABC):
    """The committed versions of all sources, as one pass of ingest sees them."""

    sources: list[str]
    strays: list[Path]
    """Other entries among the sources."""

    @abstractmethod
    def versions(self, source: str) -> list[int]:
        """Return the committed versions of a source, ascending."""

    @abstractmethod
    def staged(self, source: str) -> set[int]:
        """Return the versions whose files may be there although every shard has their rows."""

    @abstractmethod
    def stamp(self, source: str) -> Hashable:
        """Return a value that differs after another version was committed."""

    @abstractmethod
    def is_final(self, stamp: Hashable, now_ms: int) -> bool:
        """Return whether another version, committed from now on, changes the stamp."""


class FetchedFiles(NamedTuple):
    """Files that can be read: below `root`, but for the `missing` ones."""

    root: Path
    missing: list[StagedFile]


class StagingArea(NotCopyable, ABC):
    """A place where rows are staged and committed."""

    removes_aborted: bool
    """Whether the files of an aborted write are removed at once. In a bucket, a commit that seems
    to have failed may still succeed, so the janitor removes them later."""

    @abstractmethod
    def where(self, path: str) -> Path | str:
        """Return the full name of a file, for errors."""

    @abstractmethod
    def cluster(self) -> Cluster:
        """Return the description of the shards. Raise ConfigError if it is missing."""

    # --- writers ---

    @abstractmethod
    def attempt(self, path: str) -> Attempt:
        """Return a new attempt, whose folder has this path."""

    @abstractmethod
    def staged_bytes(
        self, source: str, version: int, files: Sequence[StagedFile]
    ) -> dict[str, int | None]:
        """Return the present size of each staged file of a version; None if it is absent."""

    @abstractmethod
    def committing(self, source: str) -> AbstractContextManager[None]:
        """Keep the janitor from removing files between check and commit, where it could."""

    @abstractmethod
    def create_manifest(self, manifest: Manifest) -> bool:
        """Commit a version; durable on return. Return False if it was committed before."""

    # --- owners ---

    @abstractmethod
    def load(self, source: str, version: int) -> Manifest | None:
        """Return the manifest of a version, durable. None: it is not committed."""

    @abstractmethod
    def committed(self) -> CommittedVersions:
        """Return the versions that are committed now."""

    @abstractmethod
    def fetched(
        self, shard: int, files: Sequence[StagedFile], is_stopped: Callable[[], bool]
    ) -> AbstractContextManager[FetchedFiles]:
        """Make the staged files of a shard readable, until the context ends."""

    @abstractmethod
    def remove(self, files: Iterable[StagedFile]) -> int:
        """Remove staged files. Return how many were there, where that is known."""
