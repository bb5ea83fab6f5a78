"""Reading over Spark Connect, in a separate process, as a JVM has one kind of session."""

import json
import os
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.spark import session as spark_session

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from timerstore.spark import configure
path, scratch = sys.argv[1:]
builder = configure(SparkSession.builder.remote("local[2]"))
for name, value in json.loads(sys.stdin.read()).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
read = spark.read.format("timerstore").load(path)
found = {"connect": type(spark).__module__, "rows": read.where("topic = 't'").count()}
stream = spark.readStream.format("timerstore").option("columns", "body").load(path)
query = (stream.writeStream.format("parquet").option("checkpointLocation", scratch + "/c")
         .option("path", scratch + "/out").trigger(availableNow=True).start())
query.awaitTermination(60)
found["streamed"] = spark.read.parquet(scratch + "/out").count()
print("FOUND " + json.dumps(found))
spark.stop()
"""


def test_batch_and_stream_over_connect(tmp_path: Path) -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    for name in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(name, reason="Spark Connect: pip install 'timerstore[connect]'")
    bench = Bench(tmp_path / "s")
    for n in range(25):
        bench.store.put("t", b"%d" % n)
    bench.close()
    words = (str(tmp_path / "s"), str(tmp_path))
    env = os.environ | spark_session.environment()
    done = spark_session.run_program(PROGRAM, *words, scratch=tmp_path, env=env, timeout_s=240)
    found = json.loads(spark_session.found_by(done))
    assert found["connect"].startswith("pyspark.sql.connect")
    assert (found["rows"], found["streamed"]) == (25, 25)
