"""Replace the pending message with the same key (debounce): only the newest stays pending.

    put(key=k, delay=5)                  first put: the message is pending
    put(key=k, delay=5)                  delete record of the first | the new message, in one group
    ... wait_at_most=60 after the first  the new message is due now, whatever its delay

Thread safety: any thread.
Locking: the lock of the key, during the search and the append, never during a sync.
Invariants:
    1. At most one message is pending for each topic and key.
    2. It is due no later than wait_at_most after the first put.
    3. A new message and the delete record of the replaced one are both in the log, or neither is.
Raises: MessageError for invalid arguments; ConfigError without a key index; FullError;
FlowControlError. Nothing was changed then.
On-disk format: property TS_REPLACE of a message, `<first put, ms> <limit, ms, or -1> <key>`. The
key is also one of its KEYS, by which the index finds it. Nothing else is stored.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections import OrderedDict
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import MessageGroupQueueId, PriorityQueueId
from timerstore._engine.base.native import Lock, ffi, lib, raise_status
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.store_paths import WHEEL_TIMER_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import PendingDeletes
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.handle_lookup import FoundTimer
from timerstore._engine.write.append import Appender
from timerstore._engine.write.cancel import delete_properties, leaving
from timerstore._engine.write.keyed_put import (
    KeyedPut,
    KeyedRecord,
    KeyedRecords,
    KeyLocks,
    append_keyed,
    check_keyed_put,
)
from timerstore._engine.write.put_requests import PutCheck, PutRequest
from timerstore._engine.write.reschedule import Rescheduler
from timerstore.errors import MessageError
from timerstore.types.receipts import PutReceipt, ReceiptOrigin, out_ms, unique_key

PROPERTY = "TS_REPLACE"
_KNOWN_MAX = 65_536
_CHOSEN_BY = {PriorityQueueId: "priority", MessageGroupQueueId: "message_group"}


class _NotPendingError(Exception):
    """The message to replace is not pending any more; nothing was appended."""


class _Pending(NamedTuple):
    """The pending message with a key."""

    named: FoundTimer
    first_ms: int
    limit_ms: int  # latest due time; -1: no limit


class ReplaceWriter(NotCopyable):
    """Puts messages with a replacement key into one store."""

    def __init__(
        self,
        core: Core,
        records: KeyedRecords,
        id_prefix: str,
        rescheduler: Rescheduler,
        appender: Appender,
    ) -> None:
        self._clock = core.clock
        self._appender = appender
        self._config = core.config
        self._log = core.log
        self._states = core.states
        self._removals: PendingDeletes = rescheduler.removals
        self._check = PutCheck(core.config)
        self._locks = KeyLocks()
        self._known: OrderedDict[tuple[str, str], _Pending] = OrderedDict()
        self._known_lock = Lock()
        self._records = records
        self._id_prefix = id_prefix
        self._timer_route = core.timer_route
        self._rescheduler = rescheduler
        self._store_id = core.store_id
        self._routes = core.routes

    def put(self, request: PutRequest) -> PutReceipt:
        """Store one message in place of the pending one with its key."""
        longest = f"{PROPERTY}\x01{2**63 - 1} {2**63 - 1} \x02"
        given = check_keyed_put(request, self._config, self._check, self._clock.now_ms, longest)
        with self._locks.of(given.topic, given.key):
            receipt, end = self._put(given)
        reach("replace_answered")
        if given.is_sync:
            self._log.sync_through(end)
        self._appender.appended()
        return receipt

    # --- one put, under its key's lock ---

    def _put(self, given: KeyedPut) -> tuple[PutReceipt, int]:
        while True:
            now_ms = self._clock.now_ms
            before = self._find(given.topic, given.key)
            if before is None:
                return self._first(given, now_ms)
            answer = self._replace(given, before, now_ms)
            if answer is not None:
                return answer
            self._forget(given)  # it was delivered or cancelled since it was found

    def _due_ms(
        self, given: KeyedPut, first_ms: int, limit_ms: int, now_ms: int
    ) -> tuple[int, int]:
        """Return the due time (0: now), and its limit (-1: no limit)."""
        limits = [limit_ms] if limit_ms >= 0 else []
        if given.wait_ms is not None:
            limits.append(first_ms + given.wait_ms)
        limit_ms = min(limits, default=-1)
        due_ms = min(given.due_ms, limit_ms) if limits else given.due_ms
        return (due_ms if due_ms > now_ms else 0), limit_ms

    def _text(self, given: KeyedPut, first_ms: int, limit_ms: int) -> bytes:
        return given.text + f"{PROPERTY}\x01{first_ms} {limit_ms} {given.key}\x02".encode()

    def _first(self, given: KeyedPut, now_ms: int) -> tuple[PutReceipt, int]:
        """Put a message whose key has no pending message."""
        due_ms, limit_ms = self._due_ms(given, now_ms, -1, now_ms)
        text = self._text(given, now_ms, limit_ms)
        receipt, route = append_keyed(self._appender, given, due_ms, text, now_ms)
        if due_ms:
            self._remember(given, receipt, route, now_ms, limit_ms)
        return receipt, receipt.log_offset + 1

    def _replace(
        self, given: KeyedPut, before: _Pending, now_ms: int
    ) -> tuple[PutReceipt, int] | None:
        """Replace the pending message; return None if it is not pending any more."""
        named, route = before.named, before.named.real
        if given.queue_id is not None and given.queue_id != route.queue_id:
            name = _CHOSEN_BY.get(type(given.queue_id), "queue_id")
            raise MessageError(
                f"{name}: a message with key {given.key!r} is pending for queue {route.queue_id} "
                f"of {given.topic!r}, and its replacement must go there; got {given.queue_id}"
            )
        if given.has_priority_0 and route.queue_id and given.topic in self._routes.priority_topics:
            raise MessageError(
                f"priority: a message with key {given.key!r} is pending with priority "
                f"{route.queue_id}, and its replacement must have it, too; got 0"
            )
        due_ms, limit_ms = self._due_ms(given, before.first_ms, before.limit_ms, now_ms)
        counter = self._appender.take_ids(1)
        message_id = unique_key(self._id_prefix, counter)
        text = self._text(given, before.first_ms, limit_ms)
        if given.queue_id is None and given.topic in self._routes.priority_topics:
            text += PriorityQueueId(route.queue_id).text  # the priority of the replaced message
        text += b"UNIQ_KEY\x01%s\x02" % message_id.encode()
        target = route
        if due_ms:
            target = self._timer_route
            slot_ms = out_ms(due_ms, self._config.precision_ms)
            text += b"TIMER_DELIVER_MS\x01%d\x02TIMER_OUT_MS\x01%d\x02" % (due_ms, slot_ms)
            text += bytes(ffi.buffer(route.native.real, route.native.real_size))
        record = self._encode(target, given.body, text, now_ms)
        deletion = delete_properties(named)
        removes = self._removals.noting(lib.ts_reschedule, named.timer_id)
        counts = self._rescheduler.slot_counts
        try:
            with nullcontext() if counts is None else counts.moving(named.due_ms, due_ms):
                state, number, end = self._log.append(
                    "put",
                    leaving(removes, named, due_ms),
                    route.native,
                    named.timer_id,
                    deletion,
                    len(deletion),
                    target.native,
                    ffi.from_buffer("uint8_t[]", record),
                    len(record),
                    now_ms,
                )
                if state != lib.TS_PENDING:
                    raise _NotPendingError
        except _NotPendingError:
            return None
        reach("replace_appended")
        origin = ReceiptOrigin(
            given.topic,
            self._id_prefix,
            self._config.broker_name,
            self._config.precision_ms,
        )
        log_offset = end - len(record)
        receipt = origin.receipt(counter, route.queue_id, number, log_offset, due_ms, now_ms)
        if due_ms:
            self._remember(given, receipt, route, before.first_ms, limit_ms)
        else:
            self._forget(given)
        return receipt, end

    def _encode(self, target: Route, body: bytes, text: bytes, now_ms: int) -> bytearray:
        record = bytearray(len(body) + len(text) + 512)
        size = lib.ts_replace_encode(
            self._log.native,
            target.native,
            body,
            len(body),
            text,
            len(text),
            now_ms,
            ffi.from_buffer("uint8_t[]", record),
            len(record),
        )
        if size < 0:
            raise_status(size, f"properties: {len(text)} bytes leave no room for our own")
        return record[:size]

    # --- the pending message of a key ---

    def _remember(
        self, given: KeyedPut, receipt: PutReceipt, route: Route, first_ms: int, limit_ms: int
    ) -> None:
        slot_ms = out_ms(receipt.due_ms, self._config.precision_ms)
        due_ms, at = receipt.due_ms, receipt.log_offset
        named = FoundTimer(receipt.timer_id, receipt.message_id, route, slot_ms, due_ms, at)
        self._keep((given.topic, given.key), _Pending(named, first_ms, limit_ms))

    def _keep(self, at: tuple[str, str], one: _Pending) -> None:
        with self._known_lock:
            self._known[at] = one
            self._known.move_to_end(at)
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)

    def _forget(self, given: KeyedPut) -> None:
        with self._known_lock:
            self._known.pop((given.topic, given.key), None)

    def _find(self, topic: str, key: str) -> _Pending | None:
        """Return the pending message with this key, from memory or from the key index."""
        with self._known_lock:
            known = self._known.get((topic, key))
        if known is not None and self._states.get(known.named.timer_id) == lib.TS_PENDING:
            return known
        found = self._records.search(partial(self._look, topic, key))
        if found is not None:
            self._keep((topic, key), found)
        return found

    def _look(self, topic: str, key: str, end: int) -> _Pending | None:
        """Search the index. Only the newest message with the key can be pending."""
        for record in self._records.newest_first(WHEEL_TIMER_TOPIC, key, end):
            found = self._pending_of(topic, key, record)
            if found is not None:
                is_pending = self._states.get(found.named.timer_id) == lib.TS_PENDING
                return found if is_pending else None
        return None

    def _pending_of(self, topic: str, key: str, record: KeyedRecord) -> _Pending | None:
        """Return the message of a record; None unless it is a timer with this topic and key."""
        properties = record.properties
        fields = properties.get(PROPERTY, "").split(" ", 2)
        if len(fields) != 3 or fields[2] != key or properties.get("REAL_TOPIC") != topic:
            return None
        row = self._records.row(record)
        try:
            first_ms, limit_ms = int(fields[0]), int(fields[1])
        except ValueError:
            return None
        if row["kind"] != lib.TS_KIND_TIMER:
            return None
        timer_id = self._states.id_of(row, self._store_id)
        message_id = properties.get("UNIQ_KEY", "")
        slot_ms, due_ms = int(row["out_ms"]), int(row["due_ms"])
        named = FoundTimer(
            timer_id, message_id, self._records.route(row), slot_ms, due_ms, record.log_offset
        )
        return _Pending(named, first_ms, limit_ms)
