"""Spark's filters as bounds: what passes the filters is within, whatever they are. No JVM."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from timerstore.spark.filters import narrowed_by
from timerstore.spark.plan import Narrowed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONE = timezone(timedelta(hours=5, minutes=45))
US = st.integers(-5000, 5000)

COMPARISONS = {
    spark.EqualTo: lambda a, b: a == b,
    spark.EqualNullSafe: lambda a, b: a == b,
    spark.GreaterThan: lambda a, b: a > b,
    spark.GreaterThanOrEqual: lambda a, b: a >= b,
    spark.LessThan: lambda a, b: a < b,
    spark.LessThanOrEqual: lambda a, b: a <= b,
}


def at(us: int, zone: Any = ZONE) -> datetime:
    return (EPOCH + timedelta(microseconds=us)).astimezone(zone)


def compared(one: tuple[Any, int]) -> tuple[Any, Any]:
    """A comparison with a time, and whether some ms pass it."""
    kind, us = one
    return kind(("deliver_at",), at(us)), lambda ms: COMPARISONS[kind](1000 * ms, us)


TIMES = st.one_of(
    st.tuples(st.sampled_from(list(COMPARISONS)), US).map(compared),
    st.lists(US, min_size=1, max_size=4).map(
        lambda values: (
            spark.In(("deliver_at",), [at(us) for us in values]),
            lambda ms, v=values: 1000 * ms in v,
        )
    ),
    st.sampled_from(
        [
            (spark.IsNotNull(("deliver_at",)), lambda _ms: True),
            (spark.Not(spark.EqualTo(("deliver_at",), at(0))), lambda ms: ms != 0),
            (spark.EqualTo(("deliver_at", "x"), at(0)), lambda _ms: True),
            (spark.StringContains(("topic",), "x"), lambda _ms: True),
            (spark.GreaterThan(("deliver_at",), at(0).replace(tzinfo=None)), lambda _ms: True),
        ]
    ),
)  # fmt: skip


@given(filters=st.lists(TIMES, max_size=4), ms=st.integers(-6, 6))
def test_what_passes_the_filters_is_within(filters: list[Any], ms: int) -> None:
    bounds = narrowed_by([one for one, _ in filters], table="messages").bounds
    low, high = bounds.deliver_from_ms, bounds.deliver_to_ms
    if all(holds(ms) for _, holds in filters):
        assert low is None or ms >= low
        assert high is None or ms < high


@given(kind=st.sampled_from(list(COMPARISONS)), us=US, ms=st.integers(-6, 6))
def test_bounds_are_as_narrow_as_ms_can_be(kind: Any, us: int, ms: int) -> None:
    bounds = narrowed_by([kind(("stored_at",), at(us))], table="messages").bounds
    low, high = bounds.stored_from_ms, bounds.stored_to_ms
    within = (low is None or ms >= low) and (high is None or ms < high)
    passes = COMPARISONS[kind](1000 * ms, us)
    if kind in (spark.EqualTo, spark.EqualNullSafe) and us % 1000:
        assert not passes  # between two ms: nothing passes, at most its neighbours are read
        assert high is not None
        assert low is not None
        assert high - low == 2
    else:
        assert within == passes


def test_values_of_shards_and_topics_meet() -> None:
    got = narrowed_by(
        [
            spark.In(("shard",), [3, 1, 2, None]),
            spark.In(("shard",), [2, 3, 9]),
            spark.In(("topic",), ["b", "a"]),
            spark.GreaterThan(("shard",), 0),
        ],
        table="messages",
    )
    assert got.shards == frozenset({2, 3})
    assert got.bounds.topics == ("a", "b")
    assert narrowed_by(
        [spark.EqualTo(("shard",), 1), spark.EqualTo(("shard",), 2)], table="slots"
    ) == (Narrowed(shards=frozenset()))


def test_log_offsets_narrow_logs_alone() -> None:
    filters = [spark.GreaterThanOrEqual(("log_offset",), 5), spark.LessThan(("log_offset",), 9)]
    got = narrowed_by(filters, table="deliveries")
    assert (got.log_from, got.log_to) == (5, 9)
    assert narrowed_by(filters, table="timers") == Narrowed()


def test_nothing_narrows_nothing() -> None:
    assert narrowed_by([], table="messages") == Narrowed()
