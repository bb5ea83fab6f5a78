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
from functools import partial
from typing import Any, NamedTuple, TypeVar

from timerstore._engine.base import due_times, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import UNIQUE_PROPERTY
from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import (
    LEASE_PROPERTY,
    TOPIC_PROPERTY,
    dead_letter_topic,
    group_of,
    read_lease,
    retry_topic,
)
from timerstore._engine.format.store_paths import WHEEL_TIMER_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import record_fields, scan_one
from timerstore._engine.queues.routes import Route
from timerstore._engine.write.append import Appender
from timerstore._engine.write.put_requests import PutCheck, PutRequest
from timerstore.errors import ConfigError, CorruptError, GoneError, MessageError, quoted
from timerstore.types.config import StoreConfig
from timerstore.types.messages import parse_properties
from timerstore.types.receipts import KeptOrigin, PutReceipt

# --- keyed put ---


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
    is_sync: bool


def check_keyed_put(
    request: PutRequest, config: StoreConfig, check: PutCheck, now_ms: int, more: str
) -> KeyedPut:
    """Check the arguments of a put with a key.

    more: the property that the caller adds, as long as it can become.
    """
    key = _check_key(request)
    if not config.index_enabled:
        raise ConfigError(
            f"put: {_word(request)} needs the key index, which is off (index_enabled)"
        )
    wait_ms = None
    if request.wait_at_most is not None:
        wait_ms = due_times.span_ms("wait_at_most", request.wait_at_most, config.delay_ms_max)
    others = (
        []
        if isinstance(request.keys, str) and not request.keys
        else message_fields.list_of_keys(request.keys)
    )
    keys = [key, *(one for one in others if not isinstance(one, str) or one != key)]
    more_bytes = len(more) + len(key.encode("utf-8", "surrogatepass"))
    put = check.check(request, now_ms, keys=keys, more_bytes=more_bytes)
    has_priority_0 = request.priority is not None and request.queue_id is None
    return KeyedPut(
        request.topic, bytes(put.body), key, put.text, put.due_ms, wait_ms, request.queue_id,
        has_priority_0, put.is_sync,
    )  # fmt: skip


def append_keyed(
    appender: Appender, put: KeyedPut, due_ms: int, text: bytes, now_ms: int
) -> tuple[PutReceipt, Route]:
    """Append the message with these properties as a new one; return its receipt and its queue.

    due_ms: 0 for now, the time `now_ms`.
    """
    target, route = appender.place_of(put.topic, put.queue_id)
    log_offset, number, counter = appender.append(
        due_ms, lib.ts_put_one, route.native, put.body, len(put.body), due_ms, text, len(text),
        now_ms,
    )  # fmt: skip
    receipt = target.origin.receipt(counter, route.queue_id, number, log_offset, due_ms, now_ms)
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


class KeyLocks(NotCopyable):
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


