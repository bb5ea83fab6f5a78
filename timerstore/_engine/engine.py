"""Engine: builds every component of a store, starts them and closes them.

    lock the directory -> recover the log and what is derived from it -> build the components in the
    order in which they need one another -> connect them (signals.py) -> start the services

Thread safety: built and closed by one thread; the components say what they allow.
Invariants:
    1. Recovery is complete before any service starts.
    2. Closing completes a checkpoint, then lets a broker open the directory (shutdown.py).
Raises: LockedError, ConfigError, CorruptError, FullError from building; the lock is released then.
"""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine import shutdown, signals
from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.native import FAULTS, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.service import Service
from timerstore._engine.base.signals import Signals
from timerstore._engine.change.cancel import Canceller
from timerstore._engine.change.cancel_many import ManyCanceller
from timerstore._engine.change.replace import Replacing
from timerstore._engine.change.reschedule import Rescheduler
from timerstore._engine.format.unique_key import make_prefix
from timerstore._engine.ingest.ingester import Ingester
from timerstore._engine.ingest.ledger_carrier import LedgerCarrier
from timerstore._engine.ingest.ledger_side_file import LedgerSideFile
from timerstore._engine.introspection.calendar import Calendar
from timerstore._engine.introspection.explain import Explainer
from timerstore._engine.leases.lease_reader import MakeConsumer
from timerstore._engine.leases.leases import Leases
from timerstore._engine.levels.deliver import ScheduleDeliver
from timerstore._engine.levels.level_pending import LevelPending
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.retention import Retention
from timerstore._engine.log.staging import Staging
from timerstore._engine.log_tail import LogTail
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.index_file import Geometry
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.pending_removals import Removals
from timerstore._engine.read.consumer_lag import ConsumerLag
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.groups import Groups
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.read.pull import Puller
from timerstore._engine.read.query import Querier
from timerstore._engine.recovery.recovery import Recovered, recover
from timerstore._engine.recurring.definitions import Definitions
from timerstore._engine.recurring.recurring_calls import RecurringCalls
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import forget_below
from timerstore._engine.timer import timer_recovery
from timerstore._engine.timer.backlog import Backlog
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.expired_segments import ExpiredSegments
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore._engine.timer.linker import Linker
from timerstore._engine.timer.pending import PendingReader
from timerstore._engine.timer.pipeline import make_pipeline
from timerstore._engine.timer.relocation import Relocator
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore._engine.timer.timer_arrays import Int64Array
from timerstore._engine.timer.timer_retention import TimerRetention
from timerstore._engine.write.flow_control import LimitedPutting
from timerstore._engine.write.put_many import ManyPutting
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError, FailedError, TimerStoreError, as_failure

