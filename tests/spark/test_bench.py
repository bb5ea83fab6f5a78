"""The Spark benchmarks and the Spark demo run with tiny values in the active session."""

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
    names = [line["name"].removeprefix("spark_read/") for line in lines]
    assert names == ["arrow"] * 3 + ["spark"] * 3 + ["query", "parquet"] * 4
    assert all(line["times_parquet"] > 0 for line in lines if "query" in line["name"])
    assert all(line["n"] >= 250 and line["rate"] > 0 for line in lines)
    assert spark.range(3).count() == 3  # the session was left running
    capsys.readouterr()


def test_bench_spark_runs(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import bench_spark

    out = tmp_path / "lines"
    assert bench_spark.main(["--smoke", "--n", "1000", "--json", str(out)]) == 0
    names = [json.loads(line)["name"] for line in out.read_text().splitlines()]
    assert names == [
        f"spark_{one}" for one in ("bulk_stage", "bulk", "read", "heatmap", "audit_log", "audit")
    ]
    assert spark.range(3).count() == 3
    capsys.readouterr()


def test_demo_spark_passes_and_can_fail(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    flights = pytest.importorskip("benchmarks.flights")
    try:
        flights.table_path()
    except flights.DataError as error:
        pytest.skip(str(error))
    from benchmarks import demo_spark

    words = ["--limit", "300", "--out", str(tmp_path / "out"), "--quiet", "--stop-minutes", "60"]
    assert demo_spark.main(words) == 0
    told = capsys.readouterr().out
    assert told.endswith("PASS\n")
    assert (tmp_path / "out" / "lateness.png").exists()
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert figures["wrong"] == []
    assert demo_spark.verdict({**figures, "delivered": 1}) == [
        f"delivered: 1, wanted {figures['delivered']:,}"
    ]
    # A message is lost although its shard reports all of them: the audit reads the log itself.
    whole = demo_spark.as_table

    def one_more(data: Any) -> Any:
        table = whole(data)
        return table if len(table) < 300 else table.slice(0, 299)

    monkeypatch.setattr(demo_spark, "as_table", one_more)
    assert demo_spark.main(words) == 1
    assert "wrong: scheduled: 299, wanted 300" in capsys.readouterr().out
