"""Sessions of `configure` in a process whose environment knows nothing of the checkout.

Each test starts a process, because a process has one JVM and one kind of session.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.amounts import sample
from tests.support.bench import Bench
from tests.support.spark import session as spark_session

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
path, how = sys.argv[1:]
builder = SparkSession.builder
builder = builder.remote("local[1]") if how == "connect" else builder.master("local[1]")
for name, value in json.loads(sys.stdin.read()).items():
    builder = builder.config(name, value)
if how != "autoload":
    import timerstore.spark
    builder = timerstore.spark.configure(builder)
spark = builder.getOrCreate()
rows = spark.read.format("timerstore").load(path)
print("FOUND", rows.where("topic = 't'").count(), type(spark).__module__)
spark.stop()
"""


@pytest.mark.parametrize("how", sample(["classic", "connect", "autoload"], "ways to a session"))
def test_source_is_known_and_workers_run_this_python(tmp_path: Path, how: str) -> None:
    """Without PYSPARK_PYTHON, and without this Python in PATH.

    PYTHONPATH has the checkout, as an editable install has; Spark does not find the source there.
    Without `configure`, it finds the module of an ordinary install.
    """
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    if how == "connect":
        for name in ("grpc", "grpc_status", "zstandard"):
            pytest.importorskip(
                name, reason="Spark Connect: pip install '.[connect]' in a checkout"
            )
    bench = Bench(tmp_path / "s")
    for n in range(5):
        bench.store.put("t", b"%d" % n)
    bench.close()
    given = os.environ | spark_session.environment()
    own = Path(sys.executable).parent
    if how == "autoload":
        given["PYTHONPATH"] = f"{spark_session.ROOT}:{spark_session.AUTOLOAD}"
    else:
        given["PYTHONPATH"] = str(spark_session.ROOT)
        del given["PYSPARK_PYTHON"], given["PYSPARK_DRIVER_PYTHON"]
        folders = given["PATH"].split(os.pathsep)
        given["PATH"] = os.pathsep.join(one for one in folders if Path(one) != own)
    words = (str(tmp_path / "s"), how)
    done = spark_session.run_program(PROGRAM, *words, scratch=tmp_path, env=given, timeout_s=240)
    rows, kind = spark_session.found_by(done).split(" ")
    assert rows == "5"
    assert kind.startswith("pyspark.sql.connect") == (how == "connect")
