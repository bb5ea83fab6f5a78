"""Engine: builds every component of a store, connects them, starts them and closes them.

The constructor is the whole opening of a store, in this order:

    1. lock the directory
    2. recover the log and everything derived from it
    3. build the components, each after those it needs
    4. connect them by signals

`start` then starts the threads. Signals are the only connections between components;
base/signal.py has the table.

Thread safety: one thread builds and closes an engine. Each component states its own rules.
Invariants:
    1. Recovery is complete before any service starts.
    2. Closing completes a checkpoint. The directory is marked as closed only after everything that
       it needs is durable.
    3. A broker can open the directory only if every pending message is on the wheel. Otherwise the
       wheel's file stays 32 bytes longer, and a broker rejects it.
Raises: LockedError, ConfigError, CorruptError or FullError if the opening fails. The lock is
    released in this case.
"""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import Service
from timerstore._engine.base.signal import Signals
from timerstore._engine.format.handle import make_prefix
from timerstore._engine.introspection.calendar import Calendar
from timerstore._engine.introspection.explain import WheelExplainer
from timerstore._engine.leases.dead_letters import DeadLetterReader, Requeuer
from timerstore._engine.leases.group_backlogs import GroupBacklogs
from timerstore._engine.leases.half_messages import HalfMessages
from timerstore._engine.leases.lease_timers import LeaseKinds
from timerstore._engine.leases.leases import Leases
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.staging import Staging
from timerstore._engine.maintenance.topic_deletion import TopicDeleter
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch, PendingDeletes
from timerstore._engine.queues.message_ids import OriginalMessages
from timerstore._engine.read.consumer import Consumer, ConsumerContext
from timerstore._engine.read.consumer_offsets import ConsumerLag, LeaseProgress, Offsets
from timerstore._engine.read.filter import make_filter
from timerstore._engine.read.groups import Filters, Groups
from timerstore._engine.read.pull import Puller, batch_of
from timerstore._engine.read.query import Querier
from timerstore._engine.recovery.log_tail import LogTail
from timerstore._engine.recovery.recovery import Recovery
from timerstore._engine.recurring.planner import Definitions
from timerstore._engine.recurring.recurring_calls import RecurringCalls
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import forget_below
from timerstore._engine.timer import timer_recovery
from timerstore._engine.timer.broker_export import (
    empty_far_wheel,
    read_back,
    write_for_brokers,
    write_level_offsets,
)
from timerstore._engine.timer.chain_compaction import ChainCompactor
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.timer.level_delivery import ScheduleDeliver
from timerstore._engine.timer.level_pending import LevelPending
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.log_retention import Retention
from timerstore._engine.timer.pending import Backlog, PendingCounts, WheelPending
from timerstore._engine.timer.pipeline import make_pipeline
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore._engine.timer.timer_retention import ExpiredSegments, Relocator, TimerRetention
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import Canceller, ManyCanceller
from timerstore._engine.write.contents import Contents
from timerstore._engine.write.flow_control import Admission, SlotLimit
from timerstore._engine.write.ingester import Ingester
from timerstore._engine.write.keyed_put import KeyedRecords, UniqueWriter
from timerstore._engine.write.ledger import LedgerSideFile
from timerstore._engine.write.put import PutWriter
from timerstore._engine.write.put_many import PutBatchWriter
from timerstore._engine.write.replace import ReplaceWriter
from timerstore._engine.write.reschedule import Rescheduler
from timerstore._engine.write.targets import Targets
from timerstore.errors import CorruptError, FailedError, TimerStoreError, as_failure
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import MessageBatch

_DELETE_BYTES = 4096
"""Reserved in a staging half for a delete record in one group with the largest record."""


