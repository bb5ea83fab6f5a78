"""Find the staging area of a location."""

import os
from collections.abc import Mapping

from timerstore._engine.buckets import Bucket, BucketUrl, location_of
from timerstore._engine.buckets.bucket_url import reject_without_bucket
from timerstore._engine.storage.anchor import absolute_path
from timerstore.shards.bucket_staging import BucketStaging
from timerstore.shards.folder_staging import FolderStaging
from timerstore.shards.staging_area import StagingArea


def area_at(
    what: str,
    location: str | os.PathLike[str] | BucketUrl | StagingArea,
    storage_options: Mapping[str, str] | None = None,
) -> StagingArea:
    """Return the staging area of a directory of shards, or of a bucket's URL.

    what: names the argument in errors.

    Raises:
        ConfigError: the location or a storage option is invalid.
    """
    if isinstance(location, StagingArea):
        return location
    found = location_of(what, location) if isinstance(location, str) and location else location
    if isinstance(found, BucketUrl):
        return BucketStaging(Bucket(found, storage_options))
    reject_without_bucket(storage_options, what, found)
    return FolderStaging(absolute_path(what, found))
