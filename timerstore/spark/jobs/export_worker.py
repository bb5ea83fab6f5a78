"""Run in executors: write the batches of a partition to one Parquet file.

Invariants:
    Each attempt uses a file name of its own. The file is durable before the driver gets its name.
"""

import os
import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa

from timerstore.spark.jobs.parquet_worker import write_parquet
from timerstore.spark.jobs.shared_folder import SharedFolder

RESULT = "number int, name string, rows long, bytes long"

_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)


class WriteParquet:
    """Write partitions as Parquet files into a staging folder."""

    def __init__(self, folder: SharedFolder, staging: str, compression: str) -> None:
        self.folder = folder
        self.staging = staging
        self.compression = compression

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Write one file and yield its result row. Write no file if the partition has no rows."""
        name = f"{self.staging}/{number:05d}-{os.getpid()}-{uuid.uuid4().hex[:8]}.parquet"
        done = write_parquet(self.folder, name, batches, self.compression)
        if done is not None:
            yield _result(number, name, done.rows, done.bytes)


def _result(number: int, name: str, rows: int, size: int) -> pa.RecordBatch:
    values = ([number], [name], [rows], [size])
    columns = [pa.array(one, field.type) for one, field in zip(values, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
