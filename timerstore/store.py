"""TimerStore: one directory, opened; ties the rooms together.

Threads:  every method from any thread; `close` waits for calls that run.
Holds:    opening recovers before any service starts; closing completes a checkpoint, then tells a
          broker that it may open the directory.
Fails:    each error says what, where, wanted and got; after FailedError only reopening helps.
"""

import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import wraps
from heapq import merge
from pathlib import Path
from threading import get_ident
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from timerstore._engine.base import argument_types, due_times, message_bodies, message_fields
from timerstore._engine.base.closing import close_at_exit, warn_unclosed, weakly
from timerstore._engine.base.config_check import check_config
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.service import Service, WakeEvent
from timerstore._engine.engine import Engine
from timerstore._engine.format.handle import Handle, check_receipt, decode, of_receipt
from timerstore._engine.format.store_paths import CLUSTER_JSON
from timerstore._engine.ingest.row_batch import IngestedVersions, IngestReceipt, RowBatch
from timerstore._engine.introspection.due_buckets import buckets_of
from timerstore._engine.introspection.explain import name_of
from timerstore._engine.introspection.resource_usage import used
from timerstore._engine.leases import (
    AckResult,
    LeaseConsumer,
    LeasedMessage,
    WaitingReceive,
)
from timerstore._engine.leases.receive_request import ReceiveRequest
from timerstore._engine.levels.pending_counts import pending_by_topic
from timerstore._engine.maintenance import Copier
from timerstore._engine.maintenance.verify import check_store
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.consumer_context import ConsumerContext
from timerstore._engine.read.filter import Filter, make_filter
from timerstore._engine.read.groups import Filters, check_name
from timerstore._engine.read.pull_validation import check_pull
from timerstore._engine.read.query_validation import check_query
from timerstore._engine.read.queue_watcher import QueueWatcher
from timerstore._engine.read.requests import PullRequest, refuse_shard
from timerstore._engine.read.validation import check_queues, range_problems, wait_problems, whole_ms
from timerstore._engine.read.wait_queue import AddPoll
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore._engine.recurring import Recurring
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.guarded_map import CutWatch
from timerstore._engine.storage.paths import anchored
from timerstore._engine.write.requests import BatchRequest, PutRequest
from timerstore._engine.write.spread import Spreader
from timerstore.api import StoreApi
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    FailedError,
    ForkedError,
    MessageError,
    quoted,
    reentrant_call,
    stopped_at_exit,
    typed,
)
from timerstore.messages import Message, MessageBatch, PullResult
from timerstore.read_only_store import ReadOnlyStore
from timerstore.receipts import PutBatch, PutReceipt
from timerstore.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    Histogram,
    PendingTimer,
    Report,
)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_LOOK_S = 0.5  # how often who closes looks by himself whether calls have ended
_EXIT_WAIT_S = 5.0  # how long closing at interpreter exit waits for calls of other threads

_opened_here: "weakref.WeakSet[TimerStore]" = weakref.WeakSet()


def _block_in_child() -> None:
    for store in list(_opened_here):
        store._block()


os.register_at_fork(after_in_child=_block_in_child)


