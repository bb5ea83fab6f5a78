"""Run in executors: stage the rows of a task, or ingest committed rows into a shard.

Staging reads Parquet in the executor, divides the rows by shard, and syncs its files. Rows do not
pass through the JVM and are not shuffled. This is 2.5 times as fast as writing a DataFrame
(docs/spark.md).

Invariants:
    Each attempt stages into its own directory. Its files are durable before the driver gets their
    names.
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
    """A mapping of table columns to the row names of the writer. Other columns are dropped."""

    columns: tuple[tuple[str, str], ...]
    """Pairs of (row name, table column)."""

    @property
    def read(self) -> list[str]:
        """The table columns to read, each once."""
        return list(dict.fromkeys(given for _, given in self.columns))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with row names."""
        columns = [batch.column(given) for _, given in self.columns]
        return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self.columns])


@dataclass(frozen=True)
class StageTasks:
    """Stage the tasks whose numbers are the input rows."""

    root: str
    source: str
    version: int
    tasks: tuple[Task, ...]
    renaming: Renaming
    options: WriteOptions
    without: frozenset[str] = frozenset()
    """Message ids to skip."""

    def __call__(self, numbers: Batches) -> Batches:
        """Yield one result row per task."""
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
    """Ingest committed rows into the shards whose numbers are the input rows."""

    root: str

    def __call__(self, numbers: Batches) -> Batches:
        """Yield one result row per shard."""
        for batch in numbers:
            for shard in batch.column(0).to_pylist():
                report = ingest(self.root, shards=[shard])
                told = [shard, report.row_count, len(report.ingested), bool(report.locked)]
                yield _table(INGEST_RESULT, told)


def files_text(staged: Staged) -> str:
    """Encode the names of the staged files for the driver."""
    return json.dumps([one._asdict() for one in staged.files])


def staged_of(source: str, version: int, text: str) -> Staged:
    """Decode the result of `files_text`."""
    return Staged(source, version, tuple(StagedFile(**one) for one in json.loads(text)))


_KINDS = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}


def _table(ddl: str, row: Sequence[Any]) -> pa.RecordBatch:
    """Return a batch of one row with the columns of a Spark schema text."""
    fields = [pa.field(name, _KINDS[kind]) for name, kind in map(str.split, ddl.split(", "))]
    columns = [pa.array([value], one.type) for value, one in zip(row, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
