"""The public calls of a store, each stated once: signature, docstring and errors.

`TimerStore`, `ShardedStore` and `ReadOnlyStore` implement them by the methods `_do_...`.
`timerstore.aio` has the same calls, awaited. Calls with many arguments pass them on as one value:
PutRequest, BatchRequest, PullRequest.

Every call also raises ClosedError after `close`, ForkedError in a forked child, and FailedError
once a sync or a file of the store has failed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from timerstore._engine.base.closing import Closing
from timerstore._engine.leases import AckResult, Backoff, LeaseConsumer, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.read.requests import PullRequest
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore._engine.write.requests import BatchRequest, PutRequest
from timerstore.messages import Message, MessageBatch, PullResult
from timerstore.reports import CancelResult, Explanation, Histogram, PendingTimer

Receipt = TypeVar("Receipt")
Batch = TypeVar("Batch")
Found = TypeVar("Found")
Leased = TypeVar("Leased", bound=LeasedMessage)
Recurs = TypeVar("Recurs")
GroupReader = TypeVar("GroupReader")
Waiting = TypeVar("Waiting")


class StoreApi(Closing, Generic[Receipt, Batch, Found, Leased, Recurs, GroupReader, Waiting]):
    """What a store can do.

    The parameters are what a kind of store returns: receipts of one and of many messages, found
    messages, leased messages, recurring definitions, consumers, and a `receive` that waits.
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
    ) -> Receipt:
        """Store one message; it is in its topic when its time has come, now where none is given.

        On return it is durable (`flush="sync"`) or will survive the process (`"async"`). At most
        one of delay (seconds or timedelta), deliver_at (aware datetime; one that a change of clocks
        skips counts from the offset before the change), deliver_ms (epoch ms), level (1 and on: the
        n-th of `level_delays`, beyond the last the last; such a message has no handle and cannot be
        cancelled). A time that has passed means now, and so do 0 and less. A time above 0 and
        before the year 2000 raises MessageError, as it is most often seconds, unless the store's
        clock is before 2000, too. `spread`: due at some moment of so many seconds from its
        time on, each as likely. With a `message_id` that was put to the topic within
        `dedupe_window_ms` nothing is stored: the answer is the first one's receipt, `duplicate`,
        and that one is durable.
        `replace=True` with a `key`, which is then one of `keys`: it takes the place of the message
        that waits for the topic with this key, in one step; that one counts as cancelled. So the
        newest alone comes; `wait_at_most`: no later than so many seconds (0 to `delay_ms_max`)
        after the first of those that took each other's place, whatever the delays (the shortest
        bound that was given counts). It comes to that one's queue.
        `tags`: one tag, which `pull(tags=...)` can name: no "||" in it, no space at either end, no
        control characters, and not "*".
        Raises MessageError on bad arguments, FullError, BusyError where too many ids are
        remembered, ClosedError, ForkedError, FailedError.
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
    ) -> Batch:
        """Store many messages of one topic and queue, in their order.

        `bodies`: a list of bytes-likes, or (buffer, array of count + 1 offsets). `deliver_ms`
        (epoch ms) or `delay` (seconds): one value, or one a body; 0, less or past: now (above 0
        and before 2000: MessageError, as in `put`; it names the index). `level`: as in `put`, the
        same for all. `spread`: evenly over so many seconds from their times on. `keys`: one entry a
        body, a key or a sequence of keys.
        `message_ids`: one entry a body, an id as for `put`, or None; or (UTF-8 buffer, array of
        offsets). All are checked before any is stored; after a crash a prefix may be, and after a
        FullError or BusyError its `stored_count` first ones are, durably where the call is to be
        (`flush`). `atomic`: all or none, at most
        `StoreConfig.group_bytes_max` bytes of records, else MessageError; of ids all were put
        before or none was.
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
            )
        )

    def topics(self) -> dict[str, int]:
        """Give every topic with its queue count, system topics included."""
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
        """Give messages of one queue from an offset on; waits up to `wait` seconds for the first.

        `tags`: only those with one of some tags, as in "a || b"; "*" is all. `sql`: only those
        whose properties meet a condition, as in "amount > 5 AND TAGS = 'paid'" (read/sql.py). Go on
        from `next_offset`, whatever the status. `shard`: required by a store of shards, which has
        the queue in each; MessageError for any other store. Raises MessageError where there is no
        such queue, and on a filter that does not parse; ConfigError for SQL without lark.
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
        """Give messages of one queue as columns; otherwise as `pull`."""
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
        """Begin a `pull` of which the caller does the waiting: an event loop (timerstore.aio)."""
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
        """Begin a `pull_batch` of which the caller does the waiting."""
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
        """Give the newest messages of a topic that have a key, in order of the log; those that
        still wait for it, too (`Message.waits`).

        `key`: one of a message's keys, its message id, or an offset message id (store host, port
        and log offset in hex). [begin_ms, end_ms): when a message was stored; where it waited and
        was delivered, when it was delivered. Raises MessageError; ConfigError without an index.
        """
        return self._do_query(topic, key, begin_ms, end_ms, max_count)

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
        """Read a topic for a group, from where the group committed; a new group from the beginning.

        The consumers that a group has in this process share the topic's queues, each queue being
        one consumer's; `queues`: these instead of a share. `wait`: how many seconds iterating waits
        for the next message, None: for ever. `tags`, `sql`: as in `pull`; all consumers of a group
        filter by the same. The topic may come later. Raises MessageError on bad arguments, and
        where the group leases the topic in this process (`receive`), or by it what comes again.
        """
        return self._do_consumer(topic, group, queues, tags, sql, wait)

    def receive(
        self,
        topic: str,
        group: str,
        *,
        lease: timedelta | float = 30.0,
        max_count: int = 1,
        wait: float = 0.0,
        tags: str | None = None,
        sql: str | None = None,
        max_attempts: int | None = 16,
        backoff: Backoff | Sequence[float] | float | None = None,
    ) -> list[Leased]:
        """Lease the next messages of a topic to the caller, for its group: at most `max_count`
        (1 to 10,000), waiting up to `wait` seconds for the first; none: an empty list.

        Each is the caller's for `lease` seconds (above 0, to `delay_ms_max`); `ack` its receipt
        before, else it comes again, to any caller of the group, its `attempt` one higher. After
        `max_attempts` (1 to 1,000,000; None: never) it goes to the topic `%DLQ%<group>`. `backoff`:
        how long what was given back by `nack` waits: a Backoff, seconds, or a list of seconds by
        attempt; None: 1 s, doubling to 600 s, up to a fifth shorter by chance. `tags`, `sql`: as in
        `pull`; what does not match is passed over for good, so all who wait at once ask the same.
        A new group begins at the beginning; all callers in one process share the group's place.
        On return the leases are as safe as a put. Raises MessageError on bad arguments, on a
        message without room for its lease, where a consumer reads for the group here, and where a
        caller of the group waits with another filter; FullError, FlowControlError: nothing was
        leased.
        """
        return self._do_receive(
            ReceiveRequest(topic, group, lease, max_count, wait, tags, sql, max_attempts, backoff)
        )

    def begin_receive(self, topic: str, group: str, **options: Any) -> Waiting:
        """Begin a `receive` of which the caller does the waiting (timerstore.aio)."""
        return self._do_begin_receive(ReceiveRequest.from_options(topic, group, options))

    def lease_consumer(
        self, topic: str, group: str, *, wait: float | None = None, **options: Any
    ) -> LeaseConsumer[Leased]:
        """Iterate over leased messages, one at a time; `wait`: seconds for the next, None: for
        ever. All else as `receive` takes it; MessageError on `max_count`, and on a name that
        `receive` does not know.
        """
        return self._do_lease_consumer(topic, group, wait, options)

    def ack(self, receipt: str | LeasedMessage) -> AckResult:
        """Settle a lease: the group is done with its message.

        ACKED; EXPIRED: too late, the message came again; SETTLED: this receipt was used before;
        UNKNOWN. Raises MessageError on what is no receipt.
        """
        return self._do_ack(receipt)

    def ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        """Settle many leases; one sync for all. None is settled where one is no receipt:
        MessageError names the first that is none.
        """
        return self._do_ack_many(receipts)

    def nack(
        self, receipt: str | LeasedMessage, *, delay: timedelta | float | None = None
    ) -> AckResult:
        """Give a leased message back: it comes again after `delay` seconds (0: at once; None: by
        the back-off), or goes to the dead letters at once where that was its last attempt.

        NACKED, or what `ack` would answer. One step, which no crash splits; durable on return.
        """
        return self._do_nack(receipt, delay)

    def extend(self, receipt: str | LeasedMessage, *, lease: timedelta | float = 30.0) -> str:
        """Hold a leased message for `lease` seconds from now; gives its new receipt, the old one
        counts no more.

        Raises LeaseLostError (`result`: EXPIRED, SETTLED, UNKNOWN) where it is not held. One step;
        durable on return.
        """
        return self._do_extend(receipt, lease)

    def committed(self, topic: str, group: str) -> dict[Any, int]:
        """Give the offset of the next message for each queue in which the group has committed."""
        return self._do_committed(topic, group)

    def offset_at(
        self, topic: str, queue_id: int, time_ms: int, *, shard: int | None = None
    ) -> int:
        """Give the queue offset of the first message stored at a time (epoch ms) or later.

        No message before that offset was stored at or after the time, even if the clock was set
        back in between. A time before all messages gives the queue's beginning, one after all
        its end.

        Cost: the first call for a queue reads the store time of every message before the answer
        (about 0.1 us a message in memory; else the disk reads that part of the log). Later calls
        read at most 16,384 messages, and what was stored since.
        """
        return self._do_offset_at(topic, queue_id, time_ms, shard)

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
    ) -> Recurs:
        """Put a message again and again: each run is one message, handed out once.

        `every`: seconds or timedelta, from 1 s on, counted from `start` (aware datetime; none: the
        first run is one step from now). Or `cron`: five fields (six: with seconds), by the wall
        clock of `timezone` (recurring/rule.py tells what a change of clocks does), not before
        `start`; needs timerstore[cron]. A `start` that has passed sets the times of the steps
        alone: the first run is the next one that `every` or `cron` gives from now on, whatever
        `missed` says, and none comes at once. `missed`, of runs whose time passed after this
        call, while the store was not open or its process stood still: "skip", none comes; "one",
        one comes, at once; "all", each does. `name` (A-Za-z0-9._-, at most 64): with the same name
        and the same arguments again nothing changes, so a program may say at each start what
        recurs; with others it is a MessageError. Durable on return. Raises MessageError on bad
        arguments, ConfigError for cron without cronsim, FullError.
        """
        given = {
            "every": every,
            "cron": cron,
            "timezone": timezone,
            "start": start,
            "missed": missed,
            "name": name,
            "tags": tags,
            "keys": keys,
            "properties": properties,
            "queue_id": queue_id,
        }
        return self._do_put_every(topic, body, given)

    def recurring(self) -> list[Recurs]:
        """Give what recurs, by name."""
        return self._do_recurring()

    def cancel_every(self, name: str) -> bool:
        """End what recurs, and cancel its run that waits; whether there was one of that name.

        Durable on return. A run that was handed out already stays.
        """
        return self._do_cancel_every(name)

    def cancel(self, receipt_or_handle: Receipt | str) -> CancelResult:
        """Cancel a message that waits; what the answer says is durable."""
        return self._do_cancel(receipt_or_handle)

    def cancel_many(self, receipts_or_handles: Iterable[Receipt | str]) -> list[CancelResult]:
        """Cancel messages that wait, in their order: what `cancel` would answer for each; durable.

        All are looked at before any is cancelled: MessageError names the first that is no receipt
        and no handle. After another error some may be cancelled: call again.
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
        """Give a message that waits another time, or deliver it now; one step, durable on return.

        It keeps its message id and gets a new handle: with the old one it counts as cancelled.
        Raises NotWaitingError where it was delivered or cancelled, MessageError as `put` does.
        """
        return self._do_reschedule(receipt_or_handle, delay, deliver_at, deliver_ms)

    def pace(self, topic: str, per_second: float | None) -> None:
        """Hand over at most so many timers of a topic a second, until the store is closed; None:
        all when they are due. They come later, never early, in order; levels are not paced. What is
        held for longer than the wheel has room behind the roll window (7 days by default) makes
        other topics' timers late, too.

        As `StoreConfig.topic_rates`. Raises MessageError outside 0.001 to 1,000,000.
        """
        return self._do_pace(topic, per_second)

    def pending(
        self, *, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Give the messages that wait and are due in [begin_ms, end_ms), in order of due time.

        Those of fixed levels, too: they have no timer id (-1) and no handle ("").
        """
        return self._do_pending(begin_ms, end_ms, topic)

    def histogram(
        self,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        by: str = "hour",
        topic: str | None = None,
    ) -> Histogram:
        """Count what waits by when it is due, exactly: by "second", "minute", "hour" or "day" of
        UTC, those that [begin, end) touches; without times, from now on for a day.

        Times are aware datetimes or epoch ms. What is late and what waits for a fixed level counts,
        too. The first call after opening reads what waits; from then on counters are kept in
        memory, at most `StoreConfig.histogram_bytes_max`. Raises MessageError.
        """
        return self._do_histogram(begin, end, by, topic)

    def explain(
        self, message: Receipt | Message | PendingTimer | str, *, topic: str | None = None
    ) -> Explanation:
        """Tell where a message is, why it is not out yet, and what happened to it.

        By a receipt, a handle, a message or what `pending` gives; or by a message id and its topic.
        With the index a look-up; without it, and for what rolls, it reads the log, or the wheel.
        """
        return self._do_explain(message, topic)

    def stats(self) -> dict[str, Any]:
        """Give counters and gauges: names as in metrics.py, sizes in bytes, times in ms."""
        return self._do_stats()

    def timing_distribution(self) -> dict[int | None, int]:
        """Give how many messages wait, by when they are due: within 5 s, 60 s, ... 86,400 s.

        Each bound counts what the one before did not; the first what is late too, None what is
        later than a day. Together they are all that wait, for a fixed level, too. Reads all that
        waits.
        """
        return self._do_timing_distribution()

    def congestion(self) -> dict[int, int]:
        """Give how many messages wait for each slot, by the ms at which the slot begins.

        Only slots that somebody waits for, and nobody does for a fixed level. A message due at the
        very end of a slot is in it; one that rolls is in the slot it is due in. Reads all that
        waits.
        """
        return self._do_congestion()

    def flush(self) -> None:
        """Make everything put so far durable, and complete a checkpoint."""
        return self._do_flush()

    # --- what a kind of store defines ---

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
        self, topic: str, group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[Leased]:
        raise NotImplementedError

    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        raise NotImplementedError

    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        raise NotImplementedError

    def _do_nack(self, receipt: str | LeasedMessage, delay: timedelta | float | None) -> AckResult:
        raise NotImplementedError

    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        raise NotImplementedError

    def _do_committed(self, topic: str, group: str) -> dict[Any, int]:
        raise NotImplementedError

    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        raise NotImplementedError

    def _do_put_every(self, topic: str, body: Any, given: dict[str, Any]) -> Recurs:
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
