"""Putting many at a time, all or none, or with ids of the caller's.

Threads:  any.
Locks:    the append lock, for one hold of records after the other, also in one call of C; what is
          known of an id, or noted of records, is asked and noted in the hold that appends.
Holds:    (1) everything is checked before anything is made; (2) a group is in the log all or not at
          all; (3) of two puts with one id in the window one is appended, and both answers are of
          that one, durable.
Fails:    MessageError on bad arguments, FullError, BusyError where too many ids are remembered.
Source:   docs/exactly-once.md; docs/decisions/0009-leases-replace-and-recurring.md and
          docs/decisions/0008-deduplication-and-ingest.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import (
    argument_types,
    due_times,
    failpoints,
    message_bodies,
    message_fields,
)
from timerstore._engine.base.column_batch import Part, Rows
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.dedupe import Firsts, Once
from timerstore._engine.dedupe.message_ids import Ids
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.timer.flush import Flush
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.write.put import Level, Putting, check_queue
from timerstore._engine.write.requests import BatchRequest, PutRequest
from timerstore._engine.write.string_columns import Column, gather_ids
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import BusyError, FullError, MessageError
from timerstore.messages import Int64Array
from timerstore.receipts import CallerIds, PutBatch, PutReceipt, ReceiptOrigin

_MANY_HOLD = 1024
_ONCE_BYTES = len("TS_ONCE") + 2 + 19
_MADE_ID_BYTES = 32


def id_bytes(ids: Column, *, is_remembered: bool) -> Int64Array:
    """What ids take of each record beyond what every record has room for."""
    own: Int64Array = np.maximum(np.diff(ids[1]) - _MADE_ID_BYTES, 0)
    return own + (_ONCE_BYTES if is_remembered else 0)


class Way(NamedTuple):
    """Where the rows of a call go: a queue, by way of a level's where they wait for it."""

    real: Route
    level: Level | None = None

    @property
    def route(self) -> Route:
        """The queue that their records are in, but for timers."""
        return self.real if self.level is None else self.level.route


class Places(Owner):
    """Where each row of a call is, or the first one with its id: `log_offsets`; `numbers`, which
    are queue offsets or timer ids; `now_ms`, when it was appended. `none`: -1 for each.
    """

    def __init__(self, count: int) -> None:
        rows = np.empty((4, count), np.int64)
        rows[:3] = -1
        self.log_offsets, self.numbers, self.none, self.now_ms = rows
        self.now_ms[:] = 0
        self._kept = ffi.from_buffer("int64_t[]", rows)
        self.native = self._kept, self._kept + count

    @property
    def duplicate(self) -> npt.NDArray[np.bool_]:
        """Which rows were not appended."""
        found: npt.NDArray[np.bool_] = self.numbers == lib.TS_DUPLICATE
        return found


class NotedPlaces(Places, ABC):
    """Places of rows of which something is noted, together with that they are placed."""

    @abstractmethod
    def placed(self, begin: int, end: int) -> None:
        """These rows have their places: called in the hold of the append lock that gave them, so
        that no checkpoint comes between.
        """


