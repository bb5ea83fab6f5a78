"""`LogReader`: what a component that only reads needs of a commit log.

Two classes have it: `CommitLog`, which the store's process appends to, and `SnapshotLog`, which a
read-only store shows up to a position.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from timerstore._engine.storage.segments import Segments


class LogReader(Protocol):
    """A commit log that is read."""

    @property
    def segments(self) -> Segments:
        """The files."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock under which `end` moves."""
        ...

    @property
    def end(self) -> int:
        """Log offset of the next record."""
        ...

    @property
    def written(self) -> int:
        """Log offset up to which the files have the records."""
        ...

    @property
    def durable(self) -> int:
        """Log offset up to which no crash loses a record."""
        ...

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest record, ms since 1970; 0: unknown."""
        ...

    def write_out(self) -> int:
        """Write all records to the files; return the log offset of their end."""
        ...

    def written_through(self, offset: int) -> int:
        """Return `written`, which is `offset` or more after the call."""
        ...
