"""Add queue units and index entries for new records of the log, and notify the readers.

The service pauses for some milliseconds after work, so that more records can arrive. It does so
only on its own thread (docs/decisions/0002-group-commit.md).

Thread safety: runs on the dispatch thread, on the flush thread, which dispatches up to a
    checkpoint and, before a sync, few records for which a pull waits, and on threads that read.
    `_lock` admits one at a time.
Locking: `_lock`, then the commit log's lock or the index's. Subscribers are notified without a
    lock, possibly by several threads at once. They read the queues to learn the new counts.
Invariants:
    1. Only bytes that are written out are dispatched.
    2. Units and entries are in their files before `dispatched` passes their records.
    3. A queue has no gap.
Raises: CorruptError if the log cannot be read. FullError is retried.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.service import Service
from timerstore._engine.format import queue_unit
from timerstore._engine.format.store_paths import DELETED_PROPERTY, DELETED_TOPIC
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.record_lookup import (
    RecordUnits,
    UnitRows,
    call_with_routes,
    record_fields,
)
from timerstore.errors import CorruptError, FullError
from timerstore.types.messages import Int64Array, parse_properties

# --- dispatch ---


_BATCH = 16_384
_PAUSE_S = 0.005
_PAUSE_BYTES_MAX = 1 << 20  # half of what one half of the staging takes, by default
_FEW_BYTES = 1 << 16  # of records that flush dispatches itself
_REQUEST_BYTES = ffi.sizeof("ts_request")

SOON_MS = 50
"""A message that is due within so many ms of its put is dispatched at once if a pull waits."""


class KeyFinder(Protocol):
    """Finds records by key."""

    def find(
        self, topic: bytes, key: bytes, begin_ms: int = ..., end_ms: int = ...
    ) -> Iterator[Int64Array]:
        """Yield log offsets of messages that may have the key; see Index.find."""
        ...


class DispatchedQueues(Protocol):
    """What a reader needs of dispatch: the queues and the index up to a log offset."""

    @property
    def index(self) -> KeyFinder | None:
        """Finds records by key; None: the store has no index."""
        ...

    def through(self, offset: int) -> None:
        """Return when the records below a log offset are in their queues and in the index."""
        ...

    def rebuild(self, store_id: int) -> None:
        """Rebuild a damaged index."""
        ...


def dispatch_all(log: LogReader, dispatch: DispatchedQueues) -> int:
    """Dispatch all records that the log has now, and return the log offset of their end."""
    with log.lock:
        end = log.end
    dispatch.through(end)
    return end


class Dispatch(Service):
    """The service that brings queues and index up to the log."""

    name = "dispatch"

    def __init__(self, core: Core, start: int, index: Index | None = None) -> None:
        super().__init__(core.metrics, core.signals)
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._lock = Lock()
        self._interval_s = core.config.flush_interval_ms / 1000
        self._shows_written = core.config.visibility == "written"
        self._was_idle = True
        self._is_scheduled = False  # a step follows within the interval, without a wake-up
        self.dispatched = start
        self._step_begin = start  # `dispatched` before the last step
        self.index = index
        self._units = RecordUnits(core.config.level_delays, _BATCH)
        self._native_requests = ffi.new("ts_request[]", _BATCH)
        self._requests: Any = ffi.new(
            "ts_requests *",
            {"at": self._native_requests, "precision_ms": core.config.precision_ms},
        )

    def step(self) -> bool:
        """Dispatch one batch of appended records; return whether there were any."""
        self._step_begin = self.dispatched
        try:
            self._dispatch(self._log.write_out_once)
        except BaseException:
            self._log.native.dispatch_scheduled = 0  # retried later, or after a wake-up
            raise
        is_busy = self.dispatched != self._step_begin
        self._was_idle &= not is_busy
        return is_busy

    def note_synced(self) -> None:
        """Wake the service after a sync, if new records are due soon and a pull waits.

        Other records are dispatched within the interval.
        """
        native = self._log.native
        is_wanted = self._is_awaited or (
            not native.dispatch_scheduled
            and self.dispatched < self._log.end
            and (native.near_end > self.dispatched or not self._is_scheduled)
        )
        if is_wanted or self._log.failed is not None:
            self.wake()

    def note_placed(self) -> None:
        """Wake the service for delivered records, unless flush dispatches them with its sync."""
        if self._shows_written or not self._are_few_awaited:
            self.wake()

    def before_sync(self) -> None:
        """Dispatch few records for which a pull waits: it may read them after the sync, and one
        thread less is woken.
        """
        if self._are_few_awaited:
            with suppress(FullError):  # the service tries again, and reports it
                self.through(self._log.end)

    @property
    def _are_few_awaited(self) -> bool:
        return self._is_awaited and self._log.end - self.dispatched <= _FEW_BYTES

    @property
    def _is_awaited(self) -> bool:
        """Whether a pull waits, and messages that are due soon are not dispatched."""
        native = self._log.native
        return bool(native.wait_count > 0 and native.soon_end > self.dispatched)

    def pause_s(self) -> float:
        """Return the pause in seconds after a step that dispatched near messages.

        During the pause more records arrive, and puts need not wake the service: each batch costs a
        step of five threads. There is no pause if a pull waits for a record, or after a
        step without a near message; then `idle_s` decides.
        """
        native = self._log.native
        if native.near_end <= self._step_begin:
            return 0.0
        native.dispatch_scheduled = 1
        lag = self._log.end - self.dispatched
        if self._is_awaited or lag > _PAUSE_BYTES_MAX:
            return 0.0
        return _PAUSE_S

    def idle_s(self) -> float | None:
        """Return the seconds until the next step, or None if the service waits to be woken.

        After recent records it is the flush interval: a put of a message that is due later wakes no
        thread, and flush may be busy with a checkpoint.
        """
        native = self._log.native
        native.dispatch_scheduled = 0  # before the check: from here on a put wakes the service
        if native.near_end > self.dispatched:
            return self.pause_s()
        if self._was_idle:
            native.flush_armed = 0  # from here on such a put wakes the service
            self._is_scheduled = False  # before the end is read
            if self.dispatched == self._log.end:
                return None
        self._was_idle = self._is_scheduled = True
        return self._interval_s

    def through(self, offset: int) -> None:
        """Dispatch at least up to a log offset."""
        while self.dispatched < offset:
            self._dispatch(self._log.write_out)

    def batch_through(self, offset: int) -> None:
        """Dispatch up to a log offset; stop after about one batch of records.

        A single dispatch ends with its segment. This goes on in the next one.
        """
        left = _BATCH
        while self.dispatched < offset and left > 0:
            left -= self._dispatch(self._log.write_out)

    def rebuild(self, store_id: int) -> None:
        """Rebuild the index from the log. Dispatch waits until it is done."""
        with self._lock:
            assert self.index is not None, "this store has no index"
            self.index.restart(store_id, self._log.segments.begin)
            self.index.catch_up(self._log.segments, self.dispatched)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep all queues from growing within the context."""
        with self._lock:
            yield

    def _dispatch(self, write: Callable[[], int]) -> int:
        """Dispatch one batch below the log offset that `write` returns; then notify readers.

        Return the number of records. The end of a segment is a batch of none.
        """
        touched: set[int] = set()
        try:
            with self._lock:
                return self._dispatch_held(write(), touched)
        finally:  # on a full disk too: some queues may have new units
            if touched:
                self._signals.queues_advanced(touched)

    def _dispatch_held(self, written: int, touched: set[int]) -> int:
        if self.dispatched >= written:
            return 0
        count = self._read(written)
        if count and len(deletions := self._deletions(count)):
            first = int(self._log_offsets[0])
            later = deletions[deletions > first]
            if len(later):
                return self._dispatch_held(int(later[0]), touched)
            self._delete_topic(first)
        if count:
            self._append(count, touched)
        reach("dispatch_queues_written")
        if self.index is not None:
            self.index.take(self._units.reached)
        self.dispatched = self._units.reached
        if self._requests.count:
            size = self._requests.count * _REQUEST_BYTES
            self._signals.requests_dispatched(bytes(ffi.buffer(self._requests.at, size)))
        self.metrics.add("dispatch_records", count)
        return count

    def _read(self, end: int) -> int:
        """Make units of the next records below `end`; return the number of units."""
        self._requests.count = 0
        self._requests.store_id = self._log.native.store_id
        self._requests.states = self._log.native.states
        with self._log.segments.view(end) as view:
            return call_with_routes(
                self._log.segments,
                view,
                self._routes,
                self._clock,
                "dispatch",
                self._units.make,
                self.dispatched,
                ffi.NULL if self.index is None else self.index.gather(),
                self._log.append_hints,
                self._requests,
            )

    # A topic's units are deleted when dispatch comes to the record of the deletion, now or in a
    # rebuild. That record must be the first of its batch: a repeated batch deletes no later unit.

    def _deletions(self, count: int) -> Int64Array:
        """Return the log offsets of the records of the batch that delete a topic."""
        route = self._routes.get(DELETED_TOPIC, 0)
        if route is None:
            return np.empty(0, np.int64)
        is_deletion = self._units.indexes[:count] == route.native.index
        found: Int64Array = self._log_offsets[:count][is_deletion].astype(np.int64)
        return found

    @property
    def _log_offsets(self) -> Int64Array:
        """The log offsets of the records of the batch."""
        found: Int64Array = self._units.units.view(queue_unit.QUEUE_UNIT)["log_offset"][:, 0]
        return found

    def _delete_topic(self, log_offset: int) -> None:
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            text = record_fields(segments, view, log_offset)[2]
        self._routes.delete(parse_properties(text)[DELETED_PROPERTY], log_offset)
        reach("dispatch_topic_deleted")

    def _append(self, count: int, touched: set[int]) -> None:
        """Append the units to their queues, and add the indexes of these routes to `touched`."""
        for index, offsets, units in self._units.by_queue(count):
            self._append_one(index, offsets, units)
            touched.add(index)

    def _append_one(self, index: int, offsets: Int64Array, units: UnitRows) -> None:
        route = self._routes.by_index[index]
        begin = int(offsets[0])
        if begin > route.queue.count or int(offsets[-1]) - begin != len(offsets) - 1:
            raise CorruptError(
                "queue offsets in the log have a gap",
                where=f"topic {route.topic} queue {route.queue_id}",
                wanted=f"offsets from {route.queue.count} on",
                got=f"{begin} to {int(offsets[-1])}",
            )
        if self._routes.gone:
            self._routes.restore(route, self._clock.now_ms)
        route.queue.append(begin, units.data.cast("B"))


