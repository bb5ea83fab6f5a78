"""How fast Spark moves, reads, counts and audits many stores at once.

| figure     | work                                                                              |
|------------|-----------------------------------------------------------------------------------|
| bulk_stage | stage Parquet rows, with sync and commit                                          |
| bulk       | the same, and ingest into the logs of the shards                                  |
| read       | read all columns of `messages` into the noop sink                                 |
| heatmap    | count due messages of all timers by hour                                          |
| audit_log  | audit these shards completely                                                     |
| audit      | compare n scheduled with n delivered messages, and find planted faults            |

All figures come from one warm session, in which each operation has run once on little data. On two
cores the JVM and the workers share the cores; a busy machine makes all figures several times worse.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import harness
from benchmarks.harness import Result, need
from timerstore.shards.write_options import WriteOptions
from timerstore.spark import register
from timerstore.spark.jobs import audit, audit_frames, export, forecast, init_shards
from timerstore.spark.jobs.bulk_worker import Renaming
from timerstore.spark.jobs.job import Common, Run, make_session
from timerstore.spark.jobs.parquet_tasks import parquet_files, tasks_of
from timerstore.spark.jobs.projection import read_messages
from timerstore.spark.jobs.scheduling import stage_and_commit, take

FULL = {
    "n": 4_000_000, "shards": 8, "files": 8, "body_bytes": 200, "master": "local[2]", "rounds": 3,
}  # fmt: skip
SMOKE = {"n": 3000, "shards": 2, "files": 2, "body_bytes": 40, "master": "local[2]", "rounds": 1}

HORIZON_MS = 6 * 86_400_000
LOST, DOUBLED = 33, 46
_RENAMING = Renaming((("body", "body"), ("deliver_ms", "deliver_ms"), ("key", "key")))


def run(values: dict[str, Any], _smoke: bool, directory: Path | None) -> Iterator[Result]:
    """All figures."""
    conf = ("spark.driver.memory=3g", "spark.ui.enabled=false", "spark.log.level=ERROR")
    more = "spark.sql.shuffle.partitions=4"
    common = Common(master=values["master"], conf=(*conf, more), quiet=True)
    active = SparkSession.getActiveSession()
    spark = active or make_session("bench", common)
    register(spark)
    try:
        with harness.workspace(directory) as root:
            yield from _shards(spark, values, root)
            yield from _audit(spark, values, root)
    finally:
        if active is None:
            spark.stop()


def _shards(spark: SparkSession, values: dict[str, Any], root: Path) -> Iterator[Result]:
    n = values["n"]
    job = Run("bench", Common(quiet=True))
    start_ms = int(time.time() * 1000) + 3_600_000
    small = write_input(root / "small", {**values, "n": 100, "files": 2}, start_ms)
    table = write_input(root / "input", values, start_ms)
    _bulk(job, root / "warm", small, values)
    for number in range(values["rounds"]):
        staged, whole = _bulk(job, root / f"shards{number}", table, values)
        yield _result("bulk_stage", values, staged)
        yield _result("bulk", values, whole)
    shards = root / f"shards{values['rounds'] - 1}"
    for name, work in (
        ("read", lambda: _read(spark, shards)),
        ("heatmap", lambda: _heatmap(spark, shards, start_ms, n)),
        ("audit_log", lambda: _audit_log(spark, shards, n)),
    ):
        work()
        for _ in range(values["rounds"]):
            yield _result(name, values, _timed(work))


def _bulk(job: Run, shards: Path, table: Path, values: dict[str, Any]) -> tuple[float, float]:
    """Seconds until it is committed, and until it is in the shards."""
    status = init_shards.main(["--path", str(shards), "--shards", str(values["shards"]), "--quiet"])
    need(status == 0, "init-shards failed")
    tasks = tasks_of(parquet_files(str(table)), 10**6)
    began = time.perf_counter()
    done = stage_and_commit(
        job, shards, "bench", 0, tasks, _RENAMING, WriteOptions(topic="bench", write_id="bench")
    )
    staged = time.perf_counter() - began
    taken = take(job, job.spark, shards)
    need(taken.rows == done.rows, f"{taken.rows} rows taken of {done.rows}")
    return staged, time.perf_counter() - began


def write_input(folder: Path, values: dict[str, Any], start_ms: int) -> Path:
    """Rows with noise for bodies, due over six days, so that none rolls in a wheel of seven."""
    folder.mkdir()
    random = np.random.default_rng(harness.SEED)
    each = values["n"] // values["files"]
    size = values["body_bytes"]
    for number in range(values["files"]):
        noise = random.integers(0, 256, each * size, dtype=np.uint8).tobytes()
        spans = np.arange(each + 1, dtype=np.int32) * size
        buffers = [None, pa.py_buffer(spans), pa.py_buffer(noise)]
        keys = np.char.add(f"k{number}-", np.arange(each).astype(str))
        table = pa.table(
            {
                "body": pa.Array.from_buffers(pa.binary(), each, buffers),
                "deliver_ms": start_ms + random.integers(0, HORIZON_MS, each),
                "key": pa.array(keys.tolist()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100_000)
    return folder


def _read(spark: SparkSession, shards: Path) -> None:
    rows = read_messages(spark, str(shards), export.SCHEMAS["messages"])
    rows.write.format("noop").mode("overwrite").save()


def _heatmap(spark: SparkSession, shards: Path, start_ms: int, n: int) -> None:
    args = forecast.Args(str(shards), begin=str(start_ms - 60_000), horizon="30d")
    rows = forecast.build(spark, args)[0].collect()
    found = sum(row["due"] for row in rows)
    need(found == n, f"counted {found} timers of {n}")


def _audit_log(spark: SparkSession, shards: Path, n: int) -> None:
    rows = audit.build(spark, audit.Args(str(shards))).cube.collect()
    (total,) = (row for row in rows if row["grouping"] == audit_frames.GROUPINGS["all"])
    need(total["pending"] == n, f"{total['pending']} pending of {n}")


def _audit(spark: SparkSession, values: dict[str, Any], root: Path) -> Iterator[Result]:
    n = values["n"]
    path = str(root / "events")
    _events(spark, n).write.parquet(path)

    def work() -> None:
        judged = audit_frames.verdicts(spark.read.parquet(path), 2**41, 1000)
        rows = audit_frames.cube(judged).collect()
        (total,) = (row for row in rows if row["grouping"] == audit_frames.GROUPINGS["all"])
        got = (total["scheduled"], total["lost"], total["duplicated"], total["phantom"])
        need(got == (n, LOST, DOUBLED, 0), f"found {got}")

    work()
    for _ in range(values["rounds"]):
        yield _result("audit", values, _timed(work))


def _events(spark: SparkSession, n: int) -> Any:
    """N messages scheduled and delivered, LOST of them not, DOUBLED of them twice."""
    number = F.col("id")
    due = F.lit(10**12) + F.pmod(F.xxhash64(number), F.lit(HORIZON_MS))

    def of(rows: Any, kind: str, late: Any) -> Any:
        return rows.select(
            F.pmod(number, F.lit(8)).cast("int").alias("shard"),
            F.concat(F.lit("topic-"), F.pmod(number, F.lit(5))).alias("topic"),
            F.unhex(F.md5(number.cast("string").cast("binary"))).alias("msg_id"),
            due.cast("string").alias("mark"),
            F.lit(kind).alias("kind"),
            F.lit(True).alias("own"),
            F.lit(True).alias("counts"),
            due.alias("due_ms"),
            (due + late).alias("at_ms"),
            F.lit(7).alias("crc"),
        )

    every = n // 50
    lost = (F.pmod(number, F.lit(every)) == 1) & (number < every * LOST)
    doubled = (F.pmod(number, F.lit(every)) == 2) & (number < every * DOUBLED)
    rows = spark.range(n)
    late = F.pmod(F.xxhash64(number, F.lit(1)), F.lit(1000))
    delivered = of(rows.where(~lost), "d", late)
    again = of(rows.where(doubled), "d", late + 5)
    return of(rows, "s", F.lit(None).cast("long")).unionByName(delivered).unionByName(again)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _result(name: str, values: dict[str, Any], seconds: float) -> Result:
    n = values["n"]
    spread = harness.spread([seconds])
    told = {key: value for key, value in values.items() if key != "rounds"}
    work = harness.digest(name, str(sorted(told.items())))
    return Result(f"spark_{name}", told, n, n / seconds, "s", spread, "sync", work)


def main(argv: list[str] | None = None) -> int:
    """Print lines to standard output, and a table to standard error."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