def _counted(
    method: Callable[Concatenate["TimerStore", Arguments], Answer],
) -> Callable[Concatenate["TimerStore", Arguments], Answer]:
    """A call that `close` waits for, and that raises once the store is closed.

    A FailedError of a file of the store is final, whatever was asked: no later call goes on beside
    what it left undone. One of another file, as of a backup's, is the caller's alone.
    """

    @wraps(method)
    def call(self: "TimerStore", /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        if self._blocked:
            self._check_open()
        calls, mine = self._calls, object()
        try:
            calls[mine] = get_ident()  # a single step, as is `pop`: no signal handler runs within
            if self._blocked:
                self._check_open()
            answer = method(self, *args, **given)
            self._cuts.check()
        except BaseException as error:
            self._look_at(error)
            raise
        finally:
            calls.pop(mine, None)
            if self._blocked:
                self._tell_left()
        return answer

    return call


def _not_plain(*_given: Any, **_named: Any) -> Any:
    return None


class TimerStore(
    StoreApi[PutReceipt, PutBatch, Message, LeasedMessage, Recurring, Consumer, WaitingReceive]
):
    """An open store; `timerstore.open` makes it. Close it, or use `with`.

    A store that is dropped without a close gives a ResourceWarning. Its services end, its directory
    can be opened again once they have and it is collected, and its data are as after a kill:
    nothing that was acknowledged is lost.
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
        self._clock = clock if clock is not None else SystemClock()
        self._threads = threads
        self._pid = os.getpid()
        self._closed = False
        self._close_lock = Lock()
        self._calls: dict[object, int] = {}  # running calls, each with the ident of its thread
        self._left = WakeEvent()  # one of them has ended
        engine = Engine(_root_of(path), config, self._clock, threads=threads)
        try:
            self._own(engine)
            if threads:
                engine.start()
        except BaseException as error:
            engine.give_up(error)
            raise

    def _own(self, engine: Engine) -> None:
        self._engine: Engine = engine
        self.config = engine.config
        self._log = engine.log
        self._native = engine.log.native
        self._cuts = CutWatch(engine.directory.root)
        self._blocked = False  # closed, or carried into a forked child
        self._spreader = Spreader(engine.config, self._clock)
        self._putting = engine.putting
        self._putter = self._putting.make_putter(
            self.put, self.put_many, self._sync_through, self._tell_left, self._calls
        )
        # Never block, for who waits for the sync himself; None where it is no plain case.
        self._begin_put = self._begin_put_many = _not_plain
        if self._putting.is_quick:  # the same calls, the same answers
            if type(self).put is StoreApi.put:
                self.put = self._putter.put  # type: ignore[method-assign]
                self._begin_put = self._putter.begin_put
            if type(self).put_many is StoreApi.put_many:
                self.put_many = self._putter.put_many  # type: ignore[method-assign]
                self._begin_put_many = self._putter.begin_put_many
        _opened_here.add(self)
        close_at_exit(self)
        self._leases = engine.make_leases(self._make_lease_consumer)
        engine.recurring.prepare()
        self._unsubscribe = self._clock.subscribe(weakly(self._wake_all))

    # --- putting ---

    @_counted
    def _do_put(self, request: PutRequest) -> PutReceipt:
        if request.spread is not None:
            request = self._spreader.one(request)
        if request.replace is not False:
            request = request.with_checked_flag()
        if request.replace or request.key is not None or request.wait_at_most is not None:
            return self._engine.replacing.put(request)
        if request.message_id is not None:
            return self._putting.put_once(request)
        return self._putting.put(request)

    @_counted
    def _do_put_many(self, request: BatchRequest) -> PutBatch:
        if request.spread is not None:
            request = self._spreader.many(request, message_bodies.count_bodies(request.bodies))
        return self._putting.put_many(request)

    @_counted
    def ingest(self, source: str, version: int, batches: Iterable[RowBatch]) -> IngestReceipt:
        """Store all rows of a version of a source, exactly once; durable on return.

        The same version must always bring the same rows in the same order; how they are cut into
        batches does not matter. Called again after a crash or an error it goes on behind the rows
        that are there; for a version that is complete it appends nothing. Each batch is checked
        before any row of it is stored. Rows come in order, in parts that are there all or not at
        all, and a part is there for readers when it is durable, before the others are.
        Raises MessageError, also where the rows are others than those that the version had;
        FullError, FlowControlError: call it again.
        """
        return self._engine.ingester.ingest(source, version, batches)

    @_counted
    def ingested(self, source: str) -> IngestedVersions:
        """Give the versions of a source that are complete and durable."""
        return self._engine.ingester.ingested(source)

    @_counted
    def _do_topics(self) -> dict[str, int]:
        return self._engine.routes.topics()

    # --- pulling ---

    @_counted
    def _do_pull(self, request: PullRequest) -> PullResult:
        return self._engine.puller.pull(*self._pull_arguments(request))

    @_counted
    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._engine.puller.batch(*self._pull_arguments(request))

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin_pull(*given, within=self._within)

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin_batch(*given, within=self._within)

    @_counted
    def _within(self, look: Callable[[], Answer]) -> Answer:
        """A look of a pull that was begun: `close` waits for it, and none begins after."""
        return look()

    def _pull_arguments(self, request: PullRequest) -> tuple[Route, int, int, float, Filter | None]:
        topic, wait = request.topic, request.wait
        queue_id, offset, max_count = request.numbers()
        refuse_shard(request.shard)
        if not isinstance(topic, str):
            raise MessageError(f"queue: wanted text as topic, got {typed(topic)}")
        routes, name = self._engine.routes, str(topic)
        number = queue_id if type(queue_id) is int else -1
        route = routes.get(name, number)
        if route is None:
            known = routes.queue_count(name)
            if not 0 <= number < known:
                raise MessageError(
                    f"queue: topic {quoted(topic)} has {known} queues, got {quoted(queue_id)}"
                )
            route = routes.make(name, number, self._clock.now_ms)
        wanted = check_pull(route, offset, max_count, wait, request.tags, request.sql)
        return route, offset, max_count, wait, wanted

    @_counted
    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Message]:
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._log.check_alive()
        return self._engine.querier.query(wanted)

    # --- reading as a group ---

    @_counted
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
        make_filter(self._engine.timer_route, tags, sql)  # raises, where a pull would later
        if wait is not None and (problems := wait_problems(wait)):
            raise MessageError(problems)
        return Consumer(self._consumer_context(), topic, group, asked, Filters(tags, sql), wait)

    def _consumer_context(self) -> ConsumerContext:
        return ConsumerContext(
            self._clock,
            self._engine.groups,
            self._engine.offsets,
            self._call,
            self.pull,
            self.offset_at,
            self._stay_awake,
            self._watch,
            self._engine.puller.long_polls.leave,
        )

    # --- leasing ---

    def _make_lease_consumer(self, topic: str, group: str, filters: Filters) -> Consumer:
        make_filter(self._engine.timer_route, *filters)  # raises, where a pull would later
        return Consumer(self._consumer_context(), topic, group, None, filters, None, leases=True)

    @_counted
    def _do_receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        return self._leases.receive(request)

    def _do_begin_receive(self, request: ReceiveRequest) -> WaitingReceive:
        self._check_open()
        return self._leases.begin(request, self._within)

    @_counted
    def _give_back_unclaimed(self) -> None:
        """Give back leases of callers that were cancelled (timerstore.aio)."""
        self._leases.give_back_unclaimed()

    def _do_lease_consumer(
        self, topic: str, group: str, wait: float | None, options: dict[str, Any]
    ) -> LeaseConsumer[LeasedMessage]:
        self._check_open()
        return LeaseConsumer(self.receive, self.ack, self.nack, topic, group, wait, options)

    @_counted
    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        return self._leases.ack_one(receipt)

    @_counted
    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        return self._leases.ack(receipts)

    @_counted
    def _do_nack(self, receipt: str | LeasedMessage, delay: timedelta | float | None) -> AckResult:
        return self._leases.nack(receipt, delay)

    @_counted
    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        return self._leases.extend(receipt, lease)

    @_counted
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        return self._engine.offsets.committed(topic, group)

    @_counted
    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        route = self._pull_arguments(PullRequest(topic, queue_id, 0, 1, 0.0, None, None, shard))[0]
        return self._engine.puller.first_stored(route, whole_ms("time_ms", time_ms))

    @_counted
    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run something of a consumer as a call of the store."""
        return function(*args)

    def _watch(self, topic: str, filters: Filters) -> AddPoll:
        return QueueWatcher(self._engine.routes, self._engine.puller.long_polls, topic, filters)

    def _stay_awake(self) -> None:
        """Before a consumer sleeps: what is appended may be for it as soon as it is durable."""
        self._log.check_alive()
        if self._log.durable < self._log.end:
            self._engine.pipeline.flush.request()

    def _wake_all(self) -> None:
        self._engine.wake_all()

    # --- what recurs ---

    @_counted
    def _do_put_every(self, topic: str, body: Any, given: dict[str, Any]) -> Recurring:
        return self._engine.recurring.put_every(topic, body, **given)

    @_counted
    def _do_recurring(self) -> list[Recurring]:
        return self._engine.recurring.shown()

    @_counted
    def _do_cancel_every(self, name: str) -> bool:
        return self._engine.recurring.cancel_every(name)

    # --- what waits ---

    @_counted
    def _do_cancel(self, receipt_or_handle: PutReceipt | str) -> CancelResult:
        result, end = self._engine.canceller.cancel(_handle_of(receipt_or_handle))
        self._sync_cancels(end)
        return result

    def _sync_cancels(self, end: int) -> None:
        reach("cancel_appended")
        if end:
            self._log.sync_through(end)
        self._putting.appended()

    @_counted
    def _do_cancel_many(
        self, receipts_or_handles: Iterable[PutReceipt | str]
    ) -> list[CancelResult]:
        name = "receipts_or_handles"
        given = list(argument_types.several(name, receipts_or_handles))

        def read(at: int) -> Handle:
            return argument_types.read_of(name, at, given[at], _handle_of)

        results, end = self._engine.many_canceller.cancel(given, read)
        self._sync_cancels(end)
        return results

    @_counted
    def _do_reschedule(
        self,
        receipt_or_handle: PutReceipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> PutReceipt:
        receipt = self._engine.rescheduler.reschedule(
            _handle_of(receipt_or_handle), delay, deliver_at, deliver_ms
        )
        self._putting.appended()
        return receipt

    @_counted
    def _do_pace(self, topic: str, per_second: float | None) -> None:
        self._log.check_alive()
        name = message_fields.check_topic(topic).decode()
        rate = due_times.check_rate(per_second)
        self._engine.fair_queue.set_rate(name, rate)

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        self._check_open()
        problems = range_problems(begin_ms, end_ms)
        name: object = topic
        if name is not None and not isinstance(name, str):
            problems.append(f"topic: wanted text, got {typed(name)}")
        if problems:
            raise MessageError(problems)
        timers = self._engine.pending.read(begin_ms, end_ms, topic)
        on_level = self._engine.level_pending.read(begin_ms, end_ms, topic)
        # Each begins with its first step, in a call; nothing is read before.
        return self._pending_steps(merge(timers, on_level, key=lambda one: one.due_ms))

    def _pending_steps(self, pending: Iterator[PendingTimer]) -> Iterator[PendingTimer]:
        """Give them one by one, each in a call of its own: the caller may close in between."""
        while (one := self._next_pending(pending)) is not None:
            yield one

    @_counted
    def _next_pending(self, pending: Iterator[PendingTimer]) -> PendingTimer | None:
        return next(pending, None)

    @_counted
    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        self._log.check_alive()
        if topic is not None:
            check_name("topic", topic)
        return self._engine.calendar.read(buckets_of(self._clock.now_ms, begin, end, by), topic)

    @_counted
    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        self._log.check_alive()
        return self._engine.explainer.explain(name_of(message, topic))

    @_counted
    def _do_stats(self) -> dict[str, Any]:
        engine = self._engine
        enqueue, dequeue = engine.backlog.enqueue(), engine.backlog.dequeue()
        # Before the end, which they follow.
        dispatched, durable = engine.dispatch.dispatched, engine.log.durable
        with engine.log.lock:
            by_topic, on_level = (Counter(one) for one in pending_by_topic(engine.routes))
            waiting, log_end = int(engine.states.native.waiting), engine.log.end
        return {
            **engine.metrics.values(),
            **engine.metrics.distributions(),
            **used(
                log=engine.log,
                routes=engine.routes,
                timer_log=engine.timer_log,
                far=engine.far,
                states=engine.states,
                wheel=engine.wheel,
                pending_entries=len(engine.open_slot) + len(engine.fair_queue),
                calendar_bytes=engine.calendar.bytes,
                used_percent=engine.disk.used_percent(engine.directory.root),
            ),
            "put_messages": int(self._native.put_count),
            "cancelled_messages": int(self._native.cancel_count),
            "rescheduled_messages": int(self._native.reschedule_count),
            "pending_messages": waiting + sum(on_level.values()),
            "pending_by_topic": dict(by_topic + on_level),
            "log_begin_bytes": engine.log.segments.begin,
            "log_end_bytes": log_end,
            "log_durable_bytes": durable,
            "dispatch_lag_bytes": log_end - dispatched,
            "enqueue_lag_messages": enqueue.messages,
            "enqueue_lag_ms": enqueue.ms,
            "delivery_lag_messages": dequeue.messages,
            "delivery_lag_ms": dequeue.ms,
            "open_slot_messages": len(engine.open_slot),
            "paced_messages": len(engine.fair_queue),
            "level_pending_messages": sum(on_level.values()),
            "far_messages": engine.far.count,
            "timer_log_end_bytes": engine.timer_log.end,
        }

    @_counted
    def _do_timing_distribution(self) -> dict[int | None, int]:
        with self._engine.retention.still():
            return self._engine.backlog.distribution()

    @_counted
    def _do_congestion(self) -> dict[int, int]:
        return self._engine.backlog.congestion()

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._engine.directory.root

    @property
    def clock(self) -> Clock:
        """The clock that it goes by."""
        return self._clock

    @_counted
    def _do_flush(self) -> None:
        self._log.sync_through(self._log.end)
        self._engine.checkpoint.run()

    @_counted
    def verify(self) -> Report:
        """Check every invariant of the store as it is now; what is wrong with it is in the Report.

        Services go on meanwhile. Raises FailedError where the store has failed.
        """
        engine = self._engine
        with engine.retention.still():
            return check_store(
                engine.config,
                engine.clock,
                engine.disk,
                engine.directory.tree,
                engine,
                engine.timer_route,
                engine.store_id,
                engine.checkpoint,
                engine.pending,
            )

    @_counted
    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the store as it is now into a folder, or bring the backup there up to now.

        The store goes on meanwhile. Durable on return; cut off, the backup is what it was before.
        `timerstore.restore` makes a store of it. `progress` is told how many bytes are copied, and
        of how many. Raises ConfigError where the folder is not this store's backup.
        """
        into = anchored("backup", target)
        engine = self._engine
        copier = Copier(
            engine.config,
            engine.clock,
            engine.disk,
            engine.directory.tree,
            self._log.segments,
            engine.checkpoint,
        )
        with engine.retention.still():
            return copier.run(into, progress)

    def services(self) -> dict[str, Service]:
        """Give the services by name, in the order in which a message meets them; for those who step
        them by hand (timerstore.testing.Stepper).
        """
        if self._threads:
            raise MessageError("services: this store's run in threads; open it with threads=False")
        engine = self._engine
        *pipeline, flush = engine.pipeline
        services = (
            engine.dispatch,
            *pipeline,
            engine.schedule,
            engine.recurring.planner,
            engine.retention,
            flush,
        )
        return {service.name.replace("-", "_"): service for service in services}

    # --- closing ---

    def _refuse_reentrant_close(self) -> None:
        """Raise ReentrantCallError if this thread is in a call of the store, which closing would
        wait for, or is one of the store's services.
        """
        is_in_call = get_ident() in tuple(self._calls.values())
        is_service = any(one.is_own_thread for one in self._engine.services)
        if is_in_call or is_service or self._close_lock.is_mine():
            raise reentrant_call(self._engine.directory.root)

    def _block(self) -> None:
        """Every call looks from now on whether it may."""
        self._blocked = True
        self._putter.blocked = 1

    def _look_at(self, error: BaseException) -> None:
        """An error of a call: whether the store goes on after it."""
        if isinstance(error, CorruptError):
            self._log.check_alive()  # it may be no damage: a file that was cut reads as zeros
        elif isinstance(error, FailedError) and self._is_ours(error):
            self._log.fail(error)

    def _is_ours(self, error: FailedError) -> bool:
        """Whether an error is of this store, or says of nothing where it was."""
        if error.where is None:
            return True
        path = Path(str(error.where).partition(" offset ")[0])
        return path.is_relative_to(self._engine.directory.root)

    def _sync_through(self, offset: int) -> None:
        """What a quick put waits for where it is to be durable; it is counted by the putter."""
        try:
            self._log.sync_through(offset)
            self._cuts.check()
        except BaseException as error:
            self._look_at(error)
            raise

    @_counted
    def _sync_begun(self, offset: int) -> None:
        """What they wait in who `_begin_put`."""
        self._log.sync_through(offset)

    def _tell_left(self) -> None:
        """Let who closes look again."""
        self._left.set()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "a store belongs to the process that opened it",
                where=self._engine.directory.root,
                wanted=f"process {self._pid}",
                got=f"process {os.getpid()}",
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("the store is closed", where=self._engine.directory.root)

    def close(self) -> None:
        """Stop the services, complete a checkpoint, release the directory.

        A second call does nothing, but where the first was cut off before it let go of anything, by
        a lack of memory or Ctrl-C: then it closes. ReentrantCallError during another call of
        the same thread, as from a signal handler.
        A store that is open when the interpreter ends is closed by an exit hook (atexit), which
        waits at most 5 s for calls of other threads; if one still runs, the store stays as after a
        kill. A close after that, as in `__del__`, does nothing.
        """
        self._close()

    def _close_at_exit(self) -> None:
        self._close(time.monotonic() + _EXIT_WAIT_S)

    def _is_released(self) -> bool:
        return not self._engine.directory.is_held

    def _close(self, end_s: float | None = None) -> None:
        """Close; LockedError where calls of other threads still run at `end_s` (monotonic), or can
        never end, as the interpreter has stopped their threads.
        """
        if self._is_released():  # first: at exit the modules used below may be gone
            return
        self._check_process()
        self._refuse_reentrant_close()
        with self._close_lock:
            if self._is_released():
                return
            self._engine.groups.close()  # consumers that wait are answered
            self._closed = True
            self._block()
            self._unsubscribe()
            self._engine.puller.close()  # whoever waits for a message is answered
            while self._calls:
                if sys.is_finalizing() or (end_s is not None and time.monotonic() >= end_s):
                    raise stopped_at_exit(self._engine.directory.root)
                self._left.wait(_LOOK_S)  # a signal may keep one from telling that it has ended
            self._engine.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # None: opening it failed
        if engine is None or not engine.directory.is_held or os.getpid() != self._pid:
            return
        for service in self._engine.services:
            service.ask_to_stop()
        warn_unclosed(self, engine.directory.root)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<TimerStore {str(self._engine.directory.root)!r} {state}>"


def _handle_of(receipt_or_handle: PutReceipt | str) -> Handle:
    if isinstance(receipt_or_handle, PutReceipt):
        check_receipt(receipt_or_handle)
        if receipt_or_handle.waits_for_level:
            raise MessageError(
                "receipt: wanted one of a timer, got one of a message with a fixed level, which "
                "has no handle and stays as it is"
            )
        return of_receipt(receipt_or_handle)
    return decode(receipt_or_handle)


def _root_of(path: str | os.PathLike[str]) -> Path:
    """Give the folder; ConfigError where none is named, and on what is no store's."""
    root = anchored("path", path)
    if Disk().exists(root / CLUSTER_JSON):
        # What is put into a store there no shard would deliver.
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
) -> TimerStore: ...


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
) -> TimerStore | ReadOnlyStore:
    """Open the store in a directory, which is made where it is not there; ConfigError on one of
    shards, which `open_shards` opens.

    `threads=False`: no service runs until it is stepped (timerstore.testing.Stepper).
    `read_only=True`: a ReadOnlyStore, which reads beside whoever has the store open, as of the last
    checkpoint (every `checkpoint_interval_ms`, 500, while there is something new), or nobody, with
    all whole records behind it; of a broker's directory, too. It takes no lock, starts no thread
    and changes not one byte; ConfigError where there is no store.
    """
    if type(read_only) is not bool:
        raise ConfigError(f"read_only: wanted True or False, got {read_only!r}")
    if read_only:
        check_config(config, clock)
        return ReadOnlyStore(_root_of(path), config, clock=clock)
    return TimerStore(path, config, clock=clock, threads=threads)
