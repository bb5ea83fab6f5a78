"""Jobs that read and write a bucket, in a process whose environment names the service."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.bucket.fixtures import prefix, s3_endpoint
from tests.support.bucket.uploads import upload
from tests.support.spark import jobs
from tests.support.spark import session as spark_session
from tests.support.spark.jobs import DAY_MS, START_MS
from timerstore._engine.buckets import Bucket, BucketUrl, location_of

__all__ = ["prefix", "s3_endpoint"]

_PROGRAM = """
import json, sys
from timerstore.spark.jobs.job import Common, make_session
from timerstore.spark.jobs.launcher import main

settings = json.load(sys.stdin)
conf = tuple(f"{name}={value}" for name, value in settings.items())
session = make_session("jobs", Common(master="local[2]", conf=conf))
print("FOUND", json.dumps([main(argv) for argv in json.loads(sys.argv[1])]))
session.stop()
"""


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")


def run(*commands: tuple[object, ...], scratch: Path) -> list[dict[str, Any]]:
    """Run jobs in one session of a process; return their figures."""
    reports = [scratch / f"report-{number}.json" for number in range(len(commands))]
    argv = [
        [*map(str, one), "--quiet", "--report", str(report)]
        for one, report in zip(commands, reports, strict=True)
    ]
    done = spark_session.run_program(
        _PROGRAM,
        json.dumps(argv),
        scratch=scratch,
        env=os.environ | spark_session.environment(),
        timeout_s=280,
    )
    assert json.loads(spark_session.found_by(done)) == [0] * len(commands), done.stderr[-5000:]
    return [json.loads(one.read_text("utf-8"))["figures"] for one in reports]


@pytest.mark.more
def test_parquet_of_a_bucket_is_scheduled_and_exported(tmp_path: Path, prefix: str) -> None:
    rows = jobs.some_rows(300)
    for part in range(3):
        jobs.write_table(tmp_path / f"in/{part}.parquet", rows[part * 100 :][:100], group=30)
    jobs.write_table(tmp_path / "in/_staging/x.parquet", jobs.some_rows(9, 900))
    upload(tmp_path / "in", f"{prefix}/in")
    fast, slow = (jobs.make_shards(tmp_path / name, 2, tmp_path) for name in ("fast", "slow"))
    moved = jobs.make_shards(tmp_path / "moved", 2, tmp_path)
    schedule = ("bulk-schedule", "--input", f"{prefix}/in", *jobs.COLUMNS, "--run-id", "r")
    counted, staged, again, written, judged = run(
        (*schedule, "--path", fast, "--fast", "--dry-run"),
        (*schedule, "--path", fast, "--fast", "--rows-per-task", 50),
        (*schedule, "--path", fast, "--fast", "--rows-per-task", 50),
        (*schedule, "--path", slow),
        ("audit", "--path", fast, "--scheduled", f"{prefix}/in", "--topic-column", "topic"),
        scratch=tmp_path,
    )
    assert counted["rows"] == staged["rows"] == written["rows"] == 300
    assert again["is_replay"]
    assert judged["lost"] == judged["phantom"] == 0
    wanted = jobs.expected_of(rows)
    assert jobs.waiting(fast) == wanted
    assert jobs.waiting(slow) == wanted

    jobs.play(fast, START_MS, START_MS + 400_000, 100_000)
    export = ("export", "--path", fast, "--out", f"{prefix}/out", "--run-id", "e")
    exported, again, shifted = run(
        export,
        export,
        ("replay", "--input", f"{prefix}/out", "--path", moved, "--shift", "1h"),
        scratch=tmp_path,
    )
    assert again == {**exported, "is_replay": True}
    assert shifted["rows"] == 300
    later = {key: (topic, due + jobs.HOUR_MS) for key, (topic, due) in wanted.items()}
    assert jobs.waiting(moved) == later
    out = location_of("out", f"{prefix}/out")
    assert isinstance(out, BucketUrl)
    bucket = Bucket(out)
    names = [one.path for one in bucket.list()]
    assert names == ["_runs/e.json", *(one["name"] for one in exported["files"])]
    tables = [pq.read_table(pa.BufferReader(bucket.get(name) or b"")) for name in names[1:]]
    assert sum(map(len, tables)) == exported["rows"] >= 300


@pytest.mark.more
def test_lake_in_a_bucket_is_promoted_once(tmp_path: Path, prefix: str) -> None:
    rows = jobs.some_rows(60, step_ms=DAY_MS // 3)
    jobs.write_table(tmp_path / "in/rows.parquet", rows)
    upload(tmp_path / "in", f"{prefix}/in")
    tombs = tmp_path / "tombs/_tombstones/a.parquet"
    tombs.parent.mkdir(parents=True)
    pq.write_table(pa.table({"message_id": ["m00007"]}), tombs)
    shards = jobs.make_shards(tmp_path / "shards", 2, tmp_path)
    lake = f"{prefix}/lake"
    append = ("cold-append", "--input", f"{prefix}/in", "--lake", lake, "--now", START_MS)
    append = (*append, "--beyond", "1h", "--run-id", "a", *jobs.COLUMNS)
    until = datetime.fromtimestamp(START_MS / 1000 + 100 * 86_400, UTC).date().isoformat()
    promote = ("promote", "--lake", lake, "--path", shards, "--until", until)
    [first] = run(append, scratch=tmp_path)
    upload(tmp_path / "tombs", lake)
    again, promoted, nothing, purged = run(
        append,
        promote,
        promote,
        (*promote, "--now", START_MS + 200 * DAY_MS, "--purge-after", 0),
        scratch=tmp_path,
    )
    assert (first["rows"], first["is_replay"]) == (60, False)
    assert again == {**first, "is_replay": True}
    assert first["days"] == first["files"] == len({one["deliver_at"] // DAY_MS for one in rows})
    assert (promoted["rows"], nothing["rows"]) == (59, 0)
    wanted = jobs.expected_of(rows)
    del wanted["m00007"]
    assert jobs.waiting(shards) == wanted
    assert purged["purged_files"] == first["files"]
    found = location_of("lake", lake)
    assert isinstance(found, BucketUrl)
    left = [one.path for one in Bucket(found).list() if one.path.endswith(".parquet")]
    assert left == ["_tombstones/a.parquet"]
