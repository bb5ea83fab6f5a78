"""Process a table of a store in the executors, and return only results to Spark.

The data source plans the partitions, and its reader reads them in the executors. Spark only runs
the tasks, so rows do not pass through the JVM. Counting is 1.3 times as fast, and writing Parquet
5 times as fast (docs/spark.md).

Thread safety: each task runs in its own worker process.
Invariants:
    All partitions are planned together from one state of the store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from timerstore.spark.datasource import TimerStoreDataSource

_TASK_BYTES = 64 << 20

Batches = Iterator[pa.RecordBatch]
Task = Callable[[int, Batches], Iterable[pa.RecordBatch]]
"""A function from a partition number and its batches to result batches."""


@dataclass(frozen=True)
class Source:
    """A planned scan, pickled to the executors."""

    reader: DataSourceReader
    partitions: tuple[InputPartition, ...]

    def read(self, number: int) -> Batches:
        """Yield the rows of one partition."""
        for batch in self.reader.read(self.partitions[number]):
            assert isinstance(batch, pa.RecordBatch), type(batch)
            yield batch


def plan_source(path: str, schema: str, **options: str) -> Source:
    """Plan a scan of the columns of `schema`. The options are those of the data source."""
    given: Mapping[str, str] = {"path": path, "time_type": "long", **options}
    source = TimerStoreDataSource(dict(given))
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType), schema
    reader = source.reader(columns)
    return Source(reader, tuple(reader.partitions()))


def run_tasks(spark: SparkSession, source: Source, task: Task, result: str) -> DataFrame:
    """Return the results of one call of `task` per partition, with the columns of `result`."""
    groups = _group_small(source.partitions)
    numbers = spark.range(0, len(groups), 1, max(len(groups), 1))

    def work(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for number in groups[group]:
                    yield from task(number, source.read(number))

    return numbers.mapInArrow(work, result)


def _group_small(partitions: Sequence[InputPartition]) -> list[list[int]]:
    """Group small adjacent partitions: a Python task costs 50 ms, as much as reading 30 MiB."""
    groups: list[list[int]] = []
    bytes_left = 0
    for number, one in enumerate(partitions):
        size = one.value.part.end - one.value.part.begin
        if not groups or size > bytes_left:
            groups.append([])
            bytes_left = _TASK_BYTES
        groups[-1].append(number)
        bytes_left -= size
    return groups
