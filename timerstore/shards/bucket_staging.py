"""A prefix of a bucket as the place where rows are staged and committed.

    writers --> staged objects, manifests --> owner: downloads, ingests, removes

The owner of the shards publishes cluster.json (bucket_binding.py). Writers need only the bucket,
and space for their files in the folder of temporary files.

Invariants:
    1. A staged object is complete or absent, and is never replaced: its name has a random number.
    2. A manifest is created by a put that fails if the name is taken, so a version is committed
       once. Nothing else decides.
    3. Times are those of the service. The clocks of writers and owners are not compared.
Raises: BucketError if the service does not answer.
See also: docs/decisions/0015-object-storage.md.
"""

import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.buckets import Bucket, StoredObject
from timerstore._engine.buckets.bucket import in_parallel
from timerstore._engine.format.store_paths import shard_name
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.file import os_error
from timerstore.errors import ConfigError, CorruptError
from timerstore.shards import cluster as cluster_json
from timerstore.shards import manifest as manifests
from timerstore.shards.cluster import Cluster
from timerstore.shards.manifest import Manifest
from timerstore.shards.shard_paths import NAMES, manifest_version, source_of
from timerstore.shards.staged_files import StagedFile
from timerstore.shards.staging_area import Attempt, CommittedVersions, FetchedFiles, StagingArea

CLOCK = "_ingest/clock"
"""The object that is written to read the time of the service."""


class _TemporaryOutput(NotCopyable):
    """A file without a name, that is sent to the bucket when it is complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - kept until sent
        except OSError as error:
            raise os_error(error, "create", tempfile.gettempdir()) from error

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write at an offset."""
        try:
            self.file.seek(offset)
            self.file.write(data)
        except OSError as error:
            raise os_error(error, "write", tempfile.gettempdir()) from error

    def sync(self) -> None:
        """Do nothing: the bucket makes objects durable."""

    def rewound(self) -> IO[bytes]:
        """Return the complete file, to be read from its beginning."""
        try:
            self.file.seek(0)  # writes buffered data
        except OSError as error:
            raise os_error(error, "write", tempfile.gettempdir()) from error
        return self.file

    def close(self) -> None:
        """Remove the file, also if data of it could not be written."""
        with suppress(OSError):
            self.file.close()


