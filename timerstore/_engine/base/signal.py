"""Signals: notifications from one component to others that it does not know.

Engine connects these, and nothing else connects components. `store_failed` leaves the engine:
OpenStore subscribes to it.

    signal                sender                subscribers
    --------------------  --------------------  --------------------------------------------------
    states_needed         CommitLog             States, Calendar
    ids_needed            CommitLog             Ids
    appending             CommitLog             Checkpoint
    staging_half_full     CommitLog             Dispatch
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
    wheel_changed         EnqueuePut            DequeueGet, DequeuePut, Flush
    slots_blocked         EnqueuePut            Flush
    units_ready           DequeueGet            DequeueGetMessage
    units_loaded          DequeueGetMessage     DequeueGet, DequeuePut
    linking_awaited       DequeuePut            DequeueGet
    records_placed        DequeuePut, Schedule  Dispatch, Flush
    open_slot_shrunk      DequeuePut            DequeueGet, EnqueuePut
    queue_dropped         Retention             ConsumerLag
    service_failed        every Service         Engine

Thread safety: subscribe while a store is built, before any thread runs. A signal may be sent by any
    thread; subscribers run in the sender's thread, in the order in which they subscribed.
"""

from collections.abc import Callable
from typing import Any

from timerstore._engine.base.owner import NotCopyable


class Signal(NotCopyable):
    """One notification. Calling it calls each subscriber with the same arguments."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[..., None], ...] = ()

    def subscribe(self, *subscribers: Callable[..., None]) -> None:
        """Add functions to call."""
        self._subscribers += subscribers

    def __call__(self, *given: Any) -> None:
        for subscriber in self._subscribers:
            subscriber(*given)


class Signals(NotCopyable):
    """All signals of one store. Each has one sender, named here."""

    def __init__(self) -> None:
        # CommitLog
        self.durable = Signal()  # more of the log is durable, or the log has failed
        self.store_failed = Signal()  # once, on the thread that found out
        self.synced = Signal()  # the duration of a sync, ns
        self.staging_half_full = Signal()  # a full staging half waits to be written
        self.states_needed = Signal()  # reserve memory for timer ids up to this one
        self.ids_needed = Signal()  # reserve memory for this many message ids
        self.appending = Signal()  # a caller is about to append; may block to bound the log
        # Dispatch
        self.queues_advanced = Signal()  # the indexes of routes whose queues have grown
        self.requests_dispatched = Signal()  # timer requests, as bytes of ts_request
        # Checkpoint
        self.checkpoint_due = Signal()  # the log has grown by checkpoint_log_bytes
        self.checkpoint_marking = Signal()  # the watermark is about to be written
        self.checkpoint_completed = Signal()
        # the timer services
        self.requests_ready = Signal()  # EnqueueGet: requests are in the handoff
        self.requests_linked = Signal()  # EnqueuePut: all requests it took are linked
        self.wheel_changed = Signal()  # EnqueuePut: units were linked or moved down
        self.slots_blocked = Signal()  # EnqueuePut: no slot is free
        self.units_ready = Signal()  # DequeueGet: units are in the handoff
        self.units_loaded = Signal()  # DequeueGetMessage: their messages are in the open slot
        self.linking_awaited = Signal()  # DequeuePut: due messages wait for earlier records
        self.records_placed = Signal()  # DequeuePut, ScheduleDeliver: records are in the log
        self.open_slot_shrunk = Signal()  # DequeuePut: entries left the open slot
        # Retention
        self.queue_dropped = Signal()  # a route, and the removed queue offsets [begin, end)
        # Service
        self.service_failed = Signal()  # a service's name and the error that ended it
