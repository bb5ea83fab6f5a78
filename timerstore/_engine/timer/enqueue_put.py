"""Link requests into their slots, and move messages down from the far wheel.

This is the second of the six timer services. Late messages also go to the open slot.

Thread safety: runs on the enqueue-put thread only.
Locking: the linker's locks.
Invariants:
    1. Requests are linked in queue order.
    2. Every record of the timer topic gets a unit, so that a broker can continue after the last.
    3. If the next message finds no slot, the service waits for one checkpoint, which may free a
       slot. After that, the message goes to the overflow.
Raises: FullError before anything is linked; it is retried.
See also: docs/decisions/0003-timing-wheel.md
"""

from timerstore._engine.base.service import Handoff, Service, idle_until
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.linker import BLOCKED, Linker
from timerstore._engine.timer.timer_arrays import Records


class EnqueuePut(Service):
    """Links requests into the wheel."""

    name = "enqueue-put"

    def __init__(
        self, core: Core, linker: Linker, checkpoint: Checkpoint, source: Handoff[Records]
    ) -> None:
        super().__init__(core.metrics, core.signals)
        self._clock = core.clock
        self._linker = linker
        self._checkpoint = checkpoint
        self._source = source
        self._rest: Records | None = None  # requests taken and not linked yet
        # The number of the last begun checkpoint when no slot was found; None if not blocked.
        self._blocked_at: int | None = None  # for requests
        self._far_blocked_at: int | None = None  # for messages from the far wheel

    def step(self) -> bool:
        """Move messages down from the far wheel and link one batch, or else tidy the far log."""
        if not self._linker.far_was_used:
            return self._link()
        moved = self._move_down()
        linked = self._link()
        if moved or linked:
            return True
        tidied = self._linker.tidy_far()
        if tidied:
            self._signals.wheel_changed()  # a far slot that blocked dequeue-get may be gone
        return tidied

    def _move_down(self) -> bool:
        count = self._linker.move_down(uses_overflow=self._has_waited(self._far_blocked_at))
        if count == BLOCKED:
            self._far_blocked_at = self._wait(self._far_blocked_at)
            return False
        self._far_blocked_at = None
        if count > 0:
            self._signals.wheel_changed()
        return count > 0

    def _has_waited(self, blocked_at: int | None) -> bool:
        """Return whether a checkpoint began and was completed since no slot was found."""
        return blocked_at is not None and self._checkpoint.completed_number > blocked_at

    def _wait(self, blocked_at: int | None) -> int:
        """Request a checkpoint, which may free a slot. Return the last one begun before that."""
        self.metrics.add("enqueue_put_blocked", 1)
        self._signals.slots_blocked()
        return self._checkpoint.begun if blocked_at is None else blocked_at

    def open_slot_has_less(self) -> None:
        """Wake the service if messages left the open slot and that may matter to it.

        Requests may have found no slot, or units of the overflow may be droppable in the far log.
        """
        if self._rest is not None or self._linker.far_was_used:
            self.wake()

    def _link(self) -> bool:
        requests = self._rest if self._rest is not None else self._source.take()
        if requests is None:
            return False
        self._rest = requests
        linked = self._linker.link(requests, uses_overflow=self._has_waited(self._blocked_at))
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
        """Return the time until a message must be moved down from the far wheel."""
        due_ms = self._linker.next_move_down_ms()
        if due_ms is None or due_ms <= self._clock.now_ms:  # blocked; a checkpoint wakes it
            return None
        return idle_until(self._clock, due_ms)
