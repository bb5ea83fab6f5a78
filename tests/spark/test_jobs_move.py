"""The jobs `export`, `replay` and `reshard`, which move messages between stores."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from tests.support.spark import jobs
from tests.support.spark.jobs import DAY_MS, START_MS, run
from timerstore import CancelResult


def test_export_and_replay_schedule_each_message_once(
    tmp_path: Path, shards: Path, table: Path
) -> None:
    jobs.schedule(tmp_path, shards, table)
    jobs.play(shards, START_MS, START_MS + 600_000, 10_000)
    export = ("--path", shards, "--out", tmp_path / "export", "--run-id", "e1")
    jobs.write_table(
        tmp_path / "export/e1-00099.parquet", jobs.some_rows(3)
    )  # left by a killed run
    others = tmp_path / "export/e1-20260601.parquet"  # a date in the name; not of this job
    jobs.write_table(others, jobs.some_rows(3))
    status, report = run("export", *export, tmp=tmp_path)
    assert status == 0, report["problems"]
    others.unlink()  # the job has kept it
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
    wanted = {
        k: (topic, due + moved) for k, (topic, due) in jobs.expected_of(jobs.some_rows(500)).items()
    }
    assert jobs.waiting(other, start - 1) == wanted
    status, report = run("replay", *replay, tmp=tmp_path)
    assert (status, report["figures"]["is_replay"]) == (0, True)
    assert jobs.waiting(other, start - 1) == wanted


def test_reshard_moves_waiting_messages(tmp_path: Path, shards: Path, table: Path) -> None:
    rows = jobs.some_rows(500)
    jobs.schedule(tmp_path, shards, table)
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
    bodies = {
        one.body for topic in ("t0", "t1") for one in jobs.delivered(other, topic, jobs.END_MS)
    }
    assert bodies == {row["body"] for row in rows if row["message_id"] in left}


def test_reshard_rejects_open_store(tmp_path: Path, shards: Path) -> None:
    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    with jobs.timerstore.open(shards / "shard-00002", threads=False):
        status, report = run("reshard", "--source", shards, "--path", other, tmp=tmp_path)
    assert status == 1
    assert "shard-00002: is open" in report["problems"][0]


def test_reshard_rejects_rows_not_ingested(tmp_path: Path, shards: Path, table: Path) -> None:
    jobs.schedule(tmp_path, shards, table)  # no ingest
    other = jobs.make_shards(tmp_path / "other", 2, tmp_path)
    argv = ("--source", shards, "--path", other, "--run-id", "two")
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert status == 1
    assert "1 committed version was not ingested: run ingest first" in report["problems"][0]
    assert "source 'rows' version 0 is not in shards [0, 1, 2]" in report["problems"][0]
    with jobs.timerstore.open(shards / "shard-00001", threads=False):
        run("ingest", "--path", shards, tmp=tmp_path)  # all shards but one
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert "is not in shards [1]" in report["problems"][0]
    assert jobs.waiting(other) == {}
    run("ingest", "--path", shards, tmp=tmp_path)
    status, report = run("reshard", *argv, tmp=tmp_path)
    assert (status, report["figures"]["rows"]) == (0, 500)
    assert jobs.waiting(other) == jobs.expected_of(jobs.some_rows(500))


def test_reshard_rejects_recurring_messages(tmp_path: Path, shards: Path) -> None:
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
