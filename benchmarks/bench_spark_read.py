"""Reading a store as a table: by C and Arrow alone, by Spark, and next to Spark reading Parquet.

One store of default segments has n messages with bodies of `body` bytes. It is read as partitions
of `partition` MiB. `six` reads shard, queue_offset, log_offset, msg_id, stored_at and body, about
60 bytes more than the body per row. `all` reads every column, with properties as a map. `times`
reads only deliver_at of `timers` as epoch ms, like a heat map. They go into Spark's noop sink.

The same queries run on the store and on Parquet files of its messages, in turns, so that other
load meets both: `count` counts rows, `hour` counts by hour of deliver_at, and `five` reads msg_id,
topic, stored_at, deliver_at and body. `count_default` reads the columns of a read that names none.
`times_parquet` is the ratio of the best rounds. The first round warms the JVM and the page cache.
p50 and max are seconds of the other rounds.

Thread safety: arrow uses one thread. spark uses local[cores], shared by JVM and Python workers.
Raises: WorkError if rows are missing. ImportError without timerstore[spark], which needs Java 17.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Result, need
from timerstore import StoreConfig, tables
from timerstore.spark import configure, register
from timerstore.testing import ManualClock, Stepper

FULL: dict[str, Any] = {"n": 4_000_000, "body": 190, "cores": 2, "partition": 128, "rounds": 5}
SMOKE: dict[str, Any] = {"n": 500, "body": 32, "cores": 2, "partition": 1, "rounds": 1}
BATCH_MAX = 10_000

SIX = ("shard", "queue_offset", "log_offset", "msg_id", "stored_at", "body")
VARIANTS: dict[str, tuple[str, tuple[str, ...] | None, bool]] = {
    "six": ("messages", SIX, False),
    "all": ("messages", None, False),
    "times": ("timers", ("deliver_at",), True),
}

FIVE = ("msg_id", "topic", "stored_at", "deliver_at", "body")


def _count(frame: DataFrame) -> None:
    frame.count()


def _by_hour(frame: DataFrame) -> None:
    frame.groupBy(F.window("deliver_at", "1 hour")).count().collect()


def _into_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Query(NamedTuple):
    """A query, and the columns that a store is asked for."""

    table: str
    columns: str | None
    run: Callable[[DataFrame], None]
    parquet: tuple[str, ...] | None = None


QUERIES = {
    "count": Query("messages", "log_offset", _count),
    "count_default": Query("messages", None, _count),
    "hour": Query("timers", "deliver_at", _by_hour),
    "five": Query("messages", ",".join(FIVE), _into_nothing, FIVE),
}


def fill(root: Path, config: StoreConfig, n: int, body: int) -> None:
    """A closed store: half of the messages are in their topic, half wait."""
    work = harness.make_work(n, body, 80_000_000)
    clock = ManualClock(START_MS)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        batch = min(BATCH_MAX, n // 4)
        for begin in range(0, n, batch):
            end = min(begin + batch, n)
            later = (begin // batch) % 2 == 1
            due = work.due_ms[begin:end] if later else np.zeros(end - begin, np.int64)
            store.put_many("bench", work.part(begin, end), deliver_ms=due, flush="async")
            if begin % (10 * batch) == 0:
                Stepper(store).settle()
        Stepper(store).settle()


def by_arrow(root: Path, table: str, columns: tuple[str, ...] | None, as_long: bool) -> int:
    """Rows that come out of the decoder."""
    return sum(
        batch.num_rows for batch in tables.read(root, table, columns=columns, times_as_long=as_long)
    )


def by_spark(
    spark: SparkSession,
    root: Path,
    table: str,
    columns: tuple[str, ...] | None,
    as_long: bool,
    partition: int,
) -> None:
    """Through Spark, every row and column, into nothing."""
    reader = spark.read.format("timerstore").option("table", table)
    reader = reader.option("max_partition_bytes", f"{partition}m")
    reader = reader.option("time_type", "long" if as_long else "timestamp")
    reader = reader.option("columns", ",".join(columns or ("*",)))
    reader.load(str(root)).write.format("noop").mode("overwrite").save()


def timed(rounds: int, job: Callable[[], object]) -> list[float]:
    """Seconds of each round; one more goes first."""
    job()
    return [timed_once(job) for _ in range(rounds)]


def timed_once(job: Callable[[], object]) -> float:
    """Seconds of one call."""
    before = time.perf_counter()
    job()
    return time.perf_counter() - before


def write_parquet(root: Path, target: Path) -> None:
    """Write all messages of a store as Parquet."""
    batches = tables.read(root, "messages")
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    dataset.write_dataset(reader, target, format="parquet", min_rows_per_group=100_000)


def beside_parquet(
    spark: SparkSession, store: Path, parquet_files: Path, query: Query, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of a query on the store and on Parquet, in turns."""

    def ours() -> None:
        reader = spark.read.format("timerstore").option("table", query.table)
        if query.columns is not None:
            reader = reader.option("columns", query.columns)
        query.run(reader.load(str(store)))

    def parquet() -> None:
        frame = spark.read.parquet(str(parquet_files))
        query.run(frame.select(*query.parquet) if query.parquet else frame)

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for found, job in zip(seconds, (ours, parquet), strict=True):
            found.append(timed_once(job))
    return seconds[0][1:], seconds[1][1:]


