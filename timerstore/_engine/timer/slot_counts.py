"""Slot counts: how many messages wait for each slot, and the limit that flow control sets.

Data:     in memory alone; counted again from what waits when a store is opened.
Threads:  any, under `_lock`.
Locks:    _lock, then those that reading what waits needs.
Holds:    (1) a put is counted before its record is appended, and taken off again where it fails:
          no slot is ever above the limit, however many put at once; (2) a slot counts what is due
          in it, wherever on the wheel it waits: what rolls counts where it will come out; (3) slots
          that have passed are forgotten: nothing is put to them. What came out of the present slot
          still counts; (4) when the clock was set back, all is counted again;
          puts that run at that moment may be missed.
Fails:    FlowControlError; nothing is counted then.
Source:   RocketMQ's limit, without its chance: there a put is less likely refused the fuller the
          slot is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.timer.delay_queue import DelayQueue
from timerstore._engine.timer.timer_arrays import Int64Array, slots_of
from timerstore._engine.timer.wheel import Wheel
from timerstore.clock import Clock
from timerstore.errors import FlowControlError

Due = int | Int64Array
"""One due time in ms, or many."""


class SlotCounts(Owner):
    """Counts of one store whose slots have a limit."""

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
        self._waiting = waiting  # due times of all that waits
        self._precision_ms = wheel.precision_ms
        self._lock = Lock()
        self._count_all()

    def _count_all(self) -> None:
        """Count what waits already, above the limit or not; as it was where that cannot be read."""
        frontier, back_count = self._wheel.frontier, self._wheel.back_count
        now_slot = self._clock.now_ms // self._precision_ms
        found = self._by_slot(self._waiting())
        self._frontier, self._back_count, self._latest_slot = frontier, back_count, now_slot
        self._counts: dict[int, int] = {}
        self._slots: DelayQueue[int, None] = DelayQueue(bucket_ms=64)  # their time: their number
        self._add(*found)

    def _follow_clock(self) -> None:
        """Forget what has passed; count again where the clock was set back."""
        frontier, now_slot = self._wheel.frontier, self._clock.now_ms // self._precision_ms
        was_ahead = self._wheel.is_beyond(now_slot) and frontier != self._frontier
        was_ahead |= self._back_count != self._wheel.back_count
        if was_ahead or now_slot < self._latest_slot:
            self._count_all()
        self._latest_slot = now_slot
        for slot, _, _ in self._slots.expire(max(0, now_slot - 1)):
            del self._counts[slot]

    def check(self, due_ms: Due) -> None:
        """Raise FlowControlError where so many more would be too many; nothing is counted."""
        slots, counts = self._by_slot(due_ms)
        with self._lock:
            self._follow_clock()
            self._check(slots, counts, np.size(due_ms))

    def add(self, due_ms: Due) -> None:
        """Count all of them, or raise FlowControlError and count none. 0: not a timer."""
        slots, counts = self._by_slot(due_ms)
        with self._lock:
            self._follow_clock()
            self._check(slots, counts, np.size(due_ms))
            self._add(slots, counts)

    def remove(self, due_ms: Due) -> None:
        """Take off what does not wait after all."""
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
        """One gets another due time inside: it counts at the new one; at the old one, if it fails.

        Within its slot it may always move.
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
