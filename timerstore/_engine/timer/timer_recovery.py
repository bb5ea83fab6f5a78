"""Recovering the timer: wheel, timer log and states as of the last checkpoint, or all anew.

Holds:    (1) nothing beyond the watermark's timer log end is trusted: slots go back to what lay
          below, first on disk, then the units go; (2) the state of every id is the fold of the log;
          (3) doing it twice changes nothing.
Fails:    CorruptError on a chain that breaks below the watermark.
Source:   docs/exactly-once.md.
"""

from typing import NamedTuple

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import counts_json
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.fold import Fold
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel


class Start(NamedTuple):
    """From where the timer goes on."""

    timer_queue_offset: int
    read_slot: int


def cut_back(wheel: Wheel, timer_log: TimerLog, mark: Watermark) -> None:
    """After an unclean stop: wheel and timer log as they were at the watermark; durable."""
    timer_log.load(mark.timer_log_end)
    segments = timer_log.segments
    with segments.view(segments.extent) as view:
        while True:
            status = lib.ts_wheel_cut(view, wheel.native, mark.timer_log_end)
            if status >= 0:
                break
            segments.serve(view, status, "timer log")
    wheel.write(wheel.copy_dirty())
    reach("recover_wheel_written")
    timer_log.cut(mark.timer_log_end)
    reach("recover_timer_log_cut")


def start_at(wheel: Wheel, open_slot: OpenSlot, read_slot: int) -> None:
    """Read slots from here on. Slot 0 is never used (wheel_slot.h): what is due in it is late."""
    read_slot = max(read_slot, 1)
    wheel.start_at(read_slot)
    open_slot.start_at(read_slot)


def fold_forward(states: TimerStates, routes: Routes, scanned: Scan, store_id: int) -> None:
    """Fold the records behind the watermark, all of which are this store's, into the states and the
    pending counts.
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
        (found.ids_pending, lib.TS_WAITING),
        (found.ids_delivered, lib.TS_HANDED),
        (found.ids_cancelled, lib.TS_CANCELLED),
    ):
        each = np.ascontiguousarray(ids, np.int64)
        lib.ts_states_set_many(states.native, ffi.from_buffer("int64_t[]", each), len(each), state)
    waiting_routes = scanned["route"][found.rows_pending]
    for index, count in zip(*np.unique(waiting_routes, return_counts=True), strict=True):
        routes.by_index[int(index)].native.pending = int(count)


def set_pending(routes: Routes, pending: counts_json.Pending, now_ms: int) -> None:
    """Set the pending counts as at the watermark."""
    for topic, queues in pending.items():
        for queue_id, count in queues.items():
            routes.make(topic, queue_id, now_ms).native.pending = count


def waiting_ids(states: TimerStates) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Give every id that waits, ascending."""
    following = ffi.new("int64_t *")
    parts = []
    at = 0
    while at < int(states.native.end):
        ids = np.empty(65_536, np.int64)
        count = lib.ts_states_waiting(
            states.native, at, ffi.from_buffer("int64_t[]", ids), len(ids), following
        )
        parts.append(ids[:count])
        at = int(following[0])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def finish_queues(routes: Routes) -> None:
    """Every queue's next offset is behind its last unit."""
    for route in routes.by_index:
        route.native.next_offset = route.queue.count
        route.queue.reserve_from_end()


def timer_route(routes: Routes) -> Route:
    """Give the timer topic's only queue."""
    route = routes.get("rmq_sys_wheel_timer", 0)
    assert route is not None, "Routes.load makes it"
    return route
