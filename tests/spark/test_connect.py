"""Reading and writing over Spark Connect, in a separate process, as a JVM has one kind of session.

One process does all of it, because a server takes most of the time of a test.
"""

import json
import os
from pathlib import Path

import pytest

import timerstore
from tests.spark.test_write import came, each_once
from tests.support.bench import Bench, small
from tests.support.spark import session as spark_session

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from timerstore.spark import configure
path, root, scratch = sys.argv[1:]
builder = configure(SparkSession.builder.remote("local[2]"))
for name, value in json.loads(sys.stdin.read()).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def run(stream, place, **options):
    writer = stream.writeStream.options(checkpointLocation=scratch + "/c" + place, **options)
    writer = writer.format("timerstore" if place == root else "parquet")
    writer.trigger(availableNow=True).start(place).awaitTermination(120)

read = spark.read.format("timerstore").load(path)
found = {"connect": type(spark).__module__, "rows": read.where("topic = 't'").count()}
run(spark.readStream.format("timerstore").option("columns", "body").load(path), scratch + "/out")
found["streamed"] = spark.read.parquet(scratch + "/out").count()

rows = spark.range(0, 300, 1, 3).selectExpr(
    "'t' as topic", "cast(concat('body-', id) as binary) as body",
    "timestamp_millis(946684800000 + id) as deliver_at", "concat('key-', id) as key")
for _ in range(2):
    write = rows.where("int(substr(key, 5)) < 200").write.format("timerstore").mode("append")
    write.option("write_id", "w").save(root)
rows.where("int(substr(key, 5)) >= 200").write.parquet(scratch + "/in")
run(spark.readStream.schema(rows.schema).parquet(scratch + "/in"), root)
print("FOUND " + json.dumps(found))
spark.stop()
"""


def test_reads_writes_and_streams_over_connect(tmp_path: Path) -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    for name in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(name, reason="Spark Connect: pip install '.[connect]' in a checkout")
    bench = Bench(tmp_path / "s")
    for n in range(25):
        bench.store.put("t", b"%d" % n)
    bench.close()
    root = tmp_path / "shards"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    words = (str(tmp_path / "s"), str(root), str(tmp_path))
    env = os.environ | spark_session.environment()
    done = spark_session.run_program(PROGRAM, *words, scratch=tmp_path, env=env, timeout_s=280)
    found = json.loads(spark_session.found_by(done))
    assert found["connect"].startswith("pyspark.sql.connect")
    assert (found["rows"], found["streamed"]) == (25, 25)
    assert came(root) == each_once(300)
