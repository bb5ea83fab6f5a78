"""Buckets of tests, and copies of local folders in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timerstore._engine.buckets import Bucket, BucketUrl, location_of


def bucket_of(url: str, options: Mapping[str, str] | None = None, **given: Any) -> Bucket:
    """Return the bucket of a URL; by default the environment has its options."""
    found = location_of("path", url)
    assert isinstance(found, BucketUrl)
    return Bucket(found, options, **given)


def upload(folder: Path, url: str) -> Bucket:
    """Copy every file of a folder to a prefix; return the bucket."""
    bucket = bucket_of(url)
    for one in sorted(folder.rglob("*")):
        if one.is_file():
            with one.open("rb") as file:
                bucket.put(one.relative_to(folder).as_posix(), file)
    return bucket
