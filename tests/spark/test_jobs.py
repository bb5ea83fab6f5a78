"""The jobs that schedule, ingest, forecast and audit, run on small real stores."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from tests.support.spark import jobs
from tests.support.spark.jobs import START_MS, run


def test_scheduled_rows_are_delivered_and_audited(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    figures = jobs.schedule(tmp_path, shards, table)
    assert figures["rows"] == 500
    assert sum(figures["by_shard"].values()) == 500
    assert jobs.schedule(tmp_path, shards, table) == figures | {"is_replay": True}
    assert jobs.waiting(shards) == jobs.expected_of(jobs.some_rows(500))
    jobs.play(shards, START_MS, START_MS + 400_000)

    at = START_MS + 400_000
    compare = ("--scheduled", table, "--topic-column", "topic", "--grace-ms", 0)
    status, report = run(
        "audit", "--path", shards, *compare, "--now", at, "--out", tmp_path / "out", tmp=tmp_path
    )
    found = report["figures"]
    assert status == 0, report["problems"]
    assert (found["scheduled"], found["delivered"], found["pending"]) == (500, 400, 100)
    assert (found["lateness_max_ms"], found["shards"]) == (0, 3)
    assert {line["topic"]: line["delivered"] for line in found["by_topic"]} == {
        "t0": 200,
        "t1": 200,
    }
    for path in found["files"].values():
        assert Path(path).stat().st_size > 100

    # The audit of the log alone agrees. Due messages that were not delivered are lost.
    status, report = run("audit", "--path", shards, "--now", at, "--grace-ms", 0, tmp=tmp_path)
    assert status == 0
    assert report["figures"]["delivered"] == 400
    status, report = run(
        "audit", "--path", shards, "--now", at + 2000, "--grace-ms", 0, "--slo", "lost<1",
        "--offenders", tmp_path / "wrong", tmp=tmp_path,
    )  # fmt: skip
    assert status == 2
    assert report["outcome"] == "check failed"
    assert report["problems"] == ["lost: wanted lost<1, got 1"]
    assert report["figures"]["offenders"]["first"][0]["msg_id"] == "m00400"
    (wrong,) = pq.read_table(tmp_path / "wrong").to_pylist()
    assert wrong["msg_id"] == b"m00400"


def test_audit_finds_rows_missing_from_shards(tmp_path: Path, shards: Path, table: Path) -> None:
    jobs.schedule(tmp_path, shards, table)
    again = jobs.write_table(tmp_path / "again.parquet", jobs.some_rows(3))
    jobs.schedule(tmp_path, shards, again)  # the same rows again from another source
    jobs.play(shards, START_MS, START_MS + 510_000, 5000)
    more = [*jobs.some_rows(500), {**jobs.some_rows(1)[0], "message_id": "never put"}]
    compare = ("--scheduled", jobs.write_table(tmp_path / "more.parquet", more))
    status, report = run(
        "audit",
        "--path",
        shards,
        *compare,
        "--topic-column",
        "topic",
        "--now",
        jobs.END_MS,
        tmp=tmp_path,
    )
    assert status == 2
    found = report["figures"]
    assert (found["lost"], found["duplicated"], found["delivered"]) == (1, 3, 503)
    told = {one["msg_id"] for one in found["offenders"]["first"]}
    assert told == {"never put", "m00000", "m00001", "m00002"}


def test_bulk_schedule_uses_writer_for_sql(tmp_path: Path, shards: Path, table: Path) -> None:
    sql = (
        "SELECT upper(topic) AS topic, body, deliver_at, key, message_id FROM input "
        "WHERE message_id < 'm00100'"
    )
    argv = ("--input", table, "--path", shards, "--sql", sql, "--run-id", "by-sql")
    status, report = run("bulk-schedule", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert report["figures"]["rows"] == report["figures"]["taken"] == 100
    status, report = run("bulk-schedule", *argv, tmp=tmp_path)
    assert (status, report["figures"]["is_replay"], report["figures"]["taken"]) == (0, True, 0)


def test_bulk_schedule_rejects_or_quarantines_invalid_rows(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(20)
    rows[7]["deliver_at"] = None
    rows[9]["message_id"] = "two words"
    table = jobs.write_table(tmp_path / "rows.parquet", rows)
    argv = ("--input", table, "--path", shards, "--fast", *jobs.COLUMNS, "--run-id", "wrong")
    status, report = run("bulk-schedule", *argv, tmp=tmp_path)
    assert status == 1
    assert "2 of 20 rows are invalid" in report["problems"][0]
    assert jobs.waiting(shards) == {}
    status, report = run("bulk-schedule", *argv, "--on-invalid", "quarantine", tmp=tmp_path)
    assert status == 0, report["problems"]
    assert (report["figures"]["rows"], report["figures"]["quarantined"]) == (18, 2)


def test_bulk_schedule_dry_run_writes_nothing(tmp_path: Path, shards: Path, table: Path) -> None:
    figures = jobs.schedule(tmp_path, shards, table, "--dry-run")
    assert figures["rows"] == 500
    assert jobs.waiting(shards) == {}


def test_ingest_leaves_open_shards_to_their_owner(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    jobs.schedule(tmp_path, shards, table)
    with jobs.timerstore.open(shards / "shard-00001", threads=False):
        status, report = run("ingest", "--path", shards, tmp=tmp_path)
        assert status == 0, report["problems"]
        assert report["figures"]["locked_shards"] == [1]
    first = report["figures"]["rows"]
    status, report = run("ingest", "--path", shards, tmp=tmp_path)
    assert first + report["figures"]["rows"] == 500
    assert report["figures"]["locked_shards"] == []
    status, report = run("ingest", "--path", shards, tmp=tmp_path)
    assert report["figures"]["rows"] == 0


def test_forecast_and_heatmap_count_all_timers(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(300, step_ms=1_200_000)  # four days, so that some messages roll
    jobs.schedule(tmp_path, shards, jobs.write_table(tmp_path / "rows.parquet", rows))
    jobs.play(shards, START_MS, START_MS)
    argv = ("--path", shards, "--begin", START_MS, "--out", tmp_path / "out")
    status, report = run("forecast", *argv, "--bucket", "1h", "--horizon", "30d", tmp=tmp_path)
    found = report["figures"]
    assert status == 0, report["problems"]
    assert found["due"] + 0 == 300
    assert sum(one["due"] for one in found["by_shard"]) == 300
    assert found["peaks"][0]["due"] == 3
    assert found["buckets"] in (100, 101)
    assert [one["shard"] for one in found["as_of"]] == [0, 1, 2]
    assert all(one["log_end"] > 0 and one["time"].endswith("+00:00") for one in found["as_of"])
    status, report = run("heatmap", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert report["figures"]["due"] == 300
    assert Path(report["figures"]["files"]["plot"]).read_bytes().startswith(b"\x89PNG")
