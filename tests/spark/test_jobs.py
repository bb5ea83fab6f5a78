"""Each job on small real stores: what it does, that again does nothing, and what it refuses."""

from __future__ import annotations

import shutil
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
from timerstore import CancelResult
from timerstore.errors import CorruptError
from timerstore.spark.jobs.cold_append import move_in
from timerstore.spark.jobs.lake import open_lake

END_MS = START_MS + 10_000_000
COLUMNS = ("--topic-column", "topic", "--key-column", "key")


@pytest.fixture
def shards(spark: Any, tmp_path: Path) -> Path:
    return jobs.make_shards(tmp_path / "shards", 3, tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return jobs.write_table(tmp_path / "rows.parquet", jobs.some_rows(500))


def schedule(tmp: Path, shards: Path, table: Path, *more: object) -> dict[str, Any]:
    status, report = run(
        "bulk-schedule", "--input", table, "--path", shards, "--fast", "--rows-per-task", 150,
        "--run-id", table.stem, "--no-ingest", *COLUMNS, *more, tmp=tmp,
    )  # fmt: skip
    assert status == 0, report["problems"]
    figures: dict[str, Any] = report["figures"]
    return figures


def wanted_of(rows: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    return {row["message_id"]: (row["topic"], row["deliver_at"]) for row in rows}


# ---------------------------------------------------------------- schedule, deliver, audit


def test_scheduled_played_and_audited(tmp_path: Path, shards: Path, table: Path) -> None:
    figures = schedule(tmp_path, shards, table)
    assert figures["rows"] == 500
    assert sum(figures["by_shard"].values()) == 500
    assert schedule(tmp_path, shards, table) == figures | {"is_replay": True}
    assert jobs.waiting(shards) == wanted_of(jobs.some_rows(500))
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

    # The log against itself says the same; what is due and did not come is lost.
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


def test_an_audit_finds_what_a_table_has_and_the_shards_have_not(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    schedule(tmp_path, shards, table)
    again = jobs.write_table(tmp_path / "again.parquet", jobs.some_rows(3))
    schedule(tmp_path, shards, again)  # another source: the same rows a second time
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
        END_MS,
        tmp=tmp_path,
    )
    assert status == 2
    found = report["figures"]
    assert (found["lost"], found["duplicated"], found["delivered"]) == (1, 3, 503)
    told = {one["msg_id"] for one in found["offenders"]["first"]}
    assert told == {"never put", "m00000", "m00001", "m00002"}


def test_bulk_schedule_through_the_writer(tmp_path: Path, shards: Path, table: Path) -> None:
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


def test_rows_that_are_wrong(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(20)
    rows[7]["deliver_at"] = None
    rows[9]["message_id"] = "two words"
    table = jobs.write_table(tmp_path / "rows.parquet", rows)
    argv = ("--input", table, "--path", shards, "--fast", *COLUMNS, "--run-id", "wrong")
    status, report = run("bulk-schedule", *argv, tmp=tmp_path)
    assert status == 1
    assert "2 of 20 rows are invalid" in report["problems"][0]
    assert jobs.waiting(shards) == {}
    status, report = run("bulk-schedule", *argv, "--on-invalid", "quarantine", tmp=tmp_path)
    assert status == 0, report["problems"]
    assert (report["figures"]["rows"], report["figures"]["quarantined"]) == (18, 2)


def test_a_dry_run_writes_nothing(tmp_path: Path, shards: Path, table: Path) -> None:
    figures = schedule(tmp_path, shards, table, "--dry-run")
    assert figures["rows"] == 500
    assert jobs.waiting(shards) == {}


def test_ingest_leaves_open_shards_to_their_owner(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    schedule(tmp_path, shards, table)
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


# ---------------------------------------------------------------- the cold lake


def append(tmp: Path, table: Path, *more: object, status: int = 0) -> dict[str, Any]:
    got, report = run(
        "cold-append", "--input", table, "--lake", tmp / "lake", "--now", START_MS, *COLUMNS,
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


def test_far_timers_wait_in_the_lake_and_are_promoted_once(tmp_path: Path, shards: Path) -> None:
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

    # A late file for a day that was promoted is a set of its own.
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
    wanted = wanted_of(rows[20:]) | {"late": (rows[30]["topic"], rows[30]["deliver_at"])}
    assert jobs.waiting(shards) == wanted
    assert list((tmp_path / "lake").glob("deliver_day=*/*.parquet")) == []


def test_days_of_the_lake_are_utc_whatever_the_session_says(tmp_path: Path, spark: Any) -> None:
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


def test_a_promotion_that_was_killed_is_finished_and_doubles_nothing(
    tmp_path: Path, shards: Path
) -> None:
    rows = jobs.some_rows(12, step_ms=DAY_MS // 4)
    append(tmp_path, jobs.write_table(tmp_path / "far.parquet", rows), "--beyond", "1m")
    until = START_MS + 2 * DAY_MS
    before = promote(tmp_path, shards, until)
    assert before["rows"] > 0
    have = jobs.waiting(shards)
    for done in (tmp_path / "lake").glob("_promotions/*/*.done"):
        done.unlink()  # as if it had been killed before this was noted
    again = promote(tmp_path, shards, until)
    assert all(one["is_replay"] for one in again["sets"])
    assert jobs.waiting(shards) == have


def test_what_was_cancelled_in_the_lake_stays_there(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(6)
    append(tmp_path, jobs.write_table(tmp_path / "far.parquet", rows), "--beyond", "1ms")
    tombs = tmp_path / "lake" / "_tombstones" / "a.parquet"
    jobs.write_table(tombs, [{"message_id": "m00002"}, {"message_id": "never seen"}])
    figures = promote(tmp_path, shards, START_MS)
    assert figures["sets"][0]["left_out"] == 1
    assert set(jobs.waiting(shards)) == {row["message_id"] for row in rows} - {"m00002"}


def test_rows_that_a_promotion_could_not_tell_apart_are_refused(tmp_path: Path, spark: Any) -> None:
    rows = jobs.some_rows(3)
    rows[1]["message_id"] = None
    table = jobs.write_table(tmp_path / "far.parquet", rows)
    report = append(tmp_path, table, "--beyond", "1ms", status=1)
    assert "1 rows have no topic, message id or due time" in report["problems"][0]


def test_far_rows_of_no_day_are_refused_not_left_out(tmp_path: Path, spark: Any) -> None:
    last_ms = 253_402_300_799_999  # of the year 9999, where days end
    rows = jobs.some_rows(4)
    for row, due in zip(rows, (last_ms, last_ms + 1, START_MS * 1000, 2**62), strict=True):
        row["deliver_at"] = due
    table = tmp_path / "far.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)  # as whole numbers
    [problem] = append(tmp_path, table, status=1)["problems"]
    assert f"3 rows are due after the year 9999, the first at {last_ms + 1} ms" in problem
    assert list((tmp_path / "lake").glob("deliver_day=*")) == []
    pq.write_table(pa.Table.from_pylist(rows[:1]), table)
    figures = append(tmp_path, table)["figures"]
    assert (figures["rows"], figures["days"]) == (1, 1)


def test_what_is_staged_for_no_day_is_said(tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake", create=True)
    staging = lake.staging("june")
    for name in ("deliver_day=2026-11-21", "deliver_day=+10000-01-01"):
        (staging / name).mkdir(parents=True)
    (staging / "_SUCCESS").touch()
    with pytest.raises(CorruptError, match=r"wanted a day.*got '\+10000-01-01'"):
        list(move_in(lake, "june"))
    (staging / "deliver_day=+10000-01-01").rmdir()
    assert list(move_in(lake, "june")) == []


# ---------------------------------------------------------------- forecast, export, replay, reshard


def test_forecast_and_heatmap(tmp_path: Path, shards: Path) -> None:
    rows = jobs.some_rows(300, step_ms=60_000)
    schedule(tmp_path, shards, jobs.write_table(tmp_path / "rows.parquet", rows))
    jobs.play(shards, START_MS, START_MS)
    argv = ("--path", shards, "--begin", START_MS, "--out", tmp_path / "out")
    status, report = run("forecast", *argv, "--bucket", "1h", "--horizon", "1d", tmp=tmp_path)
    found = report["figures"]
    assert status == 0, report["problems"]
    assert found["due"] + 0 == 300
    assert sum(one["due"] for one in found["by_shard"]) == 300
    assert found["peaks"][0]["due"] == 60
    status, report = run("heatmap", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert report["figures"]["due"] == 300
    assert Path(report["figures"]["files"]["plot"]).read_bytes().startswith(b"\x89PNG")


def test_export_and_replay(tmp_path: Path, shards: Path, table: Path) -> None:
    schedule(tmp_path, shards, table)
    jobs.play(shards, START_MS, START_MS + 600_000, 10_000)
    export = ("--path", shards, "--out", tmp_path / "export", "--run-id", "e1")
    jobs.write_table(tmp_path / "export/e1-00099.parquet", jobs.some_rows(3))  # of a killed run
    others = tmp_path / "export/e1-20260601.parquet"  # a day's, of somebody else
    jobs.write_table(others, jobs.some_rows(3))
    status, report = run("export", *export, tmp=tmp_path)
    assert status == 0, report["problems"]
    others.unlink()  # it was left there
    found = pq.read_table(tmp_path / "export")
    assert len(found) == report["figures"]["rows"] >= 1000
    again = run("export", *export, tmp=tmp_path)[1]["figures"]
    assert again == {**report["figures"], "is_replay": True}

    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    start = START_MS + 100 * DAY_MS
    replay = ("--input", tmp_path / "export", "--path", other, "--start", start, "--run-id", "r1")
    status, report = run("replay", *replay, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert report["figures"]["rows"] == 500
    moved = start - (START_MS + 1000)
    wanted = {k: (topic, due + moved) for k, (topic, due) in wanted_of(jobs.some_rows(500)).items()}
    assert jobs.waiting(other, start - 1) == wanted
    status, report = run("replay", *replay, tmp=tmp_path)
    assert (status, report["figures"]["is_replay"]) == (0, True)
    assert jobs.waiting(other, start - 1) == wanted


def test_reshard_moves_what_waits(tmp_path: Path, shards: Path, table: Path) -> None:
    rows = jobs.some_rows(500)
    schedule(tmp_path, shards, table)
    with jobs.opened(shards, START_MS) as stores:
        off = []
        for store in stores.values():
            one = next(iter(store.pending()))
            assert store.cancel(one.handle) == CancelResult.CANCELLED
            off.append(one.message_id)
    jobs.play(shards, START_MS, START_MS + 100_000, 10_000)
    left = jobs.waiting(shards, START_MS + 100_000)
    assert set(left) == {row["message_id"] for row in rows[100:]} - set(off)

    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    argv = ("--source", shards, "--path", other, "--run-id", "two")
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert jobs.waiting(other, START_MS + 100_000) == left
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert (status, report["figures"]["is_replay"]) == (0, True)
    assert jobs.waiting(other, START_MS + 100_000) == left
    jobs.play(other, START_MS + 100_000, START_MS + 600_000, 100_000)
    bodies = {one.body for topic in ("t0", "t1") for one in jobs.delivered(other, topic, END_MS)}
    assert bodies == {row["body"] for row in rows if row["message_id"] in left}


def test_reshard_refuses_a_store_that_is_open(tmp_path: Path, shards: Path) -> None:
    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    with jobs.timerstore.open(shards / "shard-00002", threads=False):
        status, report = run("reshard", "--source", shards, "--path", other, tmp=tmp_path)
    assert status == 1
    assert "shard-00002: is open" in report["problems"][0]


def test_reshard_refuses_what_is_committed_and_not_taken_in(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    schedule(tmp_path, shards, table)  # no ingest
    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    argv = ("--source", shards, "--path", other, "--run-id", "two")
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert status == 1
    assert "1 committed version was not ingested: run ingest first" in report["problems"][0]
    assert "source 'rows' version 0 is not in shards [0, 1, 2]" in report["problems"][0]
    with jobs.timerstore.open(shards / "shard-00001", threads=False):
        run("ingest", "--path", shards, tmp=tmp_path)  # all but one
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert "is not in shards [1]" in report["problems"][0]
    assert jobs.waiting(other) == {}
    run("ingest", "--path", shards, tmp=tmp_path)
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert (status, report["figures"]["rows"]) == (0, 500)
    assert jobs.waiting(other) == wanted_of(jobs.some_rows(500))


def test_reshard_refuses_what_recurs(tmp_path: Path, shards: Path) -> None:
    with jobs.opened(shards, START_MS) as stores:
        stores[1].put_every("jobs", b"tick", every=3600, name="hourly")
    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    argv = ("--source", shards, "--path", other)
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert status == 1
    assert "shard-00001: 'hourly' recurs, and would end with its next run" in report["problems"][0]
    with jobs.opened(shards, START_MS) as stores:
        assert stores[1].cancel_every("hourly")
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert (status, report["figures"]["rows"]) == (0, 0)


# ---------------------------------------------------------------- streams


def test_a_stream_is_scheduled_once_and_its_deliveries_stream_out(
    tmp_path: Path, shards: Path
) -> None:
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
    shutil.rmtree(tmp_path / "check" / "commits")  # as if killed between commit and Spark's note
    status, report = run("stream-schedule", *argv, tmp=tmp_path)
    assert status == 0, report["problems"]
    assert jobs.waiting(shards) == wanted_of(jobs.some_rows(100))

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


# ---------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("job", "argv", "text"),
    [
        ("audit", ("--path", "{none}"), "none: no such file"),
        ("audit", ("--path", "{shards}", "--slo", "lots=0"), "'lots'"),
        ("audit", ("--path", "{shards}", "--now", "soon"), "--now: wanted"),
        ("audit", ("--path", "{shards}", "--scheduled", "{none}"), "none: no such file"),
        ("audit", ("--path", "{tmp}"), "holds no store"),
        ("bulk-schedule", ("--input", "{none}", "--path", "{shards}", "--topic", "t"), "no such"),
        ("bulk-schedule", ("--input", "{table}", "--path", "{tmp}", "--topic", "t"), "no cluster"),
        ("bulk-schedule", ("--input", "{table}", "--path", "{shards}", "--fast"), "one of --topic"),
        (
            "bulk-schedule",
            ("--input", "{table}", "--path", "{shards}", "--dry-run", "--sql",
             "SELECT topic, body FROM input"),
            "deliver_at: wanted a column deliver_at",
        ),
        (
            "bulk-schedule",
            ("--input", "{table}", "--path", "{shards}", "--dry-run", "--fast", "--topic", "t",
             "--key-column", "deliver_at"),
            "column key: wanted string, got timestamp",
        ),
        (
            "bulk-schedule",
            ("--input", "{table}", "--path", "{shards}", "--fast", "--topic", "t", "--sql", "x"),
            "--fast",
        ),
        (
            "bulk-schedule",
            ("--input", "{table}", "--path", "{shards}", "--fast", "--topic", "t",
             "--body-column", "text"),
            "wanted a column 'text'",
        ),
        (
            "bulk-schedule",
            ("--input", "{table}", "--path", "{shards}", "--topic", "t", "--body-column", "text"),
            "body_column: wanted one of",
        ),
        ("ingest", ("--path", "{tmp}"), "cluster.json"),
        ("promote", ("--lake", "{tmp}", "--path", "{shards}"), "not a cold lake"),
        ("forecast", ("--path", "{none}"), "no such file"),
        ("forecast", ("--path", "{shards}", "--bucket", "x"), "--bucket"),
        ("export", ("--path", "{none}", "--out", "{tmp}/x"), "no such file"),
        ("replay", ("--input", "{table}", "--path", "{shards}"), "one of --start and --shift"),
        (
            "replay",
            ("--input", "{table}", "--path", "{shards}", "--shift", "1d"),
            "not an export of messages",
        ),
        ("reshard", ("--source", "{shards}", "--path", "{shards}"), "another directory"),
        (
            "stream-schedule",
            ("--path", "{shards}", "--format", "parquet", "--checkpoint", "c"),
            "--schema",
        ),
        (
            "stream-deliveries",
            ("--path", "{shards}", "--to", "parquet", "--checkpoint", "c"),
            "--out",
        ),
    ],
)  # fmt: skip
def test_what_jobs_refuse(
    tmp_path: Path, shards: Path, table: Path, job: str, argv: tuple[str, ...], text: str
) -> None:
    places = {"none": tmp_path / "none", "shards": shards, "table": table, "tmp": tmp_path}
    status, report = run(job, *(one.format(**places) for one in argv), tmp=tmp_path)
    assert status == 1
    assert report["outcome"] == "error"
    assert text in "\n".join(report["problems"])
    assert "Traceback" not in "\n".join(report["problems"])


@pytest.mark.parametrize(
    ("settings", "text"),
    [(("precision=5",), "no setting"), (("precision_ms=x",), "wanted int"),
     (("precision_ms=0",), "wanted 1 to"), (("index_enabled=1",), "wanted bool")],
)  # fmt: skip
def test_settings_of_shards_that_are_wrong(
    tmp_path: Path, settings: tuple[str, ...], text: str
) -> None:
    given = [part for one in settings for part in ("--set", one)]
    status, report = run(
        "init-shards", "--path", tmp_path / "s", "--shards", 2, *given, tmp=tmp_path
    )
    assert status == 1
    assert text in report["problems"][0]
    assert not (tmp_path / "s").exists()
