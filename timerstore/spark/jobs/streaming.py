"""Run a stream until its input ends, for a limited time, or until it is stopped.

Thread safety: the driver's thread waits, and Spark's threads run the query.
Raises: the exception that ended the query.
"""

import time
from collections.abc import Sequence
from typing import Any

import click
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import PLACE, Run
from timerstore.spark.jobs.spans import read_span_ms

_LOOK_S = 1
_TELL_S = 10.0

TRIGGER_OPTIONS: tuple[click.Option, ...] = (
    click.Option(
        ["--checkpoint"], required=True, type=PLACE, help="Directory of Spark's checkpoint."
    ),
    click.Option(["--every"], default="1s", help="Time between batches, as 10s."),
    click.Option(["--once"], is_flag=True, help="Read the available input, then end."),
    click.Option(["--run-for"], help="End after this time, as 1h. By default never."),
)


def run_stream(
    run: Run,
    writer: DataStreamWriter,
    *,
    checkpoint: str,
    every: str,
    once: bool,
    run_for: str | None,
) -> dict[str, Any]:
    """Run the stream, print progress, and return the batches and rows of this run."""
    read_span_ms("--every", every)
    end_s = None if run_for is None else time.monotonic() + read_span_ms("--run-for", run_for) / 1e3
    writer = writer.option("checkpointLocation", checkpoint).queryName(run.name)
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{read_span_ms('--every', every)} milliseconds")
    query = writer.start()
    seen: dict[int, int] = {}
    told_s = time.monotonic()
    try:
        while not query.awaitTermination(_LOOK_S):
            _look(query, seen)
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                run.tell(f"{sum(seen.values()):,} rows in {len(seen)} batches")
            if end_s is not None and time.monotonic() >= end_s:
                break
    finally:
        _look(query, seen)
        query.stop()
    rows = sum(seen.values())
    run.tell(f"{rows:,} rows in {len(seen)} batches")
    return {"rows": rows, "batches": len(seen), "query_id": str(query.id)}


def _look(query: StreamingQuery, seen: dict[int, int]) -> None:
    """Record the rows of the batches that Spark still reports."""
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            seen[int(progress["batchId"])] = int(progress["numInputRows"])


def read_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Parse the `key=value` options of a source or sink. Raise ConfigError for invalid ones."""
    wrong = [one for one in given if "=" not in one or one.startswith("=")]
    if wrong:
        raise ConfigError([f"{option}: wanted KEY=VALUE, got {one!r}" for one in wrong])
    return dict(one.split("=", 1) for one in given)
