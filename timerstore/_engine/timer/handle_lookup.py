"""Find the pending messages that a handle names.

It looks in these places, until it finds a pending message:

    1  the record at the handle's timer id; our handles have one, which is a hint
    2  the chain of the handle's slot, and records that are not linked yet; a broker looks there
    3  the key index; it finds messages that rolled into another slot, and copies of old ones
    4  the whole log, if there is no index or the index is damaged

Thread safety: any thread may call it.
Locking: takes the wheel's lock while it reads a chain.
Invariants:
    1. A message matches if topic, message id and slot time are those of the handle. All three are
       needed: a rescheduled message keeps its id, and a timer id may be assigned again after a
       power cut.
See also: docs/exactly-once.md, docs/file-format.md,
    docs/decisions/0009-leases-replace-and-recurring.md
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.handle import Handle
from timerstore._engine.format.store_paths import QUEUE_COUNT_MAX, WHEEL_TIMER_TOPIC, whole_number
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch, dispatch_all
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.record_lookup import record_fields, scan_batches
from timerstore._engine.queues.routes import Route
from timerstore._engine.timer.pending import WheelPending
from timerstore._engine.timer.timer_arrays import CHAINED, Records
from timerstore.errors import CorruptError, GoneError
from timerstore.types.messages import parse_properties


class FoundTimer(NamedTuple):
    """A message that matches a handle."""

    timer_id: int
    message_id: str
    real: Route
    out_ms: int
    due_ms: int
    log_offset: int  # of one of its copies; body and properties are equal in all


class HandleLookup:
    """Finds the messages of one store by their handles."""

    def __init__(self, core: Core, dispatch: Dispatch, pending: WheelPending) -> None:
        self._clock = core.clock
        self._log = core.log
        self._dispatch = dispatch
        self._routes = core.routes
        self._timer_route = core.timer_route
        self._states = core.states
        self._pending = pending
        self._store_id = core.store_id
        self._precision_ms = core.config.precision_ms

    def find(self, handle: Handle) -> list[FoundTimer]:
        """Return the pending messages that match a handle, in put order.

        One of our handles matches one message; a broker's matches each message that its producer
        sent again. If none is pending, return the newest that was, or an empty list.

        Raises:
            CorruptError: a record of the handle's message is damaged.
        """
        while True:
            try:
                return self._find(handle)
            except GoneError:
                continue  # retention has moved the record; the next search finds the copy

    def find_marked(self, topic: str, message_id: str, mark: bytes) -> FoundTimer | None:
        """Return the message with an id whose encoded properties have a mark, or None.

        It is pending, or else was delivered.

        mark: an encoded property, with its end.

        Raises:
            CorruptError: a record with the id is damaged.
        """
        while True:
            try:
                return self._find_marked(topic, message_id, mark)
            except GoneError:
                continue  # retention has moved the record; the next search finds the copy

    def _find_marked(self, topic: str, message_id: str, mark: bytes) -> FoundTimer | None:
        slots = {
            slot_ms
            for log_offset in self._copies(topic, message_id)
            if (slot_ms := self._marked_slot_ms(log_offset, mark)) is not None
        }
        delivered = None
        for slot_ms in slots:
            for one in self.find(Handle(topic, "", slot_ms + 1, message_id, None)):
                if self._marked_slot_ms(one.log_offset, mark) is None:
                    continue
                if self.is_waiting(one.timer_id):
                    return one
                if self._states.get(one.timer_id) == lib.TS_DELIVERED:
                    delivered = one
        return delivered

    def _marked_slot_ms(self, log_offset: int, mark: bytes) -> int | None:
        """Return the slot time of a timer whose properties have the mark, or None."""
        with self._log.segments.view(self._log.written_through(log_offset + 1)) as view:
            topic, _, text = record_fields(self._log.segments, view, log_offset)
        if topic != WHEEL_TIMER_TOPIC.encode() or b"\x02" + mark not in b"\x02" + text + b"\x02":
            return None
        slot_ms = parse_properties(text).get("TIMER_OUT_MS", "")
        return int(slot_ms) if slot_ms.isdigit() else None

    def _copies(self, topic: str, message_id: str) -> list[int]:
        """Return log offsets of records that may be timers of a message."""
        end = dispatch_all(self._log, self._dispatch)
        index = self._dispatch.index
        if index is not None and message_id:
            begin = self._log.segments.begin
            try:
                found = list(index.find(WHEEL_TIMER_TOPIC.encode(), message_id.encode()))
                return [int(at) for part in found for at in part if begin <= at < end]
            except CorruptError as error:
                _pass_index(error)
        return [int(at) for part in self._scan(topic, message_id) for at in part["log_offset"]]

    def is_waiting(self, timer_id: int) -> bool:
        """Return whether the message with this timer id is pending."""
        return bool(self._states.get(timer_id) == lib.TS_PENDING)

    def _find(self, handle: Handle) -> list[FoundTimer]:
        if handle.timer_id is not None and handle.timer_id >= 0:
            source = self._source_at(handle, handle.timer_id)
            if source is not None:
                return [source]
            is_gone = handle.timer_id < self._timer_route.queue.min_offset
            if is_gone and self._states.get(handle.timer_id) != lib.TS_PENDING:
                return []  # retention has removed the record, and the id is not pending
        if handle.out_ms < 0:
            return []
        offsets = self._in_slot(handle)
        if all(self._states.get(i) != lib.TS_PENDING for i in offsets):
            offsets |= self._find_elsewhere(handle)  # a message moved within its slot may roll
        waiting = [i for i in sorted(offsets) if self._states.get(i) == lib.TS_PENDING]
        ids = waiting or [max(offsets)] if offsets else []
        found = [self._match(handle, i, offsets[i]) for i in ids]
        return [one for one in found if one is not None]

    # --- by timer id ---

    def _source_at(self, handle: Handle, timer_id: int) -> FoundTimer | None:
        queue = self._timer_route.queue
        if timer_id >= queue.count:
            dispatch_all(self._log, self._dispatch)
        if not queue.min_offset <= timer_id < queue.count:
            return None
        unit = queue.read(timer_id, 1)
        log_offset, size = int.from_bytes(unit[:8], "big"), int.from_bytes(unit[8:12], "big")
        self._log.written_through(log_offset + size)
        try:
            return self._match(handle, timer_id, log_offset)
        except CorruptError:
            if log_offset < self._log.segments.begin:
                return None
            raise

    def _match(self, handle: Handle, timer_id: int, log_offset: int) -> FoundTimer | None:
        """Return the record at a log offset if it matches the handle, or None."""
        with self._log.segments.view(self._log.written) as view:
            _, _, text = record_fields(self._log.segments, view, log_offset)
        properties = parse_properties(text)
        number = whole_number(properties.get("REAL_QID", ""), QUEUE_COUNT_MAX - 1)
        if (
            properties.get("REAL_TOPIC") != handle.topic
            or properties.get("UNIQ_KEY") != handle.message_id
            or properties.get("TIMER_OUT_MS") != str(handle.out_ms)
            or "TIMER_DEL_UNIQKEY" in properties
            or number < 0
        ):
            return None
        route = self._routes.make(handle.topic, number, self._clock.now_ms)
        due_ms = int(lib.ts_properties_due(text, len(text), self._precision_ms))
        return FoundTimer(timer_id, handle.message_id, route, handle.out_ms, due_ms, log_offset)

    # --- by slot ---

    def _in_slot(self, handle: Handle) -> dict[int, int]:
        """Return log offsets by timer id, of matching records that are linked or not linked yet."""
        return {
            timer_id: log_offset
            for part in self._pending.at_slot(handle.out_ms // self._precision_ms)
            for timer_id, log_offset in self._in_part(part, handle)
            if self._states.get(timer_id) != lib.TS_NONE
        }

    def _in_part(self, part: Records, handle: Handle) -> Iterator[tuple[int, int]]:
        topic, key = handle.topic.encode(), handle.message_id.encode()
        at, timer_id = ffi.new("int32_t *"), ffi.new("int64_t *")
        segments = self._log.segments
        with segments.view(self._log.write_out()) as view:
            while at[0] < len(part):
                is_found = segments.call(
                    view,
                    "handle",
                    lib.ts_chained_find,
                    ffi.from_buffer("ts_chained[]", part),
                    len(part),
                    topic,
                    len(topic),
                    key,
                    len(key),
                    handle.out_ms,
                    self._states.native,
                    self._store_id,
                    at,
                    timer_id,
                )
                if is_found:
                    yield int(timer_id[0]), int(part["log_offset"][at[0]])
                    at[0] += 1

    # --- in the index or the log ---

    def _find_elsewhere(self, handle: Handle) -> dict[int, int]:
        """Return log offsets by timer id, of the newest matching copies."""
        index = self._dispatch.index
        if index is not None and handle.message_id:  # the index has the message id of each copy
            try:
                return self._in_index(index, handle)
            except CorruptError as error:
                _pass_index(error)
        return self._in_log(handle)

    def _in_index(self, index: Index, handle: Handle) -> dict[int, int]:
        end = dispatch_all(self._log, self._dispatch)
        found: dict[int, int] = {}
        segments = self._log.segments
        for offsets in index.find(WHEEL_TIMER_TOPIC.encode(), handle.message_id.encode()):
            there = offsets[(offsets >= segments.begin) & (offsets < end)]
            part = np.zeros(len(there), CHAINED)
            part["log_offset"] = there
            for timer_id, log_offset in self._in_part(part, handle):
                if self._states.get(timer_id) != lib.TS_NONE and self._is_timer(log_offset):
                    found.setdefault(timer_id, log_offset)  # the newest comes first
        return found

    def _is_timer(self, log_offset: int) -> bool:
        """Return whether the record is in the timer topic; key hashes of topics may collide."""
        with self._log.segments.view(self._log.written) as view:
            topic, _, _ = record_fields(self._log.segments, view, log_offset)
        return topic == WHEEL_TIMER_TOPIC.encode()

    def _in_log(self, handle: Handle) -> dict[int, int]:
        """Return the same without an index, by reading the whole log."""
        dispatch_all(self._log, self._dispatch)
        found: dict[int, int] = {}
        for part in self._scan(handle.topic, handle.message_id):
            copies = part[part["out_ms"] == handle.out_ms]
            ids = self._states.ids_of(copies, self._store_id).tolist()
            for record, timer_id in zip(copies, ids, strict=True):
                if self._states.get(timer_id) != lib.TS_NONE:  # skip old copies of rolled messages
                    found[timer_id] = int(record["log_offset"])
        return found

    def _scan(self, topic: str, message_id: str) -> Iterator[Scan]:
        """Yield the timers with a message's identity (a hash), by reading the whole log."""
        wanted = f"{topic}+{message_id}".encode()
        identity = lib.ts_identity(wanted, len(wanted))
        for part, _, _ in scan_batches(
            self._log.segments,
            self._routes,
            self._clock,
            self._precision_ms,
            self._log.segments.begin,
            self._log.written,
        ):
            yield part[(part["identity"] == identity) & (part["kind"] == lib.TS_KIND_TIMER)]


def _pass_index(error: CorruptError) -> None:
    logging.getLogger("timerstore.timer").warning("index=passed error=%r", str(error))
