"""Count pending messages by the slot of their due time, and enforce the limit of flow control.

The counts are in memory only. Opening a store counts its pending messages. RocketMQ has a similar
limit, but rejects a put with a probability that falls as the slot fills; here the limit is exact.

Thread safety: any thread may call it; `_lock` admits one at a time.
Locking: `_lock`, then the locks of reading the pending messages.
Invariants:
    1. A put is counted before its record is appended, and subtracted again if it fails. No slot
       exceeds the limit, even with concurrent puts.
    2. A message counts in the slot of its due time, in whichever slot of the wheel it waits.
    3. A slot is forgotten when its time has passed. Delivered messages of the current slot still
       count.
    4. If the clock is set back, all messages are counted again. Puts during that step may be
       missed.
Raises: FlowControlError; nothing was counted.
See also: docs/decisions/0004-fair-delivery.md
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.timer.delay_queue import DelayQueue
from timerstore._engine.timer.timer_arrays import Int64Array, slots_of
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import FlowControlError
from timerstore.types.clock import Clock

Due = int | Int64Array
"""One due time in ms, or many."""


class SlotCounts(NotCopyable):
    """The counts of one store whose slots have a limit."""

    def __init__(
        self,
        limit: int,
        metrics: Metrics,
        clock: Clock,
        wheel: Wheel,
        waiting: Callable[[], Int64Array],
    ) -> None:
        self._limit = limit
        self._metrics = metrics
        self._clock = clock
        self._wheel = wheel
        self._waiting = waiting  # returns the due times of all pending messages
        self._precision_ms = wheel.precision_ms
        self._lock = Lock()
        self._count_all()

    def _count_all(self) -> None:
        """Count all pending messages, even above the limit. If reading fails, change nothing."""
        read_slot, back_count = self._wheel.read_slot, self._wheel.back_count
        now_slot = self._clock.now_ms // self._precision_ms
        found = self._by_slot(self._waiting())
        self._read_slot, self._back_count, self._latest_slot = read_slot, back_count, now_slot
        self._counts: dict[int, int] = {}
        self._slots: DelayQueue[int, None] = DelayQueue(bucket_ms=64)  # due at their number
        self._add(*found)

    def _follow_clock(self) -> None:
        """Forget slots that have passed; count again if the clock was set back."""
        read_slot, now_slot = self._wheel.read_slot, self._clock.now_ms // self._precision_ms
        was_ahead = self._wheel.is_beyond(now_slot) and read_slot != self._read_slot
        was_ahead |= self._back_count != self._wheel.back_count
        if was_ahead or now_slot < self._latest_slot:
            self._count_all()
        self._latest_slot = now_slot
        for slot, _, _ in self._slots.expire(max(0, now_slot - 1)):
            del self._counts[slot]

    def check(self, due_ms: Due) -> None:
        """Raise FlowControlError if these messages would exceed a slot's limit; count nothing."""
        slots, counts = self._by_slot(due_ms)
        with self._lock:
            self._follow_clock()
            self._check(slots, counts, np.size(due_ms))

    def add(self, due_ms: Due) -> None:
        """Count all of these messages, or raise FlowControlError and count none.

        A due time of 0 is that of a message without a delay; it is not counted.
        """
        slots, counts = self._by_slot(due_ms)
        with self._lock:
            self._follow_clock()
            self._check(slots, counts, np.size(due_ms))
            self._add(slots, counts)

    def remove(self, due_ms: Due) -> None:
        """Subtract messages that are not pending."""
        slots, counts = self._by_slot(due_ms)
        with self._lock:
            for slot, count in zip(slots, counts, strict=True):
                left = self._counts.get(slot, 0) - count
                if left > 0:
                    self._counts[slot] = left
                elif self._counts.pop(slot, None) is not None:
                    self._slots.cancel(slot)

    @contextmanager
    def moving(self, old_ms: int, new_ms: int) -> Iterator[None]:
        """Count a message whose due time is changed inside the `with` block.

        It counts in the new slot, and in the old one again if the block raises. A move
        within a slot has no limit.
        """
        if self._by_slot(old_ms) == self._by_slot(new_ms):
            yield
            return
        self.add(new_ms)
        try:
            yield
        except BaseException:
            self.remove(new_ms)
            raise
        self.remove(old_ms)

    def _by_slot(self, due: Due) -> tuple[list[int], list[int]]:
        due_ms = np.atleast_1d(np.asarray(due, np.int64))
        slots, counts = np.unique(
            slots_of(due_ms[due_ms > 0], self._precision_ms), return_counts=True
        )
        return slots.tolist(), counts.tolist()

    def _check(self, slots: list[int], counts: list[int], asked: int) -> None:
        for slot, count in zip(slots, counts, strict=True):
            waiting = self._counts.get(slot, 0)
            if waiting + count > self._limit:
                self._metrics.add("flow_control_rejected_messages", asked)
                raise FlowControlError(
                    f"a slot is full (slot_messages_max): {waiting} messages wait for it",
                    where=f"slot of {slot * self._precision_ms} ms",
                    wanted=f"at most {self._limit}",
                    got=f"{count} more",
                )

    def _add(self, slots: list[int], counts: list[int]) -> None:
        for slot, count in zip(slots, counts, strict=True):
            if slot not in self._counts:
                self._slots.add(slot, slot)
            self._counts[slot] = self._counts.get(slot, 0) + count
