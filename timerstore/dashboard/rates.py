"""Compute rates and lateness of the last minute from growing counters.

Thread safety: none; the caller holds a lock.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import LATE_MS

KEPT_S = 60.0
_PARTS = 60
"""Number of bars that the page draws for a minute."""


class CounterReading(NamedTuple):
    """Counters at one time."""

    at_s: float
    """Seconds of a monotonic clock."""
    put: int
    delivered: int
    late: tuple[float, ...]
    """Number of late deliveries by upper bound; the last entry has no bound."""


class RecentLateness(NamedTuple):
    """Lateness in ms of the last minute's deliveries. None: above the last bound, or none."""

    number: int
    p50: float | None
    p99: float | None
    worst: float | None
    counts: tuple[int, ...]


def reading_of(stats: Mapping[str, Any], at_s: float) -> CounterReading:
    """Extract a reading from `stats()`."""
    lateness = stats["lateness_ms"]
    return CounterReading(
        at_s,
        stats["put_messages"],
        stats["dequeue_put_messages"] + stats["schedule_deliver_messages"],
        tuple(lateness.get(bound, 0) for bound in (*LATE_MS, None)),
    )


class Rates:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._kept: deque[CounterReading] = deque()

    def add(self, reading: CounterReading) -> None:
        """Add a reading and drop those older than a minute."""
        self._kept.append(reading)
        while len(self._kept) > 2 and reading.at_s - self._kept[1].at_s >= KEPT_S:
            self._kept.popleft()

    def per_second(self, name: str, span_s: float = 5.0) -> float:
        """Return the growth per second of a counter over the last `span_s` seconds."""
        last = self._kept[-1]
        first = next(one for one in self._kept if last.at_s - one.at_s <= span_s)
        if first is last and len(self._kept) > 1:
            first = self._kept[-2]
        seconds = last.at_s - first.at_s
        return (getattr(last, name) - getattr(first, name)) / seconds if seconds > 0 else 0.0

    def history(self) -> list[float]:
        """Return deliveries per second for each second of the last minute, newest last."""
        parts = [0.0] * _PARTS
        last = self._kept[-1].at_s
        before = self._kept[0]
        for one in list(self._kept)[1:]:
            place = _PARTS - 1 - int((last - one.at_s) * _PARTS / KEPT_S)
            if place >= 0:
                parts[place] += one.delivered - before.delivered
            before = one
        return [part * _PARTS / KEPT_S for part in parts]

    def lateness(self) -> RecentLateness:
        """Return the lateness of the last minute's deliveries."""
        first, last = self._kept[0].late, self._kept[-1].late
        return lateness_of(tuple(int(b - a) for a, b in zip(first, last, strict=True)))


def lateness_of(counts: tuple[int, ...]) -> RecentLateness:
    """Return the upper bounds of the 50th, 99th and 100th percentile."""
    number = sum(counts)
    shares = (_bound(counts, number / 2), _bound(counts, number * 0.99), _bound(counts, number))
    return RecentLateness(number, *shares, counts)


def _bound(counts: tuple[int, ...], share: float) -> float | None:
    total = 0
    for bound, count in zip(LATE_MS, counts, strict=False):
        total += count
        if total and total >= share:
            return bound
    return None
