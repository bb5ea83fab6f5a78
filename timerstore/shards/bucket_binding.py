"""Bind a directory of shards to the bucket from which it ingests rows.

The owner publishes cluster.json in the bucket: writers read the number of shards and the limits of
a row there. The file names the one directory whose shards ingest the rows. Another directory is
rejected, because it would ingest every row a second time.

Raises: ConfigError if the bucket belongs to another directory, or the service has no conditional
puts. BucketError.
On-disk format: _ingest/owner has 32 hexadecimal digits and a newline.
See also: docs/decisions/0015-object-storage.md.
"""

import re
import uuid
from collections.abc import Mapping

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.buckets import Bucket, BucketUrl, location_of
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError, quoted
from timerstore.shards.bucket_staging import BucketStaging
from timerstore.shards.cluster import Cluster
from timerstore.shards.shard_paths import ShardsTree

_ID = re.compile(rb"([0-9a-f]{32})\n")
_PROBE = "_ingest/probe"
_RETRY_S = 10.0
"""An owner asks again at its next pass."""


class BucketSource(NotCopyable):
    """The bucket from which a directory of shards ingests, and whether it was bound."""

    def __init__(
        self,
        tree: ShardsTree,
        cluster: Cluster,
        ingest_from: str,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        """Send no request.

        Raises:
            ConfigError: not the URL of a bucket, or a storage option is invalid.
        """
        found = location_of("ingest_from", ingest_from)
        if not isinstance(found, BucketUrl):
            raise ConfigError(
                "ingest_from: wanted the URL of a bucket, such as s3://bucket/prefix, as rows in "
                f"the directory itself are ingested anyway; got {quoted(ingest_from)}"
            )
        self._tree = tree
        self._cluster = cluster
        self.area = BucketStaging(
            Bucket(found, storage_options, retry_s=_RETRY_S), scratch=tree.fetched
        )
        self.is_bound = False

    def bind(self) -> None:
        """Publish the description of the shards, or check the one that is there. Do it once."""
        if self.is_bound:
            return
        area = self.area
        wanted = self._cluster._replace(owner=owner_of(self._tree))
        found = area.find_cluster()
        if found is None:
            area.bucket.check_create(_PROBE)
            found = wanted if area.create_cluster(wanted) else area.find_cluster()
        if found is None or found.owner != wanted.owner:
            raise ConfigError(
                f"ingest_from: {area.where('cluster.json')} belongs to another directory of "
                "shards; if that directory is gone for ever, remove the object",
                wanted=f"owner {wanted.owner}, of {self._tree.owner_id}",
                got="none" if found is None else found.owner or "none",
            )
        if found != wanted:
            raise ConfigError(
                f"ingest_from: {area.where('cluster.json')} does not describe "
                f"{self._tree.cluster_json}; remove the object while no write is under way"
            )
        self.is_bound = True


def owner_of(tree: ShardsTree) -> str:
    """Return the id of a directory of shards. It is drawn once, and durable on return."""
    disk = Disk()
    disk.make_directory(tree.ingest)
    text = disk.read_created(tree.owner_id)
    if text is None:
        disk.create_small(tree.owner_id, f"{uuid.uuid4().hex}\n".encode())
        text = disk.read_created(tree.owner_id)
    found = _ID.fullmatch(text or b"")
    if found is None:
        raise CorruptError(
            "unreadable", where=tree.owner_id, wanted="32 hexadecimal digits", got=text
        )
    return found[1].decode()
