"""Summarize a store that another process may have open (snapshot/live_stats.py).

Thread safety: nothing here takes a lock or writes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timerstore._engine.format import consumer_offset_json
from timerstore._engine.format.store_paths import Tree, backup_of
from timerstore._engine.snapshot.live_stats import StoreSummary
from timerstore._engine.storage.disk import Disk


def groups(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield (topic, group, queue, committed offset) of each group."""
    disk, tree = Disk(), Tree(path)
    offsets = consumer_offset_json.read(
        disk.read_small(tree.consumer_offset_json),
        disk.read_small(backup_of(tree.consumer_offset_json)),
    )
    for name, queues in offsets.table.items():
        topic, _, group = name.partition(consumer_offset_json.SEPARATOR)
        for queue_id, offset in queues.items():
            yield topic, group, queue_id, offset


def holder_text(found: StoreSummary) -> str:
    """Describe the process that has the store open."""
    if found.holder is None:
        return "closed: nothing is delivered"
    return f"open in process {found.holder or 'of another container'}"


def as_json(found: StoreSummary) -> dict[str, Any]:
    """Return the JSON fields that identify a store and its holder."""
    return {
        "path": str(found.path),
        **({} if found.shard is None else {"shard": found.shard}),
        "open_in": found.holder,
    }
