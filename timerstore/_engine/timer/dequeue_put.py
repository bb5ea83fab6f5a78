"""Deliver due messages to their topics, and roll messages that are due later.

This is the last of the six timer services. It takes due entries from the open slot, appends a
record to the commit log for each, and marks the timer as delivered in the same critical section.

Thread safety: runs on the dequeue-put thread only.
Locking: C holds the commit log's append lock for at most 512 records at a time (about 0.1 ms).
Invariants:
    1. A timer is delivered at most once: its state changes in the critical section that places its
       record (docs/exactly-once.md).
    2. Nothing is delivered early: C refuses to encode an entry that is not due.
    3. Entries that could not be placed return to the open slot.
    4. Messages with equal due times are delivered in the order in which they were put. No message
       overtakes one that is still on the far wheel, or one that rolled and is not linked again yet.
       The exception is `stop_enqueue`, which prevents linking; `dequeue_put_order_waivers` counts
       these cases. While the fair queue is used, the order holds within each topic.
Raises: FullError is retried and changes nothing. CorruptError if a source record fails its
    checksum.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import failpoints
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import IDLE_S_MAX, Service, idle_until
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.timer.fair_queue import FairQueue, Taken
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DRAFT, Records, slots_of
from timerstore.types.config import parse_topic_rates

_BATCH = 16_384
_CALL = 4096  # entries in one call of C, 1 ms: after each call other threads may take the GIL
_CHUNK = (
    512  # planned, then placed in one critical section of 0.1 ms: they fit the L2 cache and TLB
)
_SORTED = 65_536  # entries sorted by topic in one step, at most
_SCRATCH_BYTES = 1 << 16
_NEVER_MS = (1 << 63) - 1
_UNLINKED_S = 0.05  # until the next look at entries that wait for linking, if not woken


class _Progress(NamedTuple):
    """Records of the timer topic that are not linked yet."""

    queue_end: int  # the queue offset after the last of them
    due_ms: int  # the earliest due time among them


class DequeuePut(Service):
    """Delivers due entries as records."""

    name = "dequeue-put"

    def __init__(
        self,
        core: Core,
        open_slot: OpenSlot,
        linker: Linker,
        enqueue_start: int,
        is_reading_idle: Callable[[], bool],
    ) -> None:
        """Create the service.

        enqueue_start: the queue offset of the first record to link. Records of the timer topic from
            there on may precede loaded entries, so no entry is delivered before they are linked.
        is_reading_idle: returns whether every slot that may be read has been read.
        """
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._linker = linker
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._timer_route = core.timer_route
        self._open_slot = open_slot
        self._scratch = ffi.new("uint8_t[]", _SCRATCH_BYTES)
        self._drafts = np.empty(_CHUNK, DRAFT)
        self._late_ms = np.empty(_BATCH, np.int64)
        self._slots = np.empty(_BATCH, np.int64), np.empty(_BATCH, np.int64)
        self._native_slots = tuple(ffi.from_buffer("int64_t[]", one) for one in self._slots)
        self._unlinked: list[_Progress] = []
        self._is_blocked = False  # at the last look, due entries waited for linking
        self._processed = 0  # entries of the current step that are finished
        if enqueue_start < core.timer_route.queue.count:
            self._unlinked.append(_Progress(core.timer_route.queue.count, 0))
        self._is_reading_idle = is_reading_idle
        rates = parse_topic_rates(core.config.topic_rates)
        self.fair_queue = FairQueue(core, rates, self.wake)
        self._taken: list[Taken] = []  # the entries of a batch from the fair queue: its end

    @property
    def _is_linking_stuck(self) -> bool:
        """Whether neither linking nor reading of slots can continue."""
        return self._config.stop_enqueue and self._is_reading_idle()

    def _until_ms(self) -> int:
        now_ms, complete_ms = self._clock.now_ms, self._linker.complete_until_ms()
        if self._unlinked:
            linked = self._linker.linked_offset
            self._unlinked = [one for one in self._unlinked if one.queue_end > linked]
        until_ms = min(now_ms, complete_ms, *(one.due_ms - 1 for one in self._unlinked))
        self._is_blocked = until_ms < now_ms
        return until_ms

    def step(self) -> bool:
        """Deliver due entries, at most one batch."""
        self._log.check_alive()
        due, loaded_slot, popped = self._pop()
        if not popped and not len(due) and self._unlinked and self._is_linking_stuck:
            # Nothing is linked while enqueuing is stopped, so the others are delivered.
            self._unlinked.clear()
            self.metrics.add("dequeue_put_order_waivers", 1)
            due, loaded_slot, popped = self._pop()
        if not len(due):
            if self._unlinked:
                self._signals.linking_awaited()  # an idle linker does not notice that time passed
            if popped:
                self._wake_others()
            return popped > 0
        self._processed = 0
        try:
            self._log.wait_for_checkpoint()
            last = due[int(due["log_offset"].argmax())]
            self._log.written_through(int(last["log_offset"]) + int(last["size"]))
            while self._linker.relinks and len(rolling := self._rolling(due, loaded_slot)):
                relinked = self._linker.relink(due[rolling])
                if relinked == 0:
                    break  # no slot is free: these entries roll through the log
                due = np.delete(due, rolling[:relinked])
            while self._processed < len(due):
                if not self._deliver_batch(
                    due[self._processed : self._processed + _BATCH], loaded_slot
                ):
                    break
        finally:
            if self._processed < len(due):
                self._open_slot.push(due[self._processed :])
                self.fair_queue.give_back(self._taken, len(due) - self._processed)
            self._wake_others()
        return True

    def _wake_others(self) -> None:
        self._signals.records_placed()
        self._signals.open_slot_shrunk()

    def _pop(self) -> tuple[Records, int, int]:
        """Take the entries that may be delivered now, at most one batch.

        Return them, the `loaded_slot`, and how many entries left the open slot.
        """
        open_slot, fair_queue = self._open_slot, self.fair_queue
        self._taken = []
        if not fair_queue.is_needed(open_slot.rest_count):
            due, loaded_slot = open_slot.pop(self._until_ms(), _BATCH)
            return due, loaded_slot, len(due)
        due, loaded_slot = open_slot.pop(self._until_ms(), _SORTED)
        rolling = self._rolling(due, loaded_slot)
        first = [due[rolling]]
        try:
            first.append(fair_queue.sort_in(np.delete(due, rolling) if len(rolling) else due))
        except BaseException:
            open_slot.push(due)
            raise
        room = max(1, _BATCH - sum(map(len, first)))
        self._taken = fair_queue.take(self._clock.now_ms, room)
        first += [part for _, part in self._taken]
        return np.concatenate(first), loaded_slot, len(due)

    def _rolling(self, due: Records, loaded_slot: int) -> npt.NDArray[np.intp]:
        """Return the rows of entries that are due in an unread slot, and so roll."""
        is_later = slots_of(due["due_ms"], self._config.precision_ms) >= loaded_slot
        return np.flatnonzero(((due["flags"] & lib.TS_FLAG_ROLL) != 0) & is_later)

    def _deliver_batch(self, due: Records, loaded_slot: int) -> bool:
        """Deliver or roll entries, or skip those that are no longer pending; at most one batch.

        The results of all entries are recorded together at the end. Return False if the next entry
        is not due, because the clock was set back since the entries were taken.
        """
        tally = ffi.new("ts_tally *")
        tally.rolled_due_ms = _NEVER_MS
        tally.slots, tally.counts = self._native_slots
        delivery = self._new_delivery()
        done = 0
        try:
            with self._log.segments.view(self._log.written) as view:
                while done < len(due):
                    got = self._deliver(view, due[done:], loaded_slot, delivery, tally)
                    if not got:
                        return False
                    reach("deliver_placed")
                    done += got
        finally:
            self._record(tally, int(delivery.late_count))
        return True

    def _new_delivery(self) -> Any:
        delivery = ffi.new("ts_delivery *")
        delivery.scratch, delivery.scratch_bytes = self._scratch, len(self._scratch)
        delivery.drafts = ffi.from_buffer("ts_draft[]", self._drafts)
        delivery.draft_count = len(self._drafts)
        delivery.late_ms = ffi.from_buffer("int64_t[]", self._late_ms)
        return delivery

    def _record(self, tally: Any, late_count: int) -> None:
        """Record the results of entries in the open slot's counts and in the metrics."""
        runs = int(tally.runs)
        self._open_slot.done(zip(*(part[:runs].tolist() for part in self._slots), strict=True))
        if tally.rolled:
            queue_end = int(self._timer_route.native.next_offset)  # after all of them
            self._unlinked.append(_Progress(queue_end, int(tally.rolled_due_ms)))
        if late_count:
            self.metrics.observe("lateness_ms", self._late_ms[:late_count])
        self.metrics.add("dequeue_put_messages", int(tally.delivered))
        self.metrics.add("dequeue_put_rolled_messages", int(tally.rolled))
        skipped = int(tally.skipped + tally.unroutable + tally.gone)
        self.metrics.add("dequeue_put_skipped_messages", skipped)

    def _deliver(self, view: Any, due: Records, loaded_slot: int, delivery: Any, tally: Any) -> int:
        """Process the first of these entries, and return how many; 0 if the first is not due."""
        count = min(len(due), _CALL if failpoints.hook is None else _CHUNK)
        entries = ffi.from_buffer("ts_due[]", due)
        while True:
            now_ms = self._clock.now_ms
            unroutable = tally.unroutable
            got = lib.ts_deliver_many(
                view,
                self._routes.native,
                self._log.native,
                self._timer_route.native,
                loaded_slot,
                entries,
                count,
                now_ms,
                delivery,
                tally,
            )
            if got > 0:
                self._processed += got
                if tally.unroutable > unroutable:
                    self._put_back_unroutable(due[:got], delivery)
                return int(got)
            if delivery.is_placing:
                self._log.provide_in_batch(got, int(delivery.need), self.name)
            elif got == lib.TS_NEED_ROUTE:
                route_needed(self._log.segments, view, self._routes, now_ms)
            elif got == lib.TS_NEED_SPACE:
                self._scratch = ffi.new("uint8_t[]", 2 * int(view.need))
                delivery.scratch, delivery.scratch_bytes = self._scratch, len(self._scratch)
            elif got == lib.TS_INVALID:
                return 0
            else:
                self._log.segments.provide(view, got, "dequeue-put")

    def _put_back_unroutable(self, due: Records, delivery: Any) -> None:
        """Return unroutable entries to the open slot.

        These are messages of a broker without space for the properties of a roll. The last drafts
        that were placed are those of the last entries.
        """
        drafts = self._drafts[delivery.first : delivery.on_appended]
        is_unroutable = (drafts["size"] == 0) & (drafts["flags"] != lib.TS_FLAG_GONE)
        kept = due[len(due) - len(drafts) :][is_unroutable]
        kept["flags"] = 0
        kept["wake_ms"] = kept["due_ms"]
        self._open_slot.push(kept)

    def idle_s(self) -> float | None:
        """Return the time until the first entry may be delivered."""
        wake_ms = self._open_slot.next_wake_ms()
        if wake_ms is None:
            return self._sooner_s(None)
        wait_s = idle_until(self._clock, wake_ms)
        return self._sooner_s(max(wait_s, _UNLINKED_S) if self._is_blocked else wait_s)

    def _sooner_s(self, wait_s: float | None) -> float | None:
        """Return the lesser of this time and the time until the fair queue may release an entry."""
        queue_s = self.fair_queue.next_s()
        if queue_s is None:
            return wait_s
        return min(queue_s, IDLE_S_MAX if wait_s is None else wait_s)
