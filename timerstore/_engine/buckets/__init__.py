"""Object stores: S3, Google Cloud Storage and Azure, and services with the same API.

bucket_url.py    parses paths and URLs, and checks settings of obstore
bucket.py        objects below one URL: get, create if absent, put, list, delete, download;
                 one object as a file that libraries read
backup_copy.py   copies a backup to this machine, for a reader

Thread safety: any thread. A process that was forked after it used a bucket needs a new `Bucket`.
Raises: ConfigError for a URL or an option. BucketError if the service does not answer or rejects a
    request. No error and no log line has an option's value.
"""

from timerstore._engine.buckets.bucket import Bucket, StoredObject
from timerstore._engine.buckets.bucket_url import BucketUrl, location_of

__all__ = ["Bucket", "BucketUrl", "StoredObject", "location_of"]
