"""Run in executors: write the batches of a partition to one Parquet file.

Invariants:
    Each attempt uses a file name of its own. The file is durable before the driver gets its name.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore.spark.jobs.export_folder import ExportFolder

RESULT = "number int, name string, rows long, bytes long"

_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
_GROUP_ROWS = 262_144


class WriteParquet:
    """Write partitions as Parquet files into the staging area of an export."""

    def __init__(self, folder: ExportFolder, compression: str) -> None:
        self.folder = folder
        self.compression = compression

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Write one file and yield its result row. Write no file if the partition has no rows."""
        tables = _tables(batches)
        first = next(tables, None)
        if first is None:
            return
        name = f"{number:05d}-{os.getpid()}-{uuid.uuid4().hex[:8]}.parquet"
        rows = 0
        with self.folder.staged(name) as file:
            with pq.ParquetWriter(file, first.schema, compression=self.compression) as writer:
                for table in chain([first], tables):
                    writer.write_table(table)
                    rows += table.num_rows
            size = file.tell()
        yield _result(number, name, rows, size)


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of each row group."""
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_rows += batch.num_rows
        if held_rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, held_rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _result(number: int, name: str, rows: int, size: int) -> pa.RecordBatch:
    values = ([number], [name], [rows], [size])
    columns = [pa.array(one, field.type) for one, field in zip(values, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
