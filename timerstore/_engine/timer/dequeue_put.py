"""dequeue-put: hands due messages to their topic, and rolls those that are due later.

Threads:  dequeue-put.
Locks:    the commit log's append lock, taken in C, for at most 512 records at a time.
Holds:    (1) an id is handed at most once: its state and its record's place change in one hold of
          the append lock (docs/exactly-once.md); (2) never early: what is popped is due, and C
          refuses to encode what is not; (3) what could not be placed goes back to the open slot;
          (4) of one due time the first put comes first: nothing overtakes what has still to come
          down from the far wheel, nor a record that rolled and is not on the wheel again yet, but
          while `stop_enqueue` keeps it from there (counted: `dequeue_put_order_waivers`). Where
          topics take turns, or have a rate (fair_queue.py), that is so for each topic by itself.
Fails:    FullError changes nothing and is retried; CorruptError where a source does not check.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import failpoints
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import IDLE_S_MAX, Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.fair_queue import FairQueue, Taken
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DRAFT, Int64Array, Records, slots_of
from timerstore.clock import Clock
from timerstore.config import StoreConfig, parse_topic_rates

_BATCH = 16_384
_CALL = 4096  # in one call of C, 1 ms: each comes back behind whoever waits for the GIL
_CHUNK = 512  # planned, then placed in one hold, 0.1 ms: they stay in the second cache and the TLB
_SORTED = 65_536  # sorted out by topic in one step, at most
_SCRATCH_BYTES = 1 << 16
_NEVER_MS = (1 << 63) - 1
_BEHIND_S = 0.05  # looks again at what waits for the wheel, should nobody wake it


class _Progress(NamedTuple):
    """Records of the timer topic that are not on the wheel yet."""

    queue_end: int  # the queue offset behind the last of them
    due_ms: int  # the earliest due time among them


class DequeuePut(Service):
    """From due entries to records."""

    name = "dequeue-put"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        routes: Routes,
        timer_route: Route,
        open_slot: OpenSlot,
        linker: Linker,
        enqueue_start: int,
        is_reading_idle: Callable[[], bool],
    ) -> None:
        """`enqueue_start`: the queue offset to enqueue from. `is_reading_idle`: whether every slot
        that may be read has been.

        Nothing is delivered that a record of the timer topic which is not linked yet may come
        before: what rolled, and what was left from before an opening.
        """
        super().__init__(metrics, signals)
        self._config = config
        self._linker = linker
        self._clock = clock
        self._log = log
        self._routes = routes
        self._timer_route = timer_route
        self._open_slot = open_slot
        self._scratch = ffi.new("uint8_t[]", _SCRATCH_BYTES)
        self._drafts = np.empty(_CHUNK, DRAFT)
        self._late_ms = np.empty(_BATCH, np.int64)
        self._slots = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
        self._native_slots = tuple(ffi.from_buffer("int64_t[]", one) for one in self._slots)
        self._behind: list[_Progress] = []
        self._is_held_up = False  # as of the last look: what is due waits for what may be before it
        self._dealt = 0  # of what the present step popped: what needs no second look
        if enqueue_start < timer_route.queue.count:
            self._behind.append(_Progress(timer_route.queue.count, 0))
        self._is_reading_idle = is_reading_idle
        rates = parse_topic_rates(config.topic_rates)
        self.fair_queue = FairQueue(clock, log, routes, rates, self.wake)
        self._taken: list[Taken] = []  # of a batch, what took a turn: it stands last

    @property
    def _is_linking_stuck(self) -> bool:
        """Whether neither linking nor reading of slots can go on by itself."""
        return self._config.stop_enqueue and self._is_reading_idle()

    def _until_ms(self) -> int:
        now_ms, whole_ms = self._clock.now_ms, self._linker.whole_until_ms()
        if self._behind:
            linked = self._linker.linked_offset
            self._behind = [one for one in self._behind if one.queue_end > linked]
        until_ms = min(now_ms, whole_ms, *(one.due_ms - 1 for one in self._behind))
        self._is_held_up = until_ms < now_ms
        return until_ms

    def step(self) -> bool:
        """Hand over what is due, at most one batch."""
        self._log.check_alive()
        due, frontier, popped = self._pop()
        if not popped and not len(due) and self._behind and self._is_linking_stuck:
            # Nothing is linked while enqueuing is stopped: others go on.
            self._behind.clear()
            self.metrics.add("dequeue_put_order_waivers", 1)
            due, frontier, popped = self._pop()
        if not len(due):
            if self._behind:
                self._signals.linking_awaited()  # idle, it would not see that time passed
            if popped:
                self._wake_others()
            return popped > 0
        self._dealt = 0
        try:
            self._log.wait_for_checkpoint()
            last = due[int(due["log_offset"].argmax())]
            self._log.written_through(int(last["log_offset"]) + int(last["size"]))
            while self._linker.relinks and (rolling := self._rolling(due, frontier)) is not None:
                dealt = self._linker.relink(due[rolling])
                if dealt == 0:
                    break  # no slot takes it: it rolls through the log
                due = np.delete(due, rolling[:dealt])
            while self._dealt < len(due):
                if not self._hand_over(due[self._dealt : self._dealt + _BATCH], frontier):
                    break
        finally:
            if self._dealt < len(due):
                self._open_slot.push(due[self._dealt :])
                self.fair_queue.give_back(self._taken, len(due) - self._dealt)
            self._wake_others()
        return True

    def _wake_others(self) -> None:
        self._signals.records_placed()
        self._signals.open_slot_shrunk()

    def _pop(self) -> tuple[Records, int, int]:
        """Give what may go now, at most one batch; the frontier; how many left the open slot."""
        open_slot, fair_queue = self._open_slot, self.fair_queue
        self._taken = []
        if not fair_queue.are_needed(open_slot.rest_count):
            due, frontier = open_slot.pop(self._until_ms(), _BATCH)
            return due, frontier, len(due)
        due, frontier = open_slot.pop(self._until_ms(), _SORTED)
        first, ready = self._apart(due, frontier)
        try:
            first += [fair_queue.sort_in(ready)] if len(ready) else []
        except BaseException:
            open_slot.push(due)
            raise
        room = max(1, _BATCH - sum(map(len, first)))
        self._taken = fair_queue.take(self._clock.now_ms, room)
        first += [part for _, part in self._taken]
        return np.concatenate(first) if first else due[:0], frontier, len(due)

    def _apart(self, due: Records, frontier: int) -> tuple[list[Records], Records]:
        """Give what rolls, and what is due."""
        is_rolling = (due["flags"] & lib.TS_FLAG_ROLL) != 0
        if not is_rolling.any():
            return [], due
        is_rolling &= (due["due_ms"] - 1) // self._config.precision_ms >= frontier
        return [due[is_rolling]], due[~is_rolling]

    def _rolling(self, due: Records, frontier: int) -> Int64Array | None:
        """Which entries are due in a slot that has still to be read; None: none."""
        is_later = slots_of(due["due_ms"], self._config.precision_ms) >= frontier
        rows = np.flatnonzero(((due["flags"] & lib.TS_FLAG_ROLL) != 0) & is_later)
        return rows if len(rows) else None

    def _hand_over(self, due: Records, frontier: int) -> bool:
        """Deal with entries, at most a batch: hand over, roll, or find that they do not wait; what
        is noted of all of them is noted once. False: the next one is early, as the clock was set
        back since they were popped.
        """
        tally = ffi.new("ts_tally *")
        tally.rolled_due_ms = _NEVER_MS
        tally.slots, tally.counts = self._native_slots
        delivery = self._new_delivery()
        done = 0
        try:
            with self._log.segments.view(self._log.written) as view:
                while done < len(due):
                    got = self._deliver(view, due[done:], frontier, delivery, tally)
                    if not got:
                        return False
                    reach("deliver_placed")
                    done += got
        finally:
            self._note(tally, int(delivery.late_count))
        return True

    def _new_delivery(self) -> Any:
        delivery = ffi.new("ts_delivery *")
        delivery.scratch, delivery.scratch_bytes = self._scratch, len(self._scratch)
        delivery.drafts = ffi.from_buffer("ts_draft[]", self._drafts)
        delivery.draft_count = len(self._drafts)
        delivery.late_ms = ffi.from_buffer("int64_t[]", self._late_ms)
        return delivery

    def _note(self, tally: Any, late_count: int) -> None:
        """What became of entries: the open slot's count of them, lateness, and the counters."""
        runs = int(tally.runs)
        self._open_slot.done(zip(*(part[:runs].tolist() for part in self._slots), strict=True))
        if tally.rolled:
            queue_end = int(self._timer_route.native.next_offset)  # behind all of them
            self._behind.append(_Progress(queue_end, int(tally.rolled_due_ms)))
        if late_count:
            self.metrics.observe("lateness_ms", self._late_ms[:late_count])
        self.metrics.add("dequeue_put_messages", int(tally.handed))
        self.metrics.add("dequeue_put_rolled_messages", int(tally.rolled))
        skipped = int(tally.skipped + tally.misfits + tally.gone)
        self.metrics.add("dequeue_put_skipped_messages", skipped)

    def _deliver(self, view: Any, due: Records, frontier: int, delivery: Any, tally: Any) -> int:
        """Give the first of these entries what becomes of them; how many. 0: the first is early."""
        count = min(len(due), _CALL if failpoints.hook is None else _CHUNK)
        entries = ffi.from_buffer("ts_due[]", due)
        while True:
            now_ms = self._clock.now_ms
            misfits = tally.misfits
            got = lib.ts_deliver_many(
                view,
                self._routes.native,
                self._log.native,
                self._timer_route.native,
                frontier,
                entries,
                count,
                now_ms,
                delivery,
                tally,
            )
            if got > 0:
                self._dealt += got
                if tally.misfits > misfits:
                    self._keep_unroutable(due[:got], delivery)
                return int(got)
            if delivery.is_placing:
                self._log.serve_in_batch(got, int(delivery.need), self.name)
            elif got == lib.TS_NEED_ROUTE:
                route_needed(self._log.segments, view, self._routes, now_ms)
            elif got == lib.TS_NEED_ROOM:
                self._scratch = ffi.new("uint8_t[]", 2 * int(view.need))
                delivery.scratch, delivery.scratch_bytes = self._scratch, len(self._scratch)
            elif got == lib.TS_INVALID:
                return 0
            else:
                self._log.segments.serve(view, got, "dequeue-put")

    def _keep_unroutable(self, due: Records, delivery: Any) -> None:
        """Foreign ones, without room for a roll, wait here instead; the drafts placed last are
        those of the last entries.
        """
        drafts = self._drafts[delivery.first : delivery.placed]
        is_unroutable = (drafts["size"] == 0) & (drafts["flags"] != lib.TS_FLAG_GONE)
        self._keep(due[len(due) - len(drafts) :][is_unroutable])

    def _keep(self, due: Records) -> None:
        kept = due.copy()
        kept["flags"] = 0
        kept["wake_ms"] = kept["due_ms"]
        self._open_slot.push(kept)

    def idle_s(self) -> float | None:
        """Until the first entry's time."""
        wake_ms = self._open_slot.next_wake_ms()
        if wake_ms is None:
            return self._least_s(None)
        wait_s = min(max((wake_ms - self._clock.now_ms) / 1000, 0.0), IDLE_S_MAX)
        return self._least_s(max(wait_s, _BEHIND_S) if self._is_held_up else wait_s)

    def _least_s(self, wait_s: float | None) -> float | None:
        """Or until one of a lane may go, where that is sooner."""
        lane_s = self.fair_queue.next_s()
        if lane_s is None:
            return wait_s
        return min(lane_s, IDLE_S_MAX if wait_s is None else wait_s)
