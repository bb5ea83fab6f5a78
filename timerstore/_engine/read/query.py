"""Query: messages by key, by message id, by offset message id; those that wait, too.

    V = what is visible            then the index reaches V
    waiting = sources in the timer topic for this topic, below V, whose id waits
    E = the log's end              then the index reaches E
    future = deliveries in [V, E): the sources of these wait, for who sees only what lies below V;
             and so do those that were cancelled or rescheduled there (queues/pending_removals.py)
    there = messages in the topic itself, below V

Whatever is handed over or moved meanwhile: each message is seen once, as it was at V. Its source
below V is looked at first; a delivery or another time that came in between lies behind V.

Threads:  any.
Holds:    what is given has the key and lies in the topic, or is on its way there; nothing twice.
Fails:    MessageError on arguments; ConfigError where the index is off; a damaged index is built
          anew, once, before anything is raised.
See also: docs/decisions/0006-index-and-queries.md.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.argument_types import whole
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import real_queue
from timerstore._engine.format.store_paths import (
    QUEUE_COUNT_MAX,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    topic_component,
    whole_number,
)
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.pending_removals import Reading, Removals
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.page import PULLED
from timerstore._engine.read.queue_reader import Reader
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, CorruptError, GoneError, MessageError, quoted, typed
from timerstore.messages import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    Message,
    host_text,
    parse_properties,
)
from timerstore.receipts import make_handle

KEY_BYTES_MAX = 32_767
"""What a record's properties hold: no key is longer."""

_SYSTEM_TOPICS = (WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC)
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1
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


