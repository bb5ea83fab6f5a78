"""Pipeline: makes the six services, ties their handoffs, starts and stops them in order.

    wheel_timer's queue -> enqueue-get -> enqueue-put -> wheel, timer log
    slot whose time has come -> dequeue-get -> dequeue-get-message -> open slot -> dequeue-put
    flush makes durable what they did

Holds:    downstream starts first and stops last.
"""

from collections.abc import Callable
from typing import NamedTuple

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.service import Handoff, Service
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.checkpoint import Checkpoint, Rooms
from timerstore._engine.timer.dequeue_get import DequeueGet
from timerstore._engine.timer.dequeue_get_message import DequeueGetMessage
from timerstore._engine.timer.dequeue_put import DequeuePut
from timerstore._engine.timer.enqueue_get import EnqueueGet
from timerstore._engine.timer.enqueue_put import EnqueuePut
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.timer_arrays import Loaded, Records
from timerstore.clock import Clock
from timerstore.config import StoreConfig

_BOUND = 2


class Pipeline(NamedTuple):
    """The six."""

    enqueue_get: EnqueueGet
    enqueue_put: EnqueuePut
    dequeue_get: DequeueGet
    dequeue_get_message: DequeueGetMessage
    dequeue_put: DequeuePut
    flush: Flush

    def wake_all(self) -> None:
        """Let every service look again: the clock was turned, or space returned."""
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
    metrics: Metrics,
    config: StoreConfig,
    clock: Clock,
    rooms: Rooms,
    timer_route: Route,
    store_id: int,
    start: int,
    checkpoint: Checkpoint,
    linker: Linker,
    *,
    threads: bool,
) -> Pipeline:
    """Make the services and tell each whom to wake. `start`: the queue offset to enqueue from."""
    requests: Handoff[Records] = Handoff(_BOUND)
    loaded: Handoff[Loaded] = Handoff(_BOUND)
    enqueue_get = EnqueueGet(
        metrics, config, rooms.log, rooms.dispatch, timer_route, store_id, start, requests
    )
    enqueue_put = EnqueuePut(metrics, clock, linker, requests)
    dequeue_get = DequeueGet(
        metrics,
        config,
        clock,
        rooms.wheel,
        rooms.timer_log,
        rooms.far,
        rooms.open_slot,
        loaded,
        clock.monotonic_ns,
    )
    get_message = DequeueGetMessage(
        metrics, config, rooms.log, rooms.states, rooms.open_slot, store_id, loaded
    )
    dequeue_put = DequeuePut(
        metrics,
        config,
        clock,
        rooms.log,
        rooms.routes,
        timer_route,
        rooms.open_slot,
        linker,
    )
    flush = Flush(metrics, config, clock, rooms.log, checkpoint, at_once=not threads)
    # Who syncs what he put, and a put of a far message, tell nobody else.
    rooms.log.on_durable += [rooms.dispatch.note_synced, flush.note_synced]

    def linked() -> int:
        with rooms.wheel.lock:  # what is late is in the open slot when this answers
            return rooms.timer_log.linked_offset

    def is_stuck() -> bool:
        return config.stop_enqueue and dequeue_get.is_waiting

    rooms.open_slot.is_mixed = rooms.routes.are_mixed
    enqueue_put.on_blocked = flush.request_checkpoint
    enqueue_put.checkpoints = lambda: (checkpoint.begun, checkpoint.completed_number)
    checkpoint.on_grown = flush.wake
    checkpoint.on_completed.append(enqueue_put.wake)  # a slot may be free for another lap now
    dequeue_put.wait_for_wheel(start, timer_route.queue.count, linked, is_stuck)
    enqueue_get.downstream = enqueue_put
    enqueue_put.upstream = enqueue_get
    enqueue_put.dequeue = [dequeue_get, dequeue_put]
    dequeue_get.downstream = get_message
    get_message.upstream, get_message.downstream = dequeue_get, dequeue_put
    dequeue_put.downstream = [rooms.dispatch, _Requested(flush.request, metrics)]
    dequeue_put.reading = dequeue_get
    dequeue_put.on_less = [dequeue_get.wake, enqueue_put.open_slot_has_less]
    return Pipeline(enqueue_get, enqueue_put, dequeue_get, get_message, dequeue_put, flush)


class _Requested(Service):
    """Wakes flush as one who waits for it."""

    def __init__(self, request: Callable[[], None], metrics: Metrics) -> None:
        super().__init__(metrics)
        self._request = request

    def wake(self) -> None:
        self._request()
