"""`SnapshotLog`: the commit log of a read-only store, as components that read expect it.

Thread safety: one thread at a time.
Invariants: `durable`, `written` and `end` are the same: how far the log is read.
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
        """The offset after the last record that is read."""
        return self.end

    @property
    def written(self) -> int:
        """The offset after the last record that is read."""
        return self.end

    def write_out(self) -> int:
        """Return the end, because a read-only store has nothing to write."""
        return self.end

    def written_through(self, offset: int) -> int:  # noqa: ARG002
        """The offset after the last record that is read."""
        return self.end

    def check_alive(self) -> None:
        """Return: a log that is only read cannot fail."""
