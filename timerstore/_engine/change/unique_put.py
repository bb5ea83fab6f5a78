"""Put a message unless an earlier one with the same key is not done ("unique until done").

    put(unique=True)       no earlier message: it is stored
    put(unique=True)       the first is pending, or no group has received it    nothing is stored
    receive                a lease is a timer with a copy of the message
    put(unique=True)       it is leased, waits for a retry, or can be received again    nothing
    ack                    the lease's timer is cancelled
    put(unique=True)       the first is done: it is stored

The newest message with the key decides. It is done when it was cancelled, or when at least one
group has leased it and each group that did so has acknowledged it or made it a dead letter. All
that tells it is in the log: the state of the message's timer, of the newest lease of each group,
and a newer copy in the group's retry topic. So a restart changes nothing, and no progress of a
group is compared.

Thread safety: any thread.
Locking: the lock of the key, during the search and the append, never during a sync.
Invariants:
    1. Of the unique messages with one topic and key at most one is not done.
    2. A message that is not done is durable before its receipt is returned as a duplicate.
Raises: MessageError for invalid arguments; ConfigError without a key index; FullError;
FlowControlError. Nothing was stored then.
On-disk format: property TS_UNIQUE with the key, on the message and on each of its copies. The key
is also one of its KEYS, by which the index finds it.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.message_fields import UNIQUE_PROPERTY
from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.change.keyed_put import (
    KeyedPut,
    KeyedRecord,
    KeyedRecords,
    KeyLocks,
    append_keyed,
    check_keyed_put,
)
from timerstore._engine.format.lease import (
    LEASE_PROPERTY,
    TOPIC_PROPERTY,
    dead_letter_topic,
    group_of,
    read_lease,
    retry_topic,
)
from timerstore._engine.format.store_paths import WHEEL_TIMER_TOPIC
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.write.append import Appender
from timerstore._engine.write.put_requests import PutRequest
from timerstore.clock import Clock
from timerstore.receipts import KeptOrigin, PutReceipt


class _Looked(NamedTuple):
    """The outcome of a look at the records with a key."""

    undone: KeyedRecord | None
    """A record of the message that is not done."""
    over: tuple[int, ...] = ()
    """Log offsets of timers that are over, and by which the message is done."""


class UniquePutting(Owner):
    """Puts unique messages into one store."""

    def __init__(
        self,
        records: KeyedRecords,
        states: TimerStates,
        store_id: int,
        log: CommitLog,
        clock: Clock,
        appender: Appender,
    ) -> None:
        self._records = records
        self._log = log
        self._clock = clock
        self._states = states
        self._store_id = store_id
        self._appender = appender
        self._locks = KeyLocks()

    def put(self, request: PutRequest) -> PutReceipt:
        """Store a message unless one with its key is not done; return the receipt of that one."""
        appender = self._appender
        now_ms = self._clock.now_ms
        given = check_keyed_put(request, appender.config, now_ms, f"{UNIQUE_PROPERTY}\x01\x02")
        is_sync = appender.wants_sync(request.flush)
        with self._locks.of(given.topic, given.key):
            undone = self._undone(given)
            if undone is None:
                receipt = self._append(given, now_ms)
        if undone is not None:
            receipt = self._known(given, undone)
            is_sync = True
        reach("unique_answered")
        if is_sync:
            self._log.sync_through(receipt.log_offset + 1)
        if undone is None:
            appender.appended()
        return receipt

    def _append(self, given: KeyedPut, now_ms: int) -> PutReceipt:
        due_ms = given.due_ms if given.due_ms > now_ms else 0
        text = given.text + f"{UNIQUE_PROPERTY}\x01{given.key}\x02".encode()
        receipt, _ = append_keyed(self._appender, given, due_ms, text, now_ms)
        reach("unique_appended")
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
                return self._judge(timer)
            if _id(timer) == (message_id := message_id or _id(timer)):
                leases.setdefault(group_of(timer.properties["REAL_TOPIC"]) or "", timer)
        if not leases:
            return _Looked(delivered)
        judged = [self._judge_lease(topic, key, group, one, end) for group, one in leases.items()]
        if all(one.undone is None for one in judged):
            return _Looked(None, tuple(at for one in judged for at in one.over))
        return _Looked(delivered or next(iter(leases.values())))

    def _judge(self, timer: KeyedRecord) -> _Looked:
        """Judge by the state of a timer: the message is done if the timer was cancelled."""
        state = self._state(timer)
        if state in (lib.TS_PENDING, lib.TS_DELIVERED):
            return _Looked(timer)
        return _Looked(None, (timer.log_offset,))

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
            if _key(record) == key and (where == topic or properties.get(own) == topic):
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


def _key(record: KeyedRecord) -> str | None:
    return record.properties.get(UNIQUE_PROPERTY)
