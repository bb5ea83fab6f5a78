"""Tables, Spark, the page and the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.inside.attribute import Attribute


def ledger_of_part() -> Attribute:
    """The function that reads the headers of ingested chunks for the table of transactions."""
    from timerstore._engine.snapshot.columns import table_scan

    return Attribute(table_scan, "_ledger")


def late_by_bound(late: Any) -> tuple[int, ...]:
    """Return how many deliveries were late, by bound, and past the last bound."""
    from timerstore._engine.snapshot import live_stats

    return live_stats._by_bound(late)


def without_delivered(counts: Any, look: Any) -> Any:
    """Return the counts of pending messages, without those delivered since the counts were made."""
    from timerstore._engine.snapshot import live_stats

    return live_stats._without_delivered(counts, look)


def export_sync() -> Attribute:
    """Return the function by which an export syncs its file."""
    from timerstore.cli import exporting

    return Attribute(exporting, "_sync")


def root_of_write(options: Mapping[str, str]) -> Path:
    """Return the directory that the options of a Spark write name."""
    from timerstore.spark import writer

    return writer._root_of(options)


def span_text(span_ms: int) -> str:
    """Return the label of a span of time in the charts of a Spark job."""
    from timerstore.spark.jobs import plots

    return plots._span(span_ms)


def partitions_of_tasks(partitions: list[Any]) -> list[list[int]]:
    """Return the partitions of a source that each Spark task reads."""
    from timerstore.spark.jobs import source_tasks

    return source_tasks._group_small(partitions)


def event_stream_count(app: Any) -> int:
    """Return how many dashboards have a stream of events open."""
    return int(app._streams)


def set_event_stream_count(app: Any, count: int) -> None:
    """Set the number of dashboards that count as having a stream of events open."""
    app._streams = count


def store_of_page(source: Any) -> Any:
    """Return the store that a dashboard shows."""
    return source._store


def clock_listeners(clock: Any) -> Any:
    """Return the listeners of a ManualClock."""
    return clock._listeners


def loop_of_server(server: Any) -> Any:
    """Return the event loop of a server."""
    return server._loop
