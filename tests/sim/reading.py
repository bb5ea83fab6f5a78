"""Operations of a group that reads and commits, made to the store and to the model of groups
(tests/support/models/groups.py).
"""

from collections.abc import Callable
from typing import Any

from tests.support.models.groups import Readers, Seen
from timerstore import StoreConfig
from timerstore.errors import FailedError, FullError


class Reading:
    """A world in which a group reads."""

    config: StoreConfig
    readers: Readers
    store: Any
    is_dead: bool
    model: Any
    look: Callable[[], None]

    @property
    def _read_from(self) -> Any:
        """Return the store that creates the consumers."""
        return self.store

    @property
    def _all_seen(self) -> Seen:
        """Return all messages that were pulled, by queue."""
        seen: Seen = self.model.seen
        return seen

    def op_reader(self, kind: str, topic: str, which: int, at: int) -> None:
        if self.config.visibility == "written" or (self.is_dead and kind != "commit"):
            return
        if kind == "join":
            self.readers.join(self._read_from, topic)
        elif kind == "leave":
            self.readers.leave(topic, which)
        elif kind == "read":
            self.look()
            self.readers.read(self._read_from, topic, which, at + 1, self._all_seen)
        elif kind == "seek":
            self.readers.seek(self._read_from, topic, which, at)
        else:
            self._commit(topic, which)

    def _commit(self, topic: str, which: int) -> None:
        before = dict(self.readers.committed)
        try:
            self.readers.commit(topic, which)
        except (FullError, FailedError, MemoryError):
            self.readers.fail_commit(topic, which)
            raise
        if self.is_dead:
            self.readers.doubt_commit(before)

    def readers_finish(self) -> None:
        """Read and commit the rest."""
        if self.config.visibility != "written":
            self.readers.finish(self._read_from, self._all_seen)
