"""The jobs `stream-schedule` and `stream-deliveries`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from tests.support.spark import jobs
from tests.support.spark.jobs import START_MS, run


def test_stream_jobs_schedule_and_deliver_each_row_once(tmp_path: Path, shards: Path) -> None:
    folder = tmp_path / "in"
    jobs.write_table(folder / "1.parquet", jobs.some_rows(50))
    argv = (
        "--path", shards, "--format", "parquet", "--option", f"path={folder}", "--once",
        "--checkpoint", tmp_path / "check", "--schema",
        "message_id string, deliver_at timestamp, body binary, topic string, key string",
    )  # fmt: skip
    status, report = run("stream-schedule", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert report["figures"]["rows"] == 50
    jobs.write_table(folder / "2.parquet", jobs.some_rows(50, 50))
    status, report = run("stream-schedule", *argv, tmp=tmp_path)
    assert report["figures"]["rows"] == 50
    shutil.rmtree(tmp_path / "check" / "commits")  # as if killed between commit and Spark's record
    status, report = run("stream-schedule", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert jobs.waiting(shards) == jobs.expected_of(jobs.some_rows(100))

    jobs.play(shards, START_MS, START_MS + 60_000)
    out = tmp_path / "deliveries"
    argv = (
        "--path",
        shards,
        "--to",
        "parquet",
        "--out",
        out,
        "--once",
        "--checkpoint",
        tmp_path / "c2",
    )
    status, report = run("stream-deliveries", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert pq.read_table(out).column("lateness_ms").to_pylist() == [0] * 60
    jobs.play(shards, START_MS + 60_000, START_MS + 100_000)
    run("stream-deliveries", *argv, tmp=tmp_path)
    found = pq.read_table(out).column("msg_id").to_pylist()
    assert sorted(found) == [f"m{k:05d}".encode() for k in range(100)]
