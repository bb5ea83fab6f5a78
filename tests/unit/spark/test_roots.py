"""Paths and URIs of readers and writers, and errors of a writer after its commit."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support.inside import root_of_write
from timerstore.errors import ConfigError
from timerstore.spark import writer
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
    ["hdfs:/x", "hdfs://host/x", "s3a://b/c", "file://host/x", "file:x", "file:////h/x", "file:"],
)
def test_remote_uri_is_rejected(text: str) -> None:
    for call in (
        lambda: parse({"path": text}),
        lambda: parse({"paths": json.dumps([text])}),
        lambda: root_of_write({"path": text}),
    ):
        with pytest.raises(
            ConfigError, match=r"path.*wanted a directory mounted on every host"
        ) as caught:
            call()
        assert text in str(caught.value)


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError(), ValueError("Arrow's")])
def test_ingest_error_after_commit_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken(_root: str) -> None:
        raise error

    monkeypatch.setattr(writer, "ingest", broken)
    writer.Target("/s", writer.WriteOptions()).ingest()
    assert [one for one in caplog.records if repr(error) in one.getMessage()]
