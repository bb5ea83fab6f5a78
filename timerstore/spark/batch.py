"""Batch reads: plan on the driver, and read Arrow record batches in the tasks."""

import gc
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from timerstore._engine.snapshot.columns.arrow_batches import read_part
from timerstore._engine.snapshot.columns.table_scan import Wanted
from timerstore.errors import FailedError
from timerstore.spark.plan import PLAN_FORMAT, Task, plan
from timerstore.spark.read_options import ReadOptions


class TimerStorePartition(InputPartition):
    """The input of one task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def read_task(partition: InputPartition) -> Iterator[Any]:
    """Yield one partition as record batches, in an executor's Python worker.

    If a plan has no partition, Spark passes one of its own, and nothing is read.

    Raises:
        FailedError: the driver runs another release of timerstore.
    """
    task = partition.value if isinstance(partition, TimerStorePartition) else None
    if not isinstance(task, Task):
        return
    if task.plan_format != PLAN_FORMAT:
        raise FailedError(
            "this node runs another timerstore than the driver: install one release on all nodes",
            wanted=f"plan format {task.plan_format}",
            got=PLAN_FORMAT,
        )
    _exempt_modules_from_collection()
    yield from read_part(task.part, task.wanted, task.facts)


def _exempt_modules_from_collection() -> None:
    """Let the garbage collector skip what this worker has loaded so far, once for each process.

    Spark's workers collect all garbage after each task. The objects of the loaded modules alone
    make that take 50 ms of CPU time (measured), about as long as decoding 90 MB of the log.
    """
    if not gc.get_freeze_count():
        gc.freeze()


class BatchReader(DataSourceReader):
    """Read one table in a batch query, without filter pushdown.

    Spark keeps one plan for all queries of a DataFrame or view. If the filter of one query narrowed
    that plan, the next query and both sides of a union would read the narrowed plan too.
    """

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options.absolute_path()
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the read."""
        found = plan(self._options, self._wanted)
        return [TimerStorePartition(task) for task in found.tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of one partition."""
        return read_task(partition)
