"""Jobs in separate processes: started by spark-submit, and over Spark Connect."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support.broker import fixtures as broker
from tests.support.spark import jobs
from tests.support.spark import session as spark_session
from timerstore.spark.jobs.launcher import main

TIMEOUT_S = 280


def run(argv: list[str], scratch: Path) -> tuple[int, str]:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")
    done = subprocess.run(
        argv,
        env=os.environ | spark_session.environment() | {"SPARK_LOCAL_DIRS": str(scratch / "local")},
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def confs(scratch: Path) -> list[str]:
    given = spark_session.settings(scratch).items()
    return [part for key, value in given for part in ("--conf", f"{key}={value}")]


def test_spark_submit_runs_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = broker.unpack("doubled-by-broker", tmp_path)
    assert main(["which", "audit"]) == 0
    file = capsys.readouterr().out.strip()
    submit = Path(sys.executable).with_name("spark-submit")
    if not submit.exists():
        pytest.skip(f"no {submit}")
    report = tmp_path / "report.json"
    argv = ["--path", str(root), "--now", "log", "--report", str(report), "--quiet"]
    local = ["--master", "local[2]", "--driver-memory", "1g", *confs(tmp_path)]
    status, said = run([str(submit), *local, file, *argv], tmp_path)
    assert status == 2, said
    assert json.loads(report.read_text("utf-8"))["figures"]["duplicated"] == 81


@pytest.mark.more
def test_jobs_over_spark_connect(tmp_path: Path, spark: Any) -> None:
    for name in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(name, reason="Spark Connect: pip install '.[connect]' in a checkout")
    shards = jobs.make_shards(tmp_path / "shards", 2, tmp_path)
    table = jobs.write_table(tmp_path / "rows.parquet", jobs.some_rows(200))
    program = (
        "import sys\n"
        "from timerstore.spark.jobs.job import Common, make_session\n"
        "from timerstore.spark.jobs.launcher import main\n"
        "path, table, *more = sys.argv[1:]\n"
        "common = Common(remote='local[2]', conf=tuple(more[1::2]))\n"
        "session = make_session('jobs', common)  # one server for all jobs\n"
        "assert type(session).__module__.startswith('pyspark.sql.connect')\n"
        "here = ['--remote', 'local[2]', '--run-id', 'r', *more]\n"
        "rows = ['--path', path, '--input', table, '--topic-column', 'topic']\n"
        "assert main(['bulk-schedule', *rows, '--fast', *here]) == 0\n"
        "known = ['--path', path, '--scheduled', table, '--topic-column', 'topic']\n"
        "assert main(['audit', *known, '--report', 'audit.json', *here]) == 0\n"
        "assert main(['export', '--path', path, '--out', 'out', *here]) == 0\n"
        "session.stop()\n"
    )
    argv = [sys.executable, "-c", program, str(shards), str(table), *confs(tmp_path)]
    status, said = run(argv, tmp_path)
    assert status == 0, said
    figures = json.loads((tmp_path / "audit.json").read_text("utf-8"))["figures"]
    assert (figures["scheduled"], figures["pending"], figures["lost"]) == (200, 200, 0)
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 0
