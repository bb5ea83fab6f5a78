"""Engine: builds every component of a store, starts them and closes them.

The constructor is the whole opening of a store, in this order:

    1. lock the directory
    2. recover the log and everything derived from it
    3. build the components, each after those it needs (builders.py)
    4. connect them (signals.py)

`start` then starts the threads.

Thread safety: one thread builds and closes an engine. Each component states its own rules.
Invariants:
    1. Recovery is complete before any service starts.
    2. Closing completes a checkpoint, and then lets a broker open the directory (shutdown.py).
Raises: LockedError, ConfigError, CorruptError or FullError if the opening fails. The lock is
    released in this case.
"""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine import builders, shutdown, signals
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.service import Service
from timerstore._engine.base.signal import Signals
from timerstore._engine.format.handle import make_prefix
from timerstore._engine.leases.dead_letters import DeadLetterReader, Requeuer
from timerstore._engine.leases.lease_timers import LeaseKinds
from timerstore._engine.leases.leases import Leases
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.staging import Staging
from timerstore._engine.log_tail import LogTail
from timerstore._engine.queues.dispatch import Dispatch, Removals
from timerstore._engine.queues.index_file import Geometry
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.message_ids import Firsts
from timerstore._engine.read.consumer import Consumer, ConsumerContext
from timerstore._engine.read.consumer_offsets import ConsumerLag, LeaseProgress, Offsets
from timerstore._engine.read.filter import make_filter
from timerstore._engine.read.groups import Filters, Groups
from timerstore._engine.read.pull import Puller, QueueEnds
from timerstore._engine.read.query import Querier
from timerstore._engine.recovery.recovery import Recovered, recover
from timerstore._engine.recurring.planner import Definitions
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import forget_below
from timerstore._engine.timer import timer_recovery
from timerstore._engine.timer.level_delivery import ScheduleDeliver
from timerstore._engine.timer.level_pending import LevelPending
from timerstore._engine.timer.pending import Backlog
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import Canceller
from timerstore._engine.write.contents import Contents
from timerstore._engine.write.ingester import Ingester
from timerstore._engine.write.keyed_put import KeyedRecords
from timerstore._engine.write.ledger import LedgerSideFile
from timerstore._engine.write.put import Putting, SinglePut
from timerstore._engine.write.put_many import ManyPutting
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError, FailedError, TimerStoreError, as_failure
from timerstore.messages import MessageBatch

_DELETE_BYTES = 4096
"""Reserved in a staging half for a delete record in one group with the largest record."""


