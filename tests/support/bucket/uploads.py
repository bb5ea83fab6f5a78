"""Copies of local folders in a bucket."""

from pathlib import Path

from timerstore.buckets import Bucket, BucketUrl, location_of


def upload(folder: Path, url: str) -> Bucket:
    """Copy every file of a folder to a prefix; return the bucket."""
    found = location_of("path", url)
    assert isinstance(found, BucketUrl)
    bucket = Bucket(found)
    for one in sorted(folder.rglob("*")):
        if one.is_file():
            with one.open("rb") as file:
                bucket.put(one.relative_to(folder).as_posix(), file)
    return bucket
