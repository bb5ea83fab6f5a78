"""Run in executors: write sorted rows to one Parquet file for each day of delivery."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from timerstore.spark.jobs.parquet_worker import write_parquet
from timerstore.spark.jobs.shared_folder import SharedFolder

DAY = "deliver_day"
RESULT = "day date, name string, rows long, bytes long"

_SCHEMA = pa.schema(
    [("day", pa.date32()), ("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)


@dataclass(frozen=True)
class WriteDays:
    """Write the rows of a partition, which are sorted by the column `deliver_day`."""

    folder: SharedFolder
    staging: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a file for each day, without the column, and yield one result row for each."""
        for day, slices in groupby(_slices(batches), key=lambda one: one[0]):
            name = f"{self.staging}/{uuid.uuid4().hex}.parquet"
            done = write_parquet(self.folder, name, (rows for _, rows in slices), "snappy")
            assert done is not None, "a slice has rows"
            row = {"day": day, "name": name, "rows": done.rows, "bytes": done.bytes}
            yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[object, pa.RecordBatch]]:
    """Yield (day, consecutive rows of the day)."""
    for batch in batches:
        rows = batch.drop_columns([DAY])
        first = 0
        for day, same in groupby(batch.column(DAY).to_pylist()):
            count = sum(1 for _ in same)
            yield day, rows.slice(first, count)
            first += count
