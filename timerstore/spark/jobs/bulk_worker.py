"""What scheduling does in an executor: stages a task's rows, or takes what is committed into a
shard.

Staging reads Parquet by itself, splits by shard and syncs its files, so rows never pass through the
JVM and are not shuffled: 2.5 times as fast as a DataFrame's write (docs/spark.md).

Holds:    an attempt has a folder of its own; what it staged is durable before it is told of.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timerstore.shards.row_staging import stage
from timerstore.shards.shard_ingest import ingest
from timerstore.shards.staged_files import Staged, StagedFile
from timerstore.shards.write_options import WriteOptions
from timerstore.spark.jobs.parquet_tasks import Task, read_task

STAGE_RESULT = "number int, rows long, files string"
INGEST_RESULT = "shard int, rows long, versions int, is_locked boolean"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Renaming:
    """Columns of a table to the names that rows have; all else is left out."""

    columns: tuple[tuple[str, str], ...]
    """(name of a row's column, the table's) each."""

    @property
    def read(self) -> list[str]:
        """The table's columns that are needed, each once."""
        return list(dict.fromkeys(given for _, given in self.columns))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under the rows' names."""
        columns = [batch.column(given) for _, given in self.columns]
        return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.columns])


@dataclass(frozen=True)
class StageTasks:
    """Stage tasks by their numbers."""

    root: str
    source: str
    version: int
    tasks: tuple[Task, ...]
    renaming: Renaming
    options: WriteOptions
    without: frozenset[str] = frozenset()
    """Message ids that are left out."""

    def __call__(self, numbers: Batches) -> Batches:
        """One row a task."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield self._stage(number)

    def _stage(self, number: int) -> pa.RecordBatch:
        rows = self._rows(number)
        done = stage(self.root, self.source, self.version, str(number), rows, self.options)
        return _table(STAGE_RESULT, [number, done.row_count, files_text(done)])

    def _rows(self, number: int) -> Batches:
        ids = pa.array(sorted(self.without), pa.string())
        for batch in read_task(self.tasks[number], self.renaming.read):
            rows = self.renaming.apply(batch)
            if len(ids):
                rows = rows.filter(pc.invert(pc.is_in(rows.column("message_id"), value_set=ids)))
            yield rows


@dataclass(frozen=True)
class IngestShards:
    """Take what is committed into shards by their numbers."""

    root: str

    def __call__(self, numbers: Batches) -> Batches:
        """One row a shard."""
        for batch in numbers:
            for shard in batch.column(0).to_pylist():
                report = ingest(self.root, shards=[shard])
                told = [shard, report.row_count, len(report.ingested), bool(report.locked)]
                yield _table(INGEST_RESULT, told)


def files_text(staged: Staged) -> str:
    """What was staged, to send to the driver."""
    return json.dumps([one._asdict() for one in staged.files])


def staged_of(source: str, version: int, text: str) -> Staged:
    """Read it back."""
    return Staged(source, version, tuple(StagedFile(**one) for one in json.loads(text)))


_KINDS = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}


def _table(ddl: str, row: Sequence[Any]) -> pa.RecordBatch:
    """One row, with the columns that a Spark schema text names."""
    fields = [pa.field(name, _KINDS[kind]) for name, kind in map(str.split, ddl.split(", "))]
    columns = [pa.array([value], one.type) for value, one in zip(row, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
