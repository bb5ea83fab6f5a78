"""The public calls of a store. Each signature and docstring is stated here once.

`TimerStore`, `ShardedStore` and `ReadOnlyStore` implement them in methods named `_do_...`.
`timerstore.aio` has the same calls as coroutines. A call with many arguments passes them on as one
value: PutRequest, BatchRequest, PullRequest, RecurringRequest.

Thread safety: every call may be made from any thread.

Raises:
    In addition to the errors named for each call, every call raises ClosedError after `close`,
        ForkedError in a forked child process, and FailedError once a sync or a file of the store
        has failed. Calls that write raise FullError if the disk is full.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from timerstore._engine.base.owner import Closing
from timerstore._engine.leases import (
    AckResult,
    Backoff,
    DeadLetter,
    LeaseConsumer,
    LeasedMessage,
)
from timerstore._engine.leases.lease_consumer import Heartbeat
from timerstore._engine.leases.receive_request import ReceiveRequest, lease_s
from timerstore._engine.read.pull_request import PullRequest
from timerstore._engine.read.waiting import WaitingPull
from timerstore._engine.recurring.definition import RecurringRequest
from timerstore._engine.write.put_requests import BatchRequest, PutRequest
from timerstore.errors import plain
from timerstore.types.messages import Message, MessageBatch, PullResult
from timerstore.types.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    GroupBacklog,
    Histogram,
    PendingTimer,
    Report,
)

Receipt = TypeVar("Receipt")
Batch = TypeVar("Batch")
Found = TypeVar("Found")
Leased = TypeVar("Leased", bound=LeasedMessage)
Recurs = TypeVar("Recurs")
GroupReader = TypeVar("GroupReader")
Waiting = TypeVar("Waiting")


class StoreApi(Closing, Generic[Receipt, Batch, Found, Leased, Recurs, GroupReader, Waiting]):
    """The calls that every kind of store has.

    Names and other texts may be of a subclass of str; they are made plain here (errors.plain), so
    that no store keeps an object of the caller's class.

    The type parameters are the types that a kind of store returns: the receipt of one message, the
    receipts of a batch, a stored message, a leased message, a recurring definition, a group's
    consumer, and a `receive` that has begun.
    """

    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        deliver_ms: int | None = None,
        level: int | None = None,
        spread: timedelta | float | None = None,
        tags: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        message_id: str | None = None,
        flush: str | None = None,
        key: str | None = None,
        replace: bool = False,
        wait_at_most: timedelta | float | None = None,
        priority: int | None = None,
        unique: bool = False,
        check_after: timedelta | float | None = None,
        message_group: str | None = None,
        expires_ms: int | None = None,
    ) -> Receipt:
        """Store one message and deliver it to its topic at its due time.

        On return the message is durable (`flush="sync"`), or it survives a crash of the process but
        not a power cut (`flush="async"`). Without `flush`, `StoreConfig.flush` applies. A message
        without a due time is delivered at once. No message is delivered before its due time.

        topic: 1 to 127 ASCII letters, digits, `%`, `_`, `-` and `|`.

        body: at most `StoreConfig.message_bytes_max` bytes.

        Give at most one of the following. 0, less than 0 and a time in the past mean now. The
        largest delay is `StoreConfig.delay_ms_max`.
            delay: seconds or a timedelta, 0 or more.
            deliver_at: an aware datetime. A local time that a change of clocks skips uses the
                offset before the change.
            deliver_ms: milliseconds since 1970. A value between 0 and the year 2000 raises
                MessageError, because it is most often a number of seconds, unless the store's clock
                itself is before 2000.
            level: 1 for the first delay of `StoreConfig.level_delays`, 2 for the second, and so on.
                A larger number means the last delay. Such a message has no handle and cannot be
                cancelled.

        spread: seconds or a timedelta. The due time is drawn uniformly from this window, which
        begins at the given time.

        tags: one tag, which `pull(tags=...)` can name. It must not contain "||" or control
        characters, begin or end with a space, or be "*".

        keys: one key or several, by which `query` finds the message.

        properties: names and values, which SQL filters can test.

        queue_id: the queue of the topic, 0 to 1023. By default the store chooses it.

        message_id: at most 128 bytes. If the same id was put to this topic within
        `StoreConfig.dedupe_window_ms`, nothing is stored. The call then returns the receipt of the
        first put, with `duplicate` set, and that first message is durable. If the first message has
        other contents, the call raises ConflictError (`StoreConfig.dedupe`). These are body, tags,
        keys and properties, and the due time if `deliver_at` or `deliver_ms` give it.

        key, replace: with `replace=True` the message replaces the pending message of this topic
        that has the same `key`, in one step. The replaced message counts as cancelled. `key`
        becomes one of the message's keys. The message goes to the queue of the message that it
        replaces.

        wait_at_most: with `replace=True`, seconds or a timedelta from 0 to `delay_ms_max`. A chain
        of messages that replace each other is delivered at the latest this long after its first
        message. If several bounds were given, the shortest applies.

        expires_ms: milliseconds since 1970, after the due time. From then on groups and `query`
        drop the message: `receive`, consumers and retries pass over it, and `stats` counts it as
        expired. It is no dead letter. `pull` still returns it, with its `expires_ms`. Not with
        `level`, `spread` and `unique`.

        key, unique: with `unique=True` nothing is stored while the earlier unique message of this
        topic with the same `key` is not done. The call then returns the receipt of that message,
        with `duplicate` set, and that message is durable. A message is done when it was cancelled,
        or when at least one group has leased it and each group that did so has acknowledged it or
        made it a dead letter. So a message that no group receives, or that is read with `pull`
        only, is not done until retention removes it. `key` becomes one of the message's keys.

        priority: 0 to 9; `receive` takes higher ones first. None and 0 mean no priority, the
        lowest. The first message with a priority gives its topic a queue for each priority; until
        then all messages of the topic must be in queue 0. Cannot be combined with `queue_id`. With
        `replace=True` it must be that of the replaced message, which is also the default.

        check_after: seconds or a timedelta. The message is a half message: no consumer of the topic
        gets it before `commit`. If neither `commit` nor `rollback` came after this time, the
        message is due for its check: it is delivered to the topic `%HALF%<topic>`, and a producer
        that receives it there commits it or rolls it back by its lease. It goes with tags, keys,
        properties, message_id and flush only.
        message_group: 1 to 128 bytes of UTF-8. `receive(ordered=True)` hands out the messages of
        one group one after another, in the order in which they were delivered to the topic. Cannot
        be combined with `queue_id` and `priority`, and the topic must have no priorities: a message
        group has one of 16 queues of its topic.

        Raises:
            MessageError: an argument is invalid; nothing was stored.
            FullError: the disk is full; nothing was stored.
            ConflictError: `message_id` was put before, with other contents; nothing was stored.
            FlowControlError: `StoreConfig.slot_messages_max` messages wait for the same slot
                already.
            BusyError: `StoreConfig.dedupe_ids_max` message ids are remembered already.
        """
        return self._do_put(
            PutRequest(
                topic,
                body,
                delay,
                deliver_at,
                deliver_ms,
                level,
                spread,
                tags,
                keys,
                properties,
                queue_id,
                message_id,
                flush,
                key,
                replace,
                wait_at_most,
                priority,
                unique,
                check_after,
                message_group,
                expires_ms,
            )
        )

    def put_many(
        self,
        topic: str,
        bodies: Any,
        *,
        deliver_ms: Any = None,
        delay: Any = None,
        spread: timedelta | float | None = None,
        tags: str | None = None,
        keys: Sequence[Any] | None = None,
        message_ids: Any = None,
        queue_id: int | None = None,
        atomic: bool = False,
        flush: str | None = None,
        level: int | None = None,
        priority: Any = None,
    ) -> Batch:
        """Store many messages of one topic and queue, in the given order.

        On return all of them are as durable as after `put`. All arguments are checked before any
        message is stored. After a crash during the call, a prefix of the batch may be stored.

        bodies: a list of bytes-like objects, or a pair of one buffer and an array of count + 1
        offsets into it.

        deliver_ms, delay: as for `put`, one value for all messages or one for each. An error names
        the index of the message.

        level, spread, tags, queue_id, flush: as for `put`, the same for all messages. With `spread`
        the due times are distributed evenly over the window, in the order of the messages.

        keys: one entry for each body, which is a key or a sequence of keys.

        message_ids: one entry for each body, which is an id as for `put`, or None; or a pair of one
        UTF-8 buffer and an array of offsets.

        atomic: store all messages or none, after any crash. The records may take at most
        `StoreConfig.group_bytes_max` bytes. With `message_ids`, either all ids were put before, or
        none of them.

        priority: as for `put`, one value for all messages or one for each. The messages are stored
        in the order of the batch, and each run of equal priorities takes an append of its own.
        `atomic` needs one priority.

        Raises:
            MessageError: an argument is invalid, or an atomic batch is too large; nothing was
                stored.
            FullError: the disk is full. The first `stored_count` messages are stored, and are as
                durable as after a call that succeeds.
            FlowControlError, BusyError: as for `put`, with `stored_count` as for FullError.
            ConflictError: an id was put before, or stands twice, with other contents. Nothing was
                stored. Exception: if another thread put the id during this call, the other messages
                of a non-atomic batch may be stored. Each shard decides separately.
        """
        return self._do_put_many(
            BatchRequest(
                topic,
                bodies,
                deliver_ms,
                delay,
                spread,
                tags,
                keys,
                message_ids,
                queue_id,
                atomic,
                flush,
                level,
                priority,
            )
        )

    def topics(self) -> dict[str, int]:
        """Return the queue count of every topic, including system topics."""
        return self._do_topics()

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 32,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        shard: int | None = None,
    ) -> PullResult:
        """Return messages of one queue, beginning at a queue offset.

        If no message is there, wait up to `wait` seconds for the first. Whatever the status of the
        result is, the next pull should begin at its `next_offset`. A pull changes nothing. By
        default a message becomes visible only after it is durable (`StoreConfig.visibility`).

        If messages are there but none of those that were checked matches the filter, the pull
        returns at once, whatever `wait` is: with NO_MATCHED_MESSAGE, no messages, and the
        `next_offset` after them. One pull checks up to 65,536 messages with `tags` and 1,024 with
        `sql`, or `max_count` if that is more. A pull that begins at the end of the queue waits.
        Then messages that do not match do not end its wait, and it returns for the first one that
        matches, or after `wait` seconds with the `next_offset` after all that it checked.

        offset: the queue offset of the first message, 0 or more.

        max_count: the largest number of messages to return, 1 or more.

        wait: seconds, 0 or more.

        tags: return only messages that have one of these tags, as in "a || b"; "*" means all.

        sql: return only messages whose properties satisfy this SQL92 condition, as in "amount > 5
        AND TAGS = 'paid'".

        shard: the shard whose queue is read. A ShardedStore requires it; other stores reject it.

        Raises:
            MessageError: an argument is invalid, there is no such queue, or a filter does not
                parse.
            ConfigError: `sql` was given and the package lark is not installed.
        """
        return self._do_pull(
            PullRequest(topic, queue_id, offset, max_count, wait, tags, sql, shard)
        )

    def pull_batch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 10_000,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        shard: int | None = None,
    ) -> MessageBatch:
        """Return messages of one queue as columns. Otherwise as `pull`."""
        return self._do_pull_batch(
            PullRequest(topic, queue_id, offset, max_count, wait, tags, sql, shard)
        )

    def begin_pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 32,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        shard: int | None = None,
    ) -> WaitingPull[PullResult]:
        """Begin a `pull` whose waiting is done by the caller, as `begin_receive`."""
        return self._do_begin_pull(
            PullRequest(topic, queue_id, offset, max_count, wait, tags, sql, shard)
        )

    def begin_pull_batch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int = 10_000,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        shard: int | None = None,
    ) -> WaitingPull[MessageBatch]:
        """Begin a `pull_batch` whose waiting is done by the caller."""
        return self._do_begin_pull_batch(
            PullRequest(topic, queue_id, offset, max_count, wait, tags, sql, shard)
        )

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max_count: int = 64,
    ) -> list[Found]:
        """Return the newest messages of a topic that have a key, oldest first.

        Pending messages are included; for those `Message.waits` is true.

        key: one of a message's keys, its message id, or an offset message id (store host, port and
        log offset in hexadecimal).

        begin_ms, end_ms: return only messages stored in [begin_ms, end_ms), in milliseconds since
        1970. For a delayed message that has been delivered, the time of delivery counts.

        max_count: the largest number of messages to return. Reading ends with the message with
        which they have 64 MiB or more.

        Raises:
            MessageError: an argument is invalid.
            ConfigError: the store keeps no index (`StoreConfig.index_enabled`).
        """
        return self._do_query(
            plain(topic), plain(key), plain(begin_ms), plain(end_ms), plain(max_count)
        )

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        queues: Sequence[int] | None = None,
        tags: str | None = None,
        sql: str | None = None,
        wait: float | None = None,
    ) -> GroupReader:
        """Return a consumer that reads a topic for a group, from the offsets that the group
        committed.

        A new group begins at the first message. The topic may be created later. The consumers that
        a group has in this process share the topic's queues; each queue belongs to one consumer.

        queues: read these queues instead of a share of all queues.

        tags, sql: filters as for `pull`. All consumers of a group must use the same filters.

        wait: how many seconds an iteration waits for the next message; None means without limit.

        Raises:
            MessageError: an argument is invalid, or the group leases messages of this topic in
                this process (`receive`), or the topic holds the retries of such leases.
        """
        return self._do_consumer(
            plain(topic), plain(group), queues, plain(tags), plain(sql), plain(wait)
        )

    def receive(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        lease: timedelta | float = 30.0,
        max_count: int = 1,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        max_attempts: int | None = 16,
        backoff: Backoff | Sequence[float] | float | None = None,
        ordered: bool = False,
        ack: Iterable[str | LeasedMessage] = (),
    ) -> list[Leased]:
        """Lease the next messages of a topic to the caller, on behalf of a group.

        If no message is there, wait up to `wait` seconds for the first, then return an empty list.
        A leased message is invisible to other callers of the group until its lease ends.
        Acknowledge its receipt with `ack` before that. Otherwise it is delivered again, to any
        caller of the group, with an `attempt` that is one higher. On return the leases are as
        durable as a put. A new group begins at the first message. All callers in one process share
        the group's position.

        Messages of higher priorities come first (`put(priority=)`). Each 10th message that the
        group takes from a topic is of the priority that was served least recently, so none starves.
        Messages of one priority come in the order of their delivery; their retries, which keep
        their priority, take turns with them.

        topic: a topic, or 1 to 1,000 topics. Several topics take turns: a call begins after the
        topic of the last messages that the previous call returned, and waits for all of them.
        `max_count` is for all together. Callers with different topics share each topic's position.

        lease: seconds or a timedelta, above 0, at most `StoreConfig.delay_ms_max`.

        max_count: the largest number of messages to lease, 1 to 10,000.

        wait: seconds, 0 or more.

        tags, sql: filters as for `pull`. A message that does not match is skipped for good, so all
        callers that wait at the same time must use the same filters.

        max_attempts: 1 to 1,000,000; None means no limit. After its last attempt a message goes to
        the topic `%DLQ%<group>`.

        backoff: the delay before a message that `nack` returned is delivered again: a Backoff,
        seconds, or a list of seconds by attempt. None means 1 s, doubling to 600 s, each shortened
        at random by up to a fifth.

        ordered: hand out no message while an earlier one of its message group
        (`put(message_group=)`) is leased or waits for its retry. So a call returns at most one
        message of each message group. A message is over when it is acknowledged or becomes a dead
        letter; a requeued dead letter comes at once. The message that must wait keeps back the
        later ones of its queue, which holds one of 16 parts of the message groups. Messages without
        a message group are not kept in order. Priorities have no effect. All callers of a group
        must use the same value; another one is rejected while a call waits.

        ack: leased messages, or their receipts, to acknowledge first, with the sync and the round
        trip of this call. Their results are not returned; an invalid one is an error.

        Raises:
            MessageError: an argument is invalid, a message leaves no space for the properties of
                its lease, a consumer reads the topic for this group in this process, or another
                caller of the group waits with other filters.
            FullError, FlowControlError: nothing was leased.
        """
        return self._do_receive(
            ReceiveRequest(
                topic,
                group,
                lease,
                max_count,
                wait,
                tags,
                sql,
                max_attempts,
                backoff,
                ordered,
                ack,
            )
        )

    def begin_receive(self, topic: str | Sequence[str], group: str, **options: Any) -> Waiting:
        """Begin a `receive` whose waiting is done by the caller, with its arguments.

        An embedded store returns what timerstore.aio waits for. A connected store returns an object
        for any event loop: `fileno()` is a descriptor that becomes readable when the answer is
        there, `take()` returns the answer, or None as long as there is none, and `cancel()` gives
        up; messages that were leased for it go to others. Call `take` every few seconds, too. It
        raises ConnectionLostError if the connection is lost: begin again.
        """
        return self._do_begin_receive(ReceiveRequest.from_options(topic, group, options))

    def lease_consumer(
        self,
        topic: str | Sequence[str],
        group: str,
        *,
        wait: float | None = None,
        **options: Any,
    ) -> LeaseConsumer[Leased]:
        """Return an iterator that leases one message at a time.

        wait: how many seconds an iteration waits for the next message; None means without limit.
        All other arguments are those of `receive`, except `max_count` and `ack`.

        Raises:
            MessageError: `max_count`, `ack` or an argument that `receive` does not have was given.
        """
        return self._do_lease_consumer(plain(topic), plain(group), plain(wait), options)

    def ack(self, receipt: str | LeasedMessage) -> AckResult:
        """Acknowledge a leased message: the group has processed it.

        Return ACKED; EXPIRED if the lease has ended and the message is delivered again; SETTLED if
        this receipt was used before; or UNKNOWN if there is no such lease. The result is as durable
        as a `put`: with `flush="async"` a power cut can take it back, and the message is delivered
        again.

        Raises:
            MessageError: `receipt` is not a receipt.
        """
        return self._do_ack(receipt)

    def ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        """Acknowledge many leased messages with one sync. Return the result of `ack` for each, in
        order.

        All receipts are checked first. The error names the first that is invalid, and no message is
        acknowledged.

        Raises:
            MessageError: one of `receipts` is not a receipt.
        """
        return self._do_ack_many(receipts)

    def nack(
        self,
        receipt: str | LeasedMessage,
        *,
        delay: timedelta | float | None = None,
        error: str | None = None,
    ) -> AckResult:
        """Return a leased message, so that it is delivered again.

        If this was its last attempt, the message goes to the dead letters at once. Return NACKED,
        or the result that `ack` would return. The change is one step, which no crash splits, and
        durable on return.

        delay: seconds or a timedelta until it is delivered again. 0 means at once, None the
        `backoff` of its `receive`.

        error: why the attempt failed, for `DeadLetter.error` if the message becomes a dead letter.
        The last one counts. Its first 1,024 bytes of UTF-8 are kept, with spaces in place of
        control characters; nothing is kept if the properties of the message leave no space.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_nack(receipt, delay, error)

    def extend(self, receipt: str | LeasedMessage, *, lease: timedelta | float = 30.0) -> str:
        """Extend the lease of a message to `lease` seconds from now. Return the new receipt.

        The old receipt becomes invalid, so that its other holders cannot settle the message any
        more; `renew` keeps it. The change is one step and durable on return.

        Raises:
            LeaseLostError: the message is not leased any more. `result` is EXPIRED, SETTLED or
                UNKNOWN.
            MessageError: an argument is invalid.
        """
        return self._do_extend(receipt, lease)

    def renew(self, receipt: str | LeasedMessage, *, lease: timedelta | float = 30.0) -> int:
        """Renew the lease of a message: it ends `lease` seconds from now. Return that time in ms.

        The receipt stays valid, after any number of renewals and after a restart. The change is one
        step and durable on return.

        lease: seconds or a timedelta, above 0, at most `StoreConfig.delay_ms_max`.

        Raises:
            LeaseLostError: the message is not leased any more. `result` is EXPIRED, SETTLED or
                UNKNOWN.
            MessageError: an argument is invalid.
        """
        return self._do_renew(receipt, lease)

    def heartbeat(
        self, receipt: str | LeasedMessage, *, lease: timedelta | float = 30.0
    ) -> Heartbeat:
        """Renew the lease of a message while a `with` block runs.

        The lease is renewed at once, and then each time that a third of it has passed, by a thread.
        An error that can pass is tried again until the lease ends. If the lease is lost, `lost` of
        the block's object is the error, and the end of the block raises it, unless the block raises
        another one. A block may settle the message: that ends the renewals.

            with store.heartbeat(message, lease=60) as beat:
                convert(message.body)

        lease: as for `renew`.

        Raises:
            LeaseLostError: the message is not leased any more.
            MessageError: an argument is invalid.
        """
        return Heartbeat(partial(self.renew, receipt, lease=lease), lease_s(lease))

    def bury(self, receipt: str | LeasedMessage, *, error: str | None = None) -> AckResult:
        """Make a leased message a dead letter of its group now, whatever attempts it has left.

        Use it for a message that no attempt can process. Return BURIED, or the result that `ack`
        would return. The change is one step, which no crash splits, and durable on return.

        error: the reason, as for `nack`.

        Raises:
            MessageError: `receipt` is not a receipt, or `error` is not text.
            FullError: the disk is full; nothing was changed.
        """
        return self._do_bury(receipt, error)

    def commit(self, half: Receipt | LeasedMessage | str) -> AckResult:
        """Deliver a half message (`put(check_after=...)`) to its topic now.

        Return COMMITTED also if an earlier call has committed it, as far as the store has the key
        index and the message. Otherwise EXPIRED: its check is due, so only the receipt of the check
        can end it, or that lease is over. SETTLED: it was rolled back, or the receipt was used
        before. UNKNOWN: there is no such half message. The change is one step, which no crash
        splits, and durable on return.

        half: the receipt of the put or its handle; for a check the leased message or its receipt.

        Raises:
            MessageError: `half` is another value, or that of another message.
            FullError: the disk is full; nothing was changed.
        """
        return self._do_commit(half)

    def rollback(self, half: Receipt | LeasedMessage | str) -> AckResult:
        """Remove a half message: it is never delivered. Return ROLLED_BACK, or as `commit`.

        COMMITTED means that an earlier call has committed it; nothing was changed then.
        """
        return self._do_rollback(half)

    def dead_letters(self, group: str, *, topic: str | None = None) -> Iterator[DeadLetter]:
        """Return the dead letters of a group that were not requeued, oldest first in each queue.

        Dead letters are the messages that `bury` moved to the topic `%DLQ%<group>`, and those whose
        last attempt ended without `ack`. Retention removes them, as any message. The iterator
        begins with the dead letters of the first step; it does not return those that are added
        later.

        The first call for a group reads its retry topics, about 2 us for each message.

        topic: return only the dead letters of this topic.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_dead_letters(plain(group), plain(topic))

    def requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None = None,
        *,
        topic: str | None = None,
    ) -> int:
        """Deliver dead letters again, to their group only. Return how many were requeued.

        Each message is delivered by `receive(topic, group)` with its body, tags, keys, properties
        and message id, as attempt 1. It is requeued at most once, also by concurrent calls and
        after a crash at any point. A dead letter that was requeued already, or that retention
        removed, is not counted. The result is durable on return. After a crash or an error some of
        the messages may be requeued; the call can be repeated.

        letters: a dead letter, its receipt, or several of them; None means all dead letters of the
        group.

        topic: requeue only the dead letters of this topic.

        Raises:
            MessageError: an argument is invalid, or a dead letter does not name its topic, because
                another program put it there.
            FullError: the disk is full.
        """
        return self._do_requeue(plain(group), letters, plain(topic))

    def backlog(self, topic: str, group: str) -> GroupBacklog:
        """Return how many messages a group can receive, has leased, or has in back-off, and its
        dead letters.

        A group that has not read the topic yet can receive all of its messages. The first call
        after opening reads the pending messages if there are leases, and the group's dead letters.
        Later calls read the newer dead letters, and one message of each queue. `stats` has the same
        numbers for all groups.

        Raises:
            MessageError: a name is invalid.
        """
        return self._do_backlog(topic, group)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its messages, pending, leased and dead ones included, and the offsets
        of its groups. Return whether it existed.

        Until the call returns, calls that put to the topic, receive its messages or move their
        leases raise BusyError, and a commit of a consumer has no effect. A put that was running
        before is deleted, or its message is in the new topic. Consumers of before go on with the
        new topic, from its beginning; their receipts are SETTLED.

        The deletion is durable on return. If the process dies during the call, the topic is whole
        or the next opening completes the deletion; so it is in each shard. A repeated call also
        deletes messages that were put since, so a client does not repeat it by itself. A later put
        creates the topic again, with queue offsets from 0.

        Raises:
            MessageError: the name is invalid or of a topic of the store itself, or recurring
                messages go to the topic (use `cancel_every`).
            BusyError: messages of a fixed level are pending, which cannot be cancelled. Nothing was
                changed, as with MessageError.
            FullError: the disk is full. If puts to the topic raise BusyError, the deletion has
                begun: repeat the call, or open the store again.
        """
        return self._do_delete_topic(plain(topic))

    def committed(self, topic: str, group: str) -> dict[Any, int]:
        """Return the committed offset of each queue in which the group has committed.

        A committed offset is that of the next message that the group will read.
        """
        return self._do_committed(plain(topic), plain(group))

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, *, shard: int | None = None
    ) -> int:
        """Return the queue offset of the first message stored at `time_ms` or later.

        No message before that offset was stored at or after the time, even if the clock was set
        back in between. For a time before all messages, return the beginning of the queue; for one
        after all messages, its end.

        The first call for a queue reads the store time of every message before the answer: about
        0.1 us for each message in memory, otherwise the disk reads that part of the log. Later
        calls read at most 16,384 messages and those stored since.

        time_ms: milliseconds since 1970.

        shard: as for `pull`.

        Raises:
            MessageError: an argument is invalid, or there is no such queue.
        """
        return self._do_offset_at(plain(topic), plain(queue_id), plain(time_ms), plain(shard))

    def put_every(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        every: timedelta | float | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        missed: str = "one",
        name: str | None = None,
        tags: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        priority: int | None = None,
    ) -> Recurs:
        """Define a recurring message. Each run is one message and is delivered once.

        The definition is durable on return. A program may repeat the call at each start: a call
        with the same `name` and the same arguments changes nothing.

        every: seconds or a timedelta, at least 1 s, counted from `start`. Without `start`, the
        first run is one interval from now.

        cron: instead of `every`, a cron expression with five fields, or six with seconds, or a
        macro of crontab in lower case: "@yearly", "@annually", "@monthly", "@weekly", "@daily",
        "@midnight" or "@hourly", which is stored as its five fields. It follows the wall clock of
        `timezone`, including its changes of clocks, and begins no earlier than `start`. It needs
        timerstore[cron].

        start: an aware datetime. If it has passed, it only fixes the phase of the intervals: the
        first run is the next one from now, whatever `missed` says.

        missed: the treatment of runs whose time passed while the store was closed or its process
        was stopped. "skip" drops them, "one" delivers one of them at once, "all" delivers each.

        name: 1 to 64 of A-Za-z0-9._-; by default a random name.

        tags, keys, properties, queue_id, priority: as for `put`.

        Raises:
            MessageError: an argument is invalid, the name is in use with other arguments, or all
                definitions together would take more than 64 MiB.
            ConfigError: `cron` was given and the package cronsim is not installed.
            FullError: the disk is full; nothing was changed.
        """
        return self._do_put_every(
            RecurringRequest(
                plain(topic),
                body,
                every,
                plain(cron),
                plain(timezone),
                start,
                plain(missed),
                plain(name),
                tags,
                keys,
                properties,
                queue_id,
                priority,
            )
        )

    def recurring(self) -> list[Recurs]:
        """Return the recurring definitions, ordered by name."""
        return self._do_recurring()

    def cancel_every(self, name: str) -> bool:
        """Remove a recurring definition and cancel its pending run. Return whether the name
        existed.

        The change is durable on return. A run that has already been delivered is not affected.
        """
        return self._do_cancel_every(plain(name))

    def cancel(self, receipt_or_handle: Receipt | str) -> CancelResult:
        """Cancel a message that has not been delivered yet.

        Return the state that the call found: CANCELLED, ALREADY_CANCELLED, ALREADY_DELIVERED, or
        UNKNOWN if no such message exists. The result is durable on return, and no later crash
        changes it.

        receipt_or_handle: a receipt, its handle, or a recall handle issued by a RocketMQ broker.

        Raises:
            MessageError: the handle is malformed, or the receipt is that of a message with a delay
                level.
            FullError: the disk is full; nothing was changed.
        """
        return self._do_cancel(receipt_or_handle)

    def cancel_many(self, receipts_or_handles: Iterable[Receipt | str]) -> list[CancelResult]:
        """Cancel many messages with one sync. Return the result of `cancel` for each, in order.

        All receipts and handles are checked before any message is cancelled. After an error other
        than MessageError some messages may be cancelled; the call can be repeated.

        Raises:
            MessageError: names the first receipt or handle that is invalid; nothing was changed.
            FullError: the disk is full.
        """
        return self._do_cancel_many(receipts_or_handles)

    def reschedule(
        self,
        receipt_or_handle: Receipt | str,
        *,
        delay: timedelta | float | None = None,
        deliver_at: datetime | None = None,
        deliver_ms: int | None = None,
    ) -> Receipt:
        """Change the due time of a pending message, or deliver it now. Return its new receipt.

        The change is one step and durable on return. The message keeps its message id and gets a
        new handle. For the old handle, the message counts as cancelled.

        delay, deliver_at, deliver_ms: as for `put`; exactly one. `delay=0` delivers the message
        now.

        Raises:
            NotPendingError: the message was delivered or cancelled, or is unknown.
            MessageError: an argument is invalid.
            FullError: the disk is full; nothing was changed.
        """
        return self._do_reschedule(receipt_or_handle, delay, deliver_at, deliver_ms)

    def pace(self, topic: str, per_second: float | None) -> None:
        """Limit how many delayed messages of a topic are delivered each second, until the store is
        closed.

        Limited messages are delivered later, never early, and in order. Messages that are due at
        once when they are put, and those of delay levels, are not limited.
        `StoreConfig.topic_rates` sets the same limit at opening. A backlog that is longer than the
        part of the wheel past the roll window (7 days by default) also delays messages of other
        topics.

        per_second: 0.001 to 1,000,000; None removes the limit.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_pace(plain(topic), plain(per_second))

    def pending(
        self, *, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Yield the pending messages that are due in [begin_ms, end_ms), ordered by due time.

        Messages that wait for a delay level are included; they have the timer id -1 and the handle
        "".

        begin_ms, end_ms: milliseconds since 1970; None means without bound.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_pending(plain(begin_ms), plain(end_ms), plain(topic))

    def histogram(
        self,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        by: str = "hour",
        topic: str | None = None,
    ) -> Histogram:
        """Return the exact number of pending messages by due time.

        Without times, the range is one day from now. Late messages and messages that wait for a
        delay level are included. The first call after opening reads all pending messages. Later
        calls use counters in memory, which take at most `StoreConfig.histogram_bytes_max`.

        begin, end: aware datetimes or milliseconds since 1970. All buckets that [begin, end)
        touches are returned.

        by: the bucket: "second", "minute", "hour" or "day" of UTC.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_histogram(plain(begin), plain(end), plain(by), plain(topic))

    def explain(
        self, message: Receipt | Message | PendingTimer | str, *, topic: str | None = None
    ) -> Explanation:
        """Return where a message is, why it has not been delivered yet, and its history.

        With the index this is a lookup. Without it, and for a message that rolls, the call reads
        the log or the wheel.

        message: a receipt, a handle, a message, a PendingTimer, or a message id together with
        `topic`.

        Raises:
            MessageError: an argument is invalid.
        """
        return self._do_explain(plain(message), plain(topic))

    def stats(self) -> dict[str, Any]:
        """Return counters and gauges by name; sizes are in bytes and times in milliseconds.

        `version` is the release that has the store open: through a server, the server's. All
        numbers are described in docs/metrics.md.
        """
        return self._do_stats()

    def timing_distribution(self) -> dict[int | None, int]:
        """Return the number of pending messages by the time until they are due.

        The keys are upper bounds in seconds: 5, 60, up to 86,400, then None for the rest. Each
        message counts once, in the first bucket that it fits; late messages count in the first.
        Messages that wait for a delay level are included. The call reads all pending messages.
        """
        return self._do_timing_distribution()

    def congestion(self) -> dict[int, int]:
        """Return the number of pending messages of each slot, by the slot's beginning in
        milliseconds.

        Empty slots and messages that wait for a delay level are left out. A message due at the end
        of a slot belongs to that slot, and a message that rolls to the slot of its due time. The
        call reads all pending messages.
        """
        return self._do_congestion()

    def flush(self) -> None:
        """Make every message put so far durable, and complete a checkpoint."""
        return self._do_flush()

    # --- implemented by each kind of store ---

    def _do_put(self, request: PutRequest) -> Receipt:
        raise NotImplementedError

    def _do_put_many(self, request: BatchRequest) -> Batch:
        raise NotImplementedError

    def _do_topics(self) -> dict[str, int]:
        raise NotImplementedError

    def _do_pull(self, request: PullRequest) -> PullResult:
        raise NotImplementedError

    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        raise NotImplementedError

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        raise NotImplementedError

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        raise NotImplementedError

    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Found]:
        raise NotImplementedError

    def _do_consumer(
        self,
        topic: str,
        group: str,
        queues: Sequence[int] | None,
        tags: str | None,
        sql: str | None,
        wait: float | None,
    ) -> GroupReader:
        raise NotImplementedError

    def _do_receive(self, request: ReceiveRequest) -> list[Leased]:
        raise NotImplementedError

    def _do_begin_receive(self, request: ReceiveRequest) -> Waiting:
        raise NotImplementedError

    def _do_lease_consumer(
        self, topic: str | Sequence[str], group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[Leased]:
        raise NotImplementedError

    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        raise NotImplementedError

    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        raise NotImplementedError

    def _do_nack(
        self, receipt: str | LeasedMessage, delay: timedelta | float | None, error: str | None
    ) -> AckResult:
        raise NotImplementedError

    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        raise NotImplementedError

    def _do_renew(self, receipt: str | LeasedMessage, lease: timedelta | float) -> int:
        raise NotImplementedError

    def _do_bury(self, receipt: str | LeasedMessage, error: str | None) -> AckResult:
        raise NotImplementedError

    def _do_commit(self, half: Receipt | LeasedMessage | str) -> AckResult:
        raise NotImplementedError

    def _do_rollback(self, half: Receipt | LeasedMessage | str) -> AckResult:
        raise NotImplementedError

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        raise NotImplementedError

    def _do_requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None,
        topic: str | None,
    ) -> int:
        raise NotImplementedError

    def _do_backlog(self, topic: str, group: str) -> GroupBacklog:
        raise NotImplementedError

    def _do_delete_topic(self, topic: str) -> bool:
        raise NotImplementedError

    def _do_committed(self, topic: str, group: str) -> dict[Any, int]:
        raise NotImplementedError

    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        raise NotImplementedError

    def _do_put_every(self, request: RecurringRequest) -> Recurs:
        raise NotImplementedError

    def _do_recurring(self) -> list[Recurs]:
        raise NotImplementedError

    def _do_cancel_every(self, name: str) -> bool:
        raise NotImplementedError

    def _do_cancel(self, receipt_or_handle: Receipt | str) -> CancelResult:
        raise NotImplementedError

    def _do_cancel_many(self, receipts_or_handles: Iterable[Receipt | str]) -> list[CancelResult]:
        raise NotImplementedError

    def _do_reschedule(
        self,
        receipt_or_handle: Receipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> Receipt:
        raise NotImplementedError

    def _do_pace(self, topic: str, per_second: float | None) -> None:
        raise NotImplementedError

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        raise NotImplementedError

    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        raise NotImplementedError

    def _do_explain(
        self, message: Receipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        raise NotImplementedError

    def _do_stats(self) -> dict[str, Any]:
        raise NotImplementedError

    def _do_timing_distribution(self) -> dict[int | None, int]:
        raise NotImplementedError

    def _do_congestion(self) -> dict[int, int]:
        raise NotImplementedError

    def _do_flush(self) -> None:
        raise NotImplementedError


class SingleStoreApi(
    StoreApi[Receipt, Batch, Found, Leased, Recurs, GroupReader, Waiting],
    Generic[Receipt, Batch, Found, Leased, Recurs, GroupReader, Waiting],
):
    """The calls of one store that shards do not have in this form."""

    def verify(self) -> Report:
        """Check every invariant of the store, and return a Report of the violations.

        Services keep running during the check. Nothing is changed.

        Raises:
            FailedError: the store has failed.
        """
        return self._do_verify()

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the store into a folder, or update the backup that the folder holds.

        The store stays open and usable. The backup is durable on return. If the call is
        interrupted, the folder holds the previous backup. `timerstore.restore` makes a store of it.

        target: the folder. A connected store needs an absolute path: the process that has the store
        open makes the backup, on its machine and with its permissions.

        progress: called with the number of bytes copied and the number of bytes to copy. A
        connected store does not have it.

        Raises:
            ConfigError: the folder is not empty and holds no backup of this store.
            LockedError: another call makes a backup in the folder.
            FullError: the disk is full.
        """
        return self._do_backup(target, progress)

    def _do_verify(self) -> Report:
        raise NotImplementedError

    def _do_backup(
        self, target: str | os.PathLike[str], progress: Callable[[int, int], None] | None
    ) -> BackupReport:
        raise NotImplementedError
