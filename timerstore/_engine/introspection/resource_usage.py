"""Disk and memory that a store uses, computed from its state without reading any file.

Thread safety: any thread.
"""

from timerstore._engine.format.far_table import UNIT_BYTES as FAR_UNIT_BYTES
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.timer_states import BLOCK_BYTES, BLOCK_IDS, TimerStates
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.timer_arrays import DUE
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import SLOT_BYTES, Wheel

_UNIT_BYTES = 20


def used(
    *,
    log: CommitLog,
    routes: Routes,
    timer_log: TimerLog,
    far: FarWheel,
    states: TimerStates,
    wheel: Wheel,
    pending_entries: int,
    calendar_bytes: int,
    used_percent: float,
) -> dict[str, int]:
    """Return the gauges of disk and memory.

    pending_entries: number of messages loaded from the wheel.
    """
    units = sum(one.queue.count - one.queue.min_offset for one in list(routes.by_index))
    disk_bytes = log.end - log.segments.begin + timer_log.end - timer_log.segments.begin
    disk_bytes += _UNIT_BYTES * units + SLOT_BYTES * wheel.slot_count
    disk_bytes += FAR_UNIT_BYTES * (far.end - far.begin)
    states_bytes = int(states.native.end) // BLOCK_IDS * BLOCK_BYTES
    return {
        "disk_bytes": disk_bytes,
        "disk_used_percent": round(used_percent),
        "memory_bytes": states_bytes + pending_entries * DUE.itemsize + calendar_bytes,
    }
