"""The stores that `open` returns: TimerStore, and ReadOnlyStore, which reads whether or not a
process has the store open.

Each call checks its arguments and delegates to a component of the engine. TimerStore has the calls
that put, ingest and consume here; `_engine/calls/store_calls.py` has the others.

Thread safety: every call may be made from any thread; `close` waits for running calls. Calls of a
ReadOnlyStore take turns; a waiting call does not hold up the others.
Invariants of a ReadOnlyStore:
    1. Nothing in the directory is created, changed or locked.
    2. A result is as of one position (_engine/snapshot/position.py), and no later result is as of
       an earlier one.
See also: docs/architecture.md, docs/decisions/0012-snapshots-and-retention.md.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from timerstore._engine.base import message_fields
from timerstore._engine.base.argument_types import check_config
from timerstore._engine.base.net_loader import load_net
from timerstore._engine.base.owner import weakly
from timerstore._engine.base.version import __version__
from timerstore._engine.calls.open_store import api_call
from timerstore._engine.calls.store_calls import StoreCalls
from timerstore._engine.engine import Engine
from timerstore._engine.format import recurring_json
from timerstore._engine.format.consumer_offset_json import entry_name
from timerstore._engine.format.store_paths import CLUSTER_JSON
from timerstore._engine.leases import (
    DeadLetter,
    LeaseConsumer,
    LeasedMessage,
    WaitingReceive,
)
from timerstore._engine.leases.dead_letters import DeadLetterReader, RequeuedPlaces, check_names
from timerstore._engine.maintenance import verify_directory
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.consumer_offsets import read_file
from timerstore._engine.read.filter import make_filter
from timerstore._engine.read.groups import Filters, check_name
from timerstore._engine.read.pull_request import check_queues, wait_problems
from timerstore._engine.recurring import Recurring, RecurringRequest
from timerstore._engine.recurring.definition import describe
from timerstore._engine.snapshot.columns.table_scan import Bounds, Part, transactions
from timerstore._engine.snapshot.snapshot_calls import answered, reject_unsupported
from timerstore._engine.snapshot.snapshot_introspection import SnapshotIntrospectionCalls
from timerstore._engine.snapshot.snapshot_pull import SnapshotPullCalls
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.level_delivery import pending_by_topic
from timerstore._engine.write.ledger import VersionSet
from timerstore._engine.write.put_requests import BatchRequest, PutRequest, Spreader
from timerstore._engine.write.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore.api import SingleStoreApi, StoreApi
from timerstore.errors import ConfigError, MessageError
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Message
from timerstore.types.receipts import PutBatch, PutReceipt
from timerstore.types.reports import Report

if TYPE_CHECKING:
    import ssl

ConnectedStore = SingleStoreApi[PutReceipt, PutBatch, Message, LeasedMessage, Recurring, Any, Any]
"""A store in another process, with the calls of TimerStore: what `connect` and
`open(shared=True)` return. A name for annotations; it has no instances of its own."""


def _begin_nothing(*_given: Any, **_named: Any) -> Any:
    return None


class TimerStore(
    StoreCalls,
    SingleStoreApi[
        PutReceipt,
        PutBatch,
        Message,
        LeasedMessage,
        Recurring,
        Consumer,
        WaitingReceive,
    ],
):
    """An open store; `timerstore.open` returns it. Close it, or use `with`.

    A store that is dropped without `close` emits a ResourceWarning and stops its services. The
    directory can be opened again once they have stopped and the store is garbage collected. Its
    data are as after a kill: no acknowledged message is lost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
        threads: bool = True,
    ) -> None:
        check_config(config, clock)
        super().__init__(clock if clock is not None else SystemClock(), threads=threads)
        engine = Engine(_root_of(path), config, self._clock, threads=threads)
        try:
            self._own(engine)
            if threads:
                engine.start()
        except BaseException as error:
            engine.give_up(error)
            raise

    def _own(self, engine: Engine) -> None:
        super()._own(engine)
        self._spreader = Spreader(engine.config, self._clock)
        self._put_writer = engine.put_writer
        self._putter = self._put_writer.make_putter(
            self.put, self.put_many, self._sync_through, self._call_ended.set, self._calls
        )
        # These never block; the caller waits for the sync. They return None if they stored nothing
        # because the call needs the slow path.
        self._begin_put = self._begin_put_many = _begin_nothing
        if self._put_writer.is_quick:  # the same calls with the same results, in C
            if type(self).put is StoreApi.put:
                self.put = self._putter.put  # type: ignore[method-assign]
                self._begin_put = self._putter.begin_put
            if type(self).put_many is StoreApi.put_many:
                self.put_many = self._putter.put_many  # type: ignore[method-assign]
                self._begin_put_many = self._putter.begin_put_many
        self._close_when_forgotten()
        self._leases = engine.make_leases(self._call)
        self._half_messages = engine.make_half_messages(self._leases)
        self._requeuer = engine.make_requeuer()
        engine.recurring.prepare()
        self._unsubscribe = self._clock.subscribe(weakly(self._wake_all))

    def _wake_all(self) -> None:
        self._engine.wake_all()

    # --- putting ---

    @api_call
    def _do_put(self, request: PutRequest) -> PutReceipt:
        if request.check_after is not None:
            request = request.as_half(self._engine.config.delay_ms_max)
        if request.priority is not None or request.message_group is not None:
            request = request.with_chosen_queue()
        if request.spread is not None:
            request = self._spreader.one(request)
        if request.replace is not False or request.unique is not False:
            request = request.with_checked_flags()
        if request.unique:
            return self._engine.unique_writer.put(request)
        if request.replace or request.key is not None or request.wait_at_most is not None:
            return self._engine.replace_writer.put(request)
        return self._put_writer.put(request)

    @api_call
    def _begin_single(self, request: PutRequest) -> PutReceipt | None:
        """Put without waiting, as `_begin_put`, a message that is not plain (timerstore.aio)."""
        if request.check_after is not None:
            request = request.as_half(self._engine.config.delay_ms_max)
        return self._put_writer.begin(request)

    @api_call
    def _do_put_many(self, request: BatchRequest) -> PutBatch:
        if request.spread is not None:
            request = self._spreader.many(request, message_fields.count_bodies(request.bodies))
        return self._engine.batch_writer.put_many(request)

    @api_call
    def ingest(self, source: str, version: int, batches: Iterable[RowBatch]) -> IngestReceipt:
        """Store all rows of a version of a source exactly once; they are durable on return.

        A version must always have the same rows in the same order. Their division into batches does
        not matter. A repeated call, after a crash or an error, continues after the rows that are
        stored; for a complete version it appends nothing. Each batch is checked before any of its
        rows is stored. Rows are stored in order, in parts that are atomic. A part becomes visible
        when it is durable, possibly before later parts.

        Raises:
            MessageError: a row is invalid, or the rows differ from those of an earlier call.
            FullError, FlowControlError: call again; the stored rows are kept.
        """
        return self._engine.ingester.ingest(source, version, batches)

    @api_call
    def ingested(self, source: str) -> IngestedVersions:
        """Return the versions of a source that are complete and durable."""
        return self._engine.ingester.ingested(source)

    # --- consuming as a group ---

    @api_call
    def _do_consumer(
        self,
        topic: str,
        group: str,
        queues: Sequence[int] | None,
        tags: str | None,
        sql: str | None,
        wait: float | None,
    ) -> Consumer:
        topic, group = check_name("topic", topic), check_name("group", group)
        count = self._engine.routes.full_queue_count(topic)
        asked = check_queues(queues, count)
        make_filter(self._engine.timer_route, tags, sql)  # raises now, not in the first pull
        if wait is not None and (problems := wait_problems(wait)):
            raise MessageError(problems)
        context = self._engine.consumer_context(self._call)
        return Consumer(context, topic, group, asked, Filters(tags, sql), wait)

    # --- leasing ---

    def _do_lease_consumer(
        self, topic: str | Sequence[str], group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[LeasedMessage]:
        self._check_open()
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    # --- recurring messages ---

    @api_call
    def _do_put_every(self, request: RecurringRequest) -> Recurring:
        return self._engine.recurring.put_every(request.with_queue_of_priority())

    @api_call
    def _do_recurring(self) -> list[Recurring]:
        return self._engine.recurring.describe_all()

    @api_call
    def _do_cancel_every(self, name: str) -> bool:
        return self._engine.recurring.cancel_every(name)


@reject_unsupported
class ReadOnlyStore(
    SnapshotPullCalls,
    SnapshotIntrospectionCalls,
    StoreApi[Any, Any, Message, Any, Recurring, Any, Any],
):
    """A store that is only read. `timerstore.open(path, read_only=True)` returns it.

    While another process has the store open, this reads up to the last completed checkpoint. A
    checkpoint begins every `checkpoint_interval_ms` (500), so newer messages are not visible yet.
    Of a store that no process has open, and of a broker's store, it reads every whole record. A
    message that was visible stays visible, until retention removes it.

    Calls differ from those of a TimerStore as follows.

    pull, pull_batch: with `wait` they look every 50 ms for messages that a checkpoint has made
        visible. If the store is closed while it waits, a pull returns its last result.
    query, explain: read the log. query reads every record of the topic; no index is used.
    pending: as of its first step. histogram: reads all pending messages with each call.
    committed: includes commits since the last checkpoint.
    dead_letters: each page as of the checkpoint at its time. Each call reads the group's retry
        topics again.
    recurring: the progress of each definition as of the last checkpoint.
    stats: some of TimerStore's names, and two more. `as_of_ms` is when the checkpoint was written,
        by the file's time (0: a broker's store). `open_in` is the process that has the store open
        (0: unknown, None: no process).
    """

    @answered
    def _do_topics(self) -> dict[str, int]:
        return self._view.routes.topics()

    @answered
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        table = read_file(self._view.disk, self._view.tree).table
        return dict(table.get(entry_name(topic, group), {}))

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        self.check_open()
        group, topic = check_names(group, topic)
        reader = DeadLetterReader(
            self._timers.store_id or 0,
            self.topics,
            self.pull_batch,
            self._view.routes.deleted_below,
        )
        known = RequeuedPlaces()

        def scan() -> set[tuple[int, int]]:
            reader.scan(group, known)
            return known.places

        return reader.unrequeued(group, topic, scan)

    @answered
    def _do_recurring(self) -> list[Recurring]:
        path = self._view.tree.recurring_json
        definitions = recurring_json.read(self._view.disk.read_small(path), path)
        now_ms = self._clock.now_ms
        found = [describe(one, now_ms) for one in definitions if not one.is_ended]
        return sorted(found, key=lambda one: one.name)

    @answered
    def ingested(self, source: str) -> IngestedVersions:
        """Return the complete versions of a source."""
        part = Part.whole(self._view.position.store, "transactions")
        versions = VersionSet()
        for one in transactions(part, Bounds()):
            if one.source == source:
                versions.add(one.version)
        return IngestedVersions(source, tuple(range(*one) for one in versions.ranges()))

    # --- statistics and verification ---

    @answered
    def _do_stats(self) -> dict[str, Any]:
        self._timers.catch_up()
        view, store = self._view, self._view.position.store
        by_topic, on_level = (Counter(one) for one in pending_by_topic(view.routes))
        as_of_ms = view.disk.modified_ms(view.tree.watermark) if view.position.mark else None
        return {
            "version": __version__,
            "as_of_ms": as_of_ms or 0,
            "open_in": owner_pid(view.disk, view.tree),
            "pending_messages": sum(by_topic.values()) + sum(on_level.values()),
            "pending_by_topic": dict(by_topic + on_level),
            "level_pending_messages": sum(on_level.values()),
            "log_begin_bytes": store.log_begin,
            "log_end_bytes": view.position.log_end,
            "log_durable_bytes": view.position.log_end,
            "timer_log_end_bytes": store.timer_log_end,
        }

    def verify(self) -> Report:
        """Read the whole store and report all damage, as `verify_directory` does.

        A store that another process has open changes during the reading. Then only problems that
        are found twice are reported.
        """
        self.check_open()
        found = verify_directory(self._root, self._given)
        if found.clean or owner_pid(self._view.disk, self._view.tree) is None:
            return found
        again = verify_directory(self._root, self._given)
        both = tuple(one for one in again.problems if one in found.problems)
        return Report(both, again.counts)


def _root_of(path: str | os.PathLike[str]) -> Path:
    """Return the directory. Raise ConfigError if it is a directory of shards, or no path."""
    root = absolute_path("path", path)
    if Disk().exists(root / CLUSTER_JSON):
        # No shard would deliver messages that are put into a store there.
        raise ConfigError(
            "path: wanted a store, or a folder for one, got a directory of shards: open_shards",
            where=root,
        )
    return root


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: Literal[False] = False,
    shared: Literal[False] = False,
) -> TimerStore: ...


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    shared: Literal[True],
    return_leases: bool = False,
) -> ConnectedStore: ...


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: Literal[True],
) -> ReadOnlyStore: ...


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: bool,
) -> TimerStore | ReadOnlyStore: ...


