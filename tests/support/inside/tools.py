"""Tables, Spark, the page and the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.inside.attribute import Attribute


def ledger_of_part() -> Attribute:
    """The function that reads the headers of ingested chunks for the table of transactions."""
    from timerstore._engine.snapshot.columns import transactions

    return Attribute(transactions, "_ledger")


def late_by_bound(late: Any) -> tuple[int, ...]:
    """How many deliveries were late, by bound, and beyond the last one."""
    from timerstore._engine.snapshot import live_stats

    return live_stats._by_bound(late)


def without_delivered(counts: Any, look: Any) -> Any:
    """The counts of what waits, without what was delivered since they were taken."""
    from timerstore._engine.snapshot import live_stats

    return live_stats._without_delivered(counts, look)


def export_sync() -> Attribute:
    """The function by which an export syncs its file."""
    from timerstore.cli import tables

    return Attribute(tables, "_sync")


def root_of_write(options: Mapping[str, str]) -> Path:
    """The directory that the options of a Spark write mean."""
    from timerstore.spark import writing

    return writing._root_of(options)


def span_text(span_ms: int) -> str:
    """The label of a span of time in the pictures of a Spark job."""
    from timerstore.spark.jobs import plots

    return plots._span(span_ms)


def partitions_of_tasks(partitions: list[Any]) -> list[list[int]]:
    """Which partitions of a source each Spark task reads."""
    from timerstore.spark.jobs import source_tasks

    return source_tasks._group_small(partitions)


def event_stream_count(app: Any) -> int:
    """How many pages have a stream of events open."""
    return int(app._streams)


def set_event_stream_count(app: Any, count: int) -> None:
    """Have so many pages count as having a stream of events open."""
    app._streams = count


def store_of_page(source: Any) -> Any:
    """The store that a page shows."""
    return source._store


def clock_listeners(clock: Any) -> Any:
    """What a ManualClock calls when it is turned."""
    return clock._listeners
