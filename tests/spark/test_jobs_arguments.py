"""Invalid arguments of the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support.spark.jobs import run


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
        ("reshard", ("--source", "{shards}", "--path", "{shards}"), "must not be the directory"),
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
def test_jobs_reject_invalid_arguments(
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
    [(("precision=5",), "unknown setting"), (("precision_ms=x",), "wanted int"),
     (("precision_ms=0",), "wanted 1 to"), (("index_enabled=1",), "wanted bool")],
)  # fmt: skip
def test_init_shards_rejects_invalid_settings(
    tmp_path: Path, settings: tuple[str, ...], text: str
) -> None:
    given = [part for one in settings for part in ("--set", one)]
    status, report = run(
        "init-shards", "--path", tmp_path / "s", "--shards", 2, *given, tmp=tmp_path
    )
    assert status == 1
    assert text in report["problems"][0]
    assert not (tmp_path / "s").exists()