class Engine(NotCopyable):
    """All components of one open store."""

    def __init__(
        self, root: Path, config: StoreConfig | None, clock: Clock, *, threads: bool
    ) -> None:
        self.clock = clock
        self.metrics = Metrics()
        self.signals = Signals()
        self.disk = Disk()
        self.directory = Directory(self.disk, root)
        try:
            forget_below(root)
            recovered = Recovery(self.disk, self.directory, config, clock)
            recovered.run()
            self.config = recovered.config
            self.store_id = recovered.store_id
            self.imported = recovered.imported
            self._build_log(recovered)
            self._build_checkpoint(recovered)
            self._build_timer(recovered, threads=threads)
            self._build_reading()
            self._build_changes()
            self._build_features(threads=threads)
            self._connect_services()
            self.topic_deleter.complete()
        except BaseException:
            self.directory.release()
            raise

    # --- building ---

    def _build_log(self, recovered: Recovery) -> None:
        """Build the log and the queues, and restore state from the tail of the log."""
        config, tree = self.config, self.directory.tree
        self.routes, self.states, self.wheel = recovered.routes, recovered.states, recovered.wheel
        self.timer_log, self.far = recovered.timer_log, recovered.far
        self.open_slot, self.levels, self.ids = recovered.open_slot, recovered.levels, recovered.ids
        group_bytes = max(config.record_bytes_max + _DELETE_BYTES, config.group_bytes_max)
        half_bytes = max(group_bytes, config.staging_bytes) + 64
        staging = Staging(self.disk, tree.staging, half_bytes)
        segments, end, lock = recovered.segments, recovered.log_end, recovered.append_lock
        self.log = CommitLog(config, self.clock, segments, staging, end, lock, self.signals)
        self.timer_route = timer_recovery.timer_route(self.routes)
        self.core = Core(
            config,
            self.clock,
            self.metrics,
            self.signals,
            self.disk,
            self.log,
            self.routes,
            self.states,
            self.timer_route,
            self.store_id,
        )
        tail = LogTail(recovered, self.clock)
        index = tail.open_index(self.disk, tree) if config.index_enabled else None
        self.dispatch = Dispatch(self.core, recovered.dispatch_from, index)
        tail.dispatch(self.dispatch)
        self.offsets = Offsets(self.core, tree)
        tail.clamp(self.offsets)
        self.lease_progress = LeaseProgress(self.log, self.offsets)
        tail.read_leases(self.lease_progress)
        self.definitions = Definitions(self.disk, tree, self.log, recovered.definitions)
        self.definitions.recover(tail.batches, tail.properties_at)
        self.timer_log.linked_through(recovered.timer_queue_offset - 1)
        self.id_prefix = self._identify()

    def _identify(self) -> str:
        """Set the identity of the store in C; return the prefix of this opening's message ids."""
        ip, port = self.config.store_address
        host = bytes(map(int, ip.split("."))) + port.to_bytes(4, "big")
        prefix = make_prefix(ip, os.getpid(), secrets.randbits(32))
        native = self.log.native
        native.timer_route = self.timer_route.native
        native.states = self.states.native
        native.store_id = self.store_id
        native.unique_counter = (int(time.time() * 1000) & 0xFFFFFFFF) << 16
        ffi.memmove(native.host, host, len(host))
        ffi.memmove(native.unique_prefix, prefix.encode("ascii"), 20)
        return prefix

    def _build_checkpoint(self, recovered: Recovery) -> None:
        """Build the checkpoint, and complete the first one of this opening."""
        self.checkpoint = Checkpoint(
            self.core,
            self.directory.tree,
            self.far,
            self.timer_log,
            self.open_slot,
            self.wheel,
            self.levels,
            self.ids,
            self.dispatch,
            self.definitions.copy,
            recovered.mark,
        )
        self._connect_storage()
        self.checkpoint.run()
        recovered.segments.unlink_all_retired()

    def _build_timer(self, recovered: Recovery, *, threads: bool) -> None:
        """Build the six timer services, delay levels, and readers of pending messages."""
        core, config, log, routes = self.core, self.config, self.log, self.routes
        self.linker = Linker(core, self.wheel, self.timer_log, self.far, self.open_slot)
        self.pipeline = make_pipeline(
            core,
            self.dispatch,
            self.wheel,
            self.timer_log,
            self.far,
            self.open_slot,
            self.checkpoint,
            self.linker,
            recovered.timer_queue_offset,
            threads=threads,
        )
        self.fair_queue = self.pipeline.dequeue_put.fair_queue
        self.schedule = ScheduleDeliver(core, self.levels)
        self.pending = WheelPending(
            core, self.dispatch, self.wheel, self.timer_log, self.far, self.open_slot
        )
        self.level_pending = LevelPending(config, log, routes, self.dispatch, self.levels)
        self.finder = HandleLookup(core, self.dispatch, self.pending)

    def _build_reading(self) -> None:
        """Build pulls, queries and consumer groups."""
        self.puller = Puller(self.core, self.dispatch, self.pipeline.flush.request)
        self.removals = PendingDeletes(self.log)
        config, log, routes, states = self.config, self.log, self.routes, self.states.native
        self.querier = Querier(
            config, log, self.dispatch, self.removals, routes, states, self.store_id
        )
        self.groups = Groups(routes)
        self.unread = ConsumerLag(self.core, self.offsets, self.groups)

    def _build_changes(self) -> None:
        """Build puts, cancels and reschedules."""
        core, config, log = self.core, self.config, self.log
        slots = config.slot_messages_max
        self.slot_counts = None
        if slots:
            due_ms = self._pending_due_ms
            self.slot_counts = SlotCounts(slots, self.metrics, self.clock, self.wheel, due_ms)
        self.canceller = Canceller(core, self.finder, self.removals, self.slot_counts)
        self.many_canceller = ManyCanceller(core, self.dispatch, self.canceller, self.removals)
        self.rescheduler = Rescheduler(core, self.finder, self.removals, self.ids, self.slot_counts)
        states, store_id = self.states.native, self.store_id
        firsts = OriginalMessages(
            log, self.ids, states, store_id, config.precision_ms, self.routes.deleted_below
        )
        self.appender = Appender(
            core,
            dispatch=self.dispatch,
            flush=self.pipeline.flush,
            targets=Targets(core, self.id_prefix),
            firsts=firsts,
            admission=Admission() if self.slot_counts is None else SlotLimit(self.slot_counts),
        )
        contents = Contents(log, is_on=config.dedupe == "content")
        self.batch_writer = PutBatchWriter(core, self.appender, firsts, contents)
        self.put_writer = PutWriter(
            core, self.dispatch, self.pipeline.flush, self.appender, firsts, self.batch_writer
        )
        self.keyed_records = KeyedRecords(core, self.dispatch)
        self.replace_writer = ReplaceWriter(
            core, self.keyed_records, self.id_prefix, self.rescheduler, self.appender
        )
        self.unique_writer = UniqueWriter(core, self.keyed_records, self.appender)

    def _pending_due_ms(self) -> Int64Array:
        """Return the due times of all pending messages, ms since 1970."""
        self.log.check_alive()
        return np.ascontiguousarray(self.pending.entries()["due_ms"])

    def _build_features(self, *, threads: bool) -> None:
        """Build ingest, retention, introspection and recurring messages."""
        core, config = self.core, self.config
        self.ledger_side_file = LedgerSideFile(core, self.puller, self.checkpoint, self.directory)
        self.ingester = Ingester(core, self.dispatch, self.ledger_side_file, self.appender)
        self.retention = self._make_retention()
        self.backlog = Backlog(
            core, self.dispatch, self.timer_log, self.open_slot, self.pending, self.fair_queue
        )
        self.pending_counts = PendingCounts(
            self.clock, config.precision_ms, self.pending, self.level_pending.due_ms
        )
        self.calendar = Calendar(
            core, self.retention, self.pending, self.level_pending, self.directory
        )
        self.lease_kinds = LeaseKinds(self.states)
        self.group_backlogs = GroupBacklogs(
            core,
            self.offsets,
            self.lease_progress,
            self.puller,
            self.backlog,
            self.pending,
            self.retention,
            self.lease_kinds,
        )
        self.explainer = self._make_explainer()
        self.recurring = RecurringCalls(
            core,
            self.finder,
            self.pending,
            self.canceller,
            self.definitions,
            self.appender,
            threads=threads,
        )
        self.topic_deleter = TopicDeleter(
            core, self.dispatch, self.pending, self.many_canceller, self.appender,
            self.lease_progress, self.groups, self.group_backlogs.forget, self.definitions.all,
            self.checkpoint, self.retention,
        )  # fmt: skip

    def _make_retention(self) -> Retention:
        """Build retention, with the components that move or protect messages."""
        core, timer_log, wheel, open_slot = self.core, self.timer_log, self.wheel, self.open_slot
        dependents = TimerRetention(
            core,
            self.dispatch,
            self.levels,
            timer_log,
            self.checkpoint,
            self.pipeline.flush,
            Relocator(core, timer_log, wheel, open_slot, self.far),
            ExpiredSegments(core, timer_log, wheel, open_slot, self.checkpoint),
        )
        return Retention(core, dependents, self.unread.lowest, [self.ingester.carry])

    def _make_explainer(self) -> WheelExplainer:
        """Build `explain`."""
        return WheelExplainer(
            core=self.core,
            dispatch=self.dispatch,
            levels=self.levels,
            level_pending=self.level_pending,
            timer_log=self.timer_log,
            far=self.far,
            wheel=self.wheel,
            open_slot=self.open_slot,
            pending=self.pending,
            fair_queue=self.fair_queue,
        )

    def consumer_context(self, call: Callable[..., Any]) -> ConsumerContext:
        """Return what consumers use; `call` runs a function as a call of the store."""
        return ConsumerContext(
            self.clock, self.routes, self.puller, self.groups, self.offsets, self.metrics, call
        )

    def make_leases(self, call: Callable[..., Any]) -> Leases:
        """Build leases; `call` runs a function as a call of the store."""
        context = self.consumer_context(call)

        def make_consumer(topic: str, group: str, filters: Filters) -> Consumer:
            make_filter(self.timer_route, *filters)  # raises now, not in the first pull
            return Consumer(context, topic, group, None, filters, None, leases=True)

        return Leases(
            self.core,
            self.lease_progress,
            self.canceller,
            self.rescheduler,
            self.appender,
            self.groups,
            make_consumer,
            self.lease_kinds,
            self.finder,
        )

    def make_half_messages(self, leases: Leases) -> HalfMessages:
        """Build the component for the ends of half messages."""
        return HalfMessages(
            self.core, leases, self.canceller, self.rescheduler, self.appender, self.keyed_records
        )

    def make_requeuer(self) -> Requeuer:
        """Build the component for dead letters."""

        def pull(topic: str, queue_id: int, offset: int, *, max_count: int) -> MessageBatch:
            route = self.routes.readable(topic, queue_id, self.clock.now_ms)
            return self.puller.pull(batch_of, route, offset, max_count, 0.0)

        below = self.routes.deleted_below
        reader = DeadLetterReader(self.store_id, self.routes.topics, pull, below)
        return Requeuer(self.store_id, self.log, self.appender, reader)

    # --- connecting ---

    def _connect_storage(self) -> None:
        """Connect the components that the first checkpoint of an opening needs."""
        signals, checkpoint, metrics = self.signals, self.checkpoint, self.metrics
        signals.states_needed.subscribe(self.states.ensure)
        signals.ids_needed.subscribe(self.ids.ensure)
        signals.appending.subscribe(checkpoint.wait)
        signals.staging_half_full.subscribe(self.dispatch.wake)
        signals.synced.subscribe(partial(metrics.took, "sync_ms"))
        signals.checkpoint_marking.subscribe(self.lease_progress.commit, self.definitions.save)
        signals.checkpoint_completed.subscribe(
            lambda: metrics.took("checkpoint_ms", checkpoint.took_ns), self.directory.check_held
        )

    def _connect_services(self) -> None:
        """Connect all other components."""
        signals, pipeline, groups = self.signals, self.pipeline, self.groups
        flush, dispatch, log = pipeline.flush, self.dispatch, self.log
        timer_index = int(self.timer_route.native.index)

        def timer_queue_advanced(touched: set[int]) -> None:
            if timer_index in touched:
                pipeline.enqueue_get.wake()

        def wake_groups_of_failed_store() -> None:
            if log.failed is not None:
                groups.wake_all()

        signals.service_failed.subscribe(self.fail_by)
        signals.states_needed.subscribe(self.calendar.ensure)
        signals.durable.subscribe(
            dispatch.note_synced,
            flush.note_change,
            self.schedule.durable,
            self.puller.durable,
            wake_groups_of_failed_store,
        )
        signals.requests_dispatched.subscribe(pipeline.enqueue_get.take_dispatched)
        signals.queues_advanced.subscribe(
            timer_queue_advanced,
            self.schedule.arrived,
            self.puller.long_polls.arrived,
            groups.arrived,
        )
        signals.checkpoint_due.subscribe(flush.wake)
        signals.checkpoint_completed.subscribe(
            pipeline.enqueue_put.wake, self.retention.wake, self.ledger_side_file.completed
        )
        signals.requests_ready.subscribe(pipeline.enqueue_put.wake)
        signals.requests_linked.subscribe(pipeline.enqueue_get.wake)
        signals.wheel_changed.subscribe(
            pipeline.dequeue_get.wake, pipeline.dequeue_put.wake, flush.note_change
        )
        signals.slots_blocked.subscribe(flush.request_checkpoint)
        signals.units_ready.subscribe(pipeline.dequeue_get_message.wake)
        signals.units_loaded.subscribe(pipeline.dequeue_get.wake, pipeline.dequeue_put.wake)
        signals.linking_awaited.subscribe(pipeline.dequeue_get.wake)
        signals.records_placed.subscribe(dispatch.note_placed, flush.request)
        signals.open_slot_shrunk.subscribe(
            pipeline.dequeue_get.open_slot_has_less, pipeline.enqueue_put.open_slot_has_less
        )
        signals.queue_dropped.subscribe(self.unread.dropped)

    # --- running ---

    @property
    def services(self) -> tuple[Service, ...]:
        """All services."""
        return (
            self.dispatch,
            *self.pipeline,
            self.schedule,
            self.retention,
            self.recurring.planner,
        )

    def start(self) -> None:
        """Start every thread."""
        self.dispatch.start()
        self.pipeline.start()
        self.schedule.start()
        self.retention.start()
        self.wake_all()
        self.recurring.start()

    def wake_all(self) -> None:
        """Wake every service and every waiting pull."""
        for service in self.services:
            service.wake()
        self.puller.long_polls.wake_all(self.clock.monotonic_ns)
        self.groups.wake_all(self.clock.monotonic_ns)

    def fail_by(self, name: str, error: BaseException) -> None:
        """Fail the store because a service ended with an error."""
        with suppress(FailedError):
            self.log.check_alive()  # a truncated file is the cause of any error
        cause = error if isinstance(error, TimerStoreError) else FailedError(f"{name}: {error!r}")
        try:
            self.record_damage(cause)
        finally:
            self.log.fail(cause)

    def record_damage(self, error: TimerStoreError) -> None:
        """Make the next opening rebuild the timer log and the far wheel if the error shows damage.

        Damage is an error in the timer log, or a valid unit that refers to a wrong record.
        """
        tree = self.directory.tree
        if not isinstance(error, CorruptError):
            return
        is_wrong_record = error.what.endswith(FAULTS[lib.TS_FAULT_TOPIC])
        if is_wrong_record or str(error.where).startswith(f"{tree.timer_log}/"):
            with suppress(
                TimerStoreError
            ):  # without the file the next opening finds the damage itself
                self.disk.write_small(tree.timer_damaged, f"{error}\n".encode())

    def give_up(self, error: BaseException) -> None:
        """Close everything without a checkpoint, because the opening was interrupted."""
        self.log.fail(as_failure(error, self.directory.root))
        self.close()

    # --- closing ---

    def close(self) -> None:
        """Stop the services, complete the last checkpoint, and release the lock in any case."""
        self.recurring.planner.stop()
        self.puller.long_polls.close()
        self.retention.stop()
        self.schedule.stop()
        self.pipeline.stop()
        self.dispatch.stop()
        is_clean = False
        try:
            if self.log.failed is None:
                self._complete()
                is_clean = True
                reach("close_levels_written")
        except CorruptError as error:
            self.record_damage(error)
            raise
        finally:
            try:
                self._close_files(is_clean=is_clean)
            finally:  # also if closing the files fails
                self.directory.release()

    def _complete(self) -> None:
        """Make everything durable, and write the files that a broker reads."""
        core, tree = self.core, self.directory.tree
        read_back(core, self.wheel, self.open_slot)
        self.pipeline.link_rest(self.dispatch, self.linker)
        self.retention.finish()
        empty_far_wheel(core, self.linker)
        self.checkpoint.run(is_clean=True)
        reach("close_checkpointed")
        compaction = ChainCompactor(
            core, self.wheel, self.timer_log, self.far, self.open_slot, self.pending
        )
        compaction.relink()
        reach("close_relinked")
        compaction.bury()  # even if no broker can open it: no later closing finds them all
        reach("close_buried")
        self.checkpoint.record_wheel_writes()
        write_for_brokers(core, tree, self.dispatch, self.checkpoint)
        reach("close_written_for_brokers")
        write_level_offsets(core, tree, self.levels)

    def _close_files(self, *, is_clean: bool) -> None:
        for service in self.services:
            service.end(self.directory.root)
        self.checkpoint.close()
        self.log.close()
        self.routes.close()
        if self.dispatch.index is not None:
            self.dispatch.index.close()
        self.timer_log.segments.close()
        self.far.close()
        self.states.close()
        # A broker would never deliver messages that are not on the wheel. It would deliver messages
        # again that were delivered out of order, after a level's cursor.
        linked, put = self.timer_log.linked_offset, self.timer_route.native.next_offset
        is_complete = linked == put and not self.levels.has_gaps and not self.far.count
        self.wheel.close(as_broker_wants=is_clean and is_complete)
        if is_clean:
            reach("close_wheel_restored")
            self.directory.mark_closed()
