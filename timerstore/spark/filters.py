"""Spark's filters, as far as they narrow what is read.

Holds:    what is narrowed lets through every row that the filters let through; Spark applies them
          all again. So what is not understood is left out, and bounds are widened to whole ms.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from timerstore.columns.scan import Bounds
from timerstore.spark.plan import Narrowed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DUE = {"deliver_at", "slot_at"}
_STORED = {"stored_at", "delivered_at", "enqueued_at", "applied_at"}


class _Range:
    """A range of whole numbers: from, and below."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def narrow(self, low: int | None, high: int | None) -> None:
        """Take what is in both."""
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)


def narrowed_by(filters: Iterable[Filter], *, table: str) -> Narrowed:
    """Give what filters narrow a read to."""
    due, stored, log = _Range(), _Range(), _Range()
    shards: set[int] | None = None
    topics: set[str] | None = None
    for one in filters:
        name = _column(one)
        if name in _DUE:
            due.narrow(*_range_of(one, _ms))
        elif name in _STORED:
            stored.narrow(*_range_of(one, _ms))
        elif name == "log_offset" and table in ("messages", "deliveries"):
            log.narrow(*_range_of(one, _whole))
        elif name == "shard":
            shards = _meet(shards, _values(one, int))
        elif name == "topic":
            topics = _meet(topics, _values(one, str))
    return Narrowed(
        Bounds(
            due.low,
            due.high,
            stored.low,
            stored.high,
            None if topics is None else tuple(sorted(topics)),
        ),
        None if shards is None else frozenset(shards),
        log.low,
        log.high,
    )


def _column(one: Filter) -> str | None:
    """Give the plain column that a filter is about."""
    path = getattr(one, "attribute", None)
    return path[0] if isinstance(path, tuple) and len(path) == 1 else None


def _values(one: Filter, kind: type) -> set[Any] | None:
    """Give the only values that pass; None where a filter does not list them."""
    if isinstance(one, EqualTo | EqualNullSafe):
        listed = [one.value]
    elif isinstance(one, In):
        listed = list(one.value)
    else:
        return None
    return {value for value in listed if type(value) is kind}


def _meet(known: set[Any] | None, more: set[Any] | None) -> set[Any] | None:
    if known is None or more is None:
        return more if known is None else known
    return known & more


def _range_of(one: Filter, read: Any) -> tuple[int | None, int | None]:
    """Give the range of whole numbers that a filter lets through, at least."""
    if isinstance(one, In):
        pairs = [read(value) for value in one.value if value is not None]
        if not pairs or None in pairs:
            return None, None
        return min(low for low, _ in pairs), max(high for _, high in pairs) + 1
    edges = read(getattr(one, "value", None))
    if edges is None:
        return None, None
    below, above = edges  # the whole numbers next to the value, equal where it is one itself
    if isinstance(one, EqualTo | EqualNullSafe):
        return below, above + 1
    if isinstance(one, GreaterThanOrEqual):
        return above, None
    if isinstance(one, GreaterThan):
        return (below + 1), None
    if isinstance(one, LessThanOrEqual):
        return None, below + 1
    if isinstance(one, LessThan):
        return None, above
    return None, None


def _ms(value: Any) -> tuple[int, int] | None:
    """Give the ms on both sides of a time: an aware datetime, or epoch ms."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        whole, rest = divmod(value - _EPOCH, timedelta(milliseconds=1))
        return whole, whole + (1 if rest else 0)
    return _whole(value)


def _whole(value: Any) -> tuple[int, int] | None:
    return (value, value) if type(value) is int else None
