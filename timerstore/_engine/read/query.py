"""Find messages by key, message id or offset message id, pending messages included.

A query by key takes these steps:

    V         = the visible end of the log; wait until the index covers V
    waiting   = source records in the timer topic, for this topic and below V, with a pending timer
    E         = the end of the log; wait until the index covers E
    future    = timers that were delivered in [V, E), or cancelled or rescheduled there
                (queues/dispatch.py); for a reader of [0, V) they are still pending
    in_topic  = messages in the topic itself, below V

Source records below V are searched first, and a delivery or reschedule during the query lies at or
after V. So each message is found once, in its state at V.

Thread safety: any thread.
Invariants:
    1. Every returned message has the key, and is in the topic or pending for it. None is returned
       twice.
Raises: MessageError on invalid arguments; ConfigError if the index is switched off. A damaged index
is rebuilt once before an error is raised.
See also: docs/decisions/0006-index-and-queries.md.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.delay_levels import real_queue
from timerstore._engine.format.store_paths import (
    QUEUE_COUNT_MAX,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    topic_component,
    whole_number,
)
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.queues.dispatch import DispatchedQueues, PendingDeletes, RemovalsReading
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.page import PULLED
from timerstore._engine.read.pull_request import range_problems, whole_or
from timerstore._engine.read.queue_reader import QueueReader
from timerstore.errors import ConfigError, CorruptError, GoneError, MessageError, quoted, typed
from timerstore.types.config import StoreConfig
from timerstore.types.messages import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Message,
    host_text,
    parse_properties,
)
from timerstore.types.receipts import make_handle

# --- found messages ---
# Read the messages that a query found, pending ones included.
#
# Thread safety: any thread.
# Raises: CorruptError if a record fails its check.


class FoundRecord(NamedTuple):
    """A record that a query found."""

    log_offset: int
    timer_id: int  # -1: not a timer
    waits: bool  # whether the message is pending


class FoundMessages:
    """Reads messages by the log offset of their record."""

    def __init__(self, config: StoreConfig, log: LogReader, routes: Routes) -> None:
        self._config = config
        self._log = log
        self._routes = routes

    def read(self, found: FoundRecord) -> Message:
        """Return the message of a found record."""
        pulled = np.empty(1, PULLED)
        room = 1 << 16
        topic = ffi.new("uint8_t[]", 256)
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            while True:
                body, properties = np.empty(room, np.uint8), np.empty(room, np.uint8)
                size = lib.ts_pull_one(
                    view,
                    found.log_offset,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_pulled[]", pulled),
                    ffi.from_buffer("uint8_t[]", body),
                    room,
                    ffi.from_buffer("uint8_t[]", properties),
                    room,
                    topic,
                )
                if size >= 0:
                    break
                if size == lib.TS_NEED_SPACE:
                    room = int(view.need)
                else:
                    segments.provide(view, size, "query")
        row = pulled[0]
        name = bytes(ffi.buffer(topic, size)).decode("ascii")
        return self._message(found, row, name, body, properties)

    def _level_due_ms(self, queue_id: int, queue_offset: int) -> int:
        """Return the due time that a unit of a delay level holds."""
        route = self._routes.get(SCHEDULE_TOPIC, queue_id)
        if route is None:
            raise CorruptError(
                "query: a record names the queue of a delay level that does not exist",
                where=f"topic {SCHEDULE_TOPIC} queue {queue_id}",
            )
        return int.from_bytes(route.queue.read(queue_offset, 1)[12:20], "big", signed=True)

    def _message(
        self, found: FoundRecord, row: Any, topic: str, body: Any, properties: Any
    ) -> Message:
        pairs = parse_properties(properties[: int(row["properties_size"])].tobytes())
        sys_flag = int(row["sys_flag"])
        due_ms, handle = int(row["due_ms"]), ""
        queue_id, queue_offset = int(row["queue_id"]), int(row["queue_offset"])
        delivered_ms = int(row["delivered_ms"])
        if found.waits:
            if topic == SCHEDULE_TOPIC:
                due_ms = self._level_due_ms(queue_id, queue_offset)
            topic = pairs["REAL_TOPIC"]
            queue_id = whole_number(pairs.get("REAL_QID", "0"), QUEUE_COUNT_MAX - 1)
            queue_offset = delivered_ms = -1
            if found.timer_id >= 0:
                stamp = int(pairs["TIMER_OUT_MS"]) + 1
                key = pairs.get("UNIQ_KEY", "")
                handle = make_handle(topic, self._config.broker_name, stamp, key, found.timer_id)
        return Message(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            log_offset=int(row["log_offset"]),
            raw_body=body[: int(row["body_size"])].tobytes(),
            properties=pairs,
            born_ms=int(row["born_ms"]),
            store_ms=int(row["store_ms"]),
            due_ms=due_ms,
            delivered_ms=delivered_ms,
            flag=int(row["flag"]),
            sys_flag=sys_flag,
            reconsume_times=int(row["reconsume_times"]),
            born_host=host_text(row["born_host"].tobytes(), bool(sys_flag & SYS_FLAG_BORN_HOST_V6)),
            store_host=host_text(
                row["store_host"].tobytes(), bool(sys_flag & SYS_FLAG_STORE_HOST_V6)
            ),
            body_crc=int(row["body_crc"]),
            store_bytes=int(row["size"]),
            body_bytes_max=self._config.message_bytes_max,
            handle=handle,
        )


# --- query validation ---
# Check the arguments of a query.
#
# Raises: MessageError with everything that is wrong.


KEY_BYTES_MAX = 32_767
"""The bytes that the properties of a record have room for; no key is longer."""

TIME_MIN_MS, TIME_MAX_MS = -(2**63), 2**63 - 1


class Query(NamedTuple):
    """The validated arguments of one query."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_count: int


