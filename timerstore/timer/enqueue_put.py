"""enqueue-put: gives requests their slot on the wheel, and late ones to the open slot; moves down
what waits on the far wheel and comes near.

Threads:  enqueue-put.
Locks:    the linker's.
Holds:    (1) requests are linked in queue order; (2) every record of the timer topic gets a unit,
          so that a broker counts on from the last one.
Fails:    FullError before anything is linked; retried.
"""

from collections.abc import Callable

from timerstore.clock import Clock
from timerstore.metrics import Metrics
from timerstore.service import IDLE_S_MAX, Handoff, Service
from timerstore.timer.far import FarWheel
from timerstore.timer.linker import BLOCKED, Linker
from timerstore.timer.open_slot import OpenSlot
from timerstore.timer.request import Records
from timerstore.timer.wheel import Wheel


class EnqueuePut(Service):
    """From requests to the wheel."""

    name = "enqueue-put"

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        wheel: Wheel,
        open_slot: OpenSlot,
        far: FarWheel,
        linker: Linker,
        source: Handoff[Records],
    ) -> None:
        super().__init__(metrics)
        self._clock = clock
        self._wheel = wheel
        self._open_slot = open_slot
        self._linker = linker
        self._far = far
        self._source = source
        self._rest: Records | None = None  # requests taken and not linked yet
        self.is_blocked = False  # they found no slot, nor did they after a checkpoint
        self._blocked_at: int | None = None  # the last checkpoint begun when they first found none
        self._far_blocked_at: int | None = None  # the same for what comes down from the far wheel
        self.checkpoints: Callable[[], tuple[int, int]] = lambda: (0, 0)  # begun; completed
        self.on_blocked: Callable[[], None] | None = None  # a checkpoint may free one
        self.upstream: Service | None = None
        self.dequeue: list[Service] = []  # dequeue-get and dequeue-put

    def step(self) -> bool:
        """Move some of the far wheel down, link one batch, tidy the far log where both are done."""
        moved = self._move_down()
        linked = self._link()
        return moved or linked or self._linker.tidy()

    def _move_down(self) -> bool:
        count = self._linker.move_down()
        if count == BLOCKED:
            begun, completed = self.checkpoints()
            if self._far_blocked_at is None:
                self._far_blocked_at = begun
            if completed > self._far_blocked_at and not self._would_checkpoint_help():
                self._let_pass()
            elif self.on_blocked is not None:
                self.on_blocked()
            return False
        self._far_blocked_at = None
        if count > 0:
            self._far.is_passed = False
            self._wake_dequeue()
        return count > 0

    def _let_pass(self) -> None:
        """No slot takes what comes down, and none will before slots behind it are read."""
        if not self._far.is_passed:
            self._far.is_passed = True
            self.metrics.add("dequeue_put_order_waivers", 1)
            self._wake_dequeue()

    def _wake_dequeue(self) -> None:
        for service in self.dequeue:
            service.wake()

    def _link(self) -> bool:
        requests = self._rest if self._rest is not None else self._source.take()
        if requests is None:
            return False
        self._rest = requests
        completed = self.checkpoints()[1]
        linked = self._linker.link(requests)
        if linked == BLOCKED:
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
        self._wake_dequeue()
        return True

    def idle_s(self) -> float | None:
        """Until something of the far wheel is to be moved down."""
        due_ms = self._linker.due_down_ms()
        if due_ms is None or due_ms <= self._clock.now_ms:  # then it is blocked, and will be woken
            return None
        return min((due_ms - self._clock.now_ms) / 1000, IDLE_S_MAX)

    def _would_checkpoint_help(self) -> bool:
        """Whether what the slots hold has moved on since the last completed checkpoint."""
        wheel = self._wheel
        return self._open_slot.lowest_slot(wheel.frontier) > wheel.completed_read_slot
