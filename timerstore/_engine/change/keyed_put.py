"""Puts with a key: their arguments, the append of a new message, the lock of each key, and the
records that have a key.

Thread safety: any thread.
Locking: `KeyLocks` has one lock for some keys; it is held from the search to the append, never
during a sync.
Raises: MessageError for invalid arguments, ConfigError without a key index. Nothing was changed
then.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from timerstore._engine.base import due_times, message_bodies, message_fields
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import record_fields, scan_one
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.write.append import Appender
from timerstore._engine.write.put_requests import PutRequest
from timerstore._engine.write.targets import check_queue
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, CorruptError, GoneError, MessageError, quoted
from timerstore.messages import parse_properties
from timerstore.receipts import PutReceipt

_LOCKS = 64

Found = TypeVar("Found")


class KeyedPut(NamedTuple):
    """The arguments of a put with a key, after their checks."""

    topic: str
    body: bytes
    key: str
    text: bytes  # encoded properties
    due_ms: int  # as the caller asked; 0: now
    wait_ms: int | None
    queue_id: int | None
    has_priority_0: bool


def check_keyed_put(request: PutRequest, config: StoreConfig, now_ms: int, more: str) -> KeyedPut:
    """Check the arguments of a put with a key.

    more: the property that the caller adds, as long as it can become.
    """
    key = _check_key(request)
    if not config.index_enabled:
        raise ConfigError(
            f"put: {_word(request)} needs the key index, which is off (index_enabled)"
        )
    wait_ms = _wait_ms(request.wait_at_most, config)
    name = message_fields.check_topic(request.topic)
    due_ms = due_times.due_ms_of(
        now_ms, request.delay, request.deliver_at, request.deliver_ms, config
    )
    others = (
        []
        if isinstance(request.keys, str) and not request.keys
        else message_fields.list_of_keys(request.keys)
    )
    keys = [key, *(one for one in others if not isinstance(one, str) or one != key)]
    text = message_fields.encode_properties(
        request.tags, keys, request.properties, request.queue_id
    )
    raw = message_bodies.check_body(request.body, config.message_bytes_max)
    message_fields.check_sizes(
        len(raw),
        len(text) + len(more) + len(key.encode()),
        name,
        properties_bytes_max=config.properties_bytes_max,
        record_bytes_max=config.record_bytes_max,
    )
    check_queue(request.queue_id)
    return KeyedPut(
        request.topic, bytes(raw), key, text, due_ms, wait_ms, request.queue_id,
        request.priority is not None and request.queue_id is None,
    )  # fmt: skip


def append_keyed(
    appender: Appender, put: KeyedPut, due_ms: int, text: bytes, now_ms: int
) -> tuple[PutReceipt, Route]:
    """Append the message with these properties as a new one; return its receipt and its queue.

    due_ms: 0 for now, the time `now_ms`.
    """
    route, origin = appender.place_of(put.topic, put.queue_id)
    log_offset, number, counter = appender.append(
        route.native, put.body, len(put.body), due_ms, text, now_ms
    )
    timer_id, queue_offset = (number, None) if due_ms else (-1, number)
    receipt = PutReceipt(
        origin, counter, timer_id, route.queue_id, queue_offset, log_offset, due_ms or now_ms
    )
    return receipt, route


def _word(request: PutRequest) -> str:
    return "unique" if request.unique else "replace"


def _check_key(request: PutRequest) -> str:
    """Return the key; raise MessageError if the arguments do not belong together."""
    key: object = request.key
    problems, wait_at_most = [], request.wait_at_most
    if not (request.replace or request.unique):
        given = "key" if key is not None else "wait_at_most"
        problems.append(f"replace: wanted True with {given}, got False")
    elif key is None:
        problems.append(f"key: wanted one with {_word(request)}=True, got none")
    if request.replace and request.unique:
        problems.append("replace and unique: wanted at most one of them, got both")
    elif request.unique and wait_at_most is not None:
        problems.append(f"wait_at_most: does not go with unique, got {quoted(wait_at_most)}")
    problems += [
        f"{name}: does not go with key and {_word(request)}, got {quoted(value)}"
        for name, value in (("level", request.level), ("message_id", request.message_id))
        if value is not None
    ]
    if key is not None and (not isinstance(key, str) or not key or key.split() != [key]):
        problems.append(f"key: wanted text without spaces, not empty, got {quoted(key)}")
    if problems:
        raise MessageError(problems)
    return str(key)


def _wait_ms(wait_at_most: Any, config: StoreConfig) -> int | None:
    if wait_at_most is None:
        return None
    try:
        due_ms = due_times.resolve_due_ms(0, wait_at_most, None, None, config.delay_ms_max)
    except MessageError as error:
        texts = [one.replace("delay:", "wait_at_most:", 1) for one in error.problems]
        raise MessageError(texts) from error
    return due_ms or 0


class KeyLocks(Owner):
    """The locks of keys."""

    def __init__(self) -> None:
        self._locks = [Lock() for _ in range(_LOCKS)]

    def of(self, topic: str, key: str) -> Lock:
        """Return the lock of a topic and key. Others may share it."""
        return self._locks[zlib.crc32(f"{topic} {key}".encode()) % _LOCKS]


class KeyedRecord(NamedTuple):
    """A record that may have a key."""

    log_offset: int
    properties: Mapping[str, str]


class KeyedRecords(Owner):
    """Finds the records of one store that have a key."""

    def __init__(
        self,
        dispatch: Dispatch,
        log: CommitLog,
        routes: Routes,
        store_id: int,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._dispatch = dispatch
        self._log = log
        self._routes = routes
        self._store_id = store_id
        self._config = config
        self._clock = clock

    def search(self, look: Callable[[int], Found]) -> Found:
        """Return what `look` finds below the end of the log, which it gets.

        It is called again if a record was moved during the search, or the index was damaged.
        """
        while True:
            try:
                return look(self._end())
            except GoneError:
                continue
            except CorruptError:
                self._dispatch.rebuild(self._store_id)
                return look(self._end())

    def _end(self) -> int:
        with self._log.lock:
            end = self._log.end
        self._dispatch.through(end)
        return end

    def newest_first(self, topic: str, key: str, end: int) -> Iterator[KeyedRecord]:
        """Yield the records of a topic below `end` that may have the key; hashes may collide."""
        index, segments = self._dispatch.index, self._log.segments
        assert index is not None, "check_keyed_put checks it"
        for offsets in index.find(topic.encode(), key.encode()):
            for log_offset in offsets.tolist():
                if segments.begin <= log_offset < end:
                    with segments.view(self._log.written) as view:
                        name, _, text = record_fields(segments, view, log_offset)
                    if name == topic.encode():
                        yield KeyedRecord(log_offset, parse_properties(text))

    def row(self, record: KeyedRecord) -> Any:
        """Return a record as a row of SCAN_DTYPE."""
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            return scan_one(
                segments, view, self._routes, self._config.precision_ms,
                self._clock.now_ms, record.log_offset,
            )  # fmt: skip

    def route(self, row: Any) -> Route:
        """Return the queue of a row; of a timer that in which its message is delivered."""
        return self._routes.by_index[int(row["route"])]
