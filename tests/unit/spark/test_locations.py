"""Paths and URLs of readers, writers and jobs, and errors of a writer after its commit."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support.inside import root_of_write
from timerstore.errors import ConfigError
from timerstore.spark import writer
from timerstore.spark.backup_reader import split_backup
from timerstore.spark.jobs.names import JOBS, module_of
from timerstore.spark.read_options import parse


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/b c", "/a/b c"),
        ("a/b", "a/b"),
        ("/a%20b", "/a%20b"),
        ("a:b", "a:b"),
        ("/a/x:/y", "/a/x:/y"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("FILE:///a", "/a"),
        ("file:///a%20b/c%23d#e?f", "/a b/c#d#e?f"),
    ],
)
def test_path_means_same_directory_to_reader_and_writer(text: str, wanted: str) -> None:
    assert parse({"path": text}).paths == (Path(wanted),)
    assert parse({"paths": json.dumps([text])}).paths == (Path(wanted),)
    assert root_of_write({"path": text}) == Path(wanted).resolve()


@pytest.mark.parametrize(
    "text",
    ["hdfs:/x", "hdfs://host/x", "http://b/c", "file://host/x", "file:x", "file:////h/x", "file:"],
)
def test_remote_uri_is_rejected(text: str) -> None:
    for call in (
        lambda: parse({"path": text}),
        lambda: parse({"paths": json.dumps([text])}),
        lambda: root_of_write({"path": text}),
    ):
        with pytest.raises(
            ConfigError, match=r"path.*wanted a path mounted on every host"
        ) as caught:
            call()
        assert text in str(caught.value)


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError(), ValueError("Arrow's")])
def test_ingest_error_after_commit_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken(_root: Path) -> None:
        raise error

    monkeypatch.setattr(writer, "ingest", broken)
    writer.Target(Path("/s"), writer.WriteOptions()).ingest()
    assert [one for one in caplog.records if repr(error) in one.getMessage()]


def test_settings_of_a_backup_are_not_shown() -> None:
    given = {"path": "s3://bucket/x", "storage.secret_access_key": "hunter2"}
    _, source = split_backup(given)
    assert source is not None
    assert source.storage == {"secret_access_key": "hunter2"}
    assert "hunter2" not in repr(source)


_LOCATIONS = {
    "path", "input", "out", "lake", "near", "source", "scheduled", "offenders", "report",
    "checkpoint",
}  # fmt: skip


TO_BUCKETS = {
    *(
        (job, "--path")
        for job in ("audit", "bulk-schedule", "stream-schedule", "promote", "replay")
    ),
    ("export", "--out"),
    *((job, "--input") for job in ("bulk-schedule", "replay", "cold-append")),
    ("audit", "--scheduled"),
    *((job, "--lake") for job in ("cold-append", "promote")),
}
"""The options that take the URL of a bucket."""


def location_options() -> list[tuple[str, str]]:
    return [
        (job, option.opts[0])
        for job in JOBS
        for option in import_module(module_of(job)).JOB.command.params
        if option.name in _LOCATIONS or option.type.name in {"path", "directory", "file"}
    ]


@pytest.mark.parametrize(("job", "option"), location_options())
@pytest.mark.parametrize("url", ["s3a://bucket/x", "hdfs:/x", "file://host/x"])
def test_job_rejects_url_of_another_file_system(
    job: str,
    option: str,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if (job, option) in TO_BUCKETS and url.startswith("s3a:"):
        url = "s3a://key:secret@bucket/x"
    monkeypatch.chdir(tmp_path)
    assert import_module(module_of(job)).main([option, url]) == 1
    text = capsys.readouterr().err
    assert re.search(rf"{option}: wanted (a path mounted on every host|s3a://bucket/prefix,)", text)
    assert "secret" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "wanted"), [("a b", "a b"), ("./s3a:/x", "s3a:/x"), ("file:{tmp}/a%20b", "a b")]
)
def test_location_option_is_absolute_path(
    given: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timerstore.spark.jobs.job import FOLDER, PLACE

    monkeypatch.chdir(tmp_path)
    text = given.format(tmp=tmp_path)
    assert FOLDER.convert(text, None, None) == tmp_path / wanted
    assert PLACE.convert(text, None, None) == str(tmp_path / wanted)


def test_init_shards_and_report_take_file_urls(tmp_path: Path) -> None:
    from timerstore.spark.jobs import init_shards

    given = [
        "--path",
        f"file://{tmp_path}/s%20s",
        "--shards",
        "1",
        "--report",
        f"file:{tmp_path}/r",
    ]
    assert init_shards.main(given) == 0
    assert (tmp_path / "s s" / "cluster.json").exists()
    assert json.loads((tmp_path / "r").read_text("utf-8"))["figures"]["shards"] == 1


def test_stream_schedule_rejects_url_in_option_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from timerstore.spark.jobs import init_shards, stream_schedule

    assert init_shards.main(["--path", str(tmp_path / "s"), "--shards", "1"]) == 0
    given = ["--path", str(tmp_path / "s"), "--checkpoint", str(tmp_path / "c")]
    given += ["--format", "parquet", "--option", "path=s3a://bucket/x"]
    assert stream_schedule.main(given) == 1
    assert "--option path: wanted a path mounted on every host" in capsys.readouterr().err


def test_bulk_schedule_reads_only_parquet_of_a_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from timerstore.spark.jobs import bulk_schedule, init_shards

    assert init_shards.main(["--path", str(tmp_path / "s"), "--shards", "1"]) == 0
    given = ["--path", str(tmp_path / "s"), "--input", "s3://bucket/x", "--format", "csv"]
    assert bulk_schedule.main([*given, "--topic", "t"]) == 1
    assert "--input: wanted a path mounted on every host" in capsys.readouterr().err