class Query(NamedTuple):
    """Checked arguments."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_count: int


class _Found(NamedTuple):
    log_offset: int
    timer_id: int  # -1: of no timer
    waits: bool


class _Wanted(NamedTuple):
    """What a record must be; `real`: on its way to this topic."""

    topic: str
    key: bytes | None
    real: str | None
    by_state: bool
    also: Any
    begin_ms: int
    end_ms: int


def check_query(topic: Any, key: Any, begin_ms: Any, end_ms: Any, max_count: Any) -> Query:
    """Give the arguments as they are meant; MessageError with all that is wrong with them."""
    problems = []
    try:
        if topic_component(topic) != topic:
            raise AssertionError
    except (TypeError, MessageError):
        problems.append(f"topic: wanted 1 to 255 of A-Za-z0-9%_|-, got {quoted(topic)}")
    problems.extend(_key_problems(key))
    times = []
    for name, value, otherwise in (
        ("begin_ms", begin_ms, _TIME_MIN),
        ("end_ms", end_ms, _TIME_MAX),
    ):
        number = otherwise if value is None else whole(value)
        if number is None:
            problems.append(f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}")
            number = otherwise
        times.append(min(max(number, _TIME_MIN), _TIME_MAX))
    if times[0] > times[1]:
        problems.append(f"begin_ms: wanted at most end_ms ({end_ms}), got {begin_ms}")
    count = whole(max_count)
    if count is None or count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    if problems:
        raise MessageError(problems)
    return Query(topic, key, times[0], times[1], count or 0)


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


class Querier(Owner):
    """Looks up messages of one store."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatch: Dispatch,
        removals: Removals,
        routes: Routes,
        states: Any,
        store_id: int,
    ) -> None:
        self._config = config
        self._log = log
        self._dispatch = dispatch
        self._removals = removals
        self._routes = routes
        self._states = states  # ts_states *
        self._store_id = store_id
        self._reader = Reader(config, log)

    def query(self, query: Query) -> list[Message]:
        """Give the newest messages that have the key, in order of the log."""
        while True:
            try:
                return self._query(query)
            except GoneError:
                continue  # retention has overtaken it: the log begins elsewhere now

    def _query(self, query: Query) -> list[Message]:
        by_offset = self._by_offset_id(query)
        if self._dispatch.index is None:
            if by_offset:
                return by_offset
            raise ConfigError("query: the index is switched off (index_enabled)")
        found = by_offset + self._by_key_surely(query)
        by_place = {message.log_offset: message for message in found}
        return [by_place[place] for place in sorted(by_place)][-query.max_count :]

    def _by_key_surely(self, query: Query) -> list[Message]:
        """What is damaged is built anew from the log, once."""
        try:
            return self._by_key(query)
        except GoneError:
            raise
        except CorruptError as error:
            logging.getLogger("timerstore.read").warning("index=anew error=%r", str(error))
            self._dispatch.rebuild(self._store_id)
            return self._by_key(query)

    # --- by key ---

    def _by_key(self, query: Query) -> list[Message]:
        with self._removals.reading(lambda: self._reader.visible_end) as reading:
            return self._by_key_at(query, reading)

    def _by_key_at(self, query: Query, reading: Reading) -> list[Message]:
        visible_end = reading.visible_end
        self._dispatch.through(visible_end)
        wanted = _Wanted(
            query.topic, query.key.encode(), None, False, None, query.begin_ms, query.end_ms
        )
        is_system = query.topic in _SYSTEM_TOPICS
        waiting = {} if is_system else self._waiting(wanted, visible_end, query.max_count)
        with self._log.lock:
            end = self._log.end
        self._dispatch.through(end)
        if not is_system:
            future = self._future(wanted, visible_end) | reading.hidden()
            future -= waiting.keys()
            if future:
                also = np.array(sorted(future), np.int64)
                again = wanted._replace(also=also)
                waiting |= self._waiting(again, visible_end, query.max_count + len(future))
        found = list(waiting.values())
        if not is_system:
            found += self._on_level(wanted, visible_end, query.max_count)
        there = self._walk(wanted, below=visible_end)
        found += _newest(there, query.max_count, lambda one: one.log_offset).values()
        found.sort()
        return [self._read(one) for one in found[-query.max_count :]]

    def _waiting(self, wanted: _Wanted, below: int, count: int) -> dict[int, _Found]:
        """By timer id: of a message that rolled, the copy that waits now."""
        sources = wanted._replace(topic=WHEEL_TIMER_TOPIC, real=wanted.topic, by_state=True)
        copies = self._walk(sources, below=below)
        at_any_time = sources._replace(begin_ms=_TIME_MIN, end_ms=_TIME_MAX)
        if at_any_time != sources:  # an older copy may lie in that time, and the one that waits not
            every = _newest(self._walk(at_any_time, below=below), _TIME_MAX, _timer_id)
            copies = (one for one in copies if every.get(one.timer_id) == one)
        return _newest(copies, count, _timer_id)

    def _future(self, wanted: _Wanted, visible_end: int) -> set[int]:
        """Ids of timers whose delivery is in the log, but not visible."""
        at_any_time = wanted._replace(begin_ms=_TIME_MIN, end_ms=_TIME_MAX)
        found = self._walk(at_any_time, from_=visible_end)
        return {one.timer_id for one in found if one.timer_id >= 0}

    def _on_level(self, wanted: _Wanted, below: int, count: int) -> list[_Found]:
        """What waits for a fixed delay: no copy of it is in its topic, as far as is visible."""
        sources = wanted._replace(topic=SCHEDULE_TOPIC, real=wanted.topic)
        found = (
            one for one in self._walk(sources, below=below) if self._waits_on_level(one, below)
        )
        return list(_newest(found, count, lambda one: one.log_offset).values())

    def _waits_on_level(self, found: _Found, below: int) -> bool:
        message = self._read(found)
        if real_queue(message.properties) is None:
            return False  # it will be passed over
        if not message.message_id:
            return True  # nothing tells its copy from others
        id_bytes = message.message_id.encode()
        copies = _Wanted(message.topic, id_bytes, None, False, None, _TIME_MIN, _TIME_MAX)
        return next(self._walk(copies, below=below), None) is None

    def _walk(self, wanted: _Wanted, *, from_: int = 0, below: int = _TIME_MAX) -> Iterator[_Found]:
        """Give the messages that fit and lie in [from_, below) of the log, newest first."""
        index = self._dispatch.index
        assert index is not None, "the caller has looked"
        assert wanted.key is not None, "without a key there is nothing to look up"
        from_ = max(from_, self._log.segments.begin)
        for part in index.find(
            wanted.topic.encode("ascii"), wanted.key, wanted.begin_ms, wanted.end_ms
        ):
            offsets = part[(part >= from_) & (part < below)]
            for row in self._check(wanted, offsets):
                if int(row["log_offset"]) + int(row["size"]) <= below:
                    yield _found(wanted, row)
            if len(part) and int(part[-1]) < from_:
                return

    def _check(self, wanted: _Wanted, offsets: Any) -> Rows:
        """Of records at these places those that fit."""
        query = ffi.new("ts_query *")
        names = ("topic", wanted.topic.encode("ascii")), ("key", wanted.key)
        real = None if wanted.real is None else wanted.real.encode("ascii")
        kept = []  # what the struct points to
        for name, text in (*names, ("real", real)):
            if text is not None:
                kept.append(ffi.from_buffer("uint8_t[]", text))
                setattr(query, name, kept[-1])
                setattr(query, f"{name}_size", len(text))
        if wanted.by_state:
            query.states = self._states
        if wanted.also is not None:
            kept.append(ffi.from_buffer("int64_t[]", wanted.also))
            query.also, query.also_count = kept[-1], len(wanted.also)
        query.begin_ms, query.end_ms = wanted.begin_ms, wanted.end_ms
        query.store_id = self._store_id
        return self._checked(query, np.ascontiguousarray(offsets))

    def _checked(self, query: Any, offsets: Any) -> Rows:
        rows = np.empty(len(offsets), _FOUND)
        matched = ffi.new("int32_t *")
        done = kept = 0
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            while done < len(offsets):
                got = lib.ts_index_check(
                    view,
                    query,
                    ffi.from_buffer("int64_t[]", offsets) + done,
                    len(offsets) - done,
                    ffi.cast("ts_found *", ffi.from_buffer(rows)) + kept,
                    matched,
                )
                if got < 0:
                    segments.serve(view, got, "query")
                else:
                    done += got
                    kept += matched[0]
        return rows[:kept]

    # --- by offset message id ---

    def _by_offset_id(self, query: Query) -> list[Message]:
        """The one message that an offset message id names: store host, port, log offset."""
        try:
            raw = bytes.fromhex(query.key)
        except ValueError:
            return []
        if len(query.key) not in (32, 56) or not query.key.isalnum():
            return []
        with self._removals.reading(lambda: self._reader.visible_end) as reading:
            return self._at_place(query, raw[:-8], int.from_bytes(raw[-8:], "big"), reading)

    def _at_place(self, query: Query, host: bytes, place: int, reading: Reading) -> list[Message]:
        visible_end = reading.visible_end
        segments = self._log.segments
        if not segments.begin <= place < visible_end:
            return []
        self._dispatch.through(visible_end)
        for wanted in _at_offset(query, reading):
            for row in self._rows_at(wanted, place, visible_end):
                found = _found(wanted, row)
                message = self._read(found)
                if message.store_host != host_text(host, len(host) == 20):
                    continue
                if (
                    wanted.topic != SCHEDULE_TOPIC
                    or not found.waits
                    or (self._dispatch.index is None or self._waits_on_level(found, visible_end))
                ):
                    return [message]
        return []

    def _rows_at(self, wanted: _Wanted, place: int, visible_end: int) -> Iterable[Any]:
        try:
            rows = self._check(wanted, np.array([place], np.int64))
        except CorruptError:  # no record begins there
            return []
        return [
            row
            for row in rows
            if place + int(row["size"]) <= visible_end and self._is_queued(wanted.topic, row)
        ]

    def _is_queued(self, topic: str, row: Any) -> bool:
        """Whether a queue leads there: bytes in a body may look like a record, too."""
        route = self._routes.get(topic, int(row["queue_id"]))
        offset = int(row["queue_offset"])
        if route is None or not route.queue.min_offset <= offset < route.queue.count:
            return False
        return int.from_bytes(route.queue.read(offset, 1)[:8], "big") == int(row["log_offset"])

    # --- messages ---

    def _read(self, found: _Found) -> Message:
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
                    segments.serve(view, size, "query")
        row = pulled[0]
        name = bytes(ffi.buffer(topic, size)).decode("ascii")
        return self._message(found, row, name, body, properties)

    def _level_due_ms(self, queue_id: int, queue_offset: int) -> int:
        """A level's unit says when its message is due."""
        route = self._routes.get(SCHEDULE_TOPIC, queue_id)
        if route is None:
            raise CorruptError(
                "query: a record says a level's queue that is not there",
                where=f"topic {SCHEDULE_TOPIC} queue {queue_id}",
            )
        return int.from_bytes(route.queue.read(queue_offset, 1)[12:20], "big", signed=True)

    def _message(self, found: _Found, row: Any, topic: str, body: Any, properties: Any) -> Message:
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


def _at_offset(query: Query, reading: Reading) -> Iterator[_Wanted]:
    """What the record at an offset may be, one after the other."""
    plain = _Wanted(query.topic, None, None, False, None, query.begin_ms, query.end_ms)
    yield plain
    if query.topic not in _SYSTEM_TOPICS:
        real = plain._replace(real=query.topic)
        timer = real._replace(topic=WHEEL_TIMER_TOPIC, by_state=True)
        yield timer
        yield timer._replace(also=np.array(sorted(reading.hidden()), np.int64))
        yield real._replace(topic=SCHEDULE_TOPIC)


def _found(wanted: _Wanted, row: Any) -> _Found:
    return _Found(int(row["log_offset"]), int(row["timer_id"]), wanted.real is not None)


def _timer_id(found: _Found) -> int:
    return found.timer_id


def _newest(
    found: Iterator[_Found], count: int, name: Callable[[_Found], int]
) -> dict[int, _Found]:
    """The first `count` of different names."""
    kept: dict[int, _Found] = {}
    for one in found:
        kept.setdefault(name(one), one)
        if len(kept) >= count:
            break
    return kept