# --- pending removals ---
# Track timers that were cancelled or rescheduled at a log offset that readers do not see yet.
#
#     the log:   ... source of 7 ...  V ... delete record of 7 | source of 9 ...  E
#
# A reader that sees the log below V must report 7 as pending, although its state is already
# cancelled.
#
# Thread safety: any thread.
# Locking: the append lock. `note` runs in the critical section that appends the record; `reading`
#     takes the lock when it begins and when it ends.
# Invariants:
#     1. `hidden` returns exactly the timers that were removed at or after V.


Removal = tuple[int, int]
"""Log offset of the record that removed a timer, and the timer's id."""


class RemovalsReading:
    """A reader of the pending timers as of `visible_end`."""

    def __init__(self, visible_end: int, removals: list[Removal]) -> None:
        self.visible_end = visible_end
        self._removals = removals  # `note` adds to it

    def hidden(self) -> set[int]:
        """Return ids of timers that were pending at `visible_end` and were removed since."""
        return {timer_id for at, timer_id in list(self._removals) if at >= self.visible_end}


class PendingDeletes:
    """The recent removals of one store."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._recent: deque[Removal] = deque()  # by log offset; not needed below `durable`
        self._readers: list[list[Removal]] = []

    def note(self, timer_id: int, log_offset: int) -> None:
        """Record that a timer was removed by a record at or after a log offset.

        Call it in the critical section that appends the record.
        """
        self.note_many([(log_offset, timer_id)])

    def note_many(self, removals: list[Removal]) -> None:
        """Record several removals, in the order of their log offsets; see `note`."""
        durable = self._log.durable
        while self._recent and self._recent[0][0] < durable:
            self._recent.popleft()
        self._recent.extend(removals)
        for reader in self._readers:
            reader.extend(removals)

    def noting(self, call: Callable[..., int], timer_id: int) -> Callable[..., int]:
        """Wrap a C function that appends a removal of a timer, so that the removal is recorded."""

        def noted(native: Any, *arguments: Any) -> int:
            log_offset = self._log.end
            got = call(native, *arguments)
            if got == lib.TS_PENDING:
                self.note(timer_id, log_offset)
            return got

        return noted

    @contextmanager
    def reading(self, visible_end: Callable[[], int]) -> Iterator[RemovalsReading]:
        """Register a reader within the context; removals are recorded for it.

        visible_end: returns the log offset up to which the reader sees the log.
        """
        with self._log.lock:
            removals = list(self._recent)
            self._readers.append(removals)
            reading = RemovalsReading(visible_end(), removals)
        try:
            yield reading
        finally:
            with self._log.lock:
                self._readers = [one for one in self._readers if one is not removals]
