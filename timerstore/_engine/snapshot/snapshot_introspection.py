"""Introspection calls of a read-only store: pending, histogram, explain, query.

Invariants: each result is as of one position. An iterator has the position of its first step.
"""

from collections.abc import Iterator
from datetime import datetime
from heapq import merge

import numpy as np

from timerstore._engine.introspection.due_buckets import buckets_of
from timerstore._engine.introspection.message_name import name_of
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.query_validation import check_query
from timerstore._engine.read.validation import range_problems
from timerstore._engine.snapshot.explain_snapshot import SnapshotExplainer
from timerstore._engine.snapshot.key_search import query
from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls, answered
from timerstore._engine.timer.timer_arrays import Records
from timerstore.errors import MessageError
from timerstore.messages import Message
from timerstore.receipts import PutReceipt
from timerstore.reports import Explanation, Histogram, PendingTimer


class SnapshotIntrospectionCalls(SnapshotCalls):
    """The introspection calls of a read-only store."""

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        self.check_open()
        problems = range_problems(begin_ms, end_ms)
        if problems:
            raise MessageError(problems)
        if topic is not None:
            check_name("topic", topic)
        return self._pending_steps(begin_ms, end_ms, topic)

    def _pending_steps(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        def read() -> tuple[Records, Records]:
            self._timers.catch_up()
            return self._timers.entries(begin_ms, end_ms, topic)

        timers, on_level = self.answer(read)
        both = merge(
            ((int(one["due_ms"]), False, k) for k, one in enumerate(timers)),
            ((int(one["due_ms"]), True, k) for k, one in enumerate(on_level)),
        )
        for _, is_level, k in both:
            entry = (on_level if is_level else timers)[k]
            with self.turn():
                one = self._timers.describe(entry, is_level=is_level)
            if one is not None and (topic is None or one.topic == topic):
                yield one

    @answered
    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        if topic is not None:
            check_name("topic", topic)
        buckets = buckets_of(self._clock.now_ms, begin, end, by)
        self._timers.catch_up()
        due_ms = np.concatenate([one["due_ms"] for one in self._timers.entries(topic=topic)])
        unit_ms = 1000 * buckets.unit_s
        numbers = due_ms // unit_ms - buckets.first
        counts = np.bincount(
            numbers[(numbers >= 0) & (numbers < buckets.size)], minlength=buckets.size
        )
        edges = np.arange(buckets.first, buckets.first + buckets.size + 1, dtype=np.int64) * unit_ms
        return Histogram(edges, counts.astype(np.int64))

    @answered
    def _do_explain(
        self, message: PutReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        name = name_of(message, topic)
        self._timers.catch_up()
        return SnapshotExplainer(self._view, self._timers, self._clock).explain(name)

    @answered
    def _do_timing_distribution(self) -> dict[int | None, int]:
        self._timers.catch_up()
        return self._timers.backlog.distribution()

    @answered
    def _do_congestion(self) -> dict[int, int]:
        self._timers.catch_up()
        return self._timers.backlog.congestion()

    @answered
    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Message]:
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._timers.catch_up()
        return query(self._view, self._timers, wanted)
