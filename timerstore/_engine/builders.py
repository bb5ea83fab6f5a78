"""Build the components of a store that need many others; `Engine` calls these in order.

Each function reads the components that the engine has built so far, and returns one component.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore._engine.format.watermark import Watermark
from timerstore._engine.introspection.calendar import Calendar
from timerstore._engine.introspection.explain import Explainer, MessageRecords, TimerLocator
from timerstore._engine.leases.group_backlogs import GroupBacklogs
from timerstore._engine.log.retention import Retention
from timerstore._engine.queues.message_ids import Firsts
from timerstore._engine.recurring.recurring_calls import RecurringCalls
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.pipeline import Pipeline, make_pipeline
from timerstore._engine.timer.timer_retention import ExpiredSegments, Relocator, TimerRetention
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import ManyCanceller
from timerstore._engine.write.flow_control import SlotLimit, Unlimited
from timerstore._engine.write.ingester import LedgerCarrier
from timerstore._engine.write.keyed_put import UniquePutting
from timerstore._engine.write.replace import Replacing
from timerstore._engine.write.reschedule import Rescheduler
from timerstore._engine.write.targets import Targets

if TYPE_CHECKING:
    from timerstore._engine.engine import Engine


def make_checkpoint(engine: Engine, mark: Watermark | None) -> Checkpoint:
    """Build the checkpoint."""
    return Checkpoint(
        engine.config,
        engine.clock,
        engine.disk,
        engine.directory.tree,
        engine.log,
        engine.far,
        engine.timer_log,
        engine.open_slot,
        engine.wheel,
        engine.states,
        engine.routes,
        engine.levels,
        engine.ids,
        engine.dispatch,
        engine.definitions.copy,
        engine.signals,
        engine.store_id,
        mark,
    )


def make_linker(engine: Engine) -> Linker:
    """Build the linker, which links timer units into slots."""
    return Linker(
        engine.metrics,
        engine.config,
        engine.clock,
        engine.log,
        engine.wheel,
        engine.timer_log,
        engine.far,
        engine.states,
        engine.open_slot,
        engine.store_id,
    )


def make_timer_services(engine: Engine, start: int, *, threads: bool) -> Pipeline:
    """Build the six timer services."""
    return make_pipeline(
        metrics=engine.metrics,
        signals=engine.signals,
        config=engine.config,
        clock=engine.clock,
        log=engine.log,
        dispatch=engine.dispatch,
        routes=engine.routes,
        timer_route=engine.timer_route,
        states=engine.states,
        wheel=engine.wheel,
        timer_log=engine.timer_log,
        far=engine.far,
        open_slot=engine.open_slot,
        checkpoint=engine.checkpoint,
        linker=engine.linker,
        store_id=engine.store_id,
        start=start,
        threads=threads,
    )


def make_pending(engine: Engine) -> PendingReader:
    """Build the reader of pending timers."""
    return PendingReader(
        engine.config,
        engine.open_slot,
        engine.timer_log,
        engine.wheel,
        engine.log,
        engine.states,
        engine.routes,
        engine.far,
        engine.dispatch,
        engine.timer_route,
        engine.store_id,
    )


def make_finder(engine: Engine) -> HandleLookup:
    """Build the lookup of messages by handle."""
    return HandleLookup(
        engine.clock,
        engine.log,
        engine.dispatch,
        engine.routes,
        engine.timer_route,
        engine.states,
        engine.pending,
        engine.store_id,
        engine.config.precision_ms,
    )


def make_many_canceller(engine: Engine) -> ManyCanceller:
    """Build the cancellation of many messages in one call."""
    return ManyCanceller(
        engine.clock,
        engine.log,
        engine.dispatch,
        engine.routes,
        engine.timer_route,
        engine.config.precision_ms,
        engine.canceller,
        engine.removals,
    )


def make_rescheduler(engine: Engine) -> Rescheduler:
    """Build the rescheduling of messages."""
    return Rescheduler(
        engine.config,
        engine.clock,
        engine.log,
        engine.timer_route,
        engine.finder,
        engine.removals,
        engine.ids,
        engine.slot_counts,
    )


def make_appender(engine: Engine, firsts: Firsts) -> Appender:
    """Build the appending of records, limited per slot if so configured."""
    limit = engine.slot_counts
    return Appender(
        config=engine.config,
        clock=engine.clock,
        log=engine.log,
        dispatch=engine.dispatch,
        flush=engine.pipeline.flush,
        targets=Targets(engine.config, engine.clock, engine.log, engine.routes, engine.id_prefix),
        firsts=firsts,
        admission=Unlimited() if limit is None else SlotLimit(limit),
    )


def make_replacing(engine: Engine) -> Replacing:
    """Build puts with a replace key."""
    return Replacing(
        engine.keyed_records,
        engine.id_prefix,
        engine.timer_route,
        engine.rescheduler,
        engine.store_id,
        engine.routes,
        engine.states,
        engine.log,
        engine.config,
        engine.clock,
        engine.appender,
    )


def make_unique_putting(engine: Engine) -> UniquePutting:
    """Build puts of messages that are unique until they are done."""
    return UniquePutting(
        engine.keyed_records,
        engine.states,
        engine.store_id,
        engine.log,
        engine.clock,
        engine.appender,
    )


def make_group_backlogs(engine: Engine) -> GroupBacklogs:
    """Build the component that counts what each group has to do."""
    return GroupBacklogs(
        engine.clock,
        engine.log,
        engine.routes,
        engine.offsets,
        engine.lease_progress,
        engine.puller,
        engine.backlog,
        engine.pending,
        engine.retention,
        engine.lease_kinds,
    )


def make_calendar(engine: Engine) -> Calendar:
    """Build the histogram of due times."""
    return Calendar(
        engine.config,
        engine.clock,
        engine.states,
        engine.retention,
        engine.pending,
        engine.level_pending,
        engine.directory,
        engine.log,
        engine.routes,
    )


def make_explainer(engine: Engine) -> Explainer:
    """Build `explain`."""
    records = MessageRecords(
        config=engine.config,
        clock=engine.clock,
        log=engine.log,
        dispatch=engine.dispatch,
        routes=engine.routes,
        states=engine.states,
        store_id=engine.store_id,
    )
    timers = TimerLocator(
        config=engine.config,
        timer_log=engine.timer_log,
        far=engine.far,
        wheel=engine.wheel,
        open_slot=engine.open_slot,
        pending=engine.pending,
        fair_queue=engine.fair_queue,
    )
    return Explainer(
        config=engine.config,
        clock=engine.clock,
        log=engine.log,
        routes=engine.routes,
        records=records,
        levels=engine.levels,
        level_pending=engine.level_pending,
        timers=timers,
    )


def make_recurring(engine: Engine, *, threads: bool) -> RecurringCalls:
    """Build recurring messages and their planner."""
    return RecurringCalls(
        engine.states,
        engine.config,
        engine.signals,
        engine.finder,
        engine.pending,
        engine.canceller,
        engine.log,
        engine.definitions,
        engine.metrics,
        engine.clock,
        engine.appender,
        threads=threads,
    )


def make_retention(engine: Engine) -> Retention:
    """Build retention, with the components that move or protect messages."""
    mover = Relocator(
        engine.metrics,
        engine.clock,
        engine.timer_log,
        engine.routes,
        engine.states,
        engine.wheel,
        engine.open_slot,
        engine.far,
        engine.log,
        engine.timer_route,
        engine.store_id,
        engine.config.precision_ms,
    )
    dependents = TimerRetention(
        engine.log,
        engine.routes,
        engine.dispatch,
        engine.levels,
        engine.timer_log,
        engine.timer_route,
        engine.checkpoint,
        engine.pipeline.flush,
        mover,
        ExpiredSegments(
            engine.timer_log,
            engine.wheel,
            engine.open_slot,
            engine.checkpoint,
            engine.config.precision_ms,
        ),
        engine.signals,
    )
    return Retention(
        engine.metrics,
        engine.signals,
        engine.config,
        engine.clock,
        engine.disk,
        engine.log,
        dependents,
        engine.unread.lowest,
        [LedgerCarrier(engine.ingester, engine.routes).carry],
    )
