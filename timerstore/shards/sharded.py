"""ShardedStore: a directory of stores, opened as one.

    with timerstore.open_shards("orders.shards", 4) as store:
        store.put("orders", b"close 4711", keys="4711", delay=1800)

Threads:  every method from any thread. Calls that go to several shards do so side by side, in a
          small pool; ingest, which may take long, in another; each shard has its own services, and
          one more looks for manifests.
Holds:    (1) each shard is a TimerStore with its own lock: one owner each; either all open or none
          stays open; (2) what has one key is in one shard (routing.py); (3) whatever comes out
          names its shard.
Fails:    as TimerStore; errors name the shard. A put_many that fails in one shard is stored in the
          others: its parts know nothing of one another.
Source:   docs/decisions/0010-shards-and-spark.md.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from timerstore import store as single
from timerstore._engine.base import argument_types, due_times, message_bodies, message_fields
from timerstore._engine.base.closing import close_at_exit, warn_unclosed, weakly
from timerstore._engine.base.config_check import check_config
from timerstore._engine.base.native import Lock
from timerstore._engine.format.handle import decode
from timerstore._engine.leases import AckResult, LeaseConsumer, LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.read.requests import PullRequest
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore._engine.recurring import draw_name
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.paths import anchored
from timerstore._engine.write.put_many import id_bytes
from timerstore._engine.write.requests import BatchRequest, PutRequest
from timerstore._engine.write.spread import Spreader
from timerstore._engine.write.string_columns import Column, gather_ids
from timerstore.api import StoreApi
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    FullError,
    MessageError,
    TimerStoreError,
    quoted,
)
from timerstore.messages import Message, MessageBatch, PullResult
from timerstore.receipts import PutBatch
from timerstore.reports import CancelResult, Explanation, Histogram, PendingTimer, Report
from timerstore.shards import cluster as cluster_json
from timerstore.shards.janitor import clean, prune
from timerstore.shards.rate_share import share_of, shared_out
from timerstore.shards.receipt import (
    ShardBatch,
    ShardLeasedMessage,
    ShardMessage,
    ShardReceipt,
    ShardRecurring,
    in_shard,
    join_handle,
    places_in_parts,
    recurring_in,
    split_handle,
)
from timerstore.shards.routing import Shards, Turns, first_key, shard_of_key, shards_of_rows
from timerstore.shards.shard_consumer import ShardConsumer
from timerstore.shards.shard_ingest import Ingested, Ingester, IngestService
from timerstore.shards.shard_leases import ShardLeases, WaitingShards
from timerstore.shards.shard_paths import ShardsTree
from timerstore.shards.unsupported import NO_QUEUES, missing
from timerstore.store import TimerStore

Answer = TypeVar("Answer")
Bucket = TypeVar("Bucket")

_WORKERS_MAX = 8
_CLEAN_EVERY_NS = 3600 * 10**9
_GREATEST = ("_ms", "_percent")  # of stats: the worst shard's; everything else is summed up


def named(error: TimerStoreError, shard: int) -> TimerStoreError:
    """Let an error say in which shard it happened."""
    text = str(error)
    if not text.startswith("shard "):
        error.args = (f"shard {shard}: {text}",)
    return error


class ShardedStore(
    StoreApi[
        ShardReceipt,
        ShardBatch,
        ShardMessage,
        ShardLeasedMessage,
        ShardRecurring,
        ShardConsumer,
        WaitingShards,
    ]
):
    """An open directory of shards; `timerstore.open_shards` makes it.

    Calls differ from those of a single store as follows.

    put, put_many: a message goes to the shard of its first key, without keys of its message id.
        Messages with neither go round robin (in put_many: all to one shard). A message id is
        remembered by its shard: to repeat a put, give the same first key. A keyed replace is in the
        shard of its key. put_many checks all before any shard stores one; if a shard fails, what
        others took is stored, and `stored_count` of a FullError or BusyError counts the first ones
        of each shard. `atomic` needs messages of one shard.
    pull, pull_batch, offset_at and their begin_ forms: `shard` is required.
    consumer: reads all shards; it takes no `queues`. committed: by (shard, queue).
    query, topics, histogram, congestion: ask all shards and merge. query returns messages oldest
        first; each shard's stay in the order of its log.
    receive: shards take turns. A receipt names its shard and leads back to it from any process.
        Retries and dead letters stay in the shard of their message. An error after some messages
        are leased is raised by the next call.
    ack_many, cancel_many: all receipts are checked first; one sync for each shard. After an error
        of one shard those of the others are settled: call again.
    put_every: all runs go to the shard of the name, whatever the keys.
    pace: each shard gets an equal share, rounded down to thousandths, so the sum never exceeds the
        rate. After a pause a tenth of a second's worth may come at once, at least one message of
        each shard.
    stats: sums, of times the worst shard's; `by_shard` has each shard's own.
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
    ) -> None:
        self.root = anchored("path", path)
        if ingest_every is not None and not _is_interval(ingest_every):
            raise ConfigError(
                f"ingest_every: wanted 0.01 to 86400 s or None, got {quoted(ingest_every)}"
            )
        self.tree = ShardsTree(self.root)
        check_config(config, clock)
        self._clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self.cluster = cluster_json.ensure(Disk(), self.root, n, config)
        config = cluster_json.config_for(self.cluster, config, self.tree.cluster_json)
        shared = shared_out(config, self.cluster.shard_count)
        self.stores: tuple[TimerStore, ...] = self._open_all(shared, threads=threads)
        """Shard k's store."""
        self.config = replace(self.stores[0].config, topic_rates=config.topic_rates)
        """As of each shard; but `topic_rates` are those of all together, who share them out."""
        self._turns = Turns(len(self.stores), first=int.from_bytes(os.urandom(2), "big"))
        self._spreader = Spreader(self.config, self._clock)
        self._leases = ShardLeases(self.config, self.stores, self._in, self._in_some)
        workers = min(len(self.stores), _WORKERS_MAX)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="timerstore-shards")
        self._ingest_pool = ThreadPoolExecutor(workers, thread_name_prefix="timerstore-ingest")
        self._ingesters = [
            Ingester(self.root, {shard: store}) for shard, store in enumerate(self.stores)
        ]
        self._ingest_lock = Lock()
        self._clean_ns = 0  # when to, by the machine's clock; only the background looks
        self._ingest_service: IngestService | None = None
        self._is_closed = False
        for store in self.stores:
            store._warns_unclosed = False
        close_at_exit(self)
        if threads and ingest_every is not None:
            self._ingest_service = IngestService(weakly(self._look), ingest_every)
            try:
                self._ingest_service.start()
            except BaseException:
                self.close()
                raise

    def _open_all(self, config: StoreConfig, *, threads: bool) -> tuple[TimerStore, ...]:
        """Open every shard; where one does not, close those that did."""
        opened: list[TimerStore] = []
        try:
            for shard in range(self.cluster.shard_count):
                path = self.tree.shard(shard)
                opened.append(single.open(path, config, clock=self._clock, threads=threads))
        except BaseException as error:
            for failed in _close_all(opened):
                error.add_note(f"and then: {failed!r}")
            if isinstance(error, TimerStoreError):
                raise named(error, len(opened)) from error.__cause__
            raise
        return tuple(opened)

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return len(self.stores)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.root

    @property
    def clock(self) -> Clock:
        """The clock that all shards go by."""
        return self._clock

    if not TYPE_CHECKING:  # for type checkers there is no such name at all

        def __getattr__(self, name: str) -> object:
            """Say of what only a TimerStore has why, and what to call instead."""
            raise AttributeError(missing(name), name=name, obj=self)

    # --- which shard ---

    def shard_of(self, key: str) -> int:
        """Give the shard that has what was put with this as its first key."""
        if not isinstance(key, str):
            raise MessageError(f"key: wanted text, got {type(key).__name__}")
        return shard_of_key(key, len(self.stores))

    def _route(self, keys: object, message_id: str | None) -> int:
        key = first_key(keys) or message_id
        return self._turns.take() if not isinstance(key, str) else self.shard_of(key)

    def _in(self, shard: int, call: Callable[[TimerStore], Answer]) -> Answer:
        try:
            return call(self.stores[shard])
        except TimerStoreError as error:
            raise named(error, shard) from error.__cause__

    def _in_all(self, call: Callable[[TimerStore], Answer]) -> list[Answer]:
        """Do something in every shard at once; the first error after all have ended."""
        return self._in_some(dict.fromkeys(range(len(self.stores)), call))

    def _in_some(
        self,
        calls: Mapping[int, Callable[[TimerStore], Answer]],
        pool: ThreadPoolExecutor | None = None,
    ) -> list[Answer]:
        """Do something in some shards at once; the first error after all have ended."""
        if len(calls) == 1:
            return [self._in(shard, call) for shard, call in calls.items()]
        self.stores[0].topics()  # raises where it is closed, or forked: a pool is gone there
        pool = pool if pool is not None else self._pool
        futures: list[Future[Answer]] = []
        try:
            for shard, call in calls.items():
                futures.append(self._start(pool, shard, call))
        except ClosedError:
            for future in futures:
                future.exception()  # when it has ended
            raise
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _start(
        self, pool: ThreadPoolExecutor, shard: int, call: Callable[[TimerStore], Answer]
    ) -> "Future[Answer]":
        """Call in the pool. Once the interpreter is ending, pools take no work though other threads
        still run: then call in this thread. Raise ClosedError if the store was closed in between.
        """
        try:
            return pool.submit(self._in, shard, call)
        except RuntimeError:
            self.stores[0].topics()
            return _done(partial(self._in, shard, call))

    # --- putting ---

    def _do_put(self, request: PutRequest) -> ShardReceipt:
        if request.spread is not None:
            request = self._spreader.one(request)
        if request.replace is not False:
            request = request.with_checked_flag()
        keys = request.keys if request.key is None else request.key
        shard = self._route(keys, request.message_id)
        options = request.options()  # without the others a plain put is quick
        receipt = self._in(shard, lambda store: store.put(request.topic, request.body, **options))
        return ShardReceipt(shard, receipt)

    def _do_put_many(self, request: BatchRequest) -> ShardBatch:
        topic, level, keys, queue_id = (
            request.topic,
            request.level,
            request.keys,
            request.queue_id,
        )
        data, offsets, _ = message_bodies.gather_bodies(
            request.bodies, self.config.message_bytes_max
        )
        count = len(offsets) - 1
        now_ms = self._clock.now_ms
        if request.spread is not None:
            request = self._spreader.many(request, count)
        if level is not None:
            message_fields.check_level(level, request.delay, None, request.deliver_ms)
        due = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, self.config.delay_ms_max
        )
        ids = gather_ids(request.message_ids, count)
        if not self.config.timer_enabled and bool((due > 0).any()):
            raise due_times.timers_off()
        self._check(topic, offsets, request.tags, keys, queue_id, ids)
        atomic = argument_types.check_flag("atomic", request.atomic)
        shards = self._shards_of(keys, ids, count, atomic=atomic)
        chosen: list[int] = [int(one) for one in np.unique(shards)] or [0]
        if atomic and len(chosen) > 1:
            raise MessageError(
                f"atomic: wanted messages of one shard, for shards know nothing of one another; "
                f"by their keys and message ids these belong to {chosen}"
            )
        id_texts = None if ids is None else _texts(ids)
        if len(chosen) == 1:
            rows: dict[int, Any] = {chosen[0]: slice(None)}
        else:
            rows = {shard: np.flatnonzero(shards == shard) for shard in chosen}

        def part_of(shard: int) -> Callable[[TimerStore], PutBatch]:
            mine = rows[shard]
            own_bodies: Any = (data, offsets)
            own_keys, own_ids = keys, request.message_ids
            if not isinstance(mine, slice):
                own_bodies = [data[offsets[k] : offsets[k + 1]] for k in mine]
                own_keys = None if keys is None else [keys[k] for k in mine]
                own_ids = None if id_texts is None else [id_texts[k] for k in mine]
            return lambda store: store.put_many(
                topic,
                own_bodies,
                deliver_ms=due[mine] if level is None else None,
                tags=request.tags,
                keys=own_keys,
                message_ids=own_ids,
                queue_id=queue_id,
                atomic=atomic,
                flush=request.flush,
                level=level,
            )

        parts = self._put_parts({shard: part_of(shard) for shard in chosen})
        return ShardBatch(shards, parts, places_in_parts(shards))

    def _put_parts(
        self, calls: Mapping[int, Callable[[TimerStore], PutBatch]]
    ) -> dict[int, PutBatch]:
        done: dict[int, PutBatch] = {}

        def counted(shard: int) -> Callable[[TimerStore], None]:
            def call(store: TimerStore) -> None:
                done[shard] = calls[shard](store)

            return call

        try:
            self._in_some({shard: counted(shard) for shard in calls})
        except (FullError, BusyError) as error:
            # Other shards may have failed alike; their own first ones are not counted then.
            error.stored_count += sum(len(one) for one in done.values())
            raise
        return done

    def _shards_of(
        self, keys: Sequence[Any] | None, ids: Column | None, count: int, *, atomic: bool
    ) -> Shards:
        shards = np.full(count, -1, np.int32)
        if ids is not None:
            shards = shards_of_rows(*ids, len(self.stores))
        if keys is not None:
            firsts = [first_key(one) for one in keys]
            by_key = np.array([-1 if one is None else self.shard_of(one) for one in firsts], "i4")
            shards = np.where(by_key < 0, shards, by_key)
        without = shards < 0
        if without.any():
            is_bound = atomic and not without.all()  # they go where the others have to
            shards[without] = shards[~without][0] if is_bound else self._turns.take()
        return shards

    def _check(
        self, topic: str, offsets: Any, tags: Any, keys: Any, queue_id: Any, ids: Column | None
    ) -> None:
        """Refuse what a shard would refuse, before any shard has stored something."""
        name = message_fields.check_topic(topic)
        text = message_fields.encode_properties(tags, (), None)
        sizes = np.diff(offsets)
        extra = np.zeros(1, np.int64)
        if keys is not None:
            is_row = isinstance(keys, Sequence) and not isinstance(keys, str | bytes)
            is_row = is_row or (isinstance(keys, np.ndarray) and keys.ndim > 0)
            if not is_row or len(keys) != len(sizes):
                got = str(len(keys)) if is_row else type(keys).__name__
                raise MessageError(
                    f"keys: wanted one entry for each of {len(sizes)} bodies, got {got}"
                )
            texts = [message_fields.encode_properties(None, one, None) for one in keys]
            extra = np.fromiter(map(len, texts), np.int64, len(texts))
        if queue_id is not None:
            message_fields.check_queue_id(queue_id)
        if ids is not None and len(sizes):
            extra = extra + id_bytes(ids, is_remembered=self.config.dedupe_window_ms > 0)
        if len(sizes):
            most = int(extra.max())
            message_fields.check_sizes(
                int((sizes + extra).max()) - most,
                len(text) + most,
                name,
                properties_bytes_max=self.config.properties_bytes_max,
                record_bytes_max=self.config.record_bytes_max,
            )

    # --- pulling ---

    def _do_pull(self, request: PullRequest) -> PullResult:
        return self._in(
            self._checked(request.shard), lambda store: store._do_pull(replace(request, shard=None))
        )

    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_pull_batch(replace(request, shard=None)),
        )

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_begin_pull(replace(request, shard=None)),
        )

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_begin_pull_batch(replace(request, shard=None)),
        )

    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        return self._in(
            self._checked(shard), lambda store: store.offset_at(topic, queue_id, time_ms)
        )

    def _checked(self, shard: object) -> int:
        if type(shard) is not int or not 0 <= shard < len(self.stores):
            raise MessageError(f"shard: wanted 0 to {len(self.stores) - 1}, got {quoted(shard)}")
        return shard

    def _do_consumer(
        self,
        topic: str,
        group: str,
        queues: Sequence[int] | None,
        tags: str | None,
        sql: str | None,
        wait: float | None,
    ) -> ShardConsumer:
        if queues is not None:
            raise MessageError(NO_QUEUES)
        made = []
        try:
            for store in self.stores:
                made.append(  # noqa: PERF401 - those before one that fails
                    store.consumer(topic, group, tags=tags, sql=sql, wait=wait)
                )
        except BaseException:
            for one in made:
                one.close()
            raise
        return ShardConsumer(self._clock, made, wait)

    def _do_committed(self, topic: str, group: str) -> dict[tuple[int, int], int]:
        found = self._in_all(lambda store: store.committed(topic, group))
        return {(k, queue): at for k, one in enumerate(found) for queue, at in one.items()}

    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[ShardMessage]:
        found = self._in_all(
            lambda store: store.query(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count
            )
        )
        parts = [[in_shard(k, one) for one in part] for k, part in enumerate(found)]
        # Merged, not sorted: where the clock was set back, a shard's own order stays its log's.
        messages = list(heapq.merge(*parts, key=lambda one: one.store_ms))
        return messages[-max_count:]

    # --- leasing ---

    def _do_receive(self, request: ReceiveRequest) -> list[ShardLeasedMessage]:
        return self._leases.receive(request)

    def _do_begin_receive(self, request: ReceiveRequest) -> WaitingShards:
        return self._leases.begin(request)

    def _do_lease_consumer(
        self, topic: str, group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[ShardLeasedMessage]:
        self.stores[0].topics()  # raises where it is closed
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        return self._leases.ack_one(receipt)

    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        return self._leases.ack(receipts)

    def _do_nack(self, receipt: str | LeasedMessage, delay: timedelta | float | None) -> AckResult:
        return self._leases.nack(receipt, delay)

    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        return self._leases.extend(receipt, lease)

    # --- what recurs ---

    def _do_put_every(
        self, topic: str, body: bytes | bytearray | memoryview, given: dict[str, Any]
    ) -> ShardRecurring:
        name = given["name"] = draw_name() if given["name"] is None else given["name"]
        shard = self._shard_of_name(name)
        for one in self.recurring():
            if isinstance(name, str) and one.name == name and one.shard != shard:
                raise MessageError(
                    f"name: {name!r} recurs in shard {one.shard} already, by a call of its store, "
                    f"and would in shard {shard}, too; cancel_every it first"
                )
        made = self._in(
            shard,
            lambda store: store.put_every(topic, body, **given),
        )
        return recurring_in(shard, made)

    def _shard_of_name(self, name: object) -> int:
        return self.shard_of(name) if isinstance(name, str) else 0  # which refuses it

    def _do_recurring(self) -> list[ShardRecurring]:
        parts = self._in_all(lambda store: store.recurring())
        found = [recurring_in(shard, one) for shard, part in enumerate(parts) for one in part]
        return sorted(found, key=lambda one: (one.name, one.shard))

    def _do_cancel_every(self, name: str) -> bool:
        return any(self._in_all(lambda store: store.cancel_every(name)))

    def _do_pace(self, topic: str, per_second: float | None) -> None:
        message_fields.check_topic(topic)
        rate = due_times.check_rate(per_second)
        share = None if rate is None else share_of(rate, len(self.stores))
        self._in_all(lambda store: store.pace(topic, share))

    # --- what waits ---

    def _do_cancel(self, receipt_or_handle: ShardReceipt | str) -> CancelResult:
        shard, handle = self._place_of(receipt_or_handle)
        return self._in(shard, lambda store: store.cancel(handle))

    def _do_cancel_many(
        self, receipts_or_handles: Iterable[ShardReceipt | str]
    ) -> list[CancelResult]:
        places = argument_types.each_of(
            "receipts_or_handles", receipts_or_handles, self._checked_place
        )
        answers: dict[int, CancelResult] = {}
        for shard in sorted({shard for shard, _ in places}):
            which = [at for at, place in enumerate(places) if place[0] == shard]
            handles = [places[at][1] for at in which]
            found = self._in(shard, methodcaller("cancel_many", handles))
            answers.update(zip(which, found, strict=True))
        return [answers[at] for at in range(len(places))]

    def _do_reschedule(
        self,
        receipt_or_handle: ShardReceipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> ShardReceipt:
        shard, handle = self._place_of(receipt_or_handle)
        receipt = self._in(
            shard,
            lambda store: store.reschedule(
                handle, delay=delay, deliver_at=deliver_at, deliver_ms=deliver_ms
            ),
        )
        return ShardReceipt(shard, receipt)

    def _checked_place(self, given: object) -> tuple[int, Any]:
        """Where it is, known to be a handle before any shard is asked."""
        shard, handle = self._place_of(given)
        if isinstance(handle, str):
            decode(handle)
        return shard, handle

    def _place_of(self, given: object) -> tuple[int, Any]:
        if isinstance(given, ShardReceipt):
            return self._checked(given.shard), given.receipt
        return split_handle(given, len(self.stores))

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        parts = [
            _named_pending(k, store.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic))
            for k, store in enumerate(self.stores)
        ]
        return heapq.merge(*parts, key=lambda one: one.due_ms)

    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        if begin is None:
            begin = self._clock.now_ms  # the same buckets in each
        parts = self._in_all(lambda store: store.histogram(begin, end, by, topic))
        return Histogram(parts[0].edges, np.sum([part.counts for part in parts], axis=0))

    def _do_timing_distribution(self) -> dict[int | None, int]:
        return _summed(self._in_all(lambda store: store.timing_distribution()))

    def _do_congestion(self) -> dict[int, int]:
        found = _summed(self._in_all(lambda store: store.congestion()))
        return dict(sorted(found.items()))

    def _do_explain(
        self, message: ShardReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        if isinstance(message, ShardReceipt) or (isinstance(message, str) and topic is None):
            shard, given = self._place_of(message)
            return self._in(shard, lambda store: store.explain(given))
        name = message
        found = self._in_all(lambda store: store.explain(name, topic=topic))
        return next((one for one in found if one.state != "unknown"), found[0])

    # --- what other processes hand over ---

    def ingest(self) -> list[Ingested]:
        """Take in what writers have committed, now; durable on return.

        Opened with threads, the shards do so by themselves every `ingest_every` seconds.
        """
        with self._ingest_lock:
            now_ms = SystemClock().now_ms
            found = self._in_some(
                {shard: partial(_run, one, now_ms) for shard, one in enumerate(self._ingesters)},
                self._ingest_pool,
            )
        return [one for part in found for one in part]

    def _look(self) -> None:
        """What the background does: ingest, and now and then clean up; that also while a source
        fails, for its error may stand for days.
        """
        try:
            self.ingest()
        except ClosedError:
            raise
        except Exception as error:
            try:
                self._clean_up()
            except Exception as other:  # noqa: BLE001 - of the two that one is told
                error.add_note(f"and then: {other!r}")
            raise
        self._clean_up()

    def _clean_up(self) -> None:
        now_ns = SystemClock().monotonic_ns
        if now_ns >= self._clean_ns:
            self._clean_ns = now_ns + _CLEAN_EVERY_NS
            clean(self.root)
            prune(self.root, self._is_ingested)

    def _is_ingested(self, source: str, version: int) -> bool:
        return all(version in store.ingested(source) for store in self.stores)

    def wake_ingest(self) -> None:
        """Have the shards look for what is committed at once; does not wait for it."""
        if self._ingest_service is not None:
            self._ingest_service.wake()

    # --- the whole ---

    def _do_topics(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for part in self._in_all(lambda store: store.topics()):
            for topic, count in part.items():
                counts[topic] = max(count, counts.get(topic, 0))
        return counts

    def _do_stats(self) -> dict[str, Any]:
        by_shard = self._in_all(lambda store: store.stats())
        total: dict[str, Any] = {}
        for name, value in by_shard[0].items():
            if isinstance(value, dict):
                keys = {key for one in by_shard for key in one[name]}
                total[name] = {k: sum(one[name].get(k, 0) for one in by_shard) for k in keys}
            else:
                combine = max if name.endswith(_GREATEST) else sum
                total[name] = combine(one[name] for one in by_shard)
        service = self._ingest_service
        total["ingest_error"] = "" if service is None else service.error
        return {**total, "shard_count": len(by_shard), "by_shard": by_shard}

    def _do_flush(self) -> None:
        self._in_all(lambda store: store.flush())

    def verify(self) -> list[Report]:
        """Check every invariant of every shard."""
        return self._in_all(lambda store: store.verify())

    # --- closing ---

    def _close_at_exit(self) -> None:
        self._stop_ingest()
        for store in self.stores:
            store._close_at_exit()
        self.close()

    def _stop_ingest(self) -> None:
        for one in self._ingesters:
            one.stop()
        if self._ingest_service is not None:
            self._ingest_service.stop()

    def close(self) -> None:
        """Close every shard; a second call does nothing. The first error after all are closed;
        ReentrantCallError, and none is closed, during a call of the same thread.
        """
        if self._is_closed:  # first: at exit the modules used below may be gone
            return
        self.stores[0]._check_process()
        for store in self.stores:
            store._refuse_reentrant_close()
        self._stop_ingest()
        errors = _close_all(self.stores)
        self._pool.shutdown()
        self._ingest_pool.shutdown()
        if errors:
            raise errors[0]
        self._is_closed = True

    def __del__(self) -> None:
        """Warn, and end the ingest; the shards end as any store does that is dropped."""
        if getattr(self, "_is_closed", True) or os.getpid() != self._pid:
            return
        for one in self._ingesters:
            one.stop()
        if self._ingest_service is not None:
            self._ingest_service.ask_to_stop()
        warn_unclosed(self, self.root)

    def __repr__(self) -> str:
        return f"<ShardedStore {str(self.root)!r} shards={len(self.stores)}>"


def _close_all(stores: Iterable[TimerStore]) -> list[BaseException]:
    """Close each, whatever becomes of those before it: no memory, Ctrl-C. What was raised."""
    errors: list[BaseException] = []
    for shard, store in enumerate(stores):
        try:
            store.close()
        except TimerStoreError as error:
            errors.append(named(error, shard))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
    return errors


def _done(call: Callable[[], Answer]) -> "Future[Answer]":
    """Call in this thread; give what came of it as a pool would."""
    future: Future[Answer] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - of one shard: the others are called as well
        future.set_exception(error)
    return future


def _named_pending(shard: int, found: Iterator[PendingTimer]) -> Iterator[PendingTimer]:
    for one in found:
        yield replace(one, handle=join_handle(shard, one.handle))


def _summed(parts: Sequence[dict[Bucket, int]]) -> dict[Bucket, int]:
    total: dict[Bucket, int] = {}
    for part in parts:
        for bucket, count in part.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def _texts(column: Column) -> list[str]:
    data, spans = column
    return [bytes(data[spans[k] : spans[k + 1]]).decode() for k in range(len(spans) - 1)]


def _run(ingester: Ingester, now_ms: int, _store: TimerStore) -> list[Ingested]:
    return ingester.run(now_ms)


def _is_interval(given: object) -> bool:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and 0.01 <= given <= 86_400  # type: ignore[operator]


def open_shards(
    path: str | os.PathLike[str],
    n: int | None = None,
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    ingest_every: float | None = 1.0,
    read_only: bool = False,
) -> ShardedStore:
    """Open a directory of `n` stores as one; it is made where it is not there.

    `n` may be left out where it is. ConfigError where it has another number; LockedError, which
    names the shard, where somebody has one of them open: then none stays open. `ingest_every`: how
    often to look for what other processes have committed, seconds; None: `ingest` does when called.
    `read_only=True` is a ConfigError: timerstore.open opens each shard's folder so.
    """
    if read_only:
        raise ConfigError(
            "read_only: shards are read one by one, by timerstore.open(folder, read_only=True) of "
            f"each folder in {path}"
        )
    return ShardedStore(path, n, config, clock=clock, threads=threads, ingest_every=ingest_every)
