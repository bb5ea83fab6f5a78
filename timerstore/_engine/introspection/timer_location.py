"""Where a pending timer is: on the far wheel, in a slot of the wheel, or in the fair queue.

Thread safety: any thread. A timer that moves during the call is found before or after its move, or
not at all.
Locking: the wheel's lock, for one slot at a time.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from timerstore._engine.timer.fair_queue import FairQueue
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.timer_arrays import slots_of
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import NO_SLOT, Wheel
from timerstore.config import StoreConfig


class TimerLocator:
    """Locates pending timers of one store."""

    def __init__(
        self,
        *,
        config: StoreConfig,
        timer_log: TimerLog,
        far: FarWheel,
        wheel: Wheel,
        open_slot: OpenSlot,
        pending: PendingReader,
        fair_queue: FairQueue,
    ) -> None:
        self._config = config
        self.timer_log = timer_log
        self.far = far
        self.wheel = wheel
        self._open_slot = open_slot
        self._pending = pending
        self._fair_queue = fair_queue

    def on_far_wheel(self, log_offset: int, due_ms: int) -> int | None:
        """Return the slot of the far wheel that has the timer; None if it is not there.

        This is the slot of its due time, or the last slot in use. A negative number means the
        overflow chain.
        """
        far, wheel = self.far, self.wheel
        with ExitStack() as stack:
            with wheel.lock:
                rows = far.table().rows
                own = int(slots_of(np.array([due_ms]), self._config.precision_ms)[0]) // far.width
                view = stack.enter_context(far.view())
            last = rows["slot"].max(initial=own)
            rows = rows[(rows["slot"] == own) | (rows["slot"] == last) | (rows["slot"] < 0)]
            for slot, newest, *_ in rows.tolist():
                for part in far.walk(view, slot, newest):
                    if (part["log_offset"] == log_offset).any():
                        return int(slot)
        return None

    def on_wheel(self, log_offset: int, due_ms: int) -> tuple[int, int, int] | None:
        """Return the slot, the place in its chain and the chain's length; None if it is in no slot.

        The slot of the due time is searched first, then every other one.
        """
        own = int(slots_of(np.array([due_ms]), self._config.precision_ms)[0])
        for slot in self._slots(own):
            with self.wheel.lock:
                chain = list(self._pending.chain(slot))
            offsets = np.concatenate([part["log_offset"] for part in chain])
            places = np.flatnonzero(offsets == log_offset)
            if len(places):
                return slot, int(places[0]) + 1, len(offsets)
        return None

    def _slots(self, own: int) -> Iterator[int]:
        wheel, open_slot = self.wheel, self._open_slot
        yield own
        at = open_slot.replay_slot(wheel.read_slot)
        while True:
            with wheel.lock:
                slot = wheel.next_used(at, NO_SLOT)
            if slot is None:
                return
            if slot != own:
                yield slot
            at = slot + 1

    def in_fair_queue(self, topic: str, timer_id: int) -> tuple[int, float | None] | None:
        """Return how many messages of the topic go before it, and the topic's rate per second.

        None: the message is not in the fair queue.
        """
        return self._fair_queue.place(topic, timer_id)
