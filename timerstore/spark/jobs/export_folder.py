"""Where the job `export` writes: a folder that is mounted on every host, or a bucket.

On-disk format: <run>-00000.parquet and further files, and _runs/<run>.json, which lists the files
    of a run. Tasks write to _staging/<run>.
Thread safety: any thread. An object can be pickled for the tasks.
Invariants:
    1. A staged file is complete and durable when `staged` returns without an error.
    2. The record of a run is created once, after its files are durable.
Raises: errors of the disk, or BucketError.
"""

import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from timerstore._engine.storage.disk import Disk
from timerstore.buckets import Bucket, BucketUrl
from timerstore.buckets.bucket import in_parallel


@dataclass(frozen=True, slots=True)
class ExportFolder(ABC):
    """The output of one run."""

    run_id: str

    # --- for the driver ---

    @abstractmethod
    def record(self) -> bytes | None:
        """Return the record of the run, durably, or None if no such run has ended."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the files of a killed run with this id."""

    @abstractmethod
    def move_in(self, names: Mapping[str, str]) -> None:
        """Move staged files, by name, to their final names."""

    @abstractmethod
    def finish(self, record: bytes) -> bool:
        """Remove staged files and create the record. Return False if another process did so."""

    # --- for the tasks ---

    @abstractmethod
    def staged(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file in the staging area. It is durable after the `with` block."""

    # --- names ---

    @property
    def _record(self) -> str:
        return f"_runs/{self.run_id}.json"

    @property
    def _staging(self) -> str:
        return f"_staging/{self.run_id}"

    def _is_of_run(self, name: str) -> bool:
        """Return whether a reader of the folder would read this file of the run.

        A date in a name, as in june-20260601.parquet, is not a file number.
        """
        wanted = rf"{re.escape(self.run_id)}-([0-9]{{5}}|[1-9][0-9]{{5}})\.parquet"
        return re.fullmatch(wanted, name) is not None


@dataclass(frozen=True, slots=True)
class _LocalFolder(ExportFolder):
    root: Path

    def record(self) -> bytes | None:
        return Disk().read_created(self.root / self._record)

    def clear(self) -> None:
        disk, staging = Disk(), self.root / self._staging
        shutil.rmtree(staging, ignore_errors=True)
        disk.make_directory(staging)
        for name in disk.list(self.root):
            if self._is_of_run(name):
                disk.unlink(self.root / name)

    def move_in(self, names: Mapping[str, str]) -> None:
        disk = Disk()
        for staged, name in names.items():
            disk.rename(self.root / self._staging / staged, self.root / name)
        disk.sync_directory(self.root)

    def finish(self, record: bytes) -> bool:
        disk, path = Disk(), self.root / self._record
        shutil.rmtree(self.root / self._staging, ignore_errors=True)
        disk.make_directory(path.parent)
        return disk.create_small(path, record)

    @contextmanager
    def staged(self, name: str) -> Iterator[IO[bytes]]:
        path = self.root / self._staging / name
        with path.open("wb") as file:
            yield file
        Disk().open(path).sync()


@dataclass(frozen=True, slots=True)
class _BucketFolder(ExportFolder):
    url: BucketUrl

    def record(self) -> bytes | None:
        return Bucket(self.url).get(self._record)

    def clear(self) -> None:
        bucket = Bucket(self.url)
        staged = [one.path for one in bucket.list(self._staging)]
        left = [one.path for one in bucket.list() if self._is_of_run(one.path)]
        bucket.delete(staged + left)

    def move_in(self, names: Mapping[str, str]) -> None:
        bucket = Bucket(self.url)
        in_parallel(lambda one: bucket.copy(f"{self._staging}/{one[0]}", one[1]), names.items())

    def finish(self, record: bytes) -> bool:
        bucket = Bucket(self.url)
        is_first = bucket.create(self._record, record)
        bucket.delete([one.path for one in bucket.list(self._staging)])
        return is_first

    @contextmanager
    def staged(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            Bucket(self.url).put(f"{self._staging}/{name}", file)


def export_folder(out: Path | BucketUrl, run_id: str) -> ExportFolder:
    """Return the output of a run in a folder or below a URL."""
    return _BucketFolder(run_id, out) if isinstance(out, BucketUrl) else _LocalFolder(run_id, out)
