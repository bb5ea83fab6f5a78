"""enqueue-put: gives requests their slot on the wheel, and late ones to the open slot; moves down
what waits on the far wheel and comes near.

Threads:  enqueue-put.
Locks:    the linker's.
Holds:    (1) requests are linked in queue order; (2) every record of the timer topic gets a unit,
          so that a broker counts on from the last one; (3) where no slot takes what comes next, one
          checkpoint is waited for, which may free one; then it is parked
          (docs/decisions/0003-timing-wheel.md).
Fails:    FullError before anything is linked; retried.
"""

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import IDLE_S_MAX, Handoff, Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.linker import BLOCKED, Linker
from timerstore._engine.timer.timer_arrays import Records
from timerstore.clock import Clock


class EnqueuePut(Service):
    """From requests to the wheel."""

    name = "enqueue-put"

    def __init__(
        self,
        metrics: Metrics,
        signals: Signals,
        clock: Clock,
        linker: Linker,
        checkpoint: Checkpoint,
        source: Handoff[Records],
    ) -> None:
        super().__init__(metrics, signals)
        self._clock = clock
        self._linker = linker
        self._checkpoint = checkpoint
        self._source = source
        self._rest: Records | None = None  # requests taken and not linked yet
        self._blocked_at: int | None = None  # the last checkpoint begun when they first found none
        self._far_blocked_at: int | None = None  # the same for what comes down from the far wheel

    def step(self) -> bool:
        """Move some of the far wheel down, link one batch, tidy the far log where both are done."""
        moved = self._move_down()
        linked = self._link()
        if moved or linked:
            return True
        tidied = self._linker.tidy()
        if tidied:
            self._signals.wheel_changed()  # a far slot may be gone that held them up
        return tidied

    def _move_down(self) -> bool:
        count = self._linker.move_down(parks=self._has_waited(self._far_blocked_at))
        if count == BLOCKED:
            self._far_blocked_at = self._wait(self._far_blocked_at)
            return False
        self._far_blocked_at = None
        if count > 0:
            self._signals.wheel_changed()
        return count > 0

    def _has_waited(self, blocked_at: int | None) -> bool:
        """Whether a checkpoint began and was completed since there was no slot."""
        return blocked_at is not None and self._checkpoint.completed_number > blocked_at

    def _wait(self, blocked_at: int | None) -> int:
        """Ask for a checkpoint, which may free a slot; the last one that began before."""
        self.metrics.add("enqueue_put_blocked", 1)
        self._signals.slots_blocked()
        return self._checkpoint.begun if blocked_at is None else blocked_at

    def open_slot_has_less(self) -> None:
        """Wake, where something may wait for that: requests that found no slot, or the far log,
        which holds what was parked.
        """
        if self._rest is not None or self._linker.far_was_used:
            self.wake()

    def _link(self) -> bool:
        requests = self._rest if self._rest is not None else self._source.take()
        if requests is None:
            return False
        self._rest = requests
        linked = self._linker.link(requests, parks=self._has_waited(self._blocked_at))
        if linked == BLOCKED:
            self._blocked_at = self._wait(self._blocked_at)
            return False
        self._blocked_at = None
        rest = requests[linked:]
        self._rest = rest if len(rest) else None
        if self._rest is None:
            self._signals.requests_linked()
        self._signals.wheel_changed()
        return True

    def idle_s(self) -> float | None:
        """Until something of the far wheel is to be moved down."""
        due_ms = self._linker.due_down_ms()
        if due_ms is None or due_ms <= self._clock.now_ms:  # then it is blocked, and will be woken
            return None
        return min((due_ms - self._clock.now_ms) / 1000, IDLE_S_MAX)
