"""Run in executors: count pending messages by shard and time bucket while reading them.

Only the counts are sent to Spark. The bytes are those of the records in the commit log.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

RESULT = "shard int, bucket long, due long, bytes long"
COLUMNS = "shard int, deliver_at long, size int"

_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("bucket", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)


class CountBuckets:
    """Count messages in buckets of `bucket_ms` by their due times."""

    def __init__(self, bucket_ms: int) -> None:
        self.bucket_ms = bucket_ms

    def __call__(self, _number: int, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield one row per non-empty (shard, bucket) of a partition."""
        sums: dict[tuple[int, int], list[int]] = {}
        for batch in batches:
            for key, add in self.of_batch(batch):
                found = sums.setdefault(key, [0, 0])
                for place, value in enumerate(add):
                    found[place] += value
        if sums:
            rows = [(*key, *value) for key, value in sums.items()]
            columns = [
                pa.array(column, kind.type)
                for column, kind in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def of_batch(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
        """Yield ((shard, bucket), (due, bytes)) for a batch."""
        due = _numbers(batch, "deliver_at")
        shard, sizes = _numbers(batch, "shard"), _numbers(batch, "size")
        if not len(due):
            return
        bucket = due // self.bucket_ms
        low, span = int(bucket.min()), int(bucket.max() - bucket.min()) + 1
        first, shards = int(shard.min()), int(shard.max() - shard.min()) + 1
        place = bucket - low
        if shards > 1:
            place += (shard - first) * span
        if shards * span > 4 * len(place) + 65_536:  # too sparse for an array of counters: sort
            known, place = np.unique(place, return_inverse=True)
        else:
            known = np.arange(int(place.max()) + 1)
        total = np.bincount(place, minlength=len(known))
        weight = _sums(place, sizes, total)
        for k in np.flatnonzero(total).tolist():
            code = int(known[k])
            key = (first + code // span, low + code % span)
            yield key, (int(total[k]), int(weight[k]))


def _sums(place: Int64, values: Int64, total: Int64) -> NDArray[Any]:
    """Return the sum of the values at each place. `total` is their number at each place."""
    one = values[0]
    if values.min() == one == values.max():  # usual: equal body sizes
        return total * int(one)
    return np.bincount(place, weights=values, minlength=len(total))


def _numbers(batch: pa.RecordBatch, name: str) -> Int64:
    column = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(column, dtype=np.int64)
