"""One object of a bucket as a file that libraries read, such as pyarrow.

Thread safety: a `BucketFile` can be shared and pickled. A stream belongs to one thread at a time.
Invariants:
    1. All reads see the object that was listed. An object that was replaced since is an error.
Raises: BucketError: the object was removed or replaced, or the service does not answer.
"""

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timerstore._engine.buckets.bucket import Bucket, StoredObject
from timerstore._engine.buckets.bucket_url import BucketUrl


@dataclass(frozen=True, slots=True)
class BucketFile:
    """An object in the state that it had when it was found."""

    url: BucketUrl
    object: StoredObject
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return str(self.url.below(self.object.path))

    def open(self) -> "BucketStream":
        """Return a stream at the first byte."""
        return BucketStream(Bucket(self.url, self.storage), self.object)


class BucketStream(io.RawIOBase):
    """Reads an object by range. Each read is one request, or several at once if it is large."""

    def __init__(self, bucket: Bucket, one: StoredObject) -> None:
        super().__init__()
        self._bucket = bucket
        self._object = one
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read, and return it."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._object.bytes}[whence]
        self._place = max(begin + offset, 0)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, up to the end of the object. Return the number of bytes."""
        view = memoryview(buffer).cast("B")
        end = min(self._place + len(view), self._object.bytes)
        if end <= self._place:
            return 0
        data = self._bucket.read(self._object, self._place, end)
        view[: len(data)] = data
        self._place = end
        return len(data)


def find_files(url: BucketUrl) -> list[BucketFile]:
    """Return the object at a URL, or all objects below it, by path."""
    parent, _, name = url.prefix.rpartition("/")
    if name:
        above = BucketUrl(url.scheme, url.host, parent)
        one = Bucket(above).head(name)
        if one is not None:
            return [BucketFile(above, one)]
    return [BucketFile(url, one) for one in Bucket(url).list()]
