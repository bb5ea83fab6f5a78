"""Put a batch of messages: as a group of all or none, with message ids, or with priorities.

Thread safety: any thread.
Locking: as Appender.
Invariants:
    1. All arguments are checked before anything is created: a rejected put leaves nothing.
    2. Of two puts with one id in the window one message is stored, and both return its receipt.
       It is durable by then.
    3. A batch with several priorities is checked as a whole before any message of it is stored,
       and whether its topic can have priorities. Its messages are stored in their order.
Raises: MessageError for invalid arguments; FullError; BusyError if too many message ids are
remembered; FlowControlError if a slot is full.
See also: docs/exactly-once.md; docs/decisions/0008-deduplication-and-ingest.md and
docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.column_batch import ColumnBatch, joined_column
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import PriorityQueueId, queue_of_priority
from timerstore._engine.base.native import ffi
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.message_ids import DedupeLookup, OriginalMessages
from timerstore._engine.write.append import Appender
from timerstore._engine.write.appended_rows import AppendedRows, Destination
from timerstore._engine.write.checked_batch import (
    CheckedBatch,
    caller_ids,
    check_unique,
    encode_keys,
    gather_ids,
    id_bytes,
)
from timerstore._engine.write.contents import Contents
from timerstore._engine.write.put_requests import BatchRequest, wants_sync
from timerstore.errors import BusyError, ConflictError, FullError, MessageError
from timerstore.types.messages import Int64Array
from timerstore.types.receipts import CallerIds, PutBatch, ReceiptOrigin

# --- put many ---


class PutBatchWriter(NotCopyable):
    """Puts batches into one store."""

    def __init__(
        self,
        core: Core,
        appender: Appender,
        firsts: OriginalMessages,
        contents: Contents,
    ) -> None:
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._appender = appender
        self._targets = appender.targets
        self._firsts = firsts
        self._contents = contents

    # --- many ---

    def put_many(self, request: BatchRequest) -> PutBatch:
        """Store a batch, with one priority for all messages, one for each, or none."""
        given = request.priority
        if given is None:
            return self._put(request)
        if is_for_all(given):
            queue_id = queue_of_priority(given, request.queue_id)
            return self._put(replace(request, queue_id=queue_id))
        call = self._check(replace(request, queue_id=None))
        priorities = check_priorities(given, call.row_count, request.queue_id)
        chosen = sorted(set(priorities), reverse=True)
        if len(chosen) < 2:
            only = chosen[0] if chosen else None
            return self.put_many(replace(request, priority=only))
        if argument_types.check_flag("atomic", request.atomic):
            raise MessageError(
                "atomic: wanted messages of one priority, because a group is in one queue; got "
                f"the priorities {chosen}"
            )
        whole = call._replace(extra=_with_priorities(call.extra, priorities))
        self._admit(whole, PriorityQueueId(chosen[0]))
        return self._put_parts(whole, np.array(priorities))

    def _put(self, request: BatchRequest) -> PutBatch:
        """Store many messages in one queue of a topic, in their order; return their receipts."""
        atomic = argument_types.check_flag("atomic", request.atomic)
        call = self._check(request)
        self._check_fits(call)
        return self.put_checked(call, atomic=atomic)

    def _check(self, request: BatchRequest) -> CheckedBatch:
        """Check the arguments of a batch, except its sizes."""
        now_ms = self._clock.now_ms
        level = request.level
        if level is not None:
            level = message_fields.check_level(level, request.delay, None, request.deliver_ms)
        name = message_fields.check_topic(request.topic)
        is_sync = wants_sync(request.flush, self._config)
        spans = message_fields.gather_bodies(request.bodies, self._config.message_bytes_max)
        count = len(spans.offsets) - 1
        delay_ms_max = self._config.delay_ms_max
        due = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, delay_ms_max
        )
        if not self._config.timer_enabled and bool((due > 0).any()):
            raise due_times.timers_off()
        text = message_fields.encode_properties(request.tags, (), None, request.queue_id)
        extra = encode_keys(request.keys, count)
        ids = gather_ids(request.message_ids, count)
        return CheckedBatch(
            request.topic,
            name,
            spans,
            due,
            now_ms,
            text,
            extra,
            ids,
            level,
            request.queue_id,
            is_sync,
            request.is_fixed,
        )

    def _admit(self, call: CheckedBatch, highest: PriorityQueueId) -> None:
        """Do the remaining checks of a batch that is appended in parts.

        highest: the queue of its highest priority, created if necessary.
        """
        self._check_fits(call)
        once = None
        if call.ids is not None:
            once = self._firsts.once(call.name, call.row_count, call.now_ms)
        self._admit_unknown(call, once)
        self._appender.place_of(call.topic, highest)

    def put_checked(self, call: CheckedBatch, *, atomic: bool) -> PutBatch:
        """Do the remaining checks of a batch whose sizes were checked, then append."""
        count = call.row_count
        if call.queue_id is not None:
            message_fields.check_queue_id(call.queue_id)
        once = None if call.ids is None else self._firsts.once(call.name, count, call.now_ms)
        text = call.text + (b"" if once is None else once.text)
        if atomic:
            check_unique(call.ids)
        counted = self._admit_unknown(call, once)
        if atomic:
            self._check_group(call, text)
        target, route = self._appender.place_of(call.topic, call.queue_id)
        to = Destination(route)
        if call.level is not None:
            level = self._targets.level_of(target, to.real, call.level)
            to, text = Destination(to.real, level), text + level.text
        rows = call.rows(text, self._appender.take_ids(count))
        places = AppendedRows(count)
        try:
            if atomic and count > 1:
                self._append_whole(to, rows, counted, call.now_ms, places, once)
            else:
                self._appender.append_many(to, rows, counted, call.now_ms, places, once)
            batch = self._batch(target.origin, to, rows, call, places, once)
        except (FullError, BusyError) as error:
            if call.is_sync and error.stored_count:  # the stored rows must be durable
                self._log.sync_through(int(places.log_offsets[: error.stored_count].max()) + 1)
            raise
        except ConflictError:  # another thread put an id since: the other rows may be stored
            self._log.sync_through(int(places.log_offsets.max()) + 1)
            raise
        if count and call.is_sync:
            self._log.sync_through(int(places.log_offsets.max()) + 1)
        elif count:
            # The call may have waited for space, so the current time is read again.
            self._appender.notify(self._soonest_ms(call), self._clock.now_ms)
        return batch

    def _soonest_ms(self, call: CheckedBatch) -> int:
        """Return the earliest due time; 0: now."""
        if call.level is None:
            return int(call.due.min())
        level_delays = self._targets.level_delays
        return call.now_ms + level_delays[min(call.level, len(level_delays)) - 1]

    def _admit_unknown(self, call: CheckedBatch, once: DedupeLookup | None) -> Int64Array:
        """Ask for the admission of messages whose ids are not known.

        Return the due times that flow control counts; 0 for messages that were put before.
        """
        due = call.due
        if once is not None:
            rows = call.rows(call.text, 0)
            known = self._firsts.known(rows, once, call.now_ms)
            if call.row_count > 1 or isinstance(call.queue_id, PriorityQueueId):
                self._check_contents(call, rows, once, known)
            due = np.where(known >= 0, 0, due)
        self._appender.admission.check(due)
        return due

    def _check_contents(
        self, call: CheckedBatch, rows: ColumnBatch, once: DedupeLookup, known: Int64Array
    ) -> None:
        """Raise ConflictError if a message repeats an id with other contents.

        A call with one message stores nothing if its id is known, and is checked after that,
        except if it has a priority, for which its topic may be changed.
        """
        self._contents.check_rows(call, rows)
        which = np.flatnonzero(known >= 0)
        if len(which):
            self._contents.check(call, which, self._firsts.read(rows, once, which, known))

    def _check_fits(self, call: CheckedBatch) -> None:
        """Check the sizes of the messages."""
        if not call.row_count:
            return
        if call.extra[1] is None and call.ids is None:
            target = self._targets.by_topic.get(call.topic)
            if call.text or target is None or call.spans.largest > target.body_bytes_max:
                self._check_sizes(call.spans.largest, 0, call)
            return
        sizes = np.diff(call.spans.offsets)
        extra = np.zeros(1, np.int64) if call.extra[1] is None else np.diff(call.extra[1])
        if call.ids is not None:
            extra = extra + id_bytes(call.ids, is_remembered=self._firsts.ids.is_on)
        self._check_sizes(int((sizes + extra).max()) - int(extra.max()), int(extra.max()), call)

    def _check_sizes(self, body_bytes: int, extra_bytes: int, call: CheckedBatch) -> None:
        message_fields.check_sizes(
            body_bytes,
            len(call.text) + extra_bytes,
            call.name,
            properties_bytes_max=self._config.properties_bytes_max,
            record_bytes_max=self._config.record_bytes_max,
        )

    def _put_parts(self, call: CheckedBatch, priorities: Int64Array) -> PutBatch:
        """Put a checked batch in one part for each run of equal priorities.

        An error leaves a first part of the batch stored, whose messages its `stored_count` counts.
        """
        parts: list[PutBatch] = []
        changes = (np.flatnonzero(np.diff(priorities)) + 1).tolist()
        try:
            for begin, end in pairwise([0, *changes, len(priorities)]):
                priority = int(priorities[begin])
                queue_id = PriorityQueueId(priority) if priority else None
                part = call.part(begin, end)._replace(queue_id=queue_id, is_sync=False)
                parts.append(self.put_checked(part, atomic=False))
        except (FullError, BusyError, ConflictError) as error:
            error.stored_count += sum(map(len, parts))
            raise
        finally:
            if call.is_sync:
                self._log.sync_through(self._log.end)
        return _merged(len(priorities), parts)

    # --- receipts ---

    def _batch(
        self,
        origin: ReceiptOrigin,
        to: Destination,
        rows: ColumnBatch,
        call: CheckedBatch,
        places: AppendedRows,
        once: DedupeLookup | None,
    ) -> PutBatch:
        """Return the receipts. A message that was put before has the receipt of the first put."""
        others: Any = None
        while once is not None and len(which := np.flatnonzero(places.duplicate)):
            firsts = self._firsts.read(rows, once, which, places.log_offsets)
            others = which[firsts["is_same"] == 0]
            if not len(others):
                self._contents.check(call, which, firsts)
                break
            # Their id only has the hash of a known one. Append them, unless an older record has it.
            once.below[others] = places.log_offsets[others]
            for row in others.tolist():
                self._appender.append_many(
                    to, rows, call.due, call.now_ms, places, once, begin=row, end=row + 1
                )
        is_timer, numbers = call.due > 0, places.numbers
        if is_timer.all():
            due, queue_offsets, timer_ids = call.due, places.none, numbers
        else:
            due = np.where(is_timer, call.due, places.now_ms)
            queue_offsets = np.where(is_timer, -1, numbers)
            timer_ids = np.where(is_timer, numbers, -1)
        if to.level is not None:
            due, queue_offsets = places.now_ms + to.level.delay_ms, places.none
        batch = PutBatch(
            origin,
            int(rows.native.first_unique),
            to.real.queue_id,
            places.log_offsets,
            queue_offsets,
            due,
            timer_ids,
            None if call.ids is None else caller_ids(call.ids, rows.count, to.real.queue_id),
        )
        if others is not None and batch.given is not None:
            self._fill_in(batch, batch.given, which, firsts)
        return batch

    def _fill_in(self, batch: PutBatch, given: CallerIds, which: Any, firsts: Any) -> None:
        """Overwrite the receipts of rows that were put before with those of the first puts."""
        levels, level_delays = firsts["level"], self._targets.level_delays
        due_ms = firsts["due_ms"].copy()
        for k in np.flatnonzero(levels):
            number = min(int(levels[k]), len(level_delays))
            due_ms[k] = firsts["store_ms"][k] + level_delays[number - 1]
        batch.queue_offsets[which] = firsts["queue_offset"]
        batch.timer_ids[which] = firsts["timer_id"]
        batch.due_ms[which] = due_ms
        given.queue_ids[which] = firsts["queue_id"]
        given.duplicate[which] = True
        given.cancelled[which] = firsts["is_cancelled"] != 0

    # --- atomic batches ---

    def _check_group(self, call: CheckedBatch, text: bytes) -> None:
        """Check that all rows fit in one group, before anything is created for them."""
        rows = call.rows(text, 0)
        if rows.count < 2:
            return
        target = self._targets.by_topic.get(call.topic)
        number = call.queue_id
        if number is None:
            number = len(target.routes) - 1 if target is not None else 0
        route = ffi.new("ts_route *")
        real = b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02" % (call.name, number)
        route.topic_size, route.real_size = len(call.name), len(real)
        if call.level is not None:
            delay = b"DELAY\x01%d\x02" % min(call.level, len(self._targets.level_delays))
            rows = call.rows(text + delay + real, 0)
            route.topic_size = len(SCHEDULE_TOPIC)
        part = rows.measure(self._log.native, route, 0, rows.count, 2**62, call.now_ms)
        limit = min(self._config.group_bytes_max, self._log.group_bytes_max)
        if part.row_count < rows.count or part.bytes > limit:
            raise MessageError(
                f"atomic: wanted at most {limit} bytes of records together, got {part.bytes} of "
                f"{rows.count} messages; split the batch"
            )

    def _append_whole(
        self,
        to: Destination,
        rows: ColumnBatch,
        due: Int64Array,
        now_ms: int,
        places: AppendedRows,
        once: DedupeLookup | None,
    ) -> None:
        part = rows.measure(
            self._log.native, to.route.native, 0, rows.count, self._log.group_bytes_max, now_ms
        )
        assert part.row_count == rows.count, "it was measured before"
        self._appender.append_group(to, rows, part, due, places=places, once=once)
        reach("put_group_appended")


# --- priorities ---


def is_for_all(priority: object) -> bool:
    """Return whether a batch has one priority for all messages, rather than one for each."""
    return argument_types.whole(priority) is not None or isinstance(priority, bool | str | float)


def check_priorities(priorities: object, count: int, queue_id: object) -> list[int]:
    """Return the priority of each message of a batch; raise MessageError if one is wrong."""
    given = list(argument_types.several("priority", priorities))
    if len(given) != count:
        raise MessageError(f"priority: wanted one for each of {count} bodies, got {len(given)}")

    def read(one: object) -> int:
        return queue_of_priority(one, queue_id) or 0

    return [argument_types.read_of("priority", at, one, read) for at, one in enumerate(given)]


def _with_priorities(extra: tuple[Any, Any], priorities: Sequence[int]) -> tuple[Any, Int64Array]:
    """Return the property texts of the rows, and their offsets, with those of the priorities."""
    texts = [PriorityQueueId(one).text for one in priorities]
    data, offsets = extra
    if offsets is not None:
        own, spans = bytes(data), offsets.tolist()
        texts = [one + own[a:b] for one, (a, b) in zip(texts, pairwise(spans), strict=True)]
    return joined_column(texts)


def _merged(count: int, parts: Sequence[PutBatch]) -> PutBatch:
    """Return the receipts of all parts, in the order of the batch."""
    columns = {
        name: np.empty(count, np.int64)
        for name in ("log_offsets", "queue_offsets", "due_ms", "timer_ids", "queue_ids")
    }
    ids: list[Any] = [""] * count
    flags = {name: np.zeros(count, bool) for name in ("duplicate", "cancelled")}
    end = 0
    for part in parts:
        rows = slice(end, end + len(part))
        end = rows.stop
        for name in ("log_offsets", "queue_offsets", "due_ms", "timer_ids"):
            columns[name][rows] = getattr(part, name)
        columns["queue_ids"][rows] = part.queue_id if part.given is None else part.given.queue_ids
        ids[rows] = part.message_ids
        if part.given is not None:
            for name, column in flags.items():
                column[rows] = getattr(part.given, name)
    queue_ids = columns.pop("queue_ids")
    first = parts[0]
    return PutBatch(
        first.origin,
        first.counter_begin,
        int(queue_ids[0]),
        **columns,
        given=CallerIds(ids, queue_ids, **flags),
    )
