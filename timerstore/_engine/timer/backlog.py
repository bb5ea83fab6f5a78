"""Measure how far the timer lags, and count pending messages by due time.

Every number is exact while no message moves. A message that moves during a call is counted either
before or after its move. The counters in wheel slots are not used, because they do not account for
rolled messages. The cost of `dequeue` grows with the number of late messages. The cost of
`distribution` and `congestion` grows with the number of pending messages.

Thread safety: any thread may call it.
Locking: takes the wheel's lock while it reads slots.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import queue_unit
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.fair_queue import FairQueue
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import Int64Array, Records, slots_of
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates, which_wait
from timerstore.clock import Clock
from timerstore.config import StoreConfig

BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Upper bounds of the timing distribution, in seconds from now; the same as RocketMQ's."""


class Lag(NamedTuple):
    """The lag of one side of the timer: how many messages, and the age of the oldest."""

    messages: int
    ms: int


class Backlog:
    """Measures the timer of one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        states: TimerStates,
        open_slot: OpenSlot,
        timer_log: TimerLog,
        dispatch: Dispatch,
        log: CommitLog,
        routes: Routes,
        timer_route: Route,
        pending: PendingReader,
        fair_queue: FairQueue,
        on_levels: Callable[[], Int64Array],
    ) -> None:
        self._precision_ms = config.precision_ms
        self._clock = clock
        self._timer_route = timer_route
        self._pending = pending
        self._fair_queue = fair_queue
        self._on_levels = on_levels  # due times of pending messages on delay levels
        self._states = states
        self._open_slot = open_slot
        self._timer_log = timer_log
        self._dispatch = dispatch
        self._log = log
        self._routes = routes

    def enqueue(self) -> Lag:
        """Return the lag of linking: records of the timer topic that are not linked yet.

        If the oldest of them has not been dispatched either, the age is that of the oldest record
        that has not been dispatched.
        """
        queue = self._timer_route.queue
        linked = self._timer_log.linked_offset
        count = int(self._timer_route.native.next_offset) - linked
        if count <= 0:
            return Lag(0, 0)
        offset = self._dispatch.dispatched
        if linked < queue.count:
            offset = int(queue_unit.read(queue.read(linked, 1))["log_offset"][0])
        return Lag(count, max(0, self._clock.now_ms - self.store_ms(offset)))

    def store_ms(self, offset: int) -> int:
        """Return when the record at a log offset was stored, or now if there is no record yet."""
        segments = self._log.segments
        record, following = np.empty(1, SCAN_DTYPE), ffi.new("int64_t *")
        with segments.view(self._log.write_out()) as view:
            while True:
                count = lib.ts_scan(
                    view,
                    self._routes.native,
                    self._precision_ms,
                    offset,
                    following,
                    1,
                    ffi.from_buffer("ts_scanned[]", record),
                )
                if count == lib.TS_NEED_ROUTE:
                    route_needed(segments, view, self._routes, self._clock.now_ms)
                elif count < 0:
                    segments.serve(view, count, "stats")
                else:
                    return int(record["store_ms"][0]) if count else self._clock.now_ms

    def dequeue(self) -> Lag:
        """Return the lag of delivery: linked messages that are due and not delivered yet.

        The places are read in the order in which a message passes them. A message that moves on
        during the call is therefore found twice, and counted once. A message that rolls back onto
        the wheel during the call may be missed.
        """
        now_ms = self._clock.now_ms
        ids, first_ms = [np.empty(0, np.int64)], now_ms
        for entries in self._loading(now_ms):
            late = entries[entries["due_ms"] <= now_ms]
            late = late[which_wait(self._states.native, late["id"])]
            ids.append(late["id"])
            first_ms = min(first_ms, int(late["due_ms"].min(initial=first_ms)))
        return Lag(len(np.unique(np.concatenate(ids))), now_ms - first_ms)

    def _loading(self, now_ms: int) -> Iterator[Records]:
        """Yield messages that may be due, from slots, the open slot and the fair queue."""
        yield from self._pending.unloaded(now_ms // self._precision_ms)
        yield from self._open_slot.by(now_ms)
        yield from self._fair_queue.held()

    def distribution(self) -> dict[int | None, int]:
        """Return how many messages are due in each interval of BOUNDS_S.

        The key is the upper bound in seconds, or None for messages that are due later. Messages on
        delay levels are included.
        """
        due_ms = np.concatenate([self._pending.entries()["due_ms"], self._on_levels()])
        ahead_ms = due_ms - self._clock.now_ms
        places = np.searchsorted(np.array(BOUNDS_S) * 1000, ahead_ms, side="left")
        counts = np.bincount(places, minlength=len(BOUNDS_S) + 1).tolist()
        return dict(zip((*BOUNDS_S, None), counts, strict=True))

    def congestion(self) -> dict[int, int]:
        """Return the number of pending messages by the start of their slot in ms, ascending.

        Slots without pending messages are left out. Messages on delay levels have no slot.
        """
        due_ms = np.ascontiguousarray(self._pending.entries()["due_ms"])
        slots, counts = np.unique(slots_of(due_ms, self._precision_ms), return_counts=True)
        return dict(zip((slots * self._precision_ms).tolist(), counts.tolist(), strict=True))
