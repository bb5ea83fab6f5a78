"""Used: how much disk and memory a store takes; reckoned from what it knows, no file is looked at.

Threads:  any.
"""

from timerstore._engine.format.far_table import UNIT_BYTES as FAR_UNIT_BYTES
from timerstore._engine.recovery.opening import Opened
from timerstore._engine.timer.timer_arrays import DUE
from timerstore._engine.timer.timer_states import BLOCK_BYTES, BLOCK_IDS
from timerstore._engine.timer.wheel import SLOT_BYTES

_UNIT_BYTES = 20


def used(opened: Opened, calendar_bytes: int) -> dict[str, int]:
    """Give the gauges of disk and memory."""
    rooms = opened.rooms
    log, timer_log = rooms.log.segments, rooms.timer_log
    units = sum(one.queue.count - one.queue.min_offset for one in list(rooms.routes.by_index))
    disk_bytes = rooms.log.end - log.begin + timer_log.end - timer_log.segments.begin
    disk_bytes += _UNIT_BYTES * units + SLOT_BYTES * opened.config.wheel_slot_count
    disk_bytes += FAR_UNIT_BYTES * (rooms.far.end - rooms.far.begin)
    held = len(rooms.open_slot) + len(opened.pipeline.dequeue_put.lanes)
    states_bytes = int(rooms.states.native.end) // BLOCK_IDS * BLOCK_BYTES
    return {
        "disk_bytes": disk_bytes,
        "disk_used_percent": round(opened.disk.used_percent(opened.directory.root)),
        "memory_bytes": states_bytes + held * DUE.itemsize + calendar_bytes,
    }
