"""A summary of a store. Another process may have the store open.

    look       as of the last checkpoint; without counts if none are stored
    counted    as of now, always with counts (snapshot_counts.py)

Thread safety: takes no lock and writes nothing.
Invariants: a summary has only durable messages. `look` returns no counts for a broker's store, nor
for a restored or repaired one that was not opened yet.
Raises: ConfigError if there is no store. CorruptError if a file cannot be read.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import (
    INGEST_TOPIC,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore._engine.snapshot.position import PositionReader
from timerstore._engine.snapshot.queue_files import read_topics
from timerstore._engine.snapshot.snapshot_counts import SnapshotCounts
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk

SYSTEM_TOPICS = frozenset({WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC, INGEST_TOPIC})


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store, at one position."""

    path: Path
    shard: int | None
    holder: int | None
    """The process that has it open. 0: an unknown process. None: no process."""
    store: Snapshot
    mark: Watermark | None
    counts: Counts | None
    queue_counts: dict[str, int]

    @property
    def topics(self) -> list[str]:
        """All topics except the engine's own, by name."""
        known = set(self.queue_counts)
        if self.counts is not None:
            known |= set(self.counts.ends) | set(self.counts.pending)
            known |= set(self.counts.level_pending)
        return sorted(known - SYSTEM_TOPICS)

    @property
    def is_brokers(self) -> bool:
        """Whether a broker wrote it, and it was not opened here since."""
        return self.store.store_id is None and self.store.log_end > self.store.log_begin

    def pending(self, topic: str | None = None) -> int | None:
        """Return the number of pending messages, of one topic or all."""
        if self.counts is None:
            return None
        parts = (self.counts.pending, self.counts.level_pending)
        if topic is None:
            return sum(sum(queues.values()) for part in parts for queues in part.values())
        return sum(sum(part.get(topic, {}).values()) for part in parts)

    def end(self, topic: str) -> int | None:
        """Return the number of messages that a topic ever received."""
        if self.counts is None:
            return None
        return sum(self.counts.ends.get(topic, {}).values())


def look(path: Path, shard: int | None = None) -> StoreSummary:
    """Summarize one store as of its last checkpoint. The counts are None if none are stored."""
    path = path.absolute()
    disk, tree = Disk(), Tree(path)
    store, mark, counts = PositionReader(disk, tree).find()
    if mark is not None and mark.is_bootstrap:
        counts = None  # its counts have the ends of queues only
    topics = read_topics(disk, tree).topics
    queue_counts = {name: one.read_queue_count for name, one in topics.items()}
    return StoreSummary(path, shard, owner_pid(disk, tree), store, mark, counts, queue_counts)


def counted(found: StoreSummary) -> StoreSummary:
    """Return the summary as of now. Without stored counts the whole log is read."""
    if found.counts is not None and found.holder is not None:
        return found
    if found.store.log_end == found.store.log_begin and found.mark is None:
        return found  # it has no file yet
    with SnapshotCounts(found.path) as reader:
        (store, mark, _), counts = reader.read()
    return replace(found, store=store, mark=mark, counts=counts)


def read_slot(found: StoreSummary) -> int:
    """Return the first slot of the wheel that was not read yet, as the files show it."""
    if found.mark is not None:
        return found.mark.replay_slot
    raw = Disk().read_small(found.store.tree.timer_check)
    fields = ffi.new("int64_t[7]")
    if raw is None or lib.ts_timer_check_unpack(raw, len(raw), fields) < 0:
        return 0
    return int(fields[0]) // found.store.precision_ms