class KeyedRecords(NotCopyable):
    """Finds the records of one store that have a key."""

    def __init__(self, core: Core, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._log = core.log
        self._routes = core.routes
        self._store_id = core.store_id
        self._config = core.config
        self._clock = core.clock

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
        begin = max(segments.begin, self._routes.deleted_below.get(topic, 0))
        for offsets in index.find(topic.encode(), key.encode()):
            for log_offset in offsets.tolist():
                if begin <= log_offset < end:
                    with segments.view(self._log.written) as view:
                        name, _, text = record_fields(segments, view, log_offset)
                    if name == topic.encode():
                        yield KeyedRecord(log_offset, parse_properties(text))

    def row(self, record: KeyedRecord) -> Any:
        """Return a record as a row of SCAN_DTYPE."""
        segments = self._log.segments
        with segments.view(self._log.written) as view:
            return scan_one(
                segments, view, self._routes, self._clock, self._config.precision_ms,
                record.log_offset,
            )  # fmt: skip

    def route(self, row: Any) -> Route:
        """Return the queue of a row; of a timer that in which its message is delivered."""
        return self._routes.by_index[int(row["route"])]


# --- unique put ---
# Put a message unless an earlier one with the same key is not done ("unique until done").
#
#     put(unique=True)       no earlier message: it is stored
#     put(unique=True)       the first is pending, or no group has received it    nothing is stored
#     receive                a lease is a timer with a copy of the message
#     put(unique=True)       it is leased, waits for a retry, or can be received again    nothing
#     ack                    the lease's timer is cancelled
#     put(unique=True)       the first is done: it is stored
#
# The newest message with the key decides. It is done when it was cancelled, or when at least one
# group has leased it and each group that did so has acknowledged it or made it a dead letter. All
# that tells it is in the log: the state of the message's timer, of the newest lease of each group,
# and a newer copy in the group's retry topic. So a restart changes nothing, and no progress of a
# group is compared.
#
# Thread safety: any thread.
# Locking: the lock of the key, during the search and the append, never during a sync.
# Invariants:
#     1. Of the unique messages with one topic and key at most one is not done.
#     2. A message that is not done is durable before its receipt is returned as a duplicate.
# Raises: MessageError for invalid arguments; ConfigError without a key index; FullError;
# FlowControlError. Nothing was stored then.
# On-disk format: property TS_UNIQUE with the key, on the message and on each of its copies. The key
# is also one of its KEYS, by which the index finds it.
# See also: docs/decisions/0009-leases-replace-and-recurring.md.


class _Looked(NamedTuple):
    """The outcome of a look at the records with a key."""

    undone: KeyedRecord | None
    """A record of the message that is not done."""
    over: tuple[int, ...] = ()
    """Log offsets of timers that are over, and by which the message is done."""


class UniqueWriter(NotCopyable):
    """Puts unique messages into one store."""

    def __init__(self, core: Core, records: KeyedRecords, appender: Appender) -> None:
        self._records = records
        self._log = core.log
        self._clock = core.clock
        self._states = core.states
        self._store_id = core.store_id
        self._appender = appender
        self._check = PutCheck(core.config)
        self._locks = KeyLocks()

    def put(self, request: PutRequest) -> PutReceipt:
        """Store a message unless one with its key is not done; return the receipt of that one."""
        appender = self._appender
        now_ms = self._clock.now_ms
        given = check_keyed_put(
            request, appender.config, self._check, now_ms, f"{UNIQUE_PROPERTY}\x01\x02"
        )
        is_sync = given.is_sync
        with self._locks.of(given.topic, given.key):
            undone = self._undone(given)
            if undone is None:
                due_ms = given.due_ms if given.due_ms > now_ms else 0
                text = given.text + f"{UNIQUE_PROPERTY}\x01{given.key}\x02".encode()
                receipt, _ = append_keyed(appender, given, due_ms, text, now_ms)
                reach("unique_appended")
        if undone is not None:
            receipt = self._known(given, undone)
            is_sync = True
        reach("unique_answered")
        if is_sync:
            self._log.sync_through(receipt.log_offset + 1)
        if undone is None:
            appender.appended()
        return receipt

    # --- the earlier message ---

    def _undone(self, given: KeyedPut) -> KeyedRecord | None:
        """Return a record of the message with the key that is not done, or None.

        Moving a timer ends it and appends its successor in one step. A look that finds a timer over
        may have read the log before that step, so another look must find the same.
        """
        over: tuple[int, ...] = ()
        while True:
            looked = self._records.search(partial(self._look, given.topic, given.key))
            if looked.undone is not None or looked.over == over:
                return looked.undone
            over = looked.over

    def _look(self, topic: str, key: str, end: int) -> _Looked:
        delivered = next(self._with_key(topic, topic, key, end), None)
        begin = -1 if delivered is None else delivered.log_offset
        message_id = None if delivered is None else _id(delivered)
        leases: dict[str, KeyedRecord] = {}  # the newest of each group
        for timer in self._with_key(WHEEL_TIMER_TOPIC, topic, key, end):
            if timer.log_offset < begin:
                break
            if LEASE_PROPERTY not in timer.properties:  # newer than the delivered message
                # It is done if it was cancelled.
                is_undone = self._state(timer) in (lib.TS_PENDING, lib.TS_DELIVERED)
                return _Looked(timer) if is_undone else _Looked(None, (timer.log_offset,))
            if _id(timer) == (message_id := message_id or _id(timer)):
                leases.setdefault(group_of(timer.properties["REAL_TOPIC"]) or "", timer)
        if not leases:
            return _Looked(delivered)
        judged = [self._judge_lease(topic, key, group, one, end) for group, one in leases.items()]
        if all(one.undone is None for one in judged):
            return _Looked(None, tuple(at for one in judged for at in one.over))
        return _Looked(delivered or next(iter(leases.values())))

    def _judge_lease(
        self, topic: str, key: str, group: str, lease: KeyedRecord, end: int
    ) -> _Looked:
        """Judge by the newest lease of a group."""
        is_last = lease.properties["REAL_TOPIC"] == dead_letter_topic(group)
        state = self._state(lease)
        if state == lib.TS_PENDING or (state == lib.TS_DELIVERED and not is_last):
            return _Looked(lease)
        for again in self._with_key(retry_topic(topic, group), topic, key, end):
            if again.log_offset < lease.log_offset:
                break
            if _id(again) == _id(lease):
                return _Looked(again)  # given back, or put there again from the dead letters
        return _Looked(None, (lease.log_offset,))

    def _with_key(self, where: str, topic: str, key: str, end: int) -> Iterator[KeyedRecord]:
        """Yield the unique messages of a topic with the key, and their copies, newest first.

        where: the topic, that of the timers, or a retry topic.
        """
        for record in self._records.newest_first(where, key, end):
            properties = record.properties
            own = TOPIC_PROPERTY if LEASE_PROPERTY in properties else "REAL_TOPIC"
            if properties.get(UNIQUE_PROPERTY) == key and (
                where == topic or properties.get(own) == topic
            ):
                yield record

    def _state(self, timer: KeyedRecord) -> int:
        return int(self._states.get(self._states.id_of(self._records.row(timer), self._store_id)))

    def _known(self, given: KeyedPut, record: KeyedRecord) -> PutReceipt:
        """Return the receipt of a message that is not done."""
        config = self._appender.config
        origin = KeptOrigin(given.topic, _id(record), config.broker_name, config.precision_ms)
        lease = read_lease(record.properties.get(LEASE_PROPERTY, ""))
        if lease is not None:  # retention has removed the message itself
            return PutReceipt(
                origin, 0, -1, lease.queue_id, lease.queue_offset, record.log_offset,
                lease.due_ms, duplicate=True,
            )  # fmt: skip
        row = self._records.row(record)
        is_waiting = row["kind"] == lib.TS_KIND_TIMER
        return PutReceipt(
            origin,
            0,
            self._states.id_of(row, self._store_id) if is_waiting else -1,
            self._records.route(row).queue_id,
            None if is_waiting else int(row["queue_offset"]),
            record.log_offset,
            int(row["due_ms"]) or int(row["store_ms"]),
            duplicate=True,
        )


def _id(record: KeyedRecord) -> str:
    return record.properties.get("UNIQ_KEY", "")
