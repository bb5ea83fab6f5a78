"""Append checked records to the commit log: one, a batch, or a group of all or none.

Every other writer of messages (puts, leases, recurring runs, ingest) appends through this module,
so flow control, pending counts and message ids are handled in one place.

Thread safety: any thread.
Locking: the append lock, for at most 1,024 records at a time, also during one call of C. Message
ids are looked up and remembered in the critical section that appends their records.
Invariants:
    1. A group is in the log as a whole or not at all.
    2. Of two puts with one id in the window, only the first is appended.
Raises: FullError; BusyError if too many message ids are remembered; FlowControlError if a slot is
full. `stored_count` of the first two says how many rows of a batch were stored.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base import failpoints
from timerstore._engine.base.column_batch import BatchPart, ColumnBatch
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import SOON_MS, Dispatch
from timerstore._engine.queues.message_ids import DedupeLookup, OriginalMessages
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.flush import Flush
from timerstore._engine.write.appended_rows import AppendedRows, Destination
from timerstore._engine.write.flow_control import Admission
from timerstore._engine.write.targets import Targets, TopicTarget
from timerstore.errors import BusyError, FullError, MessageError
from timerstore.types.messages import Int64Array
from timerstore.types.receipts import unique_key

_BATCH = 1024  # records appended in one critical section, at most
_LATER_MS = 1 << 62  # due later than any other message


class OwnMessage(NamedTuple):
    """A message that the store itself puts: a lease, a requeued dead letter or a recurring run."""

    message_id: bytes
    body: bytes
    text: bytes
    """Its encoded properties."""


class Appender(NotCopyable):
    """Appends checked messages of one store."""

    def __init__(
        self,
        core: Core,
        *,
        dispatch: Dispatch,
        flush: Flush,
        targets: Targets,
        firsts: OriginalMessages,
        admission: Admission,
    ) -> None:
        self.config = core.config
        self.targets = targets
        self.admission = admission
        self._clock = core.clock
        self._log = core.log
        self._native = core.log.native
        self._lock = core.log.lock
        self._dispatch = dispatch
        self._flush = flush
        self._firsts = firsts
        self._is_unnoted = ffi.new("int32_t *")  # C sets it when it has appended the message
        # A message due later than near_ms needs no dispatch at once: flush or dispatch runs before
        # that. The same holds for soon_ms, if dispatch runs within milliseconds anyway.
        self._native.near_ms = 1000 + 2 * core.config.flush_interval_ms
        self._native.soon_ms = SOON_MS

    # --- queues and ids ---

    def route_to(self, topic: str) -> Route:
        """Return the queue for the topic's next messages; create the topic if necessary."""
        return self.place_of(topic, None)[1]

    def place_of(self, topic: str, queue_id: int | None) -> tuple[TopicTarget, Route]:
        """Return the topic's target and a queue; create them if necessary."""
        target = self.targets.by_topic.get(topic) or self.targets.make(topic)
        return target, self.targets.route_of(target, queue_id)

    def take_ids(self, count: int) -> int:
        """Take consecutive numbers for generated message ids; return the first."""
        with self._lock:
            first = int(self._native.unique_counter)
            self._native.unique_counter = first + count
        return first

    def make_id(self) -> str:
        """Return a new message id."""
        return unique_key(self.targets.id_prefix, self.take_ids(1))

    # --- notifications ---

    def appended(self) -> None:
        """Notify the services that records were appended."""
        self._dispatch.wake()
        self._flush.note()

    def notify(self, due_ms: int, now_ms: int) -> None:
        """Notify the services that need to know of an unsynced message with this due time.

        A sync notifies them for all messages. native/fastpath/put_one.c has the same conditions.
        """
        native = self._native
        if (native.wait_count and due_ms <= now_ms + native.soon_ms) or (
            not native.dispatch_scheduled
            and (due_ms <= now_ms + native.near_ms or not native.flush_armed)
        ):
            self._dispatch.wake()
        self._flush.note()

    def notify_later(self) -> None:
        """Notify the services of records that can wait for the next dispatch, such as cancels."""
        self.notify(_LATER_MS, 0)

    # --- one record ---

    def append(
        self, due_ms: int, call: Callable[..., int], *arguments: Any
    ) -> tuple[int, int, int]:
        """Append one record by a call of C; return its log offset, queue offset or timer id, and id
        counter.
        """
        is_limited = self.admission.is_limited
        if is_limited:
            self.admission.reserve(due_ms)
        try:
            return self._log.append("put", call, *arguments)
        except BaseException:
            if is_limited:
                self.admission.release(due_ms)
            raise

    def append_own(
        self,
        route: Route,
        own: OwnMessage,
        due_ms: int,
        note: Callable[[int, int], object],
        now_ms: int | None = None,
    ) -> None:
        """Append a message of the store's own, and notify the services.

        It becomes a timer if it is due after `now_ms`; None: after the current time. `note` gets
        its log offset, and its timer id or queue offset, in the critical section that assigns
        them, so that no checkpoint can come in between. It may be called twice.
        """
        message_id, body, text = own
        now_ms = self._clock.now_ms if now_ms is None else now_ms

        is_unnoted = self._is_unnoted

        def append(native: Any) -> int:
            is_unnoted[0] = 0
            try:
                log_offset = int(
                    lib.ts_put_named(
                        native, ffi.NULL, ffi.NULL, 0, route.native, body, len(body), due_ms,
                        text, len(text), message_id, len(message_id), now_ms, is_unnoted,
                    )
                )  # fmt: skip
                if log_offset >= 0:
                    note(log_offset, int(native.out[0]))
                    is_unnoted[0] = 0
                return log_offset
            finally:
                if is_unnoted[0]:  # a signal handler raised in between
                    note(int(native.out[1]), int(native.out[0]))

        try:
            self.append(due_ms, append)
        finally:
            self.notify(due_ms, now_ms)

    # --- a batch ---

    def append_many(
        self,
        to: Destination,
        rows: ColumnBatch,
        due: Int64Array,
        now_ms: int,
        places: AppendedRows,
        once: DedupeLookup | None,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Append rows [begin, end), without those whose ids are known.

        due: due times for flow control; 0: does not count.
        """
        end = rows.count if end is None else end
        self.admission.reserve_rows(due, begin, end)
        done = begin
        is_plain = once is None and to.level is None
        try:
            while done < end:
                until = min(end, done + _BATCH)
                if is_plain:
                    last = end if failpoints.hook is None else until
                    got, status, need = self._append_in_batches(
                        to, rows, done, last, now_ms, places
                    )
                else:
                    with self._lock:
                        got = self._append_batch(to, rows, done, until, now_ms, places, once)
                        need = int(self._native.need)
                    got, status = max(got, 0), min(got, 0)
                if got:
                    done += got
                    reach("put_many_part_appended")
                if status:
                    self.appended()  # the services may have to make space
                    self._log.provide(status, need, "put")
        except (FullError, BusyError) as error:
            error.stored_count = done
            raise
        finally:
            self.admission.settle_rows(due, places, begin, done, end)

    def _append_in_batches(
        self,
        to: Destination,
        rows: ColumnBatch,
        begin: int,
        end: int,
        now_ms: int,
        places: AppendedRows,
    ) -> tuple[int, int, int]:
        """Append as many rows as there is space for; return their count, the status, and its need.

        The status is 0 if all were appended. C takes the append lock for each batch itself:
        returning to Python in between would wait for the GIL each time.
        """
        status, need = ffi.new("int32_t *"), ffi.new("int64_t *")
        got = int(
            lib.ts_put_many_locking(
                self._native, to.route.native, rows.native, begin, end, _BATCH, now_ms,
                *places.native, status, need,
            )
        )  # fmt: skip
        places.now_ms[begin : begin + got] = now_ms
        return got, int(status[0]), int(need[0])

    def _append_batch(
        self,
        to: Destination,
        rows: ColumnBatch,
        begin: int,
        end: int,
        now_ms: int,
        places: AppendedRows,
        once: DedupeLookup | None,
    ) -> int:
        """Append rows under the append lock; return their count, or a negative status.

        The time of messages on a level is read under the lock, so that due times ascend along the
        level's queue.
        """
        native, route = self._native, to.route.native
        if to.level is not None:
            now_ms = self._clock.now_ms
            if not self.targets.may_append_on_level(native, to.real):
                return int(lib.TS_NEED_STATES)
        if once is None:
            got = int(
                lib.ts_put_many(native, route, rows.native, begin, end, now_ms, *places.native)
            )
        else:
            got = int(
                lib.ts_put_once(
                    native,
                    self._firsts.ids.native,
                    once.topic_hash,
                    route,
                    rows.native,
                    begin,
                    end,
                    ffi.from_buffer("int64_t[]", once.below),
                    once.once_ms,
                    now_ms,
                    *places.native,
                )
            )
        if got > 0:
            places.now_ms[begin : begin + got] = now_ms
            self._count_on_level(to, places, begin, begin + got, now_ms)
        return got

    def _count_on_level(
        self, to: Destination, places: AppendedRows, begin: int, end: int, now_ms: int
    ) -> None:
        """Count the rows as pending on their level; call it under the append lock."""
        if to.level is not None:
            count = end - begin - int(places.duplicate[begin:end].sum())
            to.real.native.level_pending += count
            due_ms = now_ms + to.level.delay_ms
            lib.ts_calendar_count(self._native, to.real.native, due_ms, count)

    # --- a group ---

    def append_group(
        self,
        to: Destination | Route,
        rows: ColumnBatch,
        part: BatchPart,
        due_ms: Int64Array,
        head_route: Route | None = None,
        head: bytes = b"",
        places: AppendedRows | None = None,
        once: DedupeLookup | None = None,
    ) -> int:
        """Append a part of the rows as one group, after a head record if there is one.

        Return the end of the log after the group; 0 if all rows were put before.
        due_ms: of all rows, for flow control.
        """
        destination = to if isinstance(to, Destination) else Destination(to)
        reserved = self.admission.reserve_part(due_ms, part)
        try:
            end = self._append_group(
                destination, rows, part, head_route, head, places=places, once=once
            )
        except BaseException:
            self.admission.release(reserved)
            raise
        if not end:
            self.admission.release(reserved)
        return end

    def _append_group(
        self,
        to: Destination,
        rows: ColumnBatch,
        part: BatchPart,
        head_route: Route | None,
        head: bytes,
        *,
        places: AppendedRows | None,
        once: DedupeLookup | None,
    ) -> int:
        head_native = ffi.NULL if head_route is None else head_route.native
        head_text = ffi.NULL if head_route is None else head

        def put_group(native: Any) -> int:
            """Append all rows; return 1 and append none if some ids are known."""
            now_ms = part.now_ms if to.level is None else self._clock.now_ms
            if once is not None and places is not None:
                if self._firsts.look(rows, once, now_ms, places.log_offsets):
                    return 1
                if not self._firsts.ids.has_room(rows.count):
                    native.need = rows.count
                    return int(lib.TS_NEED_IDS)
            if to.level is not None and not self.targets.may_append_on_level(native, to.real):
                return int(lib.TS_NEED_STATES)
            status = int(
                lib.ts_put_group(
                    native, head_native, head_text, len(head), to.route.native, rows.native,
                    part.begin, part.row_count, part.bytes, part.timers, now_ms,
                    *((ffi.NULL, ffi.NULL) if places is None else places.native),
                )
            )  # fmt: skip
            if status == 0 and places is not None:
                places.now_ms[:] = now_ms
                self._count_on_level(to, places, 0, rows.count, now_ms)
                if once is not None:
                    self._firsts.add(rows, once, places.log_offsets)
            return status

        while True:
            answer, _, end = self._log.append("put", put_group)
            if answer == 0:
                return end
            assert once is not None
            assert places is not None
            if self._all_known(rows, places, once):
                return 0

    def _all_known(self, rows: ColumnBatch, places: AppendedRows, once: DedupeLookup) -> bool:
        """Return whether the rows are those of a group that was put before.

        False: the known ids only have the hashes of this group's, so the append is tried again.
        """
        which = np.flatnonzero(places.log_offsets >= 0)
        firsts = self._firsts.read(rows, once, which, places.log_offsets)
        others = which[firsts["is_same"] == 0]
        if len(others):
            once.below[others] = places.log_offsets[others]
            return False
        if len(which) < rows.count:
            raise MessageError(
                f"message_ids: {len(which)} of {rows.count} messages of an atomic batch were put "
                "before, the others not; wanted all of them or none"
            )
        places.numbers[:] = lib.TS_DUPLICATE
        return True
