"""Reading a store as a table: C and Arrow alone, then through Spark into its noop sink.

One store of default segments has n messages with bodies of `body` bytes. It is read as partitions
of `partition` MiB. `six` reads shard, queue_offset, log_offset, msg_id, stored_at and body, about
60 bytes more than the body per row. `all` reads every column, with properties as a map. `times`
reads only deliver_at of `timers` as epoch ms, like a heat map. The first round warms the JVM and
the page cache. p50 and max are seconds of the other rounds.

Thread safety: arrow uses one thread. spark uses local[cores], shared by JVM and Python workers.
Raises: WorkError if rows are missing. ImportError without timerstore[spark], which needs Java 17.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

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
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    reader.load(str(root)).write.format("noop").mode("overwrite").save()


def timed(rounds: int, job: Callable[[], object]) -> list[float]:
    """Seconds of each round; one more goes first."""
    job()
    found = []
    for _ in range(rounds):
        before = time.perf_counter()
        job()
        found.append(time.perf_counter() - before)
    return found


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
        finally:
            if is_new:
                spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
