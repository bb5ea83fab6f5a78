"""Sessions of `configure` in a process whose environment knows nothing of the checkout.

Each test starts a process, because a process has one JVM and one kind of session.
"""

from __future__ import annotations

import json
import os
import subprocess
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
            pytest.importorskip(name, reason="Spark Connect: pip install 'timerstore[connect]'")
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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), how],
        input=json.dumps(spark_session.settings(tmp_path)),
        env=given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [one for one in done.stdout.splitlines() if one.startswith("FOUND ")]
    assert lines, done.stderr
    _, rows, kind = lines[0].split(" ")
    assert rows == "5"
    assert kind.startswith("pyspark.sql.connect") == (how == "connect")
