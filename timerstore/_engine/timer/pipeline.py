"""Build the six timer services with their handoffs, start and stop them in order.

    wheel_timer's queue -> enqueue-get -> enqueue-put -> wheel, timer log
    due slot -> dequeue-get -> dequeue-get-message -> open slot -> dequeue-put -> commit log
    flush makes all of this durable

Invariants:
    1. Downstream services start first and stop last.
"""

from typing import NamedTuple

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import Handoff
from timerstore._engine.base.signal import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Route, Routes
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
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel
from timerstore.clock import Clock
from timerstore.config import StoreConfig

_BOUND = 2  # batches in a handoff


class Pipeline(NamedTuple):
    """The six timer services of one store."""

    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    dequeue_get_message: DequeueGetMessage
    dequeue_put: DequeuePut
    flush: Flush

    def wake_all(self) -> None:
        """Wake every service, after the clock was set or disk space was freed."""
        for service in self:
            service.wake()

    def start(self) -> None:
        """Start the threads, downstream first."""
        for service in reversed(self):
            service.start()

    def stop(self) -> None:
        """Stop the threads, upstream first."""
        for service in self:
            service.stop()


def make_pipeline(
    *,
    metrics: Metrics,
    signals: Signals,
    config: StoreConfig,
    clock: Clock,
    log: CommitLog,
    dispatch: Dispatch,
    routes: Routes,
    timer_route: Route,
    states: TimerStates,
    wheel: Wheel,
    timer_log: TimerLog,
    far: FarWheel,
    open_slot: OpenSlot,
    checkpoint: Checkpoint,
    linker: Linker,
    store_id: int,
    start: int,
    threads: bool,
) -> Pipeline:
    """Build the six services. `start`: the queue offset to enqueue from."""
    requests: Handoff[Records] = Handoff(_BOUND)
    loaded: Handoff[Loaded] = Handoff(_BOUND)
    dequeue_get = DequeueGet(
        metrics,
        signals,
        config,
        clock,
        wheel,
        timer_log,
        far,
        open_slot,
        loaded,
        clock.monotonic_ns,
    )
    return Pipeline(
        EnqueueGet(metrics, signals, config, log, dispatch, timer_route, store_id, start, requests),
        EnqueuePut(metrics, signals, clock, linker, checkpoint, requests),
        dequeue_get,
        DequeueGetMessage(metrics, signals, config, log, states, open_slot, store_id, loaded),
        DequeuePut(
            metrics,
            signals,
            config,
            clock,
            log,
            routes,
            timer_route,
            open_slot,
            linker,
            start,
            lambda: dequeue_get.is_waiting,
        ),
        Flush(metrics, signals, config, clock, log, checkpoint, at_once=not threads),
    )
