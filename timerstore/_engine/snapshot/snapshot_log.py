"""The commit log as it is read beside its owner: what rooms that read ask of a log, and no more.

Threads:  one at a time.
Holds:    `durable`, `written` and `end` are one: how far the log is read.
"""

import threading
from types import SimpleNamespace

from timerstore._engine.base.owner import Owner
from timerstore._engine.snapshot.snapshot_segments import SnapshotSegments


class SnapshotLog(Owner):
    """One store's log."""

    def __init__(self, segments: SnapshotSegments) -> None:
        self.segments = segments
        self.lock = threading.RLock()
        self.native = SimpleNamespace(last_store_ms=0)
        self.failed = None
        self.end = 0

    def show(self, end: int) -> None:
        """Read up to this log offset."""
        self.end = end

    @property
    def durable(self) -> int:
        """Offset behind the last record that is read."""
        return self.end

    @property
    def written(self) -> int:
        """The same."""
        return self.end

    def write_out(self) -> int:
        """The same: nobody here writes."""
        return self.end

    def written_through(self, offset: int) -> int:  # noqa: ARG002
        """The same."""
        return self.end

    def check_alive(self) -> None:
        """Always."""
