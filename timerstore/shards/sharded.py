"""ShardedStore: a directory of stores, opened as one. `open_shards` returns it.

    with timerstore.open_shards("orders.shards", 4) as store:
        store.put("orders", b"close 4711", keys="4711", delay=1800)

Thread safety: every call may be made from any thread. Calls to several shards run concurrently in a
thread pool (shard_calls.py). Each shard has its own services; one more thread ingests.
Invariants:
    1. Each shard is a TimerStore with its own lock. Either all shards are open, or none.
    2. All messages with the same first key are in one shard (routing.py).
    3. Every receipt, handle and message names its shard.
Raises: as TimerStore; errors name the shard. If one shard fails in a put_many, the parts of the
other shards are stored.
See also: docs/decisions/0010-shards-and-spark.md.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timerstore import store as single
from timerstore._engine.base.argument_types import check_config
from timerstore._engine.base.owner import close_at_exit, warn_unclosed
from timerstore._engine.buckets.bucket_url import reject_without_bucket
from timerstore._engine.leases import AckResult, DeadLetter, LeaseConsumer, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.read.waiting import MultiWait
from timerstore._engine.recurring import RecurringRequest
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.disk import Disk
from timerstore._engine.write.put_requests import BatchRequest, PutRequest
from timerstore.api import StoreApi
from timerstore.errors import ConfigError, MessageError, TimerStoreError, kind_of
from timerstore.shards import cluster as cluster_json
from timerstore.shards.background_ingest import IngestOfAll, check_interval
from timerstore.shards.bucket_binding import BucketSource
from timerstore.shards.rate_share import shared_out
from timerstore.shards.receipt import (
    ShardBatch,
    ShardDeadLetter,
    ShardLeasedMessage,
    ShardMessage,
    ShardReceipt,
    ShardRecurring,
)
from timerstore.shards.routing import Turns, shard_of_key
from timerstore.shards.shard_calls import close_all, named
from timerstore.shards.shard_consumer import ShardConsumer
from timerstore.shards.shard_ingest import Ingested
from timerstore.shards.shard_leases import ShardLeases
from timerstore.shards.shard_letters import ShardLetters
from timerstore.shards.shard_paths import ShardsTree
from timerstore.shards.shard_pending import ShardPending
from timerstore.shards.shard_puts import ShardPuts
from timerstore.shards.shard_reads import ShardReads
from timerstore.shards.shard_recurring import ShardRecurringCalls
from timerstore.shards.shard_stats import backlog_of_all, stats_of_all
from timerstore.shards.unsupported import missing
from timerstore.store import TimerStore
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.config import StoreConfig
from timerstore.types.reports import GroupBacklog, Report


class ShardedStore(
    ShardReads,
    ShardPending,
    StoreApi[
        ShardReceipt,
        ShardBatch,
        ShardMessage,
        ShardLeasedMessage,
        ShardRecurring,
        ShardConsumer,
        MultiWait[ShardLeasedMessage],
    ],
):
    """An open directory of shards; `timerstore.open_shards` returns it.

    Calls differ from those of a TimerStore as follows.

    put, put_many: a message with keys goes to the shard of its first key, one without keys to the
    shard of its message id. Messages with neither are distributed round robin; in put_many they all
    go to one shard. Each shard remembers its own message ids, so a repeated put must have the same
    first key. With `replace` or `unique`, the shard of `key` counts. put_many checks all messages
    before a shard stores any. If a shard fails, the parts of the other shards are stored, and the
    `stored_count` of a FullError or BusyError counts the first messages of each shard. `atomic`
    needs messages of one shard.

    pull, pull_batch, offset_at and the begin_ calls: `shard` is required.

    consumer: reads all shards; `queues` cannot be given. committed: keys are (shard, queue).

    query, topics, histogram, congestion: call all shards and merge the results. query returns
    messages oldest first; those of one shard keep the order of its log.

    receive: shards take turns. A receipt names its shard and is valid in any process. Retries and
    dead letters stay in the shard of their message. If an error occurs after some messages are
    leased, they are returned, and the next call raises the error.

    dead_letters, requeue: shard after shard. All receipts are checked first. If a shard fails, the
    messages that others requeued stay so; the call can be repeated.

    ack_many, cancel_many: all receipts are checked first, and each shard syncs once. If a shard
    fails, the changes in other shards stay; the call can be repeated.

    put_every: all runs go to the shard of the name, whatever their keys.

    pace: each shard gets an equal share, rounded down to thousandths, so the sum never exceeds the
    rate. After a pause a tenth of a second's messages may be delivered at once, at least one for
    each shard.

    stats: sums; of times and percentages the largest. `by_shard` has the statistics of each shard.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n: int | None = None,
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
        threads: bool = True,
        ingest_every: float | None = 1.0,
        ingest_from: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.root = absolute_path("path", path)
        if ingest_from is None:
            reject_without_bucket(storage_options, "path", self.root)
        check_interval(ingest_every)
        self.tree = ShardsTree(self.root)
        check_config(config, clock)
        clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self.cluster = cluster_json.ensure(Disk(), self.root, n, config)
        config = cluster_json.config_for(self.cluster, config, self.tree.cluster_json)
        bucket = (
            BucketSource(self.tree, self.cluster, ingest_from, storage_options)
            if ingest_from is not None
            else None
        )
        shared = shared_out(config, self.cluster.shard_count)
        super().__init__(self._open_all(shared, clock, threads=threads), clock)
        self.config = replace(self.stores[0].config, topic_rates=config.topic_rates)
        """The configuration of each shard, but with the `topic_rates` of all shards together."""
        turns = Turns(len(self.stores), first=int.from_bytes(os.urandom(2), "big"))
        self._puts = ShardPuts(self.config, clock, turns, self.shard_of, self._in, self._in_some)
        self._leases = ShardLeases(self.config, self.stores, self._in, self._in_some)
        self._letters = ShardLetters(self.stores, self._in, self._in_some)
        self._recurring = ShardRecurringCalls(self.shard_of, self._in, self._in_all)
        self._ingest = IngestOfAll(self.root, self.stores, self._in_some, bucket)
        self._is_closed = False
        for store in self.stores:
            store._warns_unclosed = False
        close_at_exit(self)
        try:
            self._ingest.bind()
            if threads and ingest_every is not None:
                self._ingest.start(ingest_every)
        except BaseException:
            self.close()
            raise

    def _open_all(
        self, config: StoreConfig, clock: Clock, *, threads: bool
    ) -> tuple[TimerStore, ...]:
        """Open every shard. If one fails, close the others."""
        opened: list[TimerStore] = []
        try:
            for shard in range(self.cluster.shard_count):
                path = self.tree.shard(shard)
                opened.append(single.open(path, config, clock=clock, threads=threads))
        except BaseException as error:
            for failed in close_all(opened):
                error.add_note(f"and then: {failed!r}")
            if isinstance(error, TimerStoreError):
                raise named(error, len(opened)) from error.__cause__
            raise
        return tuple(opened)

    @property
    def path(self) -> Path:
        """The directory of the shards."""
        return self.root

    @property
    def clock(self) -> Clock:
        """The clock that all shards use."""
        return self._clock

    if not TYPE_CHECKING:  # type checkers must not see that any name is allowed

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError, with the alternative for a call that only TimerStore has."""
            raise AttributeError(missing(name), name=name, obj=self)

    def shard_of(self, key: str) -> int:
        """Return the shard of messages whose first key is `key`."""
        if not isinstance(key, str):
            raise MessageError(f"key: wanted text, got {kind_of(key)}")
        return shard_of_key(key, len(self.stores))

    # --- putting ---

    def _do_put(self, request: PutRequest) -> ShardReceipt:
        return self._puts.put(request)

    def _do_put_many(self, request: BatchRequest) -> ShardBatch:
        return self._puts.put_many(request)

    # --- leasing ---

    def _do_receive(self, request: ReceiveRequest) -> list[ShardLeasedMessage]:
        return self._leases.receive(request)

    def _do_begin_receive(self, request: ReceiveRequest) -> MultiWait[ShardLeasedMessage]:
        return self._leases.begin(request)

    def _do_lease_consumer(
        self, topic: str | Sequence[str], group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[ShardLeasedMessage]:
        self.stores[0].topics()  # raises where it is closed
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        return self._leases.ack_one(receipt)

    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        return self._leases.ack(receipts)

    def _do_nack(
        self, receipt: str | LeasedMessage, delay: timedelta | float | None, error: str | None
    ) -> AckResult:
        return self._leases.nack(receipt, delay, error)

    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        return self._leases.extend(receipt, lease)

    def _do_renew(self, receipt: str | LeasedMessage, lease: timedelta | float) -> int:
        return self._leases.renew(receipt, lease)

    def _do_bury(self, receipt: str | LeasedMessage, error: str | None) -> AckResult:
        return self._leases.bury(receipt, error)

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[ShardDeadLetter]:
        return self._letters.letters(group, topic)

    def _do_requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None,
        topic: str | None,
    ) -> int:
        return self._letters.requeue(group, letters, topic)

    # --- recurring messages ---

    def _do_put_every(self, request: RecurringRequest) -> ShardRecurring:
        return self._recurring.put_every(request)

    def _do_recurring(self) -> list[ShardRecurring]:
        return self._recurring.recurring()

    def _do_cancel_every(self, name: str) -> bool:
        return self._recurring.cancel_every(name)

    # --- rows that other processes have committed ---

    def ingest(self) -> list[Ingested]:
        """Ingest the rows that writers have committed; they are durable on return.

        Return the versions that were ingested, by shard: of the directory, then of the bucket
        `ingest_from`. If the shards were opened with threads, they also do this by themselves every
        `ingest_every` seconds.
        """
        return self._ingest.run()

    def wake_ingest(self) -> None:
        """Make the ingest thread look for committed rows now. Do not wait for it."""
        self._ingest.wake()

    # --- all shards ---

    def _do_stats(self) -> dict[str, Any]:
        by_shard = self._in_all(lambda store: store.stats())
        total = stats_of_all(by_shard)
        total["ingest_error"] = self._ingest.error
        return {**total, "shard_count": len(by_shard), "by_shard": by_shard}

    def _do_backlog(self, topic: str, group: str) -> GroupBacklog:
        return backlog_of_all(self._in_all(lambda store: store.backlog(topic, group)))

    def _do_delete_topic(self, topic: str) -> bool:
        self._in_all(lambda store: store._check_deletion(topic))  # all shards refuse, or none
        return any(self._in_all(lambda store: store.delete_topic(topic)))

    def _do_flush(self) -> None:
        self._in_all(lambda store: store.flush())

    def verify(self) -> list[Report]:
        """Check every invariant of every shard. Return a report for each shard, by number."""
        return self._in_all(lambda store: store.verify())

    def _check_alive(self) -> None:
        """Raise the reason why a shard serves no call: it is closed, closing, or has failed."""
        for store in self.stores:
            store._check_alive()

    # --- closing ---

    def _close_at_exit(self) -> None:
        self._ingest.stop()
        for store in self.stores:
            store._close_at_exit()
        self.close()

    def close(self) -> None:
        """Close every shard. Everything that was put is durable on return.

        A second call does nothing. If the close of a shard fails, all are closed nevertheless, and
        the first error is raised. Only if the close of a shard was interrupted, by a lack of memory
        or Ctrl-C, is it still open: then a second call completes it.

        Raises:
            ReentrantCallError: the same thread is in another call; no shard is closed.
            ForkedError: the shards were opened by a parent process.
        """
        if self._is_closed:  # first: at exit the modules used below may be gone
            return
        self.stores[0]._check_process()
        for store in self.stores:
            store._refuse_reentrant_close()
        self._ingest.stop()
        errors = close_all(self.stores)
        self._ingest.shut_pools()
        self._shut_pool()
        self._is_closed = all(store._is_released() for store in self.stores)
        if errors:
            raise errors[0]

    def __del__(self) -> None:
        """Warn, and stop the ingest. The shards stop as any store that is dropped."""
        if getattr(self, "_is_closed", True) or os.getpid() != self._pid:
            return
        self._ingest.request_stop()
        warn_unclosed(self, self.root)

    def __repr__(self) -> str:
        return f"<ShardedStore {str(self.root)!r} shards={len(self.stores)}>"


def open_shards(
    path: str | os.PathLike[str],
    n: int | None = None,
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    ingest_every: float | None = 1.0,
    ingest_from: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> ShardedStore:
    """Open a directory of `n` stores as one store, or create it if it does not exist.

    Either all shards are open on return, or none.

    n: the number of shards, 1 to 1024. It is required for a new directory, cannot change later, and
    may be left out for an existing directory.

    config: settings of each shard; by default those that the directory was created with.
    `topic_rates` are those of all shards together.

    clock, threads: as for `timerstore.open`.

    ingest_every: the seconds between two looks for rows that other processes have committed, 0.01
    to 86,400. None means only when `ingest` is called.

    ingest_from: the URL of a bucket, such as "s3://bucket/orders", from which the shards also
    ingest. The call publishes cluster.json there, and writers need only the bucket. One directory
    of shards reads one such prefix.

    storage_options: settings of obstore for the bucket; by default those of the environment. Only
        with `ingest_from`.

    read_only: not supported for a directory of shards. Open the folder of each shard with
    `timerstore.open(..., read_only=True)`.

    Raises:
        ConfigError: an argument is invalid, the directory has another number of shards, it is a
            single store, `read_only=True`, or the bucket belongs to another directory.
        BucketError: the bucket or a permission is missing. A bucket that does not answer is
            logged, and asked again.
        LockedError: another process, or this one, has a shard open; the error names it.
        CorruptError: a file is damaged, or a shard is missing.
        FullError: the disk is full.
    """
    if read_only:
        raise ConfigError(
            "read_only: shards are read one by one, by timerstore.open(folder, read_only=True) of "
            f"each folder in {path}"
        )
    return ShardedStore(
        path,
        n,
        config,
        clock=clock,
        threads=threads,
        ingest_every=ingest_every,
        ingest_from=ingest_from,
        storage_options=storage_options,
    )
