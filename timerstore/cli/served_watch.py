"""`ServedWatch`: statistics of a served store, in the form of those that are read from files.

The wheel is drawn from due times: to the second within an hour, to the minute within a day.
"""

from collections import deque
from typing import Any

import numpy as np

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.snapshot.live_stats import HISTORY, LiveStats
from timerstore.cli.served import TopicCounts, backlogs_of, topics_of
from timerstore.store import ConnectedStore
from timerstore.types.messages import Int64Array

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
_LOOKS_KEPT = 6

_Reading = tuple[float, dict[str, Any], dict[str, TopicCounts]]


class ServedWatch:
    """Measures a served store again and again."""

    def __init__(self, store: ConnectedStore) -> None:
        self._store = store
        self._before: deque[_Reading] = deque(maxlen=_LOOKS_KEPT)
        self._history: deque[float] = deque(maxlen=HISTORY)

    def look(self, now_ms: int, now_s: float) -> LiveStats:
        """Measure once. `now_s` is the time of a monotonic clock."""
        stats, topics = self._store.stats(), topics_of(self._store)
        reading = now_s, stats, topics
        last = self._before[-1] if self._before else reading
        self._history.append(_rate(last, reading, _delivered))
        self._before.append(reading)
        first = self._before[0]
        due_ms, counts = self._wheel(now_ms, stats)
        names = first[2].keys() | topics.keys()
        return LiveStats(
            now_ms=now_ms,
            looks=(),
            due_ms=due_ms,
            counts=counts,
            precision_ms=_SECOND_MS,
            pending=stats["pending_messages"],
            by_topic={
                name: (
                    topics[name].pending,
                    topics[name].delivered,
                    _rate(first, reading, lambda one, name=name: _of_topic(one, name)),
                )
                for name in sorted(names & topics.keys())
            },
            put_per_s=_rate(first, reading, lambda one: one[1]["put_messages"]),
            arrived_per_s=_rate(first, reading, _delivered),
            log_per_s=_rate(first, reading, lambda one: one[1]["log_end_bytes"]),
            lateness=None,
            history=tuple(self._history),
            groups=backlogs_of(stats),
            late_counts=_late_counts(first, reading),
        )

    def _wheel(self, now_ms: int, stats: dict[str, Any]) -> tuple[Int64Array, Int64Array]:
        """Return begins of spans of time, ascending, and the pending messages that are due there.

        The first has the messages that are late, the last those that are due after a day.
        """
        near_end = (now_ms + _HOUR_MS) // _MINUTE_MS * _MINUTE_MS
        near = self._store.histogram(now_ms, near_end, "second")
        far = self._store.histogram(near_end, now_ms + _DAY_MS, "minute")
        late = stats["delivery_lag_messages"]
        counts = np.concatenate([[late], near.counts, far.counts]).astype(np.int64)
        rest = max(0, stats["pending_messages"] - int(counts.sum()))
        due_ms = np.concatenate(
            [[now_ms - _HOUR_MS], near.edges[:-1], far.edges[:-1], far.edges[-1:] + _DAY_MS]
        )
        return due_ms.astype(np.int64), np.append(counts, rest)


def _delivered(one: _Reading) -> int:
    return int(one[1]["dequeue_put_messages"] + one[1]["schedule_deliver_messages"])


def _of_topic(one: _Reading, name: str) -> int:
    return one[2][name].delivered if name in one[2] else 0


def _rate(before: _Reading, now: _Reading, number_of: Any) -> float:
    seconds = now[0] - before[0]
    return max(0, number_of(now) - number_of(before)) / seconds if seconds > 0 else 0.0


def _late_counts(before: _Reading, now: _Reading) -> tuple[int, ...]:
    """Return how many of the last deliveries were at most each of LATE_MS late, and how many
    later.
    """
    first, last = before[1]["lateness_ms"], now[1]["lateness_ms"]
    return tuple(
        max(0, int(last.get(bound, 0)) - int(first.get(bound, 0))) for bound in (*LATE_MS, None)
    )
