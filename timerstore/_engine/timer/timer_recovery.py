"""Recover the wheel, the timer log and the timer states, from a checkpoint or from the whole log.

Thread safety: called while opening, before any service runs.
Invariants:
    1. Units after the watermark's `timer_log_end` are not trusted. Slots are set back to the units
       before it. The wheel is written first, and the units are removed afterwards.
    2. The state of every timer id is the fold of the log.
    3. A recovery that is repeated after a crash gives the same result.
Raises: CorruptError if a chain is broken before the watermark's `timer_log_end`.
See also: docs/exactly-once.md
"""

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import counts_json
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.fold import Fold
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel


def cut_back(wheel: Wheel, timer_log: TimerLog, mark: Watermark) -> None:
    """Set the wheel and the timer log back to the watermark after a crash; durable on return."""
    timer_log.load(mark.timer_log_end)
    segments = timer_log.segments
    with segments.view(segments.extent) as view:
        segments.call(view, "timer log", lib.ts_wheel_cut, wheel.native, mark.timer_log_end)
    wheel.write(wheel.copy_dirty())
    reach("recover_wheel_written")
    timer_log.cut(mark.timer_log_end)
    reach("recover_timer_log_cut")


def start_at(wheel: Wheel, open_slot: OpenSlot, replay_slot: int) -> None:
    """Continue reading slots from this one on.

    Slot 0 is never used (wheel_slot.h); messages that are due in it are late.
    """
    replay_slot = max(replay_slot, 1)
    wheel.start_at(replay_slot)
    open_slot.start_at(replay_slot)


def fold_forward(states: TimerStates, routes: Routes, scanned: Scan, store_id: int) -> None:
    """Fold the records after the watermark into the states and the pending counts.

    All of these records were written by this store.
    """
    need = ffi.new("int64_t *")
    done = 0
    by_index = routes.native_by_index()
    while done < len(scanned):
        part = np.ascontiguousarray(scanned[done:])
        got = lib.ts_states_fold(
            states.native,
            by_index,
            ffi.from_buffer("ts_scanned[]", part),
            len(part),
            store_id,
            need,
        )
        done += got
        if done < len(scanned):
            states.ensure(int(need[0]))


def fold_from_empty(states: TimerStates, routes: Routes, scanned: Scan, found: Fold) -> None:
    """Set the states and the pending counts from a fold of the whole log."""
    states.ensure(max(found.next_id, 1))
    for ids, state in (
        (found.ids_pending, lib.TS_PENDING),
        (found.ids_delivered, lib.TS_DELIVERED),
        (found.ids_cancelled, lib.TS_CANCELLED),
    ):
        each = np.ascontiguousarray(ids, np.int64)
        lib.ts_states_set_many(states.native, ffi.from_buffer("int64_t[]", each), len(each), state)
    by_index, indexes = routes.by_index, scanned["route"]
    on_wheel, on_level = indexes[found.rows_pending], indexes[found.level_rows_pending]
    for index, count in zip(*np.unique(on_wheel, return_counts=True), strict=True):
        by_index[int(index)].native.pending = int(count)
    for index, count in zip(*np.unique(on_level, return_counts=True), strict=True):
        by_index[int(index)].native.level_pending = int(count)


def set_pending(routes: Routes, counts: counts_json.Counts, now_ms: int) -> None:
    """Set the counts of pending timers and level messages to those of the watermark."""
    for topic, queues in counts.pending.items():
        for queue_id, count in queues.items():
            routes.make(topic, queue_id, now_ms).native.pending = count
    for topic, queues in counts.level_pending.items():
        for queue_id, count in queues.items():
            routes.make(topic, queue_id, now_ms).native.level_pending = count


def pending_ids(states: TimerStates) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return every pending timer id, ascending."""
    following = ffi.new("int64_t *")
    parts = []
    at = 0
    while at < int(states.native.end):
        ids = np.empty(65_536, np.int64)
        count = lib.ts_states_pending(
            states.native, at, ffi.from_buffer("int64_t[]", ids), len(ids), following
        )
        parts.append(ids[:count])
        at = int(following[0])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def timer_route(routes: Routes) -> Route:
    """Return the route of the timer topic's only queue."""
    route = routes.get("rmq_sys_wheel_timer", 0)
    assert route is not None, "Routes.load makes it"
    return route