def check_query(topic: Any, key: Any, begin_ms: Any, end_ms: Any, max_count: Any) -> Query:
    """Return the validated arguments; raise MessageError with everything that is wrong."""
    problems = []
    try:
        if topic_component(topic) != topic:
            raise AssertionError
    except (TypeError, MessageError):
        problems.append(f"topic: wanted 1 to 255 of A-Za-z0-9%_|-, got {quoted(topic)}")
    problems.extend(_key_problems(key))
    problems += range_problems(begin_ms, end_ms)
    given = whole_or(begin_ms, TIME_MIN_MS), whole_or(end_ms, TIME_MAX_MS)
    begin, end = [min(max(one, TIME_MIN_MS), TIME_MAX_MS) for one in given]
    if begin > end:
        problems.append(
            f"begin_ms: wanted at most end_ms ({quoted(end_ms)}), got {quoted(begin_ms)}"
        )
    count = whole_or(max_count, 0)
    if count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    if problems:
        raise MessageError(problems)
    return Query(topic, key, begin, end, count)


def _key_problems(key: Any) -> Iterator[str]:
    if not isinstance(key, str):
        yield f"key: wanted text, got {typed(key)}"
        return
    if not key or key.split() != [key]:
        yield f"key: wanted one without spaces, not empty, got {quoted(key)}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        yield f"key: wanted text without half a surrogate pair, got {quoted(key)}"
        return
    if size > KEY_BYTES_MAX:
        yield f"key: wanted at most {KEY_BYTES_MAX} bytes, got {size}"


# --- query ---


_ANSWER_BYTES_MAX = 64 << 20
_SYSTEM_TOPICS = (WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC)
_FOUND = np.dtype(
    [
        ("log_offset", np.int64),
        ("timer_id", np.int64),
        ("queue_offset", np.int64),
        ("queue_id", np.int32),
        ("size", np.int32),
    ]
)
assert _FOUND.itemsize == ffi.sizeof("ts_found"), "query.py and native/api disagree"

Rows = np.ndarray[Any, np.dtype[np.void]]


class _Criteria(NamedTuple):
    """The conditions for a record; `real`: pending for this topic."""

    topic: str
    key: bytes | None
    real: str | None
    by_state: bool
    also: Any
    begin_ms: int
    end_ms: int


