"""The files of one run of the job `export`.

On-disk format: <run>-00000.parquet and further files, and _runs/<run>.json, which lists the files
    of a run. Tasks write to _staging/<run>.
Invariants:
    The record of a run is created once, after its files are durable.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from timerstore.spark.jobs.shared_folder import SharedFolder


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """The output of one run."""

    folder: SharedFolder
    run_id: str

    def record(self) -> bytes | None:
        """Return the record of the run, or None if no such run has ended."""
        return self.folder.read_created(self._record)

    def clear(self) -> None:
        """Remove the files of a killed run with this id."""
        left = [name for name in self.folder.names() if self._is_of_run(name)]
        self.folder.remove(left)
        self.folder.remove_folder(self.staging)

    def move_in(self, names: Mapping[str, str]) -> None:
        """Move staged files to their final names."""
        self.folder.move(names)

    def finish(self, record: bytes) -> bool:
        """Create the record, and remove the files of failed tasks.

        Return False if another process has created it.
        """
        is_first = self.folder.create(self._record, record)
        self.folder.remove_folder(self.staging)
        return is_first

    @property
    def staging(self) -> str:
        """The folder for the tasks."""
        return f"_staging/{self.run_id}"

    @property
    def _record(self) -> str:
        return f"_runs/{self.run_id}.json"

    def _is_of_run(self, name: str) -> bool:
        """Return whether a reader of the folder would read this file of the run.

        A date in a name, as in june-20260601.parquet, is not a file number.
        """
        wanted = rf"{re.escape(self.run_id)}-([0-9]{{5}}|[1-9][0-9]{{5}})\.parquet"
        return re.fullmatch(wanted, name) is not None
