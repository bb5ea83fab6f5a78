"""The benchmark of reading still runs, at tiny values, in the session that is there."""

import json
from pathlib import Path
from typing import Any

import pytest


def test_bench_spark_read_runs(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import bench_spark_read

    out = tmp_path / "lines"
    words = ["--smoke", "--directory", str(tmp_path / "run"), "--json", str(out)]
    assert bench_spark_read.main(words) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["spark_read/arrow"] * 3 + ["spark_read/spark"] * 3
    assert all(line["n"] >= 250 and line["rate"] > 0 for line in lines)
    assert spark.range(3).count() == 3  # the session was left alone
    capsys.readouterr()
