"""Reading once: a plan on the driver, record batches in the tasks."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from timerstore._engine.snapshot.columns.arrow_batches import read_part
from timerstore._engine.snapshot.columns.table_scan import Wanted
from timerstore.errors import FailedError
from timerstore.spark.plan import PLAN_FORMAT, Task, plan
from timerstore.spark.read_options import ReadOptions


class TimerStorePartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def read_task(partition: InputPartition) -> Iterator[Any]:
    """Read one partition as record batches, in an executor's Python worker.

    Spark puts a partition of its own where a plan has none: nothing is read then.
    """
    task = partition.value if isinstance(partition, TimerStorePartition) else None
    if not isinstance(task, Task):
        return
    if task.plan_format != PLAN_FORMAT:
        raise FailedError(
            "another timerstore than the driver's runs here: install the same release on all nodes",
            wanted=f"plan format {task.plan_format}",
            got=PLAN_FORMAT,
        )
    yield from read_part(task.part, task.wanted, task.cancelled)


class BatchReader(DataSourceReader):
    """Takes none of Spark's filters: Spark keeps one plan for all queries of a DataFrame, or view;
    one that a filter narrowed would be read by the next query, and by both sides of a union.
    """

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options.absolute_path()
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Plan."""
        tasks = plan(self._options, self._wanted)
        return [TimerStorePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition."""
        return read_task(partition)