def open(  # noqa: A001 - read as `timerstore.open`, as in `gzip.open`; no file is opened here
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
    threads: bool = True,
    read_only: bool = False,
    shared: bool = False,
    return_leases: bool = False,
) -> TimerStore | ReadOnlyStore | ConnectedStore:
    """Open the store in a directory, or create it if the directory does not exist.

    Opening recovers the store: everything that was durable is there, and messages that came due
    while it was closed are delivered. Close the store, or use `with`.

    config: settings; by default those of StoreConfig. For an existing store, sizes that its files
    determine are taken from the files.

    clock: the source of time; by default the system clock.

    threads: False to run no services. `timerstore.testing.Stepper` then steps them.

    read_only: True to return a ReadOnlyStore. It takes no lock, starts no thread and changes no
    byte, so another process may have the store open. It shows the store as of the last checkpoint,
    which the owner writes every `StoreConfig.checkpoint_interval_ms` (500 by default) if there is
    something new. If no process has the store open, it also shows all complete records after that
    checkpoint. It reads a RocketMQ broker's directory, too.

    shared: True to share the store with other processes that open it so. The first one owns it and
    serves it to the others, on a socket in the directory that only its user can reach. When the
    owner closes the store or dies, another process takes over. The result is as that of `connect`,
    with the same exceptions. All processes must give the same `config`; sizes of files may be left
    at their defaults.

    return_leases: with `shared=True`, as for `connect`.

    Raises:
        ConfigError: an argument is invalid, the directory is one of shards (use `open_shards`),
            `read_only=True` and there is no store, or `shared=True` and the process that has the
            store open has other settings, each of which is named.
        LockedError: another process, or this one, has the store open.
        CorruptError: a file of the store is damaged.
        FullError: the disk is full.
    """
    if type(read_only) is not bool:
        raise ConfigError(f"read_only: wanted True or False, got {read_only!r}")
    if type(shared) is not bool:
        raise ConfigError(f"shared: wanted True or False, got {shared!r}")
    if type(return_leases) is not bool:
        raise ConfigError(f"return_leases: wanted True or False, got {return_leases!r}")
    if return_leases and not shared:
        raise ConfigError("return_leases: it goes with shared=True only")
    if shared:
        if clock is not None or not threads or read_only:
            raise ConfigError("shared: it goes with neither clock, threads=False nor read_only")
        check_config(config, clock)
        opened: ConnectedStore = load_net("shared_store").open_shared(
            _root_of(path), config, return_leases=return_leases
        )
        return opened
    if read_only:
        check_config(config, clock)
        return ReadOnlyStore(_root_of(path), config, clock=clock)
    return TimerStore(path, config, clock=clock, threads=threads)


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: "ssl.SSLContext | None" = None,
    retry_for: float = 30.0,
    connect_timeout: float | None = None,
    call_timeout: float = 5.0,
    return_leases: bool = False,
) -> ConnectedStore:
    """Connect to a server and return a store with the calls of TimerStore, for any thread.

    All threads share one connection. If it is lost, calls wait for the next server and are sent
    again, as far as they then happen once. A forked child process makes its own connection.

    url: unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT.

    token: the text of the server's token file, for TCP.

    tls: settings of TLS, such as further certificate authorities; by default those of
    `ssl.create_default_context`.

    retry_for: seconds to look for a server after the connection was lost, 0 to 86,400. 0 raises at
    once: then puts get no message id from the client.

    connect_timeout: seconds to look for a server at the beginning, 0 to 86,400; None: `retry_for`.

    call_timeout: seconds for the answer to a call, 0.1 to 86,400; a call that waits has its `wait`
    in addition. After that time the call is sent again if it then happens once, for at most
    `retry_for`; otherwise it raises ConnectionLostError. One attempt to connect has the same limit.

    return_leases: True to have the server deliver leased messages again as soon as this connection
    ends, instead of when their leases end. A short break of the connection does so, too. If the
    server itself ends, the leases stay: this client may settle them through the next one.

    Raises:
        ConfigError: an argument is invalid, or msgspec is not installed.
        UnavailableError: no server was found in time, or the address cannot be that of a server;
            then `retryable` is False.
        AccessError: the server rejects the user or the token.
        ProtocolError: the server speaks another version of the protocol.
    """
    store: ConnectedStore = load_net("remote_store").connect_store(
        url,
        token=token,
        tls=tls,
        retry_for=retry_for,
        connect_timeout=connect_timeout,
        call_timeout=call_timeout,
        return_leases=return_leases,
    )
    return store