class Querier(NotCopyable):
    """Finds messages of one store."""

    def __init__(
        self,
        config: StoreConfig,
        log: LogReader,
        dispatch: DispatchedQueues,
        removals: PendingDeletes,
        routes: Routes,
        states: Any,
        store_id: int,
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._removals = removals
        self._routes = routes
        self._states = states  # ts_states *
        self._store_id = store_id
        self._reader = QueueReader(config, log)
        self._messages = FoundMessages(config, log, routes)

    def query(self, query: Query) -> list[Message]:
        """Return the newest messages that have the key, in the order of the log."""
        while True:
            try:
                return self._query(query)
            except GoneError:
                continue  # retention removed a segment during the query

    def _query(self, query: Query) -> list[Message]:
        by_offset = self._by_offset_id(query)
        if self._dispatch.index is None:
            if by_offset:
                return by_offset
            raise ConfigError("query: the index is switched off (index_enabled)")
        found = by_offset + self._by_key_surely(query)
        messages = {message.log_offset: message for message in found}
        return [messages[offset] for offset in sorted(messages)][-query.max_count :]

    def _by_key_surely(self, query: Query) -> list[Message]:
        """Query by key; rebuild a damaged index from the log, once."""
        try:
            return self._by_key(query)
        except GoneError:
            raise
        except CorruptError as error:
            logging.getLogger("timerstore.read").warning("index=rebuild error=%r", str(error))
            self._dispatch.rebuild(self._store_id)
            return self._by_key(query)

    # --- by key ---

    def _by_key(self, query: Query) -> list[Message]:
        with self._removals.reading(lambda: self._reader.visible_end) as reading:
            return self._by_key_at(query, reading)

    def _by_key_at(self, query: Query, reading: RemovalsReading) -> list[Message]:
        visible_end = reading.visible_end
        self._dispatch.through(visible_end)
        criteria = _Criteria(
            query.topic, query.key.encode(), None, False, None, query.begin_ms, query.end_ms
        )
        is_system = query.topic in _SYSTEM_TOPICS
        waiting = {} if is_system else self._waiting(criteria, visible_end, query.max_count)
        with self._log.lock:
            end = self._log.end
        self._dispatch.through(end)
        if not is_system:
            future = self._future(criteria, visible_end) | reading.hidden()
            future -= waiting.keys()
            if future:
                also = np.array(sorted(future), np.int64)
                again = criteria._replace(also=also)
                waiting |= self._waiting(again, visible_end, query.max_count + len(future))
        found = list(waiting.values())
        if not is_system:
            found += self._on_level(criteria, visible_end, query.max_count)
        in_topic = self._walk(criteria, below=visible_end)
        found += _newest(in_topic, query.max_count, lambda one: one.log_offset).values()
        found.sort()
        messages: list[Message] = []
        left_bytes = _ANSWER_BYTES_MAX
        for one in reversed(found[-query.max_count :]):
            messages.append(self._messages.read(one))
            left_bytes -= messages[-1].store_bytes
            if left_bytes <= 0:
                break
        return messages[::-1]

    def _waiting(self, criteria: _Criteria, below: int, count: int) -> dict[int, FoundRecord]:
        """Return pending messages by timer id; of a rolled message, the copy that is pending."""
        sources = criteria._replace(topic=WHEEL_TIMER_TOPIC, real=criteria.topic, by_state=True)
        copies = self._walk(sources, below=below)
        at_any_time = sources._replace(begin_ms=TIME_MIN_MS, end_ms=TIME_MAX_MS)
        if at_any_time != sources:  # an older copy may be in the time range, the pending one not
            every = _newest(self._walk(at_any_time, below=below), TIME_MAX_MS, _timer_id)
            copies = (one for one in copies if every.get(one.timer_id) == one)
        return _newest(copies, count, _timer_id)

    def _future(self, criteria: _Criteria, visible_end: int) -> set[int]:
        """Return the ids of timers whose delivery is in the log but not visible."""
        at_any_time = criteria._replace(begin_ms=TIME_MIN_MS, end_ms=TIME_MAX_MS)
        found = self._walk(at_any_time, from_=visible_end)
        return {one.timer_id for one in found if one.timer_id >= 0}

    def _on_level(self, criteria: _Criteria, below: int, count: int) -> list[FoundRecord]:
        """Return messages that wait on a delay level: those without a visible copy in the topic."""
        sources = criteria._replace(topic=SCHEDULE_TOPIC, real=criteria.topic)
        found = (
            one for one in self._walk(sources, below=below) if self._waits_on_level(one, below)
        )
        return list(_newest(found, count, lambda one: one.log_offset).values())

    def _waits_on_level(self, found: FoundRecord, below: int) -> bool:
        message = self._messages.read(found)
        if real_queue(message.properties) is None:
            return False  # delivery will skip it
        if not message.message_id:
            return True  # without an id its copy cannot be recognised
        id_bytes = message.message_id.encode()
        copies = _Criteria(message.topic, id_bytes, None, False, None, TIME_MIN_MS, TIME_MAX_MS)
        return next(self._walk(copies, below=below), None) is None

    def _walk(
        self, criteria: _Criteria, *, from_: int = 0, below: int = TIME_MAX_MS
    ) -> Iterator[FoundRecord]:
        """Yield the matching messages in [from_, below) of the log, newest first."""
        index = self._dispatch.index
        assert index is not None, "checked by the caller"
        assert criteria.key is not None, "the index is searched by key"
        deleted_below = self._routes.deleted_below.get(criteria.real or criteria.topic, 0)
        from_ = max(from_, self._log.segments.begin, deleted_below)
        for part in index.find(
            criteria.topic.encode("ascii"), criteria.key, criteria.begin_ms, criteria.end_ms
        ):
            offsets = part[(part >= from_) & (part < below)]
            for row in self._check(criteria, offsets):
                if int(row["log_offset"]) + int(row["size"]) <= below:
                    yield _found(criteria, row)
            if len(part) and int(part[-1]) < from_:
                return

    def _check(self, criteria: _Criteria, offsets: Any) -> Rows:
        """Return those of the records at these offsets that match."""
        query = ffi.new("ts_query *")
        names = ("topic", criteria.topic.encode("ascii")), ("key", criteria.key)
        real = None if criteria.real is None else criteria.real.encode("ascii")
        kept = []  # keeps alive the memory that the struct points to
        for field, text in (*names, ("real", real)):
            if text is not None:
                kept.append(ffi.from_buffer("uint8_t[]", text))
                setattr(query, field, kept[-1])
                setattr(query, f"{field}_size", len(text))
        if criteria.by_state:
            query.states = self._states
        if criteria.also is not None:
            kept.append(ffi.from_buffer("int64_t[]", criteria.also))
            query.also, query.also_count = kept[-1], len(criteria.also)
        query.begin_ms, query.end_ms = criteria.begin_ms, criteria.end_ms
        query.store_id = self._store_id
        offsets = np.ascontiguousarray(offsets)
        rows = np.empty(len(offsets), _FOUND)
        matched = ffi.new("int32_t *")
        done = found = 0
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            while done < len(offsets):
                done += segments.call(
                    view,
                    "query",
                    lib.ts_index_check,
                    query,
                    ffi.from_buffer("int64_t[]", offsets) + done,
                    len(offsets) - done,
                    ffi.cast("ts_found *", ffi.from_buffer(rows)) + found,
                    matched,
                )
                found += matched[0]
        return rows[:found]

    # --- by offset message id ---

    def _by_offset_id(self, query: Query) -> list[Message]:
        """Return the message of an offset message id: store host, port and log offset."""
        try:
            raw = bytes.fromhex(query.key)
        except ValueError:
            return []
        if len(query.key) not in (32, 56) or not query.key.isalnum():
            return []
        with self._removals.reading(lambda: self._reader.visible_end) as reading:
            return self._at_log_offset(query, raw[:-8], int.from_bytes(raw[-8:], "big"), reading)

    def _at_log_offset(
        self, query: Query, host: bytes, offset: int, reading: RemovalsReading
    ) -> list[Message]:
        visible_end = reading.visible_end
        segments = self._log.segments
        deleted_below = self._routes.deleted_below.get(query.topic, 0)
        if not max(segments.begin, deleted_below) <= offset < visible_end:
            return []
        self._dispatch.through(visible_end)
        for criteria in _at_offset(query, reading):
            for row in self._rows_at(criteria, offset, visible_end):
                found = _found(criteria, row)
                message = self._messages.read(found)
                if message.store_host != host_text(host, len(host) == 20):
                    continue
                if (
                    criteria.topic != SCHEDULE_TOPIC
                    or not found.waits
                    or (self._dispatch.index is None or self._waits_on_level(found, visible_end))
                ):
                    return [message]
        return []

    def _rows_at(self, criteria: _Criteria, offset: int, visible_end: int) -> Iterable[Any]:
        try:
            rows = self._check(criteria, np.array([offset], np.int64))
        except CorruptError:  # no record begins there
            return []
        return [
            row
            for row in rows
            if offset + int(row["size"]) <= visible_end and self._is_queued(criteria.topic, row)
        ]

    def _is_queued(self, topic: str, row: Any) -> bool:
        """Return whether a queue unit points there: bytes of a body may look like a record."""
        route = self._routes.get(topic, int(row["queue_id"]))
        offset = int(row["queue_offset"])
        if route is None or not route.queue.min_offset <= offset < route.queue.count:
            return False
        return int.from_bytes(route.queue.read(offset, 1)[:8], "big") == int(row["log_offset"])


def _at_offset(query: Query, reading: RemovalsReading) -> Iterator[_Criteria]:
    """Yield the kinds of record that an offset message id may name."""
    plain = _Criteria(query.topic, None, None, False, None, query.begin_ms, query.end_ms)
    yield plain
    if query.topic not in _SYSTEM_TOPICS:
        real = plain._replace(real=query.topic)
        timer = real._replace(topic=WHEEL_TIMER_TOPIC, by_state=True)
        yield timer
        yield timer._replace(also=np.array(sorted(reading.hidden()), np.int64))
        yield real._replace(topic=SCHEDULE_TOPIC)


def _found(criteria: _Criteria, row: Any) -> FoundRecord:
    return FoundRecord(int(row["log_offset"]), int(row["timer_id"]), criteria.real is not None)


def _timer_id(found: FoundRecord) -> int:
    return found.timer_id


def _newest(
    found: Iterator[FoundRecord], count: int, key_of: Callable[[FoundRecord], int]
) -> dict[int, FoundRecord]:
    """Return the first `count` records with different names."""
    kept: dict[int, FoundRecord] = {}
    for one in found:
        kept.setdefault(key_of(one), one)
        if len(kept) >= count:
            break
    return kept
