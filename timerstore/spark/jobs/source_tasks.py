"""A table of a store, read in tasks of our own: what leaves the worker is a result, not the rows.

The partitions are those that the data source plans; what reads them is the data source's reader, in
an executor. Spark is only asked to run the tasks, so rows never pass through the JVM: counting is
1.3 times, writing Parquet 5 times as fast (docs/spark.md).

Threads:  each task in its own worker process.
Holds:    partitions are planned once, at the state of that moment; a result is of one of them.
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
"""Number of the partition and its batches, to result batches."""


@dataclass(frozen=True)
class Source:
    """A planned scan. Travels to the executors."""

    reader: DataSourceReader
    partitions: tuple[InputPartition, ...]

    def read(self, number: int) -> Batches:
        """The rows of one partition."""
        for batch in self.reader.read(self.partitions[number]):
            assert isinstance(batch, pa.RecordBatch), type(batch)
            yield batch


def plan_source(path: str, schema: str, **options: str) -> Source:
    """Plan a scan of some columns of a table; options as those of the data source."""
    given: Mapping[str, str] = {"path": path, "time_type": "long", **options}
    source = TimerStoreDataSource(dict(given))
    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType), schema
    reader = source.reader(columns)
    return Source(reader, tuple(reader.partitions()))


def run_tasks(spark: SparkSession, source: Source, task: Task, result: str) -> DataFrame:
    """The results as a table with the columns of `result`: one call of `task` a partition."""
    groups = _together(source.partitions)
    numbers = spark.range(0, len(groups), 1, max(len(groups), 1))

    def work(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for number in groups[group]:
                    yield from task(number, source.read(number))

    return numbers.mapInArrow(work, result)


def _together(partitions: Sequence[InputPartition]) -> list[list[int]]:
    """Small neighbours in one task: a task of Python's costs 50 ms, as much as to read 30 MiB."""
    groups: list[list[int]] = []
    room = 0
    for number, one in enumerate(partitions):
        size = one.value.part.end - one.value.part.begin
        if not groups or size > room:
            groups.append([])
            room = _TASK_BYTES
        groups[-1].append(number)
        room -= size
    return groups