class ManyPutting(Putting):
    """The way in, for many and with ids, too."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        routes: Routes,
        dispatch: Dispatch,
        flush: Flush,
        ids: Ids,
        states: TimerStates,
        store_id: int,
        id_prefix: str,
    ) -> None:
        super().__init__(config, clock, log, routes, dispatch, flush, id_prefix)
        self._firsts = Firsts(log, ids, states.native, store_id, config.precision_ms)

    # --- one with an id ---

    def put_once(self, request: PutRequest) -> PutReceipt:
        """Store one message unless its id was put to the topic before."""
        now_ms, due = self._clock.now_ms, 0
        level = request.level
        if level is not None:
            level = message_fields.check_level(
                level, request.delay, request.deliver_at, request.deliver_ms
            )
        else:
            due = due_times.due_ms_of(
                now_ms, request.delay, request.deliver_at, request.deliver_ms, self.config
            )
        name, raw_id = (
            message_fields.check_topic(request.topic),
            message_fields.check_message_id(request.message_id),
        )
        raw = message_bodies.check_body(request.body, self.config.message_bytes_max)
        call = _Call(
            request.topic,
            name,
            message_bodies.Spans(raw, np.array([0, len(raw)], np.int64), len(raw)),
            np.array([due], np.int64),
            now_ms,
            message_fields.encode_properties(request.tags, request.keys, request.properties),
            (None, None),
            (raw_id, np.array([0, len(raw_id)], np.int64)),
            level,
            request.queue_id,
            self.wants_sync(request.flush),
        )
        batch = self._put_call(call, atomic=False)
        reach("put_once_answered")
        return batch[0]

    # --- many ---

    def put_many(self, request: BatchRequest) -> PutBatch:
        """Store many messages of one topic and queue, in their order."""
        now_ms = self._clock.now_ms
        level = request.level
        if level is not None:
            level = message_fields.check_level(level, request.delay, None, request.deliver_ms)
        name = message_fields.check_topic(request.topic)
        is_sync = self.wants_sync(request.flush)
        spans = message_bodies.gather_bodies(request.bodies, self.config.message_bytes_max)
        count = len(spans.offsets) - 1
        delay_ms_max = self.config.delay_ms_max
        due = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, delay_ms_max
        )
        if not self.config.timer_enabled and bool((due > 0).any()):
            raise due_times.timers_off()
        text = message_fields.encode_properties(request.tags, (), None)
        extra = _encode_keys(request.keys, count)
        ids = gather_ids(request.message_ids, count)
        call = _Call(
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
        )
        return self._put_call(call, atomic=argument_types.check_flag("atomic", request.atomic))

    def _put_call(self, call: "_Call", *, atomic: bool) -> PutBatch:
        """Check the rest, then append."""
        count = call.row_count
        self._check_fits(call)
        check_queue(call.queue_id)
        once = None if call.ids is None else self._firsts.once(call.name, count, call.now_ms)
        text = call.text + (b"" if once is None else once.text)
        counted = self._admit_new(call, once)
        if atomic:
            _check_apart(call.ids)
            self._check_group(call, text)
        target = self._targets.get(call.topic) or self._make_target(call.topic)
        way = Way(self._route_of(target, call.queue_id))
        if call.level is not None:
            way = Way(way.real, self._level_of(target, way.real, call.level))
            text += way.level.text if way.level is not None else b""
        rows = call.rows(text, self.take_ids(count))
        places = Places(count)
        try:
            if atomic and count > 1:
                self._append_whole(way, rows, counted, call.now_ms, places, once)
            else:
                self._append_many(way, rows, counted, call.now_ms, places, once)
            batch = self._batch(target.origin, way, rows, call, places, once)
        except (FullError, BusyError) as error:
            if call.is_sync and error.stored_count:  # what it says is stored must be durable
                self._log.sync_through(int(places.log_offsets[: error.stored_count].max()) + 1)
            raise
        if count and call.is_sync:
            self._log.sync_through(int(places.log_offsets.max()) + 1)
        elif count:
            self._tell(self._soonest_ms(call), self._clock.now_ms)  # it may have waited for room
        return batch

    def _soonest_ms(self, call: "_Call") -> int:
        """When the first of them is due; 0: now."""
        if call.level is None:
            return int(call.due.min())
        at = min(call.level, len(self._level_delays)) - 1
        return call.now_ms + self._level_delays[at]

    def _admit_new(self, call: "_Call", once: Once | None) -> Int64Array:
        """Flow control for what is not known yet: who only asks again takes no place. The due times
        that count; 0: it does not.
        """
        due = call.due
        if once is not None:
            known = self._firsts.known(call.rows(b"", 0), once, call.now_ms)
            due = np.where(known >= 0, 0, due)
        self._admit(due)
        return due

    def _check_fits(self, call: "_Call") -> None:
        if not call.row_count:
            return
        if call.extra[1] is None and call.ids is None:
            target = self._targets.get(call.topic)
            if call.text or target is None or call.spans.largest > target.body_bytes_max:
                self._check_sizes(call.spans.largest, 0, call)
            return
        sizes = np.diff(call.spans.offsets)
        extra = np.zeros(1, np.int64) if call.extra[1] is None else np.diff(call.extra[1])
        if call.ids is not None:
            extra = extra + id_bytes(call.ids, is_remembered=self._firsts.ids.is_on)
        self._check_sizes(int((sizes + extra).max()) - int(extra.max()), int(extra.max()), call)

    def _check_sizes(self, body_bytes: int, extra_bytes: int, call: "_Call") -> None:
        message_fields.check_sizes(
            body_bytes,
            len(call.text) + extra_bytes,
            call.name,
            properties_bytes_max=self.config.properties_bytes_max,
            record_bytes_max=self.config.record_bytes_max,
        )

    def _append_many(
        self,
        way: Way,
        rows: Rows,
        due: Any,  # noqa: ARG002 - what flow control counts, 0 where it does not
        now_ms: int,
        places: Places,
        once: Once | None,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Append rows that are not known, some at a time under the append lock."""
        done, end = begin, rows.count if end is None else end
        is_plain = once is None and way.level is None and not isinstance(places, NotedPlaces)
        while done < end:
            until = min(end, done + _MANY_HOLD)
            if is_plain:
                last = end if failpoints.hook is None else until
                got, status, need = self._in_holds(way, rows, done, last, now_ms, places)
            else:
                with self._lock:
                    got = self._hold(way, rows, done, until, now_ms, places, once)
                    need = int(self._native.need)
                got, status = max(got, 0), min(got, 0)
            if got:
                done += got
                reach("put_many_part_appended")
            if status:
                self.appended()  # room may have to come from the services
                try:
                    self._log.serve(status, need, "put")
                except (FullError, BusyError) as error:
                    error.stored_count = done
                    raise

    def append_rows(
        self, way: Way, rows: Rows, due_ms: Int64Array, places: Places, now_ms: int | None = None
    ) -> None:
        """Append rows that were checked, whose ids are not remembered; after an error the first
        ones may have their places. What is due after `now_ms` waits; None: after the present.
        """
        now_ms = self._clock.now_ms if now_ms is None else now_ms
        try:
            self._append_many(way, rows, due_ms, now_ms, places, None)
        finally:
            self.appended()

    def _in_holds(
        self, way: Way, rows: Rows, begin: int, end: int, now_ms: int, places: Places
    ) -> tuple[int, int, int]:
        """As `_hold`, for all there is room for: how many; the status that ended it, 0 where none
        did, and its need. C takes the append lock itself, time and again: coming back for each hold
        one waits for the GIL each time.
        """
        status, need = ffi.new("int32_t *"), ffi.new("int64_t *")
        got = int(
            lib.ts_put_many_locking(
                self._native, way.route.native, rows.native, begin, end, _MANY_HOLD, now_ms,
                *places.native, status, need,
            )
        )  # fmt: skip
        places.now_ms[begin : begin + got] = now_ms
        return got, int(status[0]), int(need[0])

    def _hold(
        self,
        way: Way,
        rows: Rows,
        begin: int,
        end: int,
        now_ms: int,
        places: Places,
        once: Once | None,
    ) -> int:
        """Append some rows under the append lock; how many, or a status. For a level the time is
        read here, so that due times ascend along its queue.
        """
        native, route = self._native, way.route.native
        if way.level is not None:
            now_ms = self._clock.now_ms
            if not lib.ts_calendar_fits(native, 1):
                native.need = 0
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
            self._count_waiting(way, places, begin, begin + got, now_ms)
            if isinstance(places, NotedPlaces):
                places.placed(begin, begin + got)
        return got

    def _batch(
        self,
        origin: ReceiptOrigin,
        way: Way,
        rows: Rows,
        call: "_Call",
        places: Places,
        once: Once | None,
    ) -> PutBatch:
        """The receipts; of what was put before, the first ones'."""
        others: Any = None
        while once is not None and len(which := np.flatnonzero(places.duplicate)):
            firsts = self._firsts.read(rows, once, which, places.log_offsets)
            others = which[firsts["is_same"] == 0]
            if not len(others):
                break
            self._append_others(way, rows, call, places, once, others)
        is_timer, numbers = call.due > 0, places.numbers
        if is_timer.all():
            due, queue_offsets, timer_ids = call.due, places.none, numbers
        else:
            due = np.where(is_timer, call.due, places.now_ms)
            queue_offsets = np.where(is_timer, -1, numbers)
            timer_ids = np.where(is_timer, numbers, -1)
        if way.level is not None:
            due, queue_offsets = places.now_ms + way.level.delay_ms, places.none
        batch = PutBatch(
            origin,
            int(rows.native.first_unique),
            way.real.queue_id,
            places.log_offsets,
            queue_offsets,
            due,
            timer_ids,
            None if call.ids is None else _given(call.ids, rows.count, way.real.queue_id),
        )
        if others is not None and batch.given is not None:
            self._fill_in(batch, batch.given, which, firsts)
        return batch

    def _append_others(
        self, way: Way, rows: Rows, call: "_Call", places: Places, once: Once, others: Any
    ) -> None:
        """Rows whose id has another's hash: they are looked for further back, else appended."""
        once.below[others] = places.log_offsets[others]
        for row in others.tolist():
            self._append_many(
                way, rows, call.due, call.now_ms, places, once, begin=row, end=row + 1
            )

    def _fill_in(self, batch: PutBatch, given: CallerIds, which: Any, firsts: Any) -> None:
        levels = firsts["level"]
        due_ms = firsts["due_ms"].copy()
        for k in np.flatnonzero(levels):
            number = min(int(levels[k]), len(self._level_delays))
            due_ms[k] = firsts["store_ms"][k] + self._level_delays[number - 1]
        batch.queue_offsets[which] = firsts["queue_offset"]
        batch.timer_ids[which] = firsts["timer_id"]
        batch.due_ms[which] = due_ms
        given.queue_ids[which] = firsts["queue_id"]
        given.duplicate[which] = True
        given.cancelled[which] = firsts["is_cancelled"] != 0

    def _count_waiting(self, way: Way, places: Places, begin: int, end: int, now_ms: int) -> None:
        """Who appends for a level counts; under the append lock."""
        if way.level is not None:
            count = end - begin - int(places.duplicate[begin:end].sum())
            way.real.native.level_pending += count
            due_ms = now_ms + way.level.delay_ms
            lib.ts_calendar_count(self._native, way.real.native, due_ms, count)

    # --- groups ---

    def _check_group(self, call: "_Call", text: bytes) -> None:
        """See that all rows fit one group, before anything is made for them."""
        rows = call.rows(text, 0)
        if rows.count < 2:
            return
        target = self._targets.get(call.topic)
        number = call.queue_id
        if number is None:
            number = len(target.routes) - 1 if target is not None else 0
        route = ffi.new("ts_route *")
        real = b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02" % (call.name, number)
        route.topic_size, route.real_size = len(call.name), len(real)
        if call.level is not None:
            delay = b"DELAY\x01%d\x02" % min(call.level, len(self._level_delays))
            rows = call.rows(text + delay + real, 0)
            route.topic_size = len(SCHEDULE_TOPIC)
        part = rows.measure(self._native, route, 0, rows.count, 2**62, call.now_ms)
        limit = min(self.config.group_bytes_max, self._log.group_bytes_max)
        if part.row_count < rows.count or part.bytes > limit:
            raise MessageError(
                f"atomic: wanted at most {limit} bytes of records together, got {part.bytes} of "
                f"{rows.count} messages; split the batch"
            )

    def _append_whole(
        self, way: Way, rows: Rows, due: Any, now_ms: int, places: Places, once: Once | None
    ) -> None:
        part = rows.measure(
            self._native, way.route.native, 0, rows.count, self._log.group_bytes_max, now_ms
        )
        assert part.row_count == rows.count, "it was measured before"
        self.append_group(way, rows, part, due, places=places, once=once)
        reach("put_group_appended")

    def append_group(
        self,
        way: Way | Route,
        rows: Rows,
        part: Part,
        due_ms: Any,  # noqa: ARG002 - of all rows, as flow control counts them
        head_route: Route | None = None,
        head: bytes = b"",
        places: Places | None = None,
        once: Once | None = None,
    ) -> int:
        """Append some rows, behind a head where there is one: all or none; the log's end then, 0
        where all were put before.
        """
        to = way if isinstance(way, Way) else Way(way)
        head_native = ffi.NULL if head_route is None else head_route.native
        head_text = ffi.NULL if head_route is None else head

        def put_group(native: Any) -> int:
            """All in one hold; 1 where some are known, and nothing was done."""
            now_ms = part.now_ms if to.level is None else self._clock.now_ms
            if once is not None and places is not None:
                if self._firsts.look(rows, once, now_ms, places.log_offsets):
                    return 1
                if not self._firsts.ids.has_room(rows.count):
                    native.need = rows.count
                    return int(lib.TS_NEED_IDS)
            if to.level is not None and not lib.ts_calendar_fits(native, 1):
                native.need = 0
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
                self._count_waiting(to, places, 0, rows.count, now_ms)
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

    def _all_known(self, rows: Rows, places: Places, once: Once) -> bool:
        """Whether these are the rows of a group that was put before."""
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

    def take_ids(self, count: int) -> int:
        """Take numbers for the ids of so many messages; the first."""
        with self._lock:
            first = int(self._native.unique_counter)
            self._native.unique_counter = first + count
        return first


