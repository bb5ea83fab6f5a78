"""Read the tables of a store as Arrow record batches, without Spark. Needs `timerstore[arrow]`.

    for batch in timerstore.tables.read("orders.store", "deliveries"):
        print(batch.num_rows)

The path is a store, a directory of shards, the store directory of a broker, or the URL of a backup
in a bucket, which is copied to this machine first. Another process may have the store open. `take`
returns a Snapshot of one store, which fixes how far the files are read. Several reads with one
Snapshot see the same. It says which state that is: `log_end` and `timer_log_end` are offsets, and
`as_of_ms` is the time of the checkpoint. If no process has the store open, the records after its
last checkpoint are read too; then `as_of_ms` is the time of the reading.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore._engine.buckets.backup_copy import find_backups
from timerstore._engine.buckets.bucket_url import reject_without_bucket
from timerstore._engine.snapshot.columns import arrow_batches
from timerstore._engine.snapshot.columns.schemas import TABLES, Column
from timerstore._engine.snapshot.columns.table_scan import Bounds
from timerstore._engine.snapshot.live_stats import take_newest
from timerstore._engine.snapshot.position import Snapshot
from timerstore.errors import ConfigError
from timerstore.shards.arrow_import import pyarrow
from timerstore.shards.shard_snapshots import find_stores, is_unopened

__all__ = ["TABLES", "Bounds", "Column", "Snapshot", "read", "take"]


def read(
    path: str | Path,
    table: str = "messages",
    *,
    columns: tuple[str, ...] | None = None,
    bounds: Bounds | None = None,
    snapshot: Snapshot | None = None,
    storage_options: Mapping[str, str] | None = None,
    **how: Any,
) -> Iterator[Any]:
    """Read a table of a store or of all shards as record batches, shard after shard.

    snapshot: the result of `take(path)`, for a single store.
    storage_options: settings of obstore, if the path is the URL of a backup in a bucket.
    how: fields of the scan: `times_as_long`, `verify_crc`, `on_corrupt`, `batch_rows`,
        `batch_bytes`.

    Raises:
        ConfigError: the table or a column is not known, or the path has no store.
        CorruptError: the files are damaged, unless `on_corrupt` says otherwise.
    """
    asked = {"columns": columns, "bounds": bounds, **how}
    found = Path() if path == "" else location_of("path", path)
    if isinstance(found, BucketUrl):
        if snapshot is not None:
            raise ConfigError(f"snapshot: wanted none for a backup in a bucket, got path {found}")
        paths = [one.ensure() for one in find_backups(found, storage_options)]
    else:
        reject_without_bucket(storage_options, "path", found)
        if snapshot is not None:
            return arrow_batches.read(snapshot, table, is_pinned=True, **asked)
        paths = [found]
    return chain.from_iterable(
        [
            _of_shard(shard, arrow_batches.read(take_newest(root), table, is_pinned=False, **asked))
            for shard, root in find_stores(paths).items()
            if not is_unopened(root)
        ]
    )


def take(path: str | Path, precision_ms: int | None = None) -> Snapshot:
    """Return how far a store may be read now.

    precision_ms: of a broker's store whose files do not show it.

    Raises:
        ConfigError: there is no store at the path, or it is the URL of a bucket.
        CorruptError: limits and files do not fit.
    """
    found = location_of("path", path)
    if isinstance(found, BucketUrl):
        raise ConfigError(
            f"path: wanted the folder of a store, got {found}; read(...) of a backup in a bucket "
            "needs no snapshot, as it always has one state"
        )
    return take_newest(found, precision_ms)


def _of_shard(shard: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches with the shard's number in the column `shard`."""
    arrow = pyarrow()
    for batch in batches:
        place = batch.schema.get_field_index("shard")
        if place >= 0 and shard:
            field = batch.schema.field(place)
            numbers = arrow.repeat(arrow.scalar(shard, field.type), len(batch))
            batch = batch.set_column(place, field, numbers)  # noqa: PLW2901
        yield batch
