"""The calls of an open store but puts: reads, changes, leases, introspection, maintenance."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, TypeVar

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.metrics import GROUP_GAUGES, GROUP_SEPARATOR, server_metrics
from timerstore._engine.base.service import Service
from timerstore._engine.base.version import __version__
from timerstore._engine.calls.open_store import OpenStore, api_call
from timerstore._engine.format.handle import Handle, handle_of
from timerstore._engine.format.lease import half_topic
from timerstore._engine.introspection.calendar import buckets_of
from timerstore._engine.introspection.explain import name_of
from timerstore._engine.introspection.resource_usage import used
from timerstore._engine.leases import (
    AckResult,
    DeadLetter,
    LeaseCall,
    LeasedMessage,
    Leases,
    WaitingReceive,
)
from timerstore._engine.leases.dead_letters import Requeuer, check_names
from timerstore._engine.leases.half_messages import HalfMessages
from timerstore._engine.leases.receive_request import ReceiveRequest, Settled
from timerstore._engine.leases.shared_receive import BegunReceive
from timerstore._engine.maintenance import Copier
from timerstore._engine.maintenance.verify import check_store
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.pull import batch_of, result_of
from timerstore._engine.read.pull_request import (
    PullRequest,
    check_pull,
    range_problems,
    refuse_shard,
    whole_ms,
)
from timerstore._engine.read.query import check_query
from timerstore._engine.read.waiting import WaitingPull
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.timer.level_delivery import pending_by_topic
from timerstore._engine.write.reschedule import ChangeCall
from timerstore.errors import MessageError, typed
from timerstore.types.messages import Message, MessageBatch, PullResult, unexpired
from timerstore.types.receipts import PutReceipt
from timerstore.types.reports import (
    BackupReport,
    CancelResult,
    Explanation,
    GroupBacklog,
    Histogram,
    PendingTimer,
    Report,
)

Answer = TypeVar("Answer")
Changed = CancelResult | PutReceipt | AckResult


class StoreCalls(OpenStore):
    """The calls of an open store, except puts."""

    _leases: Leases
    _half_messages: HalfMessages
    _requeuer: Requeuer

    # --- reads ---

    @api_call
    def _do_topics(self) -> dict[str, int]:
        return self._engine.routes.topics()

    @api_call
    def _has_topic(self, topic: str) -> bool:
        """Return whether there is such a topic; it takes no lock (timerstore.rocketmq)."""
        return self._engine.routes.full_queue_count(topic) > 0

    @api_call
    def _do_delete_topic(self, topic: str) -> bool:
        def end_calls() -> None:
            self._leases.end_calls()
            self._requeuer.forget(topic)  # returns when no requeue runs that began before

        is_deleted = self._engine.topic_deleter.delete(topic, end_calls)
        for each in (topic, half_topic(topic)):
            self._requeuer.forget(each)
        return is_deleted

    @api_call
    def _check_deletion(self, topic: str) -> None:
        self._engine.topic_deleter.check(topic)

    # --- pulling ---

    @api_call
    def _do_pull(self, request: PullRequest) -> PullResult:
        return self._engine.puller.pull(result_of, *self._pull_arguments(request))

    @api_call
    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._engine.puller.pull(batch_of, *self._pull_arguments(request))

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin(result_of, *given, within=self._call)

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin(batch_of, *given, within=self._call)

    def _pull_arguments(self, request: PullRequest) -> tuple[Route, int, int, float, Filter | None]:
        topic, wait = request.topic, request.wait
        offset, max_count = request.offset, request.max_count
        refuse_shard(request.shard)
        if not isinstance(topic, str):
            raise MessageError(f"queue: wanted text as topic, got {typed(topic)}")
        route = self._engine.routes.readable(topic, request.queue_id, self._clock.now_ms)
        wanted = check_pull(route, offset, max_count, wait, request.tags, request.sql)
        return route, offset, max_count, wait, wanted

    @api_call
    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Message]:
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._log.check_alive()
        return unexpired(self._engine.querier.query(wanted), self._clock.now_ms)

    # --- offsets ---

    @api_call
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        return self._engine.offsets.committed(topic, group)

    @api_call
    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        route = self._pull_arguments(PullRequest(topic, queue_id, 0, 1, 0.0, None, None, shard))[0]
        return self._engine.puller.first_stored(route, whole_ms("time_ms", time_ms))

    # --- changes ---

    @api_call
    def _do_cancel(self, receipt_or_handle: PutReceipt | str) -> CancelResult:
        result, end = self._engine.canceller.cancel(handle_of(receipt_or_handle))
        self._sync_cancels(end)
        return result

    def _sync_cancels(self, end: int) -> None:
        reach("cancel_appended")
        if end:
            self._log.sync_through(end)
        self._engine.appender.appended()

    @api_call
    def _do_cancel_many(
        self, receipts_or_handles: Iterable[PutReceipt | str]
    ) -> list[CancelResult]:
        name = "receipts_or_handles"
        given = list(argument_types.several(name, receipts_or_handles))

        def read(at: int) -> Handle:
            return argument_types.read_of(name, at, given[at], handle_of)

        results, end = self._engine.many_canceller.cancel(given, read)
        self._sync_cancels(end)
        return results

    @api_call
    def _do_reschedule(
        self,
        receipt_or_handle: PutReceipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> PutReceipt:
        receipt = self._engine.rescheduler.reschedule(
            handle_of(receipt_or_handle), delay, deliver_at, deliver_ms
        )
        self._engine.appender.appended()
        return receipt

    @api_call
    def _change_each(self, calls: Sequence[ChangeCall]) -> list[Changed | Exception]:
        """Make calls of tasks that change messages, with one sync (timerstore.aio)."""
        ends = [0]  # of the log: below the largest one it must be durable
        answers = [self._change(call, ends) for call in calls]
        self._sync_cancels(max(ends))
        return self._failing_if_final(answers)

    def _change(self, call: ChangeCall, ends: list[int]) -> Changed | Exception:
        """Make a call. Add the log offset that must be durable before its answer to `ends`."""
        try:
            if call.kind in ("commit", "rollback"):
                return self._half_messages.end(call.kind, call.target, ends.append)
            handle = handle_of(call.target)
            if call.kind == "reschedule":
                return self._engine.rescheduler.reschedule(handle, *call.times, None, ends.append)
            result, end = self._engine.canceller.cancel(handle)
            ends.append(end)
            return result
        except Exception as error:  # noqa: BLE001 - raised to the caller of this call
            return error

    @api_call
    def _do_commit(self, half: PutReceipt | LeasedMessage | str) -> AckResult:
        return self._half_messages.end("commit", half)

    @api_call
    def _do_rollback(self, half: PutReceipt | LeasedMessage | str) -> AckResult:
        return self._half_messages.end("rollback", half)

    @api_call
    def _do_pace(self, topic: str, per_second: float | None) -> None:
        self._log.check_alive()
        name = message_fields.check_topic(topic).decode()
        rate = due_times.check_rate(per_second)
        self._engine.fair_queue.set_rate(name, rate)

    # --- leases ---

    @api_call
    def _do_receive(self, request: ReceiveRequest) -> list[LeasedMessage]:
        return self._leases.receive(request)

    def _do_begin_receive(self, request: ReceiveRequest) -> WaitingReceive:
        self._check_open()
        return self._leases.begin(request, self._call)

    @api_call
    def _make_each(
        self, calls: Sequence[LeaseCall | ReceiveRequest]
    ) -> list[Settled | BegunReceive | Exception]:
        """Make calls of tasks that lease, settle or extend, with one sync (timerstore.aio)."""
        return self._failing_if_final(self._leases.make_each(calls, self._call))

    def _failing_if_final(self, answers: list[Answer]) -> list[Answer]:
        """Fail the store if an answer is an error that is final. Return the answers."""
        for one in answers:
            if isinstance(one, Exception):
                self._fail_if_final(one)
        return answers

    def _claim(self, messages: Sequence[LeasedMessage]) -> list[LeasedMessage]:
        """Return the messages of `_make_each` that the caller may return (timerstore.aio)."""
        return self._leases.claim(messages)

    @api_call
    def _give_back_unclaimed(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back messages of callers that were cancelled (timerstore.aio)."""
        self._leases.give_back_unclaimed(messages)

    def _calls_ended(self) -> None:
        self._leases.give_back_unclaimed()

    @api_call
    def _give_back(self, receipts: Sequence[str]) -> int:
        """Give back messages that no consumer saw (timerstore.net)."""
        return self._leases.give_back(receipts)

    @api_call
    def _do_ack(self, receipt: str | LeasedMessage) -> AckResult:
        return self._leases.ack_one(receipt)

    @api_call
    def _do_ack_many(self, receipts: Iterable[str | LeasedMessage]) -> list[AckResult]:
        return self._leases.ack(receipts)

    @api_call
    def _do_nack(
        self, receipt: str | LeasedMessage, delay: timedelta | float | None, error: str | None
    ) -> AckResult:
        return self._leases.nack(receipt, delay, error)

    @api_call
    def _do_extend(self, receipt: str | LeasedMessage, lease: timedelta | float) -> str:
        return self._leases.extend(receipt, lease)

    @api_call
    def _do_renew(self, receipt: str | LeasedMessage, lease: timedelta | float) -> int:
        return self._leases.renew(receipt, lease)

    @api_call
    def _do_bury(self, receipt: str | LeasedMessage, error: str | None) -> AckResult:
        return self._leases.bury(receipt, error)

    def _do_dead_letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        self._check_open()
        letters = self._requeuer.letters(*check_names(group, topic))
        return self._steps_of(letters)

    @api_call
    def _do_backlog(self, topic: str, group: str) -> GroupBacklog:
        topic, group = check_name("topic", topic), check_name("group", group)
        return self._engine.group_backlogs.one(topic, group, self._requeuer.count)

    @api_call
    def _do_requeue(
        self,
        group: str,
        letters: Iterable[str | DeadLetter] | str | DeadLetter | None,
        topic: str | None,
    ) -> int:
        return self._requeuer.requeue(group, letters, topic)

    # --- introspection ---

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
        # Both are lazy: they read nothing before the first step, which is a call of its own.
        return self._steps_of(merge(timers, on_level, key=lambda one: one.due_ms))

    @api_call
    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        self._log.check_alive()
        if topic is not None:
            check_name("topic", topic)
        return self._engine.calendar.read(buckets_of(self._clock.now_ms, begin, end, by), topic)

    @api_call
    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        self._log.check_alive()
        return self._engine.explainer.explain(name_of(message, topic))

    @api_call
    def _do_stats(self) -> dict[str, Any]:
        engine = self._engine
        enqueue, dequeue = engine.backlog.enqueue(), engine.backlog.dequeue()
        # Read before `log.end`, which is never below them: so no lag is negative.
        dispatched, durable = engine.dispatch.dispatched, engine.log.durable
        with engine.log.lock:
            by_topic, on_level = (Counter(one) for one in pending_by_topic(engine.routes))
            pending_timers, log_end = int(engine.states.native.pending), engine.log.end
        return {
            "version": __version__,
            **engine.metrics.values(),
            **engine.metrics.distributions(),
            **server_metrics(one.stats() for one in list(self._servers)),
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
            **_by_group(engine.group_backlogs.all_of(self._requeuer.count)),
            "put_messages": int(self._native.put_count),
            "cancelled_messages": int(self._native.cancel_count),
            "rescheduled_messages": int(self._native.reschedule_count),
            "pending_messages": pending_timers + sum(on_level.values()),
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

    @api_call
    def _do_timing_distribution(self) -> dict[int | None, int]:
        with self._engine.retention.still():
            return self._engine.pending_counts.distribution()

    @api_call
    def _do_congestion(self) -> dict[int, int]:
        return self._engine.pending_counts.congestion()

    # --- maintenance ---

    @api_call
    def _do_flush(self) -> None:
        self._log.sync_through(self._log.end)
        self._engine.checkpoint.run()

    @api_call
    def _do_verify(self) -> Report:
        engine = self._engine
        with engine.retention.still():
            return check_store(engine)

    @api_call
    def _do_backup(
        self, target: str | os.PathLike[str], progress: Callable[[int, int], None] | None
    ) -> BackupReport:
        into = absolute_path("backup", target)
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
        """Return the services by name, in the order in which a message passes through them.

        For `timerstore.testing.Stepper`, which steps them by hand.

        Raises:
            MessageError: the store was not opened with `threads=False`.
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


def _by_group(found: dict[tuple[str, str], GroupBacklog]) -> dict[str, dict[str, int]]:
    """Return the statistics of all groups: by name, then by topic and group."""
    return {
        name: {GROUP_SEPARATOR.join(key): getattr(one, field) for key, one in found.items()}
        for name, (field, _) in GROUP_GAUGES.items()
    }
