"""Report the pending messages of an open store, its history of one message, and its metrics."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from typing import Any

from timerstore._engine.base.metrics import GROUP_GAUGES, GROUP_SEPARATOR, server_metrics
from timerstore._engine.base.version import __version__
from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.introspection.due_buckets import buckets_of
from timerstore._engine.introspection.message_name import name_of
from timerstore._engine.introspection.resource_usage import used
from timerstore._engine.leases.requeuer import Requeuer
from timerstore._engine.levels.pending_counts import pending_by_topic
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.validation import range_problems
from timerstore.errors import MessageError, typed
from timerstore.messages import Message
from timerstore.receipts import PutReceipt
from timerstore.reports import Explanation, GroupBacklog, Histogram, PendingTimer


class IntrospectionCalls(OpenStore):
    """The calls of a store that report its state."""

    _requeuer: Requeuer

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

    @counted
    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        self._log.check_alive()
        if topic is not None:
            check_name("topic", topic)
        return self._engine.calendar.read(buckets_of(self._clock.now_ms, begin, end, by), topic)

    @counted
    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        self._log.check_alive()
        return self._engine.explainer.explain(name_of(message, topic))

    @counted
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

    @counted
    def _do_timing_distribution(self) -> dict[int | None, int]:
        with self._engine.retention.still():
            return self._engine.backlog.distribution()

    @counted
    def _do_congestion(self) -> dict[int, int]:
        return self._engine.backlog.congestion()


def _by_group(found: dict[tuple[str, str], GroupBacklog]) -> dict[str, dict[str, int]]:
    """Return the statistics of all groups: by name, then by topic and group."""
    return {
        name: {GROUP_SEPARATOR.join(key): getattr(one, field) for key, one in found.items()}
        for name, (field, _) in GROUP_GAUGES.items()
    }
