"""Write the files that a RocketMQ broker reads when it opens a directory that we closed.

Thread safety: called while closing, after every service has stopped.
On-disk format: config/timercheck (native/format/timer_check.h), checkpoint
    (native/format/store_checkpoint.h) and config/timermetrics (format/timer_metrics_json.py).
"""

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import delay_offset_json, timer_metrics_json
from timerstore._engine.format.delay_offset_json import DelayOffsets
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, Tree, backup_of
from timerstore._engine.format.timer_metrics_json import TimerMetrics, TopicCount
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.level_delivery import pending_by_topic
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import CorruptError, TimerStoreError

# --- broker export ---


_FILE_BYTES = 4096


def read_back(core: Core, wheel: Wheel, open_slot: OpenSlot) -> None:
    """Set the wheel's read slot back to the current time: a broker continues from there."""
    now_slot = max(1, core.clock.now_ms // core.config.precision_ms)
    with wheel.lock:
        if wheel.read_back(now_slot, open_slot.outstanding):
            open_slot.follow_back(wheel.read_slot, wheel.back_count)


def empty_far_wheel(core: Core, linker: Linker) -> None:
    """Move the messages of the far wheel to the wheel, unless the wheel or the disk is full."""
    try:
        linker.drop_overflow()
        if core.config.far_wheel == "own" or linker.empty_far_wheel():
            linker.end_log(core.timer_route)
    except TimerStoreError as error:
        linker.refuse(error)


def write_for_brokers(core: Core, tree: Tree, dispatch: Dispatch, checkpoint: Checkpoint) -> None:
    """Write RocketMQ's checkpoints and counts as of the last completed checkpoint.

    The files are durable on return.
    """
    disk, now_ms = core.disk, core.clock.now_ms
    mark = checkpoint.completed
    assert mark is not None, "a checkpoint was completed before"
    disk.make_directory(tree.config)
    old = _timer_check(disk, tree)
    fields = (
        mark.replay_slot * core.config.precision_ms,
        mark.timer_log_end,
        mark.timer_queue_offset,
        mark.timer_queue_offset,
        old[4],
        now_ms,
        old[6] + 1,
    )
    data = ffi.new("uint8_t[]", _FILE_BYTES)
    lib.ts_timer_check_pack(ffi.new("int64_t[]", fields), data)
    disk.write_small(tree.timer_check, bytes(ffi.buffer(data)))
    store_ms = core.log.last_store_ms
    data = ffi.new("uint8_t[]", _FILE_BYTES)
    # After a crash, a broker deletes the index files that are newer than this.
    index_ms = 0 if dispatch.index is None else dispatch.index.end_ms
    lib.ts_store_checkpoint_pack(ffi.new("int64_t[]", (store_ms, store_ms, index_ms, 0, 0)), data)
    disk.write_small(tree.checkpoint, bytes(ffi.buffer(data)))
    before = _metrics(disk, tree)
    pending, _ = pending_by_topic(core.routes)
    counts = {
        topic: TopicCount(pending.get(topic, 0), now_ms)
        for topic in dict.fromkeys(route.topic for route in core.routes.by_index)
        if topic in pending or topic in before.counts
    }
    metrics = TimerMetrics(before.version.next(now_ms), counts)
    disk.write_small(tree.timer_metrics, timer_metrics_json.write(metrics))


def _metrics(disk: Disk, tree: Tree) -> TimerMetrics:
    """Return the counts on disk. If they cannot be read, return none: the counts are derived."""
    try:
        return timer_metrics_json.read(
            disk.read_small(tree.timer_metrics), disk.read_small(backup_of(tree.timer_metrics))
        )
    except CorruptError:
        return TimerMetrics()


def _timer_check(disk: Disk, tree: Tree) -> list[int]:
    raw = disk.read_small(tree.timer_check)
    fields = ffi.new("int64_t[7]")
    if raw is not None:
        lib.ts_timer_check_unpack(raw, len(raw), fields)
    return list(fields)


# --- broker offsets ---
# Write config/delayOffset.json, from which a broker continues when it opens the directory.
#
# We never read the offsets, because the log has more information.
#
# Thread safety: called while closing, after every service has stopped.
# Invariants:
#     1. The file is written after everything that it describes is durable.
# On-disk format: format/delay_offset_json.py


def write_level_offsets(core: Core, tree: Tree, cursors: LevelCursors) -> None:
    """Write the next offset to deliver of each level; durable on return."""
    disk = core.disk
    offsets = {
        route.queue_id + 1: cursors.cursor(route.queue_id)
        for route in core.routes.by_index
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
    after = before.with_offsets(offsets, core.clock.now_ms)
    disk.write_small(tree.delay_offset_json, delay_offset_json.write(after))
