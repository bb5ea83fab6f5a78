"""Run in executors: write the batches of a partition to one Parquet file.

Invariants:
    Each attempt uses a file name of its own. The file is durable before the driver gets its name.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore._engine.storage.disk import Disk

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
    """Write partitions as Parquet files into a directory."""

    def __init__(self, folder: Path, compression: str) -> None:
        self.folder = folder
        self.compression = compression

    def __call__(self, number: int, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Write one file and yield its result row. Write no file if the partition has no rows."""
        name = f"{number:05d}-{os.getpid()}-{uuid.uuid4().hex[:8]}.parquet"
        path = self.folder / name
        writer: Any = None
        rows = 0
        held: list[pa.RecordBatch] = []
        held_rows = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                writer = pq.ParquetWriter(path, batch.schema, compression=self.compression)
            held.append(batch)
            held_rows += batch.num_rows
            rows += batch.num_rows
            if held_rows >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(held))
                held, held_rows = [], 0
        if writer is None:
            return
        if held:
            writer.write_table(pa.Table.from_batches(held))
        writer.close()
        file = Disk().open(path)
        file.sync()
        size = file.size()
        del file
        yield _result(number, name, rows, size)


def _result(number: int, name: str, rows: int, size: int) -> pa.RecordBatch:
    values = ([number], [name], [rows], [size])
    columns = [pa.array(one, field.type) for one, field in zip(values, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
