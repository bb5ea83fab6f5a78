"""Writing over Spark Connect, in a separate process, as a JVM has one kind of session."""

import os
from pathlib import Path

import pytest

import timerstore
from tests.spark.test_write import came, each_once
from tests.support.bench import small
from tests.support.spark import session as spark_session

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from timerstore.spark import configure
root, scratch = sys.argv[1:]
builder = configure(SparkSession.builder.remote("local[2]"))
for name, value in json.loads(sys.stdin.read()).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.range(0, 300, 1, 3).selectExpr(
    "'t' as topic", "cast(concat('body-', id) as binary) as body",
    "timestamp_millis(946684800000 + id) as deliver_at", "concat('key-', id) as key")
for _ in range(2):
    write = rows.where("int(substr(key, 5)) < 200").write.format("timerstore").mode("append")
    write.option("write_id", "w").save(root)
rows.where("int(substr(key, 5)) >= 200").write.parquet(scratch + "/in")
stream = spark.readStream.schema(rows.schema).parquet(scratch + "/in")
query = (stream.writeStream.format("timerstore").option("checkpointLocation", scratch + "/c")
         .trigger(availableNow=True).start(root))
query.awaitTermination(120)
print("DONE " + type(spark).__module__)
spark.stop()
"""


def test_batch_and_stream_write_over_connect(tmp_path: Path) -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    root = tmp_path / "s"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    words = (str(root), str(tmp_path))
    env = os.environ | spark_session.environment()
    done = spark_session.run_program(PROGRAM, *words, scratch=tmp_path, env=env, timeout_s=280)
    assert "DONE pyspark.sql.connect" in done.stdout, done.stderr[-5000:]
    assert came(root) == each_once(300)
