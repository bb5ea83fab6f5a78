"""Connect the components of a store: which component subscribes to which signal.

    signal                sender                subscribers
    --------------------  --------------------  --------------------------------------------------
    states_needed         CommitLog             States, Calendar
    ids_needed            CommitLog             Ids
    appending             CommitLog             Checkpoint
    half_left             CommitLog             Dispatch
    synced                CommitLog             Metrics
    durable               CommitLog             Dispatch, Flush, ScheduleDeliver, Puller, Groups
    store_failed          CommitLog             OpenStore, for its servers
    requests_dispatched   Dispatch              EnqueueGet
    queues_advanced       Dispatch              EnqueueGet, ScheduleDeliver, LongPollTable, Groups
    checkpoint_due        Checkpoint            Flush
    checkpoint_marking    Checkpoint            LeaseProgress, Definitions
    checkpoint_completed  Checkpoint            Metrics, Directory, EnqueuePut, Retention, ledger
    requests_ready        EnqueueGet            EnqueuePut
    requests_linked       EnqueuePut            EnqueueGet
    wheel_changed         EnqueuePut            DequeueGet, DequeuePut
    slots_blocked         EnqueuePut            Flush
    units_ready           DequeueGet            DequeueGetMessage
    units_loaded          DequeueGetMessage     DequeueGet, DequeuePut
    linking_awaited       DequeuePut            DequeueGet
    records_placed        DequeuePut, Schedule  Dispatch, Flush
    open_slot_shrunk      DequeuePut            DequeueGet, EnqueuePut
    queue_dropped         Retention             ConsumerLag
    service_failed        every Service         Engine

Nothing else connects components. `store_failed` leaves the engine: OpenStore subscribes to it.
Signals are defined in base/signal.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timerstore._engine.engine import Engine


def connect_storage(engine: Engine) -> None:
    """Connect the components that the first checkpoint of an opening needs."""
    signals, checkpoint, metrics = engine.signals, engine.checkpoint, engine.metrics
    signals.states_needed.subscribe(engine.states.ensure)
    signals.ids_needed.subscribe(engine.ids.ensure)
    signals.appending.subscribe(checkpoint.wait)
    signals.half_left.subscribe(engine.dispatch.wake)
    signals.synced.subscribe(partial(metrics.took, "sync_ms"))
    signals.checkpoint_marking.subscribe(engine.lease_progress.commit, engine.definitions.save)
    signals.checkpoint_completed.subscribe(
        lambda: metrics.took("checkpoint_ms", checkpoint.took_ns), engine.directory.check_held
    )


def connect_services(engine: Engine) -> None:
    """Connect all other components."""
    signals, pipeline, groups = engine.signals, engine.pipeline, engine.groups
    flush, dispatch, log = pipeline.flush, engine.dispatch, engine.log
    timer_index = int(engine.timer_route.native.index)

    def timer_queue_advanced(touched: set[int]) -> None:
        if timer_index in touched:
            pipeline.enqueue_get.wake()

    def wake_groups_of_failed_store() -> None:
        if log.failed is not None:
            groups.wake_all()

    signals.service_failed.subscribe(engine.fail_by)
    signals.states_needed.subscribe(engine.calendar.ensure)
    signals.durable.subscribe(
        dispatch.note_synced,
        flush.note_synced,
        engine.schedule.durable,
        engine.puller.durable,
        wake_groups_of_failed_store,
    )
    signals.requests_dispatched.subscribe(pipeline.enqueue_get.take_dispatched)
    signals.queues_advanced.subscribe(
        timer_queue_advanced,
        engine.schedule.arrived,
        engine.puller.long_polls.arrived,
        groups.arrived,
    )
    signals.checkpoint_due.subscribe(flush.wake)
    signals.checkpoint_completed.subscribe(
        pipeline.enqueue_put.wake, engine.retention.wake, engine.ledger_side_file.completed
    )
    signals.requests_ready.subscribe(pipeline.enqueue_put.wake)
    signals.requests_linked.subscribe(pipeline.enqueue_get.wake)
    signals.wheel_changed.subscribe(pipeline.dequeue_get.wake, pipeline.dequeue_put.wake)
    signals.slots_blocked.subscribe(flush.request_checkpoint)
    signals.units_ready.subscribe(pipeline.dequeue_get_message.wake)
    signals.units_loaded.subscribe(pipeline.dequeue_get.wake, pipeline.dequeue_put.wake)
    signals.linking_awaited.subscribe(pipeline.dequeue_get.wake)
    signals.records_placed.subscribe(dispatch.wake, flush.request)
    signals.open_slot_shrunk.subscribe(
        pipeline.dequeue_get.wake, pipeline.enqueue_put.open_slot_has_less
    )
    signals.queue_dropped.subscribe(engine.unread.dropped)
