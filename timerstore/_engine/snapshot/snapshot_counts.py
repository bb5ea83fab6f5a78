"""How many messages a store has, and how far it can be read now. All counts come from here.

    a process has the store open    the counts of its last checkpoint
    no process has it open          the same, and the records after the checkpoint
    restored, repaired, a broker's  a fold of the whole log: there are no stored counts

Thread safety: any thread. Nothing is written, and no lock is taken.
Invariants: the counts are those that a read-only store has at the same position.
Raises: as SnapshotCalls.
"""

from dataclasses import replace
from pathlib import Path

from timerstore._engine.format.counts_json import Counts, Pending
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore._engine.snapshot.position import SnapshotPosition, take
from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls, answered
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk
from timerstore.clock import SystemClock


class SnapshotCounts(SnapshotCalls):
    """Counts the messages of one store."""

    @answered
    def position(self) -> SnapshotPosition:
        """Return how far the store can be read."""
        return self._view.position

    @answered
    def read(self) -> tuple[SnapshotPosition, Counts]:
        """Return the position, and the pending messages and the end of each queue there."""
        position = self._view.position
        mark, counts = position.mark, position.counts
        is_stored = mark is not None and not mark.is_bootstrap and mark.log_end == position.log_end
        if is_stored and counts is not None:
            return position, counts
        self._timers.catch_up()
        pending: Pending = {}
        on_level: Pending = {}
        ends: Pending = {}
        for route in self._view.routes.by_index:
            native = route.native
            for part, count in (
                (pending, int(native.pending)),
                (on_level, int(native.level_pending)),
                (ends, int(route.queue.count)),
            ):
                if count:
                    part.setdefault(route.topic, {})[route.queue_id] = count
        return position, Counts(position.log_end, pending, ends, {}, on_level)


def take_newest(root: Path, precision_ms: int | None = None) -> Snapshot:
    """Return how far a store can be read now, with the records after its last checkpoint if no
    process has it open.

    `precision_ms`: of a broker's store whose files do not show it.

    Raises:
        ConfigError: there is no store. CorruptError: limits and files do not fit.
    """
    found = take(root, precision_ms)
    if found.store_id is None or owner_pid(Disk(), Tree(found.root)) is not None:
        return found
    with SnapshotCounts(found.root) as reader:
        store = reader.position().store
    is_newer = store.log_end > found.log_end
    return replace(store, as_of_ms=SystemClock().now_ms if is_newer else found.as_of_ms)
