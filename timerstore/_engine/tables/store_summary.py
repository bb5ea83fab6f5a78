"""A summary of a store that another process may own: as of its last checkpoint.

Threads:  none; nothing here takes a lock or writes.
Holds:    what is told was durable. Numbers of a broker's store, which has none of ours, are None.
Fails:    ConfigError where there is no store; CorruptError on what does not read.
"""

from dataclasses import dataclass
from pathlib import Path

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import counts_json, topics_json
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import (
    INGEST_TOPIC,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    Tree,
    backup_of,
)
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk
from timerstore._engine.tables.file_limits import Snapshot, read_watermark, take

SYSTEM_TOPICS = frozenset({WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC, INGEST_TOPIC})
_TRIES = 5  # a checkpoint may complete between two reads


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store, as of one moment."""

    path: Path
    shard: int | None
    holder: int | None
    """The process that has it open; 0: some process; None: none has."""
    store: Snapshot
    mark: Watermark | None
    counts: Counts | None
    queue_counts: dict[str, int]
    has_ends: bool = True
    """Whether the counts tell where queues end."""

    @property
    def topics(self) -> list[str]:
        """All topics but the engine's own, by name."""
        known = set(self.queue_counts)
        if self.counts is not None:
            known |= set(self.counts.ends) | set(self.counts.pending)
            known |= set(self.counts.level_pending)
        return sorted(known - SYSTEM_TOPICS)

    @property
    def is_brokers(self) -> bool:
        """Whether a broker wrote it, and nobody opened it here since."""
        return self.store.store_id is None and self.store.log_end > self.store.log_begin

    def waiting(self, topic: str | None = None) -> int | None:
        """How many messages wait, of a topic or in all."""
        if self.counts is None:
            return None
        parts = (self.counts.pending, self.counts.level_pending)
        if topic is None:
            return sum(sum(queues.values()) for part in parts for queues in part.values())
        return sum(sum(part.get(topic, {}).values()) for part in parts)

    def end(self, topic: str) -> int | None:
        """How many messages have come into a topic, ever."""
        if self.counts is None or not self.has_ends:
            return None
        return sum(self.counts.ends.get(topic, {}).values())


def look(path: Path, shard: int | None = None) -> StoreSummary:
    """Look at one store."""
    path = path.absolute()
    disk, tree = Disk(), Tree(path)
    mark, counts = None, None
    for _ in range(_TRIES):
        mark = read_watermark(tree)
        if mark is None:
            break
        counts = counts_json.read_counts(disk.read_small(tree.counts), mark.log_end, mark.sequence)
        if counts is not None:
            break
    store = take(path)
    if store.store_id is None:
        mark, counts = None, None  # a broker was here since
    topics = topics_json.read(
        disk.read_small(tree.topics_json), disk.read_small(backup_of(tree.topics_json))
    )
    queue_counts = {name: one.read_queue_count for name, one in topics.topics.items()}
    return StoreSummary(path, shard, owner_pid(disk, tree), store, mark, counts, queue_counts)


def read_slot(found: StoreSummary) -> int:
    """The first slot that was not read yet, as far as is known."""
    if found.mark is not None:
        return found.mark.read_slot
    raw = Disk().read_small(found.store.tree.timer_check)
    fields = ffi.new("int64_t[7]")
    if raw is None or lib.ts_timer_check_unpack(raw, len(raw), fields) < 0:
        return 0
    return int(fields[0]) // found.store.precision_ms