class Engine(Owner):
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
            recovered = recover(self.disk, self.directory, config, clock)
            self.config = recovered.config
            self.store_id = recovered.store_id
            self.imported = recovered.imported
            self._build_log(recovered)
            self._build_checkpoint(recovered)
            self._build_timer(recovered, threads=threads)
            self._build_reading()
            self._build_changes()
            self._build_features(threads=threads)
            signals.connect_services(self)
        except BaseException:
            self.directory.release()
            raise

    # --- building ---

    def _build_log(self, recovered: Recovered) -> None:
        """Build the log and the queues, and restore state from the tail of the log."""
        config, tree = self.config, self.directory.tree
        self.routes, self.states, self.wheel = recovered.routes, recovered.states, recovered.wheel
        self.timer_log, self.far, self.open_slot = (
            recovered.timer_log,
            recovered.far,
            recovered.open_slot,
        )
        self.levels, self.ids = recovered.levels, recovered.ids
        group_bytes = max(config.record_bytes_max + _DELETE_BYTES, config.group_bytes_max)
        half_bytes = max(group_bytes, config.staging_bytes) + 64
        staging = Staging(self.disk, tree.staging, half_bytes)
        self.log = CommitLog(
            config,
            self.clock,
            recovered.segments,
            staging,
            recovered.log_end,
            recovered.append_lock,
            self.signals,
        )
        self.timer_route = timer_recovery.timer_route(self.routes)
        self.dispatch = Dispatch(
            self.metrics,
            self.signals,
            self.clock,
            self.log,
            self.routes,
            config.level_delays,
            config.precision_ms,
            config.flush_interval_ms / 1000,
            recovered.dispatch_from,
            self._open_index(recovered) if config.index_enabled else None,
        )
        tail = LogTail(recovered, self.clock)
        tail.dispatch(self.dispatch)
        self.offsets = Offsets(self.disk, tree, self.clock, self.log.check_alive, self.log.fail)
        tail.clamp(self.offsets)
        self.lease_progress = LeaseProgress(self.log, self.offsets)
        tail.read_leases(self.lease_progress)
        self.definitions = Definitions(self.disk, tree, self.log, recovered.definitions)
        tail.read_definitions(self.definitions)
        self.timer_log.linked_through(recovered.start.timer_queue_offset - 1)
        self.id_prefix = self._identify()

    def _open_index(self, recovered: Recovered) -> Index:
        """Return the key index, extended to cover at least the log that the queues cover."""
        config = self.config
        geometry = Geometry(config.index_slot_count, config.index_entry_count)
        lag_bytes = config.checkpoint_log_bytes // 8
        tree = self.directory.tree
        index = Index(self.disk, tree, self.clock, geometry, lag_bytes, has_tags=config.index_tags)
        if recovered.mark is None:  # a broker may have been here
            index.restart(recovered.store_id, recovered.segments.begin)
        else:
            index.recover(recovered.store_id, recovered.segments.begin, recovered.log_end)
        index.catch_up(recovered.segments, recovered.dispatch_from)
        return index

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

    def _build_checkpoint(self, recovered: Recovered) -> None:
        """Build the checkpoint, and complete the first one of this opening."""
        self.checkpoint = builders.make_checkpoint(self, recovered.mark)
        signals.connect_storage(self)
        self.checkpoint.run()
        recovered.segments.unlink_all_retired()

    def _build_timer(self, recovered: Recovered, *, threads: bool) -> None:
        """Build the six timer services, delay levels, and readers of pending messages."""
        config, clock, log = self.config, self.clock, self.log
        self.linker = builders.make_linker(self)
        self.pipeline = builders.make_timer_services(
            self, recovered.start.timer_queue_offset, threads=threads
        )
        self.fair_queue = self.pipeline.dequeue_put.fair_queue
        self.schedule = ScheduleDeliver(
            self.metrics, self.signals, config, clock, log, self.routes, self.levels
        )
        self.pending = builders.make_pending(self)
        self.level_pending = LevelPending(config, log, self.routes, self.dispatch, self.levels)
        self.finder = builders.make_finder(self)

    def _build_reading(self) -> None:
        """Build pulls, queries and consumer groups."""
        self.puller = Puller(
            self.metrics,
            self.config,
            self.clock,
            self.log,
            self.dispatch,
            self.pipeline.flush.request,
        )
        self.removals = Removals(self.log)
        self.querier = Querier(
            self.config,
            self.log,
            self.dispatch,
            self.removals,
            self.routes,
            self.states.native,
            self.store_id,
        )
        self.groups = Groups(
            self.routes.full_queue_count, lambda index: self.routes.by_index[index].topic
        )
        self.unread = ConsumerLag(self.metrics, self.routes, self.offsets, self.groups)

    def _build_changes(self) -> None:
        """Build puts, cancels and reschedules."""
        config, clock, log = self.config, self.clock, self.log
        self.slot_counts = (
            SlotCounts(
                config.slot_messages_max, self.metrics, clock, self.wheel, self._pending_due_ms
            )
            if config.slot_messages_max
            else None
        )
        self.canceller = Canceller(clock, log, self.finder, self.removals, self.slot_counts)
        self.many_canceller = builders.make_many_canceller(self)
        self.rescheduler = builders.make_rescheduler(self)
        firsts = Firsts(log, self.ids, self.states.native, self.store_id, config.precision_ms)
        self.appender: Appender = builders.make_appender(self, firsts)
        self.putting = Putting(
            config, clock, log, self.dispatch, self.pipeline.flush, self.appender
        )
        self.single_put = SinglePut(config, clock, log, self.appender, firsts)
        contents = Contents(log, is_on=config.dedupe == "content")
        self.many_putting = ManyPutting(
            config, clock, log, self.appender, firsts, contents, self.single_put
        )
        self.keyed_records = KeyedRecords(
            self.dispatch, log, self.routes, self.store_id, config, clock
        )
        self.replacing = builders.make_replacing(self)
        self.unique_putting = builders.make_unique_putting(self)

    def _pending_due_ms(self) -> Int64Array:
        """Return the due times of all pending messages, ms since 1970."""
        self.log.check_alive()
        return np.ascontiguousarray(self.pending.entries()["due_ms"])

    def _build_features(self, *, threads: bool) -> None:
        """Build ingest, retention, introspection and recurring messages."""
        config, clock, log = self.config, self.clock, self.log
        self.ledger_side_file = LedgerSideFile(
            log,
            self.routes,
            self.disk,
            self.puller,
            self.store_id,
            self.checkpoint,
            self.directory,
        )
        self.ingester = Ingester(
            self.dispatch,
            self.routes,
            log,
            config,
            self.ledger_side_file,
            clock,
            self.appender,
        )
        self.retention = builders.make_retention(self)
        self.backlog = Backlog(
            config,
            clock,
            self.states,
            self.open_slot,
            self.timer_log,
            self.dispatch,
            log,
            self.routes,
            self.timer_route,
            self.pending,
            self.fair_queue,
            self.level_pending.due_ms,
        )
        self.calendar = builders.make_calendar(self)
        self.lease_kinds = LeaseKinds(self.states)
        self.group_backlogs = builders.make_group_backlogs(self)
        self.explainer = builders.make_explainer(self)
        self.recurring = builders.make_recurring(self, threads=threads)

    def consumer_context(self, call: Callable[..., Any]) -> ConsumerContext:
        """Return what consumers use; `call` runs a function as a call of the store."""
        return ConsumerContext(
            self.clock, self.routes, self.puller, self.groups, self.offsets, call
        )

    def make_leases(self, call: Callable[..., Any]) -> Leases:
        """Build leases; `call` runs a function as a call of the store."""
        context = self.consumer_context(call)

        def make_consumer(topic: str, group: str, filters: Filters) -> Consumer:
            make_filter(self.timer_route, *filters)  # raises now, not in the first pull
            return Consumer(context, topic, group, None, filters, None, leases=True)

        return Leases(
            self.routes,
            self.timer_route,
            self.lease_progress,
            self.store_id,
            self.id_prefix,
            self.canceller,
            self.rescheduler,
            self.log,
            self.config,
            self.clock,
            self.appender,
            self.groups,
            make_consumer,
            QueueEnds(self.routes, self.puller),
            self.lease_kinds,
            self.finder,
        )

    def make_requeuer(self) -> Requeuer:
        """Build the component for dead letters."""

        def pull(topic: str, queue_id: int, offset: int, *, max_count: int) -> MessageBatch:
            route = self.routes.readable(topic, queue_id, self.clock.now_ms)
            return self.puller.batch(route, offset, max_count, 0.0)

        reader = DeadLetterReader(self.store_id, self.routes.topics, pull)
        return Requeuer(self.store_id, self.id_prefix, self.log, self.appender, reader)

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
        self.dispatch.wake()
        self.pipeline.wake_all()
        self.schedule.wake()
        self.retention.wake()
        self.puller.clock_changed()
        self.recurring.planner.wake()
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

    def close(self) -> None:
        """Stop the services, complete the last checkpoint, and release the lock."""
        shutdown.close(self)
