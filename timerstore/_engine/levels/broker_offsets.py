"""Write config/delayOffset.json, from which a broker continues when it opens the directory.

We never read the offsets, because the log has more information.

Thread safety: called while closing, after every service has stopped.
Invariants:
    1. The file is written after everything that it describes is durable.
On-disk format: format/delay_offset_json.py
"""

from timerstore._engine.format import delay_offset_json
from timerstore._engine.format.delay_offset_json import DelayOffsets
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, Tree, backup_of
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.disk import Disk
from timerstore.clock import Clock
from timerstore.errors import CorruptError


def write_for_brokers(
    disk: Disk, tree: Tree, clock: Clock, routes: Routes, cursors: LevelCursors
) -> None:
    """Write the next offset to deliver of each level; durable on return."""
    offsets = {
        route.queue_id + 1: cursors.cursor(route.queue_id)
        for route in routes.by_index
        if route.topic == SCHEDULE_TOPIC and route.queue.count
    }
    if not offsets and not disk.exists(tree.delay_offset_json):
        return
    try:
        before = delay_offset_json.read(
            disk.read_small(tree.delay_offset_json),
            disk.read_small(backup_of(tree.delay_offset_json)),
        )
    except CorruptError:
        before = DelayOffsets()  # the cursors have all of its information
    disk.make_directory(tree.config)
    after = before.with_offsets(offsets, clock.now_ms)
    disk.write_small(tree.delay_offset_json, delay_offset_json.write(after))
