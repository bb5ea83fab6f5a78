"""Run in executors: write batches to one Parquet file."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore.spark.jobs.shared_folder import SharedFolder

_GROUP_ROWS = 262_144


class WrittenFile(NamedTuple):
    """The size of a file."""

    rows: int
    bytes: int


def write_parquet(
    folder: SharedFolder, name: str, batches: Iterator[pa.RecordBatch], compression: str
) -> WrittenFile | None:
    """Write a file. Write none and return None if there are no rows."""
    tables = _tables(batches)
    first = next(tables, None)
    if first is None:
        return None
    rows = 0
    with folder.writing(name) as file:
        with pq.ParquetWriter(file, first.schema, compression=compression) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                rows += table.num_rows
        return WrittenFile(rows, file.tell())


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
