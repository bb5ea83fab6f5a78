"""Writing to shards from Spark: a batch write, and a stream's sink. One protocol for both.

    rows.write.format("timerstore").mode("append").option("write_id", "import-7").save(path)

A task stages its rows, `commit` makes all of them visible by one manifest, the shards' owners take
them in (timerstore/shards: staging.py, manifest.py, ingest.py). Options: shards/write_options.py.

Threads:  Spark's workers; a writer is pickled into each of them, and into the one that commits.
Holds:    (1) a row is in its shard once, whatever attempts, zombies, replays and deaths there were:
          of a batch write under one write_id, of a stream under one query id and batch id; (2) once
          committed a write never fails: what is not ingested yet is left to the owners.
Fails:    ConfigError from the driver, before any task: columns, options, path, mode. Errors carry
          all they say in their text: Spark keeps no more of them.
Source:   docs/decisions/0008-deduplication-and-ingest.md.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, MessageError
from timerstore.shards.arrow_import import pyarrow
from timerstore.shards.cluster import require
from timerstore.shards.manifest import abort, commit
from timerstore.shards.row_columns import check_columns
from timerstore.shards.row_staging import stage
from timerstore.shards.shard_ingest import ingest
from timerstore.shards.staged_files import Staged
from timerstore.shards.write_options import WriteOptions, draw_name, parse_options
from timerstore.spark.read_options import READER_OPTIONS
from timerstore.spark.roots import root_of

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

_log = logging.getLogger("timerstore.spark")


@dataclass
class StagedPart(WriterCommitMessage):
    """What a task tells the driver."""

    staged: Staged


@dataclass(frozen=True)
class Target:
    """Where rows go, and how; checked, and pickled into every task."""

    root: str
    options: WriteOptions

    def stage(self, source: str, version: int, batches: Iterator[Any]) -> StagedPart:
        """Stage a task's rows; nobody sees them yet."""
        task = TaskContext.get()
        if task is None:
            raise MessageError("write: not inside a Spark task")
        attempt = f"{task.partitionId()}-{task.taskAttemptId()}"
        return StagedPart(stage(self.root, source, version, attempt, batches, self.options))

    def ingest(self) -> None:
        """Have shards that nobody has open take what is committed; what fails, owners do again."""
        try:
            report = ingest(self.root)
        except Exception as error:  # noqa: BLE001 - whatever it is:
            # The write is committed. An error here would have it written again, under a new id.
            _log.warning("event=ingest_left root=%s error=%r", self.root, error)
        else:
            _log.info("event=ingested rows=%d locked=%s", report.row_count, report.locked)


def check_target(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Target:
    """Check what a writer was told; on the driver, before any task. A reader's options are passed
    over, for a temporary view has both.
    """
    if overwrite:
        raise ConfigError(
            "mode: timerstore does not overwrite, for what waits would be gone; use "
            '.mode("append"), or cancel, or write to another directory'
        )
    known = {name: value for name, value in given.items() if name.lower() not in READER_OPTIONS}
    options = parse_options(known)
    root = _root_of(given)
    require(Disk(), root)
    check_columns(_arrow_schema(schema), options)
    return Target(str(root), options)


def _root_of(given: Mapping[str, str]) -> Path:
    """Give the directory of shards that a path means: on the driver's host and on every other."""
    path = given.get("path")
    if not path:
        raise ConfigError(
            "path: there is none; .save(path), or .option('path', ...) (a table that was made by "
            "CREATE TABLE loses its options: use a temporary view)"
        )
    return root_of(path).resolve()


def _arrow_schema(schema: StructType) -> Any:
    """Spark's columns as pyarrow's; what has no such type is of type null, and refused by name."""
    arrow = pyarrow()
    fields = []
    for one in schema.fields:
        try:
            kind = to_arrow_type(one.dataType, timezone="UTC")
        except Exception:  # noqa: BLE001 - pyspark's own, of several kinds
            kind = arrow.null()
        fields.append(arrow.field(one.name, kind))
    return arrow.schema(fields)


class BatchWriter(DataSourceArrowWriter):
    """One batch write: source is its write_id, version 0."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # Drawn once, on the driver: the same in every task.
        self._source = target.options.write_id or draw_name()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return self._target.stage(self._source, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make them visible, all at once."""
        parts = [one.staged for one in messages if isinstance(one, StagedPart)]
        commit(Path(self._target.root), self._source, 0, parts, same_rows=True)
        if self._target.options.ingest != "none":
            self._target.ingest()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged, unless it is committed."""
        abort(Path(self._target.root), [m.staged for m in messages if isinstance(m, StagedPart)])


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's sink: source is the query's id (or write_id), version the batch's."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows of a batch."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY_ID)
        batch = None if task is None else task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise MessageError("write: no query id and batch id: not inside a micro-batch")
        source = self._target.options.write_id or query
        return self._target.stage(source, int(batch), iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        """Make a batch visible; one that was committed before is left as it is."""
        parts = [one.staged for one in messages if isinstance(one, StagedPart)]
        sources = {one.source for one in parts}
        versions = {one.version for one in parts} | {batchId}
        if len(sources) > 1 or len(versions) > 1:
            raise MessageError(
                f"commit: parts of several batches; wanted one source and batch {batchId}, "
                f"got {sorted(sources)} and {sorted(versions)}"
            )
        source = self._target.options.write_id or next(iter(sources), "")
        if source:  # else there were no tasks, hence no rows
            commit(Path(self._target.root), source, batchId, parts)
        if self._target.options.ingest == "inline":
            self._target.ingest()

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803, ARG002 - Spark's
    ) -> None:
        """Drop what was staged, unless it is committed."""
        abort(Path(self._target.root), [m.staged for m in messages if isinstance(m, StagedPart)])
