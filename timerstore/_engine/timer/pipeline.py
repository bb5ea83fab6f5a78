"""Build the six timer services with their handoffs, start and stop them in order.

    wheel_timer's queue -> enqueue-get -> enqueue-put -> wheel, timer log
    due slot -> dequeue-get -> dequeue-get-message -> open slot -> dequeue-put -> commit log
    flush makes all of this durable

Invariants:
    1. Downstream services start first and stop last.
"""

from typing import NamedTuple

from timerstore._engine.base.service import Handoff
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.dequeue_get import DequeueGet
from timerstore._engine.timer.dequeue_get_message import DequeueGetMessage
from timerstore._engine.timer.dequeue_put import DequeuePut
from timerstore._engine.timer.enqueue_get import EnqueueGet
from timerstore._engine.timer.enqueue_put import EnqueuePut
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import Loaded, Records
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import TimerStoreError

_BOUND = 2  # batches in a handoff


class Pipeline(NamedTuple):
    """The six timer services of one store."""

    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    dequeue_get_message: DequeueGetMessage
    dequeue_put: DequeuePut
    flush: Flush

    def start(self) -> None:
        """Start the threads, downstream first."""
        for service in reversed(self):
            service.start()

    def stop(self) -> None:
        """Stop the threads, upstream first."""
        for service in self:
            service.stop()

    def link_rest(self, dispatch: Dispatch, linker: Linker) -> None:
        """Link every message of the timer topic, unless the wheel or the disk is full."""
        services = (dispatch, self.enqueue_get, self.enqueue_put)
        try:
            while sum(service.step() for service in services):
                pass
        except TimerStoreError as error:
            linker.refuse(error)


def make_pipeline(
    core: Core,
    dispatch: Dispatch,
    wheel: Wheel,
    timer_log: TimerLog,
    far: FarWheel,
    open_slot: OpenSlot,
    checkpoint: Checkpoint,
    linker: Linker,
    start: int,
    *,
    threads: bool,
) -> Pipeline:
    """Build the six services. `start`: the queue offset to enqueue from."""
    requests: Handoff[Records] = Handoff(_BOUND)
    loaded: Handoff[Loaded] = Handoff(_BOUND)
    dequeue_get = DequeueGet(core, wheel, timer_log, far, open_slot, loaded)
    return Pipeline(
        EnqueueGet(core, dispatch, start, requests),
        EnqueuePut(core, linker, checkpoint, requests),
        dequeue_get,
        DequeueGetMessage(core, open_slot, loaded),
        DequeuePut(core, open_slot, linker, start, lambda: dequeue_get.is_waiting),
        Flush(core, dispatch, checkpoint, at_once=not threads),
    )
