"""Pending messages of a driver: lists, histograms and statistics."""

from collections import Counter
from typing import Any

import numpy as np

from tests.support.driver.reads import ReadDriver
from tests.support.driver.setup import (
    YEAR_MS,
)
from timerstore import (
    PendingTimer,
)
from timerstore._engine.format.lease import group_of
from timerstore._engine.introspection.calendar import UNIT_S


class PendingDriver(ReadDriver):
    """Compare pending messages and their counts with the model."""

    def compare_pending(self) -> None:
        """Check that `pending()` and the counts agree with the model."""
        found = list(self.store.pending())
        plain = [one.message_id for one in found if not self._is_apart(one.topic)]
        self.model.check_pending(plain, self.clock.latest_ms)
        known = {p.receipt.message_id: p for p in self.model.puts.values()}
        counts: dict[str, int] = {}
        for one in found:
            if self._is_apart(one.topic):
                counts[one.topic] = counts.get(one.topic, 0) + 1
                continue
            put = known[one.message_id]
            assert (one.topic, one.queue_id) == put.queue
            assert one.due_ms == put.due_ms
            assert put.level < 0 or one.handle == put.receipt.handle
            assert (one.timer_id < 0) == (put.level > 0)
            counts[one.topic] = counts.get(one.topic, 0) + 1
        stats = self.store.stats()
        assert stats["pending_messages"] == len(found)
        assert stats["pending_by_topic"] == counts
        assert stats["level_pending_messages"] == sum(one.timer_id < 0 for one in found)
        self._compare_histogram(found)
        for one in found[:: max(1, len(found) // 4)]:
            told = self.store.explain(one)
            assert (told.state, told.due_ms, told.timer_id) == ("pending", one.due_ms, one.timer_id)
        distribution = self.store.timing_distribution()
        assert sum(distribution.values()) == len(found)
        assert distribution[5] == sum(one.due_ms <= self.clock.now_ms + 5000 for one in found)
        self._compare_times([one.due_ms for one in found if one.timer_id >= 0], stats)

    def _is_apart(self, topic: str) -> bool:
        """Return whether another model knows the messages of a topic, as that of leases does."""
        return group_of(topic) is not None

    def _compare_histogram(self, found: list[PendingTimer]) -> None:
        """Check histograms of all units and topics against the due times of pending messages."""
        begin_ms = min([self.clock.now_ms, *(one.due_ms for one in found)])
        spans_ms = {"second": 2_000_000, "minute": 200_000_000, "hour": YEAR_MS}
        for by, unit_s in UNIT_S.items():
            first = begin_ms // (1000 * unit_s)
            end_ms = begin_ms + spans_ms.get(by, 41 * YEAR_MS)
            for topic in (None, *sorted({queue[0] for queue in self.model.seen}), "nobody"):
                counts = self.store.histogram(begin_ms, end_ms, by, topic).counts
                wanted = Counter(
                    one.due_ms // (1000 * unit_s) - first
                    for one in found
                    if topic in (None, one.topic)
                )
                there = np.flatnonzero(counts)
                counted = dict(zip(there.tolist(), counts[there].tolist(), strict=True))
                assert counted == {k: n for k, n in wanted.items() if k < len(counts)}

    def _compare_times(self, due_ms: list[int], stats: dict[str, Any]) -> None:
        """Check congestion and delivery lag against the due times of pending timers."""
        precision_ms, now_ms = self.config.precision_ms, self.clock.now_ms
        slots = Counter((due - 1) // precision_ms * precision_ms for due in due_ms)
        assert self.store.congestion() == slots
        late = [due for due in due_ms if due <= now_ms]
        behind = stats["delivery_lag_messages"]
        assert behind <= len(late) <= behind + stats["enqueue_lag_messages"]
        if behind == len(late):
            assert stats["delivery_lag_ms"] == now_ms - min(late, default=now_ms)