def result(
    way: str, variant: str, rows: int, seconds: list[float], values: dict[str, Any]
) -> Result:
    """One line; the rate is the best round's, as the machine may have been busy in others."""
    return Result(
        name=f"spark_read/{way}",
        parameters={"columns": variant, "n": rows, "body": values["body"]},
        n=rows,
        rate=rows / min(seconds),
        unit="s",
        spread=harness.spread(seconds),
        flush="async",
        work=harness.digest(variant, str(rows), str(values["body"])),
        figures={"load_average": os.getloadavg()[0], "best_s": min(seconds)},
    )


def session(cores: int) -> tuple[SparkSession, bool]:
    """The session that is there, or a new one; whether it is new."""
    here = SparkSession.getActiveSession()
    if here is not None:
        return here, False
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    made = configure(builder.config("spark.ui.showConsoleProgress", "false")).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made, True


def run(values: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Every variant, without Spark and with it."""
    with harness.workspace(directory) as root:
        config = harness.small_config() if smoke else StoreConfig(index_enabled=False)
        store = root / "store"
        fill(store, config, values["n"], values["body"])
        counts = {}
        for name, (table, columns, as_long) in VARIANTS.items():
            counts[name] = by_arrow(store, table, columns, as_long)
            need(counts[name] >= values["n"] // 2, f"{counts[name]} rows of {table}")
            seconds = timed(
                values["rounds"],
                lambda t=table, c=columns, b=as_long: by_arrow(store, t, c, b),
            )
            yield result("arrow", name, counts[name], seconds, values)
        spark, is_new = session(values["cores"])
        try:
            register(spark)
            for name, (table, columns, as_long) in VARIANTS.items():
                got = (
                    spark.read.format("timerstore").option("table", table).load(str(store)).count()
                )
                need(got == counts[name], f"{got} rows by Spark, {counts[name]} without")
                seconds = timed(
                    values["rounds"],
                    lambda t=table, c=columns, b=as_long: by_spark(
                        spark, store, t, c, b, values["partition"]
                    ),
                )
                yield result("spark", name, counts[name], seconds, values)
            files = root / "messages.parquet"
            write_parquet(store, files)
            for name, query in QUERIES.items():
                rows = counts["times" if query.table == "timers" else "six"]
                ours, parquet = beside_parquet(spark, store, files, query, values["rounds"])
                found = result("query", name, rows, ours, values)
                figures = {**found.figures, "times_parquet": min(ours) / min(parquet)}
                yield dataclasses.replace(found, figures=figures)
                yield result("parquet", name, counts["six"], parquet, values)
        finally:
            if is_new:
                spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