class _BucketAttempt(Attempt):
    """Files that are sent to the bucket together."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self._bucket = bucket
        self._path = path
        self._outputs: list[_TemporaryOutput] = []

    def create(self, name: str) -> _TemporaryOutput:
        """Create a file."""
        output = _TemporaryOutput(f"{self._path}/{name}")
        self._outputs.append(output)
        return output

    def finish(self, *, synced: bool) -> None:  # noqa: ARG002 - objects are always durable
        """Send all files."""
        in_parallel(self._send, self._outputs)

    def _send(self, output: _TemporaryOutput) -> None:
        self._bucket.put(output.path, output.rewound())
        output.close()

    def abandon(self) -> None:
        """Leave the objects to the janitor: writers have no permission to delete."""
        for output in self._outputs:
            output.close()
        self._outputs = []


def manifest_objects(bucket: Bucket) -> tuple[dict[str, dict[int, StoredObject]], list[Path]]:
    """Return the manifests by source and version, and the names of other objects among them."""
    found: dict[str, dict[int, StoredObject]] = {}
    strays = []
    for one in bucket.list(NAMES.manifests.as_posix()):
        path = PurePosixPath(one.path)
        version = manifest_version(path.name)
        try:
            source = source_of(path.parent.name)
        except CorruptError:
            version = None
        if version is None or path.parent.parent != PurePosixPath(NAMES.manifests):
            strays.append(Path(one.path))
        else:
            found.setdefault(source, {})[version] = one
    return found, strays


class _BucketVersions(CommittedVersions):
    """The result of one listing of the manifests."""

    def __init__(self, bucket: Bucket) -> None:
        found, self.strays = manifest_objects(bucket)
        self._found = {source: sorted(versions) for source, versions in found.items()}
        self.sources = sorted(found)

    def versions(self, source: str) -> list[int]:
        """Return the committed versions of a source, ascending."""
        return self._found.get(source, [])

    def staged(self, source: str) -> set[int]:  # noqa: ARG002
        """Return no version: the janitor removes the files of an interrupted pass."""
        return set()

    def stamp(self, source: str) -> tuple[int, ...]:
        """Return the versions themselves."""
        return tuple(self.versions(source))

    def is_final(self, stamp: Hashable, now_ms: int) -> bool:  # noqa: ARG002
        """Return True: another version changes the stamp."""
        return True


class BucketStaging(StagingArea):
    """A prefix of a bucket.

    scratch: the folder for downloads; only owners need one. Each shard has a folder in it.
    """

    removes_aborted = False

    def __init__(self, bucket: Bucket, scratch: Path | None = None) -> None:
        self.bucket = bucket
        self._scratch = scratch
        self._disk = Disk()

    def where(self, path: str) -> str:
        """Return the URL of an object."""
        return self.bucket.where(path)

    def cluster(self) -> Cluster:
        """Read the object that the owner of the shards publishes."""
        cluster = self.find_cluster()
        if cluster is None:
            raise ConfigError(
                "path: not a staging area (no cluster.json); the owner of the shards makes one: "
                f"timerstore.open_shards(path, ingest_from={str(self.bucket.url)!r})"
            )
        return cluster

    def find_cluster(self) -> Cluster | None:
        """Return the description of the shards, or None."""
        name = NAMES.cluster_json.as_posix()
        text = self.bucket.get(name)
        return None if text is None else cluster_json.read(text, self.where(name))

    def create_cluster(self, cluster: Cluster) -> bool:
        """Publish the description. Return False if there is another one."""
        return self.bucket.create(NAMES.cluster_json.as_posix(), cluster_json.write(cluster))

    # --- writers ---

    def attempt(self, path: str) -> Attempt:
        """Return a new attempt, whose objects begin with this path."""
        return _BucketAttempt(self.bucket, path)

    def staged_bytes(
        self, source: str, version: int, files: Sequence[StagedFile]
    ) -> dict[str, int | None]:
        """Return the present size of each staged object of a version; None if it is absent."""
        prefix = NAMES.version_staging(source, version).as_posix()
        found = {one.path: one.bytes for one in self.bucket.list(prefix)} if files else {}
        return {one.path: found.get(one.path) for one in files}

    def committing(self, source: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the janitor removes only files that are a day old."""
        return nullcontext()

    def create_manifest(self, manifest: Manifest) -> bool:
        """Commit a version; durable on return. Return False if it was committed before."""
        path = NAMES.manifest(manifest.source, manifest.version).as_posix()
        return self.bucket.create(path, manifests.write(manifest))

    # --- owners ---

    def load(self, source: str, version: int) -> Manifest | None:
        """Return the manifest of a version. None: it is not committed."""
        path = NAMES.manifest(source, version).as_posix()
        text = self.bucket.get(path)
        if text is None:
            return None
        return manifests.read_named(text, self.where(path), source, version)

    def committed(self) -> CommittedVersions:
        """Return the versions that are committed now."""
        return _BucketVersions(self.bucket)

    @contextmanager
    def fetched(
        self, shard: int, files: Sequence[StagedFile], is_stopped: Callable[[], bool]
    ) -> Iterator[FetchedFiles]:
        """Download the staged objects of a shard, and remove the copies in the end."""
        assert self._scratch is not None, "only owners fetch"
        folder = self._scratch / shard_name(shard)
        self._disk.remove_tree(folder)  # left by a process that was killed

        def fetch(one: StagedFile) -> bool:
            self._disk.make_directory((folder / one.path).parent)
            target = self._disk.open(folder / one.path, create=True)
            return self.bucket.download(
                StoredObject(one.path, one.bytes, 0, ""), target, is_stopped
            )

        try:
            is_there = in_parallel(fetch, files)
            missing = [one for one, found in zip(files, is_there, strict=True) if not found]
            yield FetchedFiles(folder, missing)
        finally:
            self._disk.remove_tree(folder)

    def remove(self, files: Iterable[StagedFile]) -> int:
        """Remove staged objects. Return how many were named; the service does not tell more."""
        paths = [one.path for one in files]
        self.bucket.delete(paths)
        return len(paths)
