"""The jobs `cold-append` and `promote`, run on a small lake."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.spark import jobs
from tests.support.spark.jobs import DAY_MS, START_MS, run


def append(tmp: Path, table: Path, *more: object, status: int = 0) -> dict[str, Any]:
    got, report = run(
        "cold-append", "--input", table, "--lake", tmp / "lake", "--now", START_MS, *jobs.COLUMNS,
        "--run-id", table.stem, *more, tmp=tmp,
    )  # fmt: skip
    assert got == status, report["problems"]
    return report


def promote(tmp: Path, shards: Path, until_ms: int, *more: object) -> dict[str, Any]:
    until = datetime.fromtimestamp(until_ms / 1000, UTC).date().isoformat()
    status, report = run(
        "promote", "--lake", tmp / "lake", "--path", shards, "--until", until, *more, tmp=tmp
    )
    assert status == 0, report["problems"]
    figures: dict[str, Any] = report["figures"]
    return figures


def test_lake_rows_are_promoted_once(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(60, step_ms=DAY_MS // 3)
    table = jobs.write_table(tmp_path / "first.parquet", rows)
    report = append(tmp_path, table, "--beyond", "7d", status=1)
    assert "20 rows are due sooner than 7d" in report["problems"][0]
    near = tmp_path / "near"
    report = append(tmp_path, table, "--beyond", "7d", "--near", near)
    assert (report["figures"]["rows"], report["figures"]["is_replay"]) == (40, False)
    assert len(pq.read_table(near)) == 20
    assert append(tmp_path, table, "--near", near)["figures"]["is_replay"]

    half = START_MS + 13 * DAY_MS
    figures = promote(tmp_path, shards, half)
    taken = {
        one["message_id"] for one in rows[20:] if one["deliver_at"] // DAY_MS <= half // DAY_MS
    }
    assert figures["rows"] == len(taken)
    assert set(jobs.waiting(shards)) == taken
    assert promote(tmp_path, shards, half)["rows"] == 0

    # A file appended to a promoted day is a separate set.
    late = jobs.write_table(tmp_path / "late.parquet", [{**rows[30], "message_id": "late"}])
    append(tmp_path, late, "--beyond", "1d")
    figures = promote(tmp_path, shards, half)
    assert (figures["rows"], figures["sets"][0]["number"]) == (1, 1)
    assert set(jobs.waiting(shards)) == taken | {"late"}

    promote(
        tmp_path,
        shards,
        START_MS + 100 * DAY_MS,
        "--purge-after",
        0,
        "--now",
        START_MS + 100 * DAY_MS,
    )
    wanted = jobs.expected_of(rows[20:]) | {"late": (rows[30]["topic"], rows[30]["deliver_at"])}
    assert jobs.waiting(shards) == wanted
    assert list((tmp_path / "lake").glob("deliver_day=*/*.parquet")) == []


def test_lake_days_are_utc_in_any_session_zone(tmp_path: Path, spark: Any) -> None:
    rows = jobs.some_rows(4, step_ms=DAY_MS // 4)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        append(tmp_path, jobs.write_table(tmp_path / "far.parquet", rows), "--beyond", "1ms")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    for path in (tmp_path / "lake").glob("deliver_day=*/*.parquet"):
        for due in pq.ParquetFile(path).read().column("deliver_ms").to_pylist():
            day = datetime.fromtimestamp(due / 1000, UTC).date()
            assert path.parent.name == f"deliver_day={day}"


def test_promote_completes_killed_run_without_duplicates(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(12, step_ms=DAY_MS // 4)
    append(tmp_path, jobs.write_table(tmp_path / "far.parquet", rows), "--beyond", "1m")
    until = START_MS + 2 * DAY_MS
    before = promote(tmp_path, shards, until)
    assert before["rows"] > 0
    have = jobs.waiting(shards)
    for done in (tmp_path / "lake").glob("_promotions/*/*.done"):
        done.unlink()  # as if the job had been killed before recording this
    again = promote(tmp_path, shards, until)
    assert all(one["is_replay"] for one in again["sets"])
    assert jobs.waiting(shards) == have


def test_promote_skips_tombstones(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(6)
    append(tmp_path, jobs.write_table(tmp_path / "far.parquet", rows), "--beyond", "1ms")
    tombs = tmp_path / "lake" / "_tombstones" / "a.parquet"
    jobs.write_table(tombs, [{"message_id": "m00002"}, {"message_id": "never seen"}])
    figures = promote(tmp_path, shards, START_MS)
    assert figures["sets"][0]["left_out"] == 1
    assert set(jobs.waiting(shards)) == {row["message_id"] for row in rows} - {"m00002"}


def test_cold_append_rejects_rows_without_id(tmp_path: Path, spark: Any) -> None:
    rows = jobs.some_rows(3)
    rows[1]["message_id"] = None
    table = jobs.write_table(tmp_path / "far.parquet", rows)
    report = append(tmp_path, table, "--beyond", "1ms", status=1)
    assert "1 rows have no topic, message id or due time" in report["problems"][0]


def test_cold_append_rejects_rows_after_year_9999(tmp_path: Path, spark: Any) -> None:
    last_ms = 253_402_300_799_999  # the end of the year 9999
    rows = jobs.some_rows(4)
    for row, due in zip(rows, (last_ms, last_ms + 1, START_MS * 1000, 2**62), strict=True):
        row["deliver_at"] = due
    table = tmp_path / "far.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)  # as integers
    [problem] = append(tmp_path, table, status=1)["problems"]
    assert f"3 rows are due after the year 9999, the first at {last_ms + 1} ms" in problem
    assert list((tmp_path / "lake").glob("deliver_day=*")) == []
    pq.write_table(pa.Table.from_pylist(rows[:1]), table)
    figures = append(tmp_path, table)["figures"]
    assert (figures["rows"], figures["days"]) == (1, 1)
