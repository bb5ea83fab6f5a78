"""Locations: paths, file URLs and buckets."""

from pathlib import Path
from typing import Any

import pytest

from timerstore import ConfigError
from timerstore._engine.buckets import BucketUrl, location_of


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/b c", Path("/a/b c")),
        ("a/b", Path("a/b")),
        ("./s3:/b", Path("s3:/b")),
        ("file:///a%20b", Path("/a b")),
        ("file:/a", Path("/a")),
        (Path("s3://bucket/x"), Path("s3:/bucket/x")),
        ("s3://bucket", BucketUrl("s3", "bucket", "")),
        ("s3://bucket/", BucketUrl("s3", "bucket", "")),
        ("S3://bucket/a/b/", BucketUrl("s3", "bucket", "a/b")),
        ("s3a://bucket/day=1/x.y", BucketUrl("s3a", "bucket", "day=1/x.y")),
        ("gs://bucket/a", BucketUrl("gs", "bucket", "a")),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            BucketUrl("abfss", "box@account.dfs.core.windows.net", "a"),
        ),
    ],
)
def test_location_is_parsed(text: str | Path, wanted: Path | BucketUrl) -> None:
    assert location_of("path", text) == wanted


def test_bucket_url_has_one_text() -> None:
    for text in ("s3://bucket/a/b", "gs://bucket"):
        assert str(location_of("path", text)) == text
    url = location_of("path", "s3://bucket/a/")
    assert isinstance(url, BucketUrl)
    assert str(url.below("b/c")) == "s3://bucket/a/b/c"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hdfs://host/x",
        "http://host/x",
        "file://host/x",
        "s3:/bucket/x",
        "s3:///x",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://bucket/a%20b",
        "s3://bucket/a?x=1",
        "s3://bucket/a#b",
        "gs://box@account/a",
        "abfss://account/a",
    ],
)
def test_other_urls_are_rejected_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^input: wanted"):
        location_of("input", text)


def test_credentials_in_url_are_rejected_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="without credentials") as caught:
        location_of("path", "s3://AKIAKEY:hunter2@bucket/a")
    assert "hunter2" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3n://AKIA:SECRET@bucket/x",
        "https://user:SECRET@host/b",
        "https://account.blob.core.windows.net/box?sig=SECRET",
        "file://user:SECRET@host/b",
        "s3://AKIA:SECRET@bucket/x",
    ],
)
def test_credentials_of_url_are_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="path: wanted") as caught:
        location_of("path", text)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("wrong", [5, b"/a", None, ["/a"]])
def test_location_wants_text_or_path(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="path: wanted a path or a URL, got"):
        location_of("path", wrong)
