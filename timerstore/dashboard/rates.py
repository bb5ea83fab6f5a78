"""Rates and lateness of the last minute, of counters that only grow.

Threads:  any, one at a time: who calls holds a lock.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import LATE_MS

KEPT_S = 60.0
_PARTS = 60
"""Of the minute: as many bars as the page draws."""


class Reading(NamedTuple):
    """Counters at a moment."""

    at_s: float
    """Of a clock that is never set."""
    put: int
    delivered: int
    late: tuple[float, ...]
    """How many were late, by upper bound; the last: beyond all."""


class Lateness(NamedTuple):
    """Of the last deliveries: how late, ms; None: more than the last bound, or nothing came."""

    number: int
    p50: float | None
    p99: float | None
    worst: float | None
    counts: tuple[int, ...]


def reading_of(stats: Mapping[str, Any], at_s: float) -> Reading:
    """Take what counts of `stats()`."""
    told = stats["lateness_ms"]
    return Reading(
        at_s,
        stats["put_messages"],
        stats["dequeue_put_messages"] + stats["schedule_deliver_messages"],
        tuple(told.get(bound, 0) for bound in (*LATE_MS, None)),
    )


class Rates:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._kept: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Take one more; what is older than a minute goes."""
        self._kept.append(reading)
        while len(self._kept) > 2 and reading.at_s - self._kept[1].at_s >= KEPT_S:
            self._kept.popleft()

    def per_second(self, name: str, span_s: float = 5.0) -> float:
        """How much a counter grew a second, in the last few seconds."""
        last = self._kept[-1]
        first = next(one for one in self._kept if last.at_s - one.at_s <= span_s)
        if first is last and len(self._kept) > 1:
            first = self._kept[-2]
        seconds = last.at_s - first.at_s
        return (getattr(last, name) - getattr(first, name)) / seconds if seconds > 0 else 0.0

    def history(self) -> list[float]:
        """Delivered a second in each second of the last minute, the newest last."""
        parts = [0.0] * _PARTS
        last = self._kept[-1].at_s
        before = self._kept[0]
        for one in list(self._kept)[1:]:
            place = _PARTS - 1 - int((last - one.at_s) * _PARTS / KEPT_S)
            if place >= 0:
                parts[place] += one.delivered - before.delivered
            before = one
        return [part * _PARTS / KEPT_S for part in parts]

    def lateness(self) -> Lateness:
        """How late what came in the last minute was."""
        first, last = self._kept[0].late, self._kept[-1].late
        return lateness_of(tuple(int(b - a) for a, b in zip(first, last, strict=True)))


def lateness_of(counts: tuple[int, ...]) -> Lateness:
    """Give the bounds below which half, 99 in 100 and all lie."""
    number = sum(counts)
    shares = (_bound(counts, number / 2), _bound(counts, number * 0.99), _bound(counts, number))
    return Lateness(number, *shares, counts)


def _bound(counts: tuple[int, ...], share: float) -> float | None:
    total = 0
    for bound, count in zip(LATE_MS, counts, strict=False):
        total += count
        if total and total >= share:
            return bound
    return None