_DELETE_BYTES = 4096
"""Of a staging half, for a delete record in one group with the largest record."""


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
            found = recover(self.disk, self.directory, config, clock)
            self.config = found.config
            self.store_id = found.store_id
            self.imported = found.imported
            self._build_log(found)
            self._build_checkpoint(found)
            self._build_timer(found, threads=threads)
            self._build_reading()
            self._build_changes()
            self._build_features(threads=threads)
            signals.connect_services(self)
        except BaseException:
            self.directory.release()
            raise

    # --- building ---

    def _build_log(self, found: Recovered) -> None:
        """The log, the queues and what is read from the log's tail at opening."""
        config, tree = self.config, self.directory.tree
        self.routes, self.states, self.wheel = found.routes, found.states, found.wheel
        self.timer_log, self.far, self.open_slot = found.timer_log, found.far, found.open_slot
        self.levels, self.ids = found.levels, found.ids
        group_bytes = max(config.record_bytes_max + _DELETE_BYTES, config.group_bytes_max)
        half_bytes = max(group_bytes, config.staging_bytes) + 64
        staging = Staging(self.disk, tree.staging, half_bytes)
        self.log = CommitLog(
            config,
            self.clock,
            found.segments,
            staging,
            found.log_end,
            found.append_lock,
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
            found.dispatch_from,
            self._open_index(found) if config.index_enabled else None,
        )
        tail = LogTail(found, self.clock)
        tail.dispatch(self.dispatch)
        self.offsets = Offsets(self.disk, tree, self.clock, self.log.check_alive, self.log.fail)
        tail.clamp(self.offsets)
        self.lease_progress = LeaseProgress(self.log, self.offsets)
        tail.read_leases(self.lease_progress)
        self.definitions = Definitions(self.disk, tree, self.log)
        tail.read_definitions(self.definitions)
        self.timer_log.linked_through(found.start.timer_queue_offset - 1)
        self.id_prefix = self._identify()

    def _open_index(self, found: Recovered) -> Index:
        """Return the index, which reaches at least as far as the queues."""
        config = self.config
        geometry = Geometry(config.index_slot_count, config.index_entry_count)
        lag_bytes = config.checkpoint_log_bytes // 8
        tree = self.directory.tree
        index = Index(self.disk, tree, self.clock, geometry, lag_bytes, has_tags=config.index_tags)
        if found.mark is None:  # a broker may have been here
            index.restart(found.store_id, found.segments.begin)
        else:
            index.recover(found.store_id, found.segments.begin, found.log_end)
        index.catch_up(found.segments, found.dispatch_from)
        return index

    def _identify(self) -> str:
        """Tell C which store this is; return the prefix of this opening's message ids."""
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

    def _build_checkpoint(self, found: Recovered) -> None:
        """The checkpoint, and the first one of this opening."""
        self.checkpoint = Checkpoint(
            self.config,
            self.clock,
            self.disk,
            self.directory.tree,
            self.log,
            self.far,
            self.timer_log,
            self.open_slot,
            self.wheel,
            self.states,
            self.routes,
            self.levels,
            self.ids,
            self.dispatch,
            self.definitions.copy,
            self.signals,
            found.store_id,
            found.mark,
        )
        signals.connect_storage(self)
        self.checkpoint.run()
        found.segments.unlink_all_retired()

    def _build_timer(self, found: Recovered, *, threads: bool) -> None:
        """The six timer services, fixed levels, and readers of what is pending."""
        config, clock, log = self.config, self.clock, self.log
        self.linker = Linker(
            self.metrics,
            config,
            clock,
            log,
            self.wheel,
            self.timer_log,
            self.far,
            self.states,
            self.open_slot,
            found.store_id,
        )
        self.pipeline = make_pipeline(
            metrics=self.metrics,
            signals=self.signals,
            config=config,
            clock=clock,
            log=log,
            dispatch=self.dispatch,
            routes=self.routes,
            timer_route=self.timer_route,
            states=self.states,
            wheel=self.wheel,
            timer_log=self.timer_log,
            far=self.far,
            open_slot=self.open_slot,
            checkpoint=self.checkpoint,
            linker=self.linker,
            store_id=found.store_id,
            start=found.start.timer_queue_offset,
            threads=threads,
        )
        self.fair_queue = self.pipeline.dequeue_put.fair_queue
        self.schedule = ScheduleDeliver(
            self.metrics, self.signals, config, clock, log, self.routes, self.levels
        )
        self.pending = PendingReader(
            config,
            self.open_slot,
            self.timer_log,
            self.wheel,
            log,
            self.states,
            self.routes,
            self.far,
            self.dispatch,
            self.timer_route,
            found.store_id,
        )
        self.level_pending = LevelPending(config, log, self.routes, self.dispatch, self.levels)
        self.finder = HandleLookup(
            clock,
            log,
            self.dispatch,
            self.routes,
            self.timer_route,
            self.states,
            self.pending,
            found.store_id,
            config.precision_ms,
        )

    def _build_reading(self) -> None:
        """Pulls, queries and groups."""
        self.puller = Puller(
            self.metrics, self.config, self.clock, self.log, self.pipeline.flush.request
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
        """Puts, cancels and reschedules."""
        config, clock, log = self.config, self.clock, self.log
        self.slot_counts = (
            SlotCounts(
                config.slot_messages_max, self.metrics, clock, self.wheel, self._pending_due_ms
            )
            if config.slot_messages_max
            else None
        )
        self.canceller = Canceller(clock, log, self.finder, self.removals, self.slot_counts)
        self.many_canceller = ManyCanceller(
            clock,
            log,
            self.dispatch,
            self.routes,
            self.timer_route,
            config.precision_ms,
            self.canceller,
            self.removals,
        )
        self.rescheduler = Rescheduler(
            config,
            clock,
            log,
            self.timer_route,
            self.finder,
            self.removals,
            self.ids,
            self.slot_counts,
        )
        given: dict[str, Any] = {
            "config": config,
            "clock": clock,
            "log": log,
            "routes": self.routes,
            "dispatch": self.dispatch,
            "flush": self.pipeline.flush,
            "ids": self.ids,
            "states": self.states,
            "store_id": self.store_id,
            "id_prefix": self.id_prefix,
        }
        self.putting = (
            ManyPutting(**given)
            if self.slot_counts is None
            else LimitedPutting(self.slot_counts, **given)
        )
        self.replacing = Replacing(
            self.dispatch,
            self.id_prefix,
            self.timer_route,
            self.rescheduler,
            self.store_id,
            self.routes,
            self.states,
            log,
            config,
            clock,
            self.putting,
        )

    def _pending_due_ms(self) -> Int64Array:
        """Due times of all pending messages."""
        self.log.check_alive()
        return np.ascontiguousarray(self.pending.entries()["due_ms"])

    def _build_features(self, *, threads: bool) -> None:
        """Ingest, retention, introspection and recurring messages."""
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
            self.putting,
        )
        self.retention = self._make_retention()
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
        self.calendar = Calendar(
            config,
            clock,
            self.states,
            self.retention,
            self.pending,
            self.level_pending,
            self.directory,
            log,
            self.routes,
        )
        self.explainer = Explainer(
            config,
            clock,
            self.states,
            self.store_id,
            self.level_pending,
            self.pending,
            self.fair_queue,
            log,
            self.dispatch,
            self.routes,
            self.levels,
            self.timer_log,
            self.far,
            self.wheel,
            self.open_slot,
        )
        self.recurring = RecurringCalls(
            self.states,
            config,
            self.signals,
            self.finder,
            self.pending,
            self.canceller,
            log,
            self.definitions,
            self.metrics,
            clock,
            self.putting,
            threads=threads,
        )

    def _make_retention(self) -> Retention:
        mover = Relocator(
            self.metrics,
            self.clock,
            self.timer_log,
            self.routes,
            self.states,
            self.wheel,
            self.open_slot,
            self.far,
            self.log,
            self.timer_route,
            self.store_id,
            self.config.precision_ms,
        )
        dependents = TimerRetention(
            self.log,
            self.routes,
            self.dispatch,
            self.levels,
            self.timer_log,
            self.timer_route,
            self.checkpoint,
            self.pipeline.flush,
            mover,
            ExpiredSegments(
                self.timer_log,
                self.wheel,
                self.open_slot,
                self.checkpoint,
                self.config.precision_ms,
            ),
            self.signals,
        )
        return Retention(
            self.metrics,
            self.signals,
            self.config,
            self.clock,
            self.disk,
            self.log,
            dependents,
            self.unread.lowest,
            [LedgerCarrier(self.ingester, self.routes).carry],
        )

    def make_leases(self, make_consumer: MakeConsumer) -> Leases:
        """Build the leases, which read through consumers of the caller."""
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
            self.putting,
            self.groups,
            make_consumer,
        )

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
        """End the store because a service ended by an error."""
        with suppress(FailedError):
            self.log.check_alive()  # a file that was cut explains any error
        cause = error if isinstance(error, TimerStoreError) else FailedError(f"{name}: {error!r}")
        try:
            self.note_damage(cause)
        finally:
            self.log.fail(cause)

    def note_damage(self, error: TimerStoreError) -> None:
        """Make the next opening rebuild the timer log and the far wheel if they are damaged, also
        if a whole unit of theirs leads to a record that is not its own.
        """
        tree = self.directory.tree
        if not isinstance(error, CorruptError):
            return
        leads_astray = error.what.endswith(FAULTS[lib.TS_FAULT_TOPIC])
        if leads_astray or str(error.where).startswith(f"{tree.timer_log}/"):
            with suppress(TimerStoreError):  # else the next opening meets it as this one did
                self.disk.write_small(tree.timer_damaged, f"{error}\n".encode())

    def give_up(self, error: BaseException) -> None:
        """Close everything as it is, because opening was interrupted."""
        self.log.fail(as_failure(error, self.directory.root))
        self.close()

    def close(self) -> None:
        """Stop the services, complete the last checkpoint, let a broker in, release the lock."""
        shutdown.close(self)
