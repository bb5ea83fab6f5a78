"""Spark programs that tests run in separate processes, with other executors or to kill them.

    python -m tests.spark.write_programs <name> <scratch> [json of settings]

Each program writes to the shards in <scratch>/s, and prints DONE at its end.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.spark import session as spark_session

ROWS = "topic string, body binary, deliver_at timestamp, key string"
FILES = 10
ROWS_A_FILE = 2000
BUCKET = "TIMERSTORE_TEST_BUCKET"
"""The variable with the URL of a bucket to write to, instead of the shards."""


def target(scratch: Path) -> str:
    """Return where the programs write."""
    return os.environ.get(BUCKET, str(scratch / "s"))


def rows_of(spark: Any, count: int, parts: int) -> Any:
    """Return rows `body-0` and so on with past due times, large enough for several files a task."""
    return spark.range(0, count, 1, parts).selectExpr(
        "'t' as topic",
        "cast(rpad(concat('body-', id), 4000, '.') as binary) as body",
        "timestamp_millis(946684800000 + id) as deliver_at",
        "concat('key-', id) as key",
    )


# --- a stream whose driver is killed ---


def stream(spark: Any, scratch: Path) -> None:
    """Write all files, one per batch, from the position of the checkpoint on."""
    source = scratch / "in"
    read = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        read.repartition(2)
        .writeStream.format("timerstore")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .option("ingest", "none" if BUCKET in os.environ else "inline")
        .trigger(availableNow=True)
        .start(target(scratch))
    )
    query.awaitTermination()


def make_files(scratch: Path) -> None:
    """Write the input of the stream without Spark."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (scratch / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * ROWS_A_FILE, (file + 1) * ROWS_A_FILE)
        table = pa.table(
            {
                "topic": ["t"] * ROWS_A_FILE,
                "body": pa.array([b"body-%d" % k for k in numbers], pa.binary()),
                "deliver_at": pa.array([0] * ROWS_A_FILE, pa.timestamp("us", tz="UTC")),
                "key": [f"key-{k}" for k in numbers],
            }
        )
        pq.write_table(table, scratch / "in" / f"part-{file:03d}.parquet")


# --- an executor that is killed ---


def _parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _kill_executor_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Pass rows on; the first attempt of one task kills its JVM after some of them."""
    from pyspark import TaskContext

    task = TaskContext.get()
    for k, batch in enumerate(batches):
        yield batch
        if k == 8 and task.partitionId() == 1 and task.attemptNumber() == 0:
            time.sleep(2)  # lets Spark write the batches yielded so far
            executor = _parent_of(_parent_of(os.getpid()))
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            os.kill(executor, signal.SIGKILL)


def executor(spark: Any, scratch: Path) -> None:
    """Run a batch write during which an executor dies."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    rows = rows_of(spark, 20_000, 4).mapInArrow(_kill_executor_once, ROWS)
    rows.write.format("timerstore").mode("append").option("write_id", "w").save(target(scratch))


# --- an attempt that is so slow that Spark starts another one ---


def _slow_attempt(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    task = TaskContext.get()
    for k, batch in enumerate(batches):
        yield batch
        if k == 8 and task.partitionId() == 0 and task.attemptNumber() == 0:
            time.sleep(20)


def speculation(spark: Any, scratch: Path) -> None:
    """Run a batch write in which one task has two concurrent attempts."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    rows = rows_of(spark, 20_000, 4).mapInArrow(_slow_attempt, ROWS)
    rows.write.format("timerstore").mode("append").option("write_id", "w").save(target(scratch))


def batch(spark: Any, scratch: Path) -> None:
    """Run a batch write."""
    rows = rows_of(spark, 20_000, 4)
    rows.write.format("timerstore").mode("append").option("write_id", "w").save(target(scratch))


PROGRAMS = {"stream": stream, "executor": executor, "speculation": speculation, "batch": batch}


def main() -> None:
    """Run the program named on the command line."""
    name, scratch = sys.argv[1], Path(sys.argv[2])
    more = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    spark = spark_session.start(scratch, **more)
    PROGRAMS[name](spark, scratch)
    print("DONE", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