class _Call(NamedTuple):
    """What is put, checked but for its sizes."""

    topic: str
    name: bytes
    spans: message_bodies.Spans
    due: Int64Array  # 0: now
    now_ms: int
    text: bytes
    extra: tuple[Any, Any]
    ids: Column | None
    level: int | None
    queue_id: int | None
    is_sync: bool

    @property
    def row_count(self) -> int:
        """How many messages."""
        return len(self.due)

    def rows(self, text: bytes, first: int) -> Rows:
        """The columns, with this property text."""
        data, offsets, _ = self.spans
        rows = Rows(data, offsets, self.due, text, first=first).with_extra(*self.extra)
        return rows if self.ids is None else rows.with_ids(*self.ids)


def _given(ids: Column, count: int, queue_id: int) -> CallerIds:
    data, offsets = ids
    whole, spans = bytes(data), offsets.tolist()
    texts = [whole[a:b].decode() for a, b in pairwise(spans)]
    return CallerIds(
        texts, np.full(count, queue_id, np.int64), np.zeros(count, bool), np.zeros(count, bool)
    )


def _check_apart(ids: Column | None) -> None:
    if ids is None:
        return
    given = [one for one in _given(ids, 0, 0).ids if one]
    if len(set(given)) < len(given):
        raise MessageError("message_ids: one stands twice in an atomic batch")


def _encode_keys(keys: Any, count: int) -> tuple[Any, Any]:
    """Give the keys of a batch as property texts and offsets, None twice where there are none."""
    if keys is None:
        return None, None
    is_row = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
    is_row |= isinstance(keys, np.ndarray) and keys.ndim > 0
    if not is_row or len(keys) != count:
        got = str(len(keys)) if is_row else type(keys).__name__
        raise MessageError(f"keys: wanted one entry for each of {count} bodies, got {got}")
    texts = [message_fields.encode_properties(None, one, None) for one in keys]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, count), out=offsets[1:])
    return b"".join(texts), offsets
