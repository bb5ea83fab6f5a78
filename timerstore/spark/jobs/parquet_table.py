"""A Parquet table of a folder or a bucket as a DataFrame.

Spark reads a folder itself. Objects of a bucket are read by Python workers, with the settings and
the URLs that staging has; Spark would need another connector with other settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore.spark.jobs.parquet_tasks import (
    Task,
    parquet_files,
    read_task,
    schema_of,
    tasks_of,
)


@dataclass(frozen=True)
class ReadTasks:
    """Run in executors: read the tasks whose numbers are the input rows."""

    tasks: tuple[Task, ...]
    schema: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in read_task(self.tasks[number], self.schema.names):
                    yield rows.cast(self.schema)


def read_parquet(spark: SparkSession, location: str) -> DataFrame:
    """Return all columns of a Parquet file, or of all files below a directory or a URL.

    Raises:
        ConfigError: there is no Parquet file, or files in a bucket differ in their columns.
    """
    if not isinstance(location_of("path", location), BucketUrl):
        return spark.read.parquet(location)
    files = parquet_files(location)
    columns = schema_of(files[:1], ()).names
    schema = schema_of(files, columns)
    tasks = tasks_of(files)
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    kinds = from_arrow_schema(schema)
    work = ReadTasks(tuple(tasks), to_arrow_schema(kinds, timezone="UTC"))
    return numbers.mapInArrow(work, kinds)
