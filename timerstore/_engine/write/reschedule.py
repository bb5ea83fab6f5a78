"""Reschedule a pending message: give it another due time in one step.

This appends two records in one group (native/format/group.h): the delete record of the old timer
id, and the message under a new timer id, or in its own topic if it is due now.

    reschedule(id 7, in a minute)      delete record of 7 | source of id 9        both, or neither
    reschedule(id 7, now)              delete record of 7 | message in its topic

Thread safety: any thread.
Locking: the append lock, for the two records.
Invariants:
    1. Both states change in one critical section, and the filled mark passes both records at once.
    2. Body, flags, born time and host, tags, keys, properties and message id do not change. Among
       messages with equal due times it is ordered as if it were put now.
Raises: NotPendingError if the message is not pending; MessageError for an invalid time or handle,
or a message too large for a group; FullError; FlowControlError. Nothing was changed then.
See also: docs/exactly-once.md; docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from timerstore._engine.base import due_times
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib, raise_status
from timerstore._engine.format.handle import Handle
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import PendingDeletes
from timerstore._engine.queues.message_ids import Ids
from timerstore._engine.queues.record_lookup import record_fields
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.handle_lookup import FoundTimer, HandleLookup
from timerstore._engine.timer.slot_counts import SlotCounts
from timerstore._engine.write.cancel import ANSWERS, delete_properties, leaving
from timerstore.errors import GoneError, MessageError, NotPendingError
from timerstore.types.receipts import KeptOrigin, PutReceipt, out_ms
from timerstore.types.reports import CancelResult

Sync = Callable[[int], None]
"""Called with a log offset, below which the log must be durable before the caller is answered."""

Rewrite = Callable[[bytes], tuple[bytes, Route | None]]
"""Changes a message in the step that moves it: returns its new properties, given those that it
keeps, and the queue that gets it if it is due now, created if necessary; None: its own."""

Times = tuple[timedelta | float | None, datetime | None, int | None]
"""A new due time: delay, deliver_at, deliver_ms."""

_INT64_DIGITS = 19
_NEW_IN_EACH_COPY = frozenset(
    {b"__CRC32#", b"TS_ID", b"TS_GROUP", b"TS_PLACE", b"REAL_TOPIC", b"REAL_QID"}
)


class ChangeCall(NamedTuple):
    """A call that changes a message. The engine checks its arguments."""

    kind: Literal["cancel", "reschedule", "commit", "rollback"]
    target: Any
    """A receipt or a handle; of commit and rollback also a leased message or its receipt."""
    times: Times = (None, None, None)
    """Of reschedule."""


class Rescheduler:
    """Reschedules pending messages of one store."""

    def __init__(
        self,
        core: Core,
        finder: HandleLookup,
        removals: PendingDeletes,
        ids: Ids,
        slot_counts: SlotCounts | None,
    ) -> None:
        """`slot_counts`: None without flow control."""
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._timer_route = core.timer_route
        self._finder = finder
        self.removals = removals
        self._ids = ids
        self.slot_counts = slot_counts

    def reschedule(
        self,
        handle: Handle,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
        rewrite: Rewrite | None = None,
        sync: Sync | None = None,
    ) -> PutReceipt:
        """Reschedule the message; return its new receipt.

        The new time is durable on return. If an error is raised, the state it reports is durable.

        rewrite: called only for a pending message.
        sync: called with the end of the log that must be durable, instead of making it so.
        """
        now_ms = self._clock.now_ms
        due_ms = self._due_ms(now_ms, delay, deliver_at, deliver_ms)
        if handle.timer_id == -1:
            raise _not_pending(CancelResult.ALREADY_DELIVERED)
        while True:
            try:
                found = self._finder.find(handle)
                if not found:
                    raise _not_pending(CancelResult.UNKNOWN)
                if len(found) > 1:
                    raise MessageError(
                        f"handle: names {len(found)} pending messages (their producer sent one "
                        "twice); wanted one; take a handle from pending()"
                    )
                return self._move(found[0], due_ms, now_ms, rewrite, sync or self._log.sync_through)
            except GoneError:
                continue  # it was moved since it was found: find it again

    def reschedule_handle(
        self,
        one: FoundTimer,
        deliver_ms: int,
        rewrite: Rewrite | None = None,
        sync: Sync | None = None,
    ) -> PutReceipt:
        """Reschedule a message that was found already, as `reschedule`.

        Raise GoneError if its record was moved since: call `reschedule` with its handle then.
        """
        now_ms = self._clock.now_ms
        due_ms = self._due_ms(now_ms, None, None, deliver_ms)
        return self._move(one, due_ms, now_ms, rewrite, sync or self._log.sync_through)

    def _due_ms(
        self,
        now_ms: int,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> int:
        """Return the new due time, epoch ms; 0: now."""
        if delay is None and deliver_at is None and deliver_ms is None:
            raise MessageError("time: wanted one of delay, deliver_at, deliver_ms, got none")
        return due_times.due_ms_of(now_ms, delay, deliver_at, deliver_ms, self._config)

    def _move(
        self, one: FoundTimer, due_ms: int, now_ms: int, rewrite: Rewrite | None, sync: Sync
    ) -> PutReceipt:
        if self.slot_counts is None or not self._finder.is_waiting(one.timer_id):
            # NotPendingError comes before a full slot
            return self._append(one, due_ms, now_ms, rewrite, sync)
        with self.slot_counts.moving(one.out_ms + 1, due_ms):
            return self._append(one, due_ms, now_ms, rewrite, sync)

    def _append(
        self, one: FoundTimer, due_ms: int, now_ms: int, rewrite: Rewrite | None, sync: Sync
    ) -> PutReceipt:
        self._routes.refuse_deleting(one.real.topic)
        if rewrite is not None and not self._finder.is_waiting(one.timer_id):
            rewrite = None  # its queue might be new
        target, record, once_ms = self._encode(one, due_ms, rewrite)
        reach("reschedule_encoded")
        deletion = delete_properties(one)
        append = leaving(self.removals.noting(lib.ts_reschedule, one.timer_id), one, due_ms)

        def move(native: Any, *given: Any) -> int:
            if not self._ids.can_move:
                native.need = 1
                return int(lib.TS_NEED_IDS)
            state = append(native, *given)
            # A repeated put of its id returns the new record, but not after the window: a message
            # that was put with the id since then is another one, and the one to return.
            if state == lib.TS_PENDING and self._ids.is_young(once_ms):
                end = int(native.base + native.filled)
                self._ids.move(one.real.topic, one.message_id, end - len(record))
            return state

        state, number, end = self._log.append(
            "reschedule",
            move,
            one.real.native,
            one.timer_id,
            deletion,
            len(deletion),
            target.native,
            ffi.from_buffer("uint8_t[]", record),
            len(record),
            now_ms,
        )
        reach("reschedule_appended")
        sync(end)
        if state != lib.TS_PENDING:
            raise _not_pending(ANSWERS[state])
        config, route = self._config, one.real
        origin = KeptOrigin(route.topic, one.message_id, config.broker_name, config.precision_ms)
        log_offset = end - len(record)
        return origin.receipt(0, route.queue_id, number, log_offset, due_ms, now_ms)

    def _encode(
        self, one: FoundTimer, due_ms: int, rewrite: Rewrite | None
    ) -> tuple[Route, bytearray, int | None]:
        """Return the queue and the new record, without its place in the log, and its TS_ONCE."""
        log, target = self._log, self._timer_route if due_ms else one.real
        with log.segments.view(log.written_through(one.log_offset + 1)) as view:
            _, _, text = record_fields(log.segments, view, one.log_offset)
            kept, once_ms = _kept_properties(text)
            if rewrite is not None:
                kept, to = rewrite(kept)
                once_ms = None  # the message has left the topic in which its id is remembered
                target = to if to is not None and not due_ms else target
            if due_ms:
                slot_ms = out_ms(due_ms, self._config.precision_ms)
                kept += b"TIMER_DELIVER_MS\x01%d\x02TIMER_OUT_MS\x01%d\x02" % (due_ms, slot_ms)
                kept += bytes(ffi.buffer(one.real.native.real, one.real.native.real_size))
            record = bytearray(0)
            while True:
                size = lib.ts_reschedule_encode(
                    view,
                    log.native,
                    one.log_offset,
                    target.native,
                    kept,
                    len(kept),
                    ffi.from_buffer("uint8_t[]", record),
                    len(record),
                )
                if size > 0:
                    return target, record, once_ms
                if size == lib.TS_NEED_SPACE:
                    record = bytearray(int(view.need))
                elif size == lib.TS_INVALID:
                    raise_status(size, f"properties: {len(kept)} bytes leave no room for our own")
                else:
                    log.segments.provide(view, size, "reschedule")


def _kept_properties(text: bytes) -> tuple[bytes, int | None]:
    """Return the properties of a copy that belong to the message itself.

    Also when it was put with an id from its caller, epoch ms; None: it has no such id.
    """
    kept, once_ms = bytearray(), None
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and name not in _NEW_IN_EACH_COPY and not name.startswith(b"TIMER_"):
            kept += pair + b"\x02"
            if (
                once_ms is None
                and name == b"TS_ONCE"
                and value.isdigit()
                and len(value) <= _INT64_DIGITS
            ):
                once_ms = int(value)
    return bytes(kept), once_ms


def _not_pending(result: CancelResult) -> NotPendingError:
    is_known = result is not CancelResult.UNKNOWN
    return NotPendingError(
        "reschedule: the message is not pending",
        wanted="a pending message" if is_known else "the handle of a pending message of this store",
        got=result,
        result=result,
    )
