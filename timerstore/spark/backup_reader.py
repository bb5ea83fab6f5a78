"""Batch reads of backups in a bucket: each host makes a copy of its own, and reads that.

    spark.read.format("timerstore").load("s3://bucket/backups/orders")

Invariants:
    Driver and tasks read the same state: a copy is named by the ETags of the backup's objects, and
    a task fails if they have changed.
See also: timerstore/_engine/buckets/backup_copy.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore._engine.buckets.backup_copy import BackupCopy, find_backups
from timerstore._engine.buckets.bucket_url import reject_without_bucket
from timerstore._engine.snapshot.columns.table_scan import Wanted
from timerstore.spark.batch import TimerStorePartition, read_task
from timerstore.spark.locations import split_storage
from timerstore.spark.plan import Task, plan
from timerstore.spark.read_options import ReadOptions

_NOWHERE = "."


@dataclass(frozen=True)
class BackupSource:
    """The backup that the options of a read name."""

    url: BucketUrl
    storage: Mapping[str, str] = field(repr=False)


def split_backup(given: Mapping[str, str]) -> tuple[dict[str, str], BackupSource | None]:
    """Return the options of a read without a bucket and its settings, and the bucket, if any."""
    own, storage = split_storage(given)
    name = next((one for one in own if one.lower() == "path"), None)
    found = None if name is None or not own[name] else location_of("path", own[name])
    if name is None or not isinstance(found, BucketUrl):
        reject_without_bucket(storage, "path", found or own.get("paths"))
        return own, None
    return own | {name: _NOWHERE}, BackupSource(found, storage)


class BackupPartition(InputPartition):
    """The input of one task, and the backup that it reads."""

    def __init__(self, task: Task, copy: BackupCopy) -> None:
        super().__init__((task, copy))


class BackupReader(DataSourceReader):
    """Read one table of a backup in a batch query."""

    def __init__(self, options: ReadOptions, wanted: Wanted, source: BackupSource) -> None:
        self._options = options
        self._wanted = wanted
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """Copy the backup to the driver's host, and return the partitions of the read."""
        copies = find_backups(self._source.url, self._source.storage)
        paths = tuple(one.ensure() for one in copies)
        found = plan(replace(self._options, paths=paths), self._wanted)
        return [BackupPartition(task, copies[task.part.shard]) for task in found.tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Copy the backup to this host, if it is not there, and yield the partition's batches."""
        if not isinstance(partition, BackupPartition):
            return
        task, copy = partition.value
        part = task.part
        local = replace(part, store=replace(part.store, root=copy.ensure()))
        yield from read_task(TimerStorePartition(replace(task, part=local)))
