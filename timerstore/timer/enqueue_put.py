"""enqueue-put: gives requests their slot on the wheel, and late ones to the open slot.

Threads:  enqueue-put.
Locks:    the wheel's, for one link call and the write of its units.
Holds:    (1) the timer log's `end` and `linked_offset` change together under the wheel's lock;
          (2) every record of the timer topic gets a unit, so that a broker counts on from the
          last one.
Fails:    FullError before anything is linked; retried.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import FailedError, FullError
from timerstore.failpoint import reach
from timerstore.metrics import Metrics
from timerstore.native import ffi, lib, raise_status
from timerstore.service import Handoff, Service
from timerstore.timer.open_slot import OpenSlot
from timerstore.timer.request import DUE, Records
from timerstore.timer.states import States
from timerstore.timer.timer_log import UNIT_BYTES, TimerLog
from timerstore.timer.wheel import Wheel

_BATCH = 8192


class EnqueuePut(Service):
    """From requests to the wheel."""

    name = "enqueue-put"

    def __init__(
        self,
        metrics: Metrics,
        config: StoreConfig,
        clock: Clock,
        wheel: Wheel,
        timer_log: TimerLog,
        states: States,
        open_slot: OpenSlot,
        source: Handoff[Records],
    ) -> None:
        super().__init__(metrics)
        self._config = config
        self._clock = clock
        self._wheel = wheel
        self._timer_log = timer_log
        self._states = states
        self._open_slot = open_slot
        self._source = source
        self._rest: Records | None = None  # requests taken and not linked yet
        self.is_blocked = False  # they found no slot, nor did they after a checkpoint
        self._blocked_at: int | None = None  # the last checkpoint begun when they first found none
        self.checkpoints: Callable[[], tuple[int, int]] = lambda: (0, 0)  # begun; completed
        self.on_blocked: Callable[[], None] | None = None  # a checkpoint may free one
        self.upstream: Service | None = None
        self.dequeue: list[Service] = []  # dequeue-get and dequeue-put
        self._link: Any = ffi.new("ts_link *")
        self._units = np.empty((_BATCH + 1) * UNIT_BYTES, np.uint8)
        self._late = np.empty(_BATCH, DUE)

    def step(self) -> bool:
        """Link one batch."""
        requests = self._rest if self._rest is not None else self._source.take()
        if requests is None:
            return False
        self._rest = requests
        completed = self.checkpoints()[1]
        linked = self._link_some(requests[:_BATCH])
        if linked < 0:
            if self._blocked_at is None:
                self._blocked_at = self.checkpoints()[0]
            # One was begun since, and no slot; nor has anything been handed over since that one.
            self.is_blocked = completed > self._blocked_at and not self._would_checkpoint_help()
            self.metrics.add("enqueue_put_blocked", 1)
            if not self.is_blocked and self.on_blocked is not None:
                self.on_blocked()
            return False
        self.is_blocked, self._blocked_at = False, None
        rest = requests[linked:]
        self._rest = rest if len(rest) else None
        if self._rest is None and self.upstream is not None:
            self.upstream.wake()
        for service in self.dequeue:
            service.wake()
        return True

    def _would_checkpoint_help(self) -> bool:
        """Whether what the slots hold has moved on since the last completed checkpoint."""
        wheel = self._wheel
        return self._open_slot.lowest_slot(wheel.frontier) > wheel.completed_read_slot

    def _link_some(self, requests: Records) -> int:
        """How many were linked; 0 where only a segment was finished; -1 where none can be."""
        link, wheel = self._link, self._wheel
        self._timer_log.reserve(len(requests))  # only this thread appends: not under the lock
        with wheel.lock:
            link.pos = self._timer_log.end
            link.segment_bytes = self._timer_log.segments.segment_bytes
            link.write_slot = self._clock.now_ms // self._config.precision_ms
            wheel.follow_back(max(1, int(link.write_slot)), self._open_slot.outstanding)
            link.frontier = wheel.frontier
            link.reuse_below = min(
                wheel.completed_read_slot, self._open_slot.lowest_slot(wheel.frontier)
            )
            link.roll_slots = self._config.roll_slots
            count = lib.ts_timer_link(
                wheel.native,
                link,
                self._states.native,
                ffi.from_buffer("ts_request[]", requests),
                len(requests),
                ffi.from_buffer("uint8_t[]", self._units),
                len(self._units),
                ffi.from_buffer("ts_due[]", self._late),
            )
            if count == lib.TS_BLOCKED:
                return -1
            if count < 0:
                raise_status(count, "link", self._timer_log.segments.directory)
            reach("enqueue_slots_linked")
            self._append(int(link.bytes), int(link.pos))
            reach("enqueue_units_written")
            if count:
                self._timer_log.linked_offset = int(requests["queue_offset"][count - 1]) + 1
            if wheel.earliest is not None:
                wheel.earliest = min(wheel.earliest, int(link.first_slot))
            if link.late_count:
                self._open_slot.expect_and_push(self._late[: link.late_count])
        unusable = int(np.count_nonzero(requests["flags"][:count] & lib.TS_FLAG_UNUSABLE))
        self.metrics.add("enqueue_put_messages", count)
        self.metrics.add("enqueue_put_late_messages", int(link.late_count))
        self.metrics.add("enqueue_put_unusable_messages", unusable)
        return int(count)

    def _append(self, size: int, end: int) -> None:
        """Write the units that slots point at by now: without them the wheel is wrong, so that what
        fails here is final, a full disk too. Their space was reserved before.
        """
        try:
            self._timer_log.append(self._units.data[:size], end)
        except FullError as error:
            raise FailedError(
                f"units of linked slots could not be written: {error}",
                where=self._timer_log.segments.directory,
            ) from error
