"""Write to shards from Spark, in a batch or as the sink of a stream, with one protocol for both.

    rows.write.format("timerstore").mode("append").option("write_id", "import-7").save(path)

Each task stages its rows. `commit` makes the rows of all tasks visible with one manifest. The
owners of the shards then ingest them.

Thread safety: runs in Spark's workers. A writer is pickled into each worker, and into the worker
    that commits.
Invariants:
    1. A row is stored once in its shard, in spite of repeated attempts, replays and killed
       processes. A batch write is identified by its write_id, a batch of a stream by its query id
       and batch id.
    2. A committed write never fails. Rows that are not ingested yet are left to the owners.
Raises: ConfigError on the driver, before any task, for invalid columns, options, path or mode. The
    text of an error contains everything, because Spark passes on only the text.
See also: timerstore/shards (row_staging.py, manifest.py, shard_ingest.py, write_options.py) and
    docs/decisions/0008-deduplication-and-ingest.md.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore.errors import ConfigError, MessageError
from timerstore.shards.arrow_import import pyarrow
from timerstore.shards.committing import abort, commit
from timerstore.shards.message_writeback import SET_BY_STORE, rows_of_messages
from timerstore.shards.row_columns import check_columns
from timerstore.shards.row_staging import stage
from timerstore.shards.shard_ingest import ingest
from timerstore.shards.staged_files import Staged
from timerstore.shards.staging_area import StagingArea
from timerstore.shards.staging_location import area_at
from timerstore.shards.write_options import WriteOptions, draw_name, parse_options
from timerstore.spark.locations import split_storage
from timerstore.spark.read_options import READER_OPTIONS
from timerstore.spark.table_options import INSERT_COLUMN, MISSING, completed, has_path, options_in

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

_log = logging.getLogger("timerstore.spark")


@dataclass
class StagedPart(WriterCommitMessage):
    """The result of a task, sent to the driver: the files it staged."""

    staged: Staged


@dataclass(frozen=True)
class Target:
    """The checked target directory and options of a write, pickled into every task."""

    root: Path | BucketUrl
    options: WriteOptions
    are_inserted: bool = False
    """Whether the rows are those of INSERT INTO, with the columns of the table `messages`."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the bucket's service. They may be secrets."""

    @property
    def area(self) -> StagingArea:
        """The place of the staged rows."""
        return area_at("path", self.root, self.storage)

    def stage(self, source: str, version: int, batches: Iterator[Any]) -> StagedPart:
        """Stage the rows of a task. They are not visible before `commit`."""
        task = TaskContext.get()
        if task is None:
            raise MessageError("write: must be called in a Spark task")
        attempt = f"{task.partitionId()}-{task.taskAttemptId()}"
        if self.are_inserted:
            batches = map(inserted_rows, batches)
        return StagedPart(stage(self.area, source, version, attempt, batches, self.options))

    def ingest(self) -> None:
        """Ingest committed rows into shards that are not open. Log a failure instead of raising.

        Rows in a bucket are left to the owner of the shards, which alone has their disk.
        """
        if isinstance(self.root, BucketUrl):
            return
        try:
            report = ingest(self.root)
        except Exception as error:  # noqa: BLE001 - see below
            # The write is committed. After an error Spark would write it again, under a new id.
            # The owners of the shards repeat the ingest.
            _log.warning("event=ingest_left root=%s error=%r", self.root, error)
        else:
            _log.info("event=ingested rows=%d locked=%s", report.row_count, report.locked)


def check_target(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Target:
    """Check the options and columns of a write on the driver, before any task.

    Reader options are ignored, because a temporary view has the options of both.

    Raises:
        ConfigError: an option or column is invalid, the path is not a shard directory, or the mode
            is overwrite.
    """
    if overwrite:
        raise ConfigError(
            "mode: timerstore does not overwrite, because pending messages would be lost; use "
            '.mode("append"), cancel the messages, or write to another directory'
        )
    marked = options_in(schema, INSERT_COLUMN)
    is_sql_table = not has_path(given)
    if is_sql_table and marked is None:
        raise ConfigError(MISSING)
    given, storage = split_storage(completed(given, schema))
    known = {name: value for name, value in given.items() if name.lower() not in READER_OPTIONS}
    options = parse_options(known)
    root = _root_of(given)
    if marked is not None and _root_of(marked) != root:
        raise ConfigError(
            f"column {INSERT_COLUMN}: it has the options of the SQL table that it was read from, "
            f"which saveAsTable would keep: drop it; wanted path {root}, got {_root_of(marked)}"
        )
    if isinstance(root, BucketUrl) and options.ingest == "inline":
        raise ConfigError(
            f"ingest: wanted auto or none for {root}, whose rows only the owner of the shards "
            "ingests, got 'inline'"
        )
    target = Target(root, options, storage=storage)
    target.area.cluster()
    if (table := given.get("table", "messages")) != "messages" and is_sql_table:
        raise ConfigError(f"INSERT INTO: wanted a table of messages, got one of {table}")
    rows = _empty_batch(_arrow_schema(schema))
    are_inserted = is_sql_table or (
        not options.are_messages and set(rows.schema.names) >= SET_BY_STORE
    )
    if are_inserted:
        rows = inserted_rows(rows)
    if options.are_messages:
        rows = rows_of_messages(rows)
    check_columns(rows.schema, options)
    return replace(target, are_inserted=are_inserted)


def _empty_batch(schema: Any) -> Any:
    return pyarrow().RecordBatch.from_pylist([], schema=schema)


def inserted_rows(batch: Any) -> Any:
    """Return the rows of INSERT INTO: they have all columns of `messages`, NULL if not inserted.

    Raises:
        MessageError: a column that the store sets has a value. Then these are messages that were
            read, perhaps from another SQL table, and the options may be those of that table.
    """
    columns = {name: batch.column(k) for k, name in enumerate(batch.schema.names)}
    wrong = [
        name
        for name, column in columns.items()
        if name in SET_BY_STORE and column.null_count < len(batch)
    ]
    if wrong:
        raise MessageError(
            f"rows: wanted no values in {', '.join(wrong)}, which the store sets; write messages "
            "back with the option rows=messages, or in SQL list the columns to insert: (topic, "
            "body, deliver_at)"
        )
    names = {"msg_id": "message_id"}
    kept = {names.get(name, name): one for name, one in columns.items() if name not in SET_BY_STORE}
    return pyarrow().RecordBatch.from_arrays([*kept.values()], names=[*kept])


def _root_of(given: Mapping[str, str]) -> Path | BucketUrl:
    """Return the option `path`: a bucket, or a directory as an absolute path for every host."""
    path = given.get("path")
    if not path:
        raise ConfigError(MISSING)
    found = location_of("path", path)
    return found if isinstance(found, BucketUrl) else found.resolve()


def _arrow_schema(schema: StructType) -> Any:
    """Convert to a pyarrow schema. A type without equivalent becomes null, and is then rejected."""
    arrow = pyarrow()
    fields = []
    for one in schema.fields:
        try:
            kind = to_arrow_type(one.dataType, timezone="UTC")
        except Exception:  # noqa: BLE001 - pyspark raises several classes
            kind = arrow.null()
        fields.append(arrow.field(one.name, kind))
    return arrow.schema(fields)


class BatchWriter(DataSourceArrowWriter):
    """A batch write. Its manifest has the write_id as source, and version 0."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # Generated on the driver, so that all tasks use the same name.
        self._source = target.options.write_id or draw_name()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._target.stage(self._source, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible together."""
        parts = [one.staged for one in messages if isinstance(one, StagedPart)]
        commit(self._target.area, self._source, 0, parts, same_rows=True)
        if self._target.options.ingest != "none":
            self._target.ingest()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files, unless they are committed."""
        abort(self._target.area, [m.staged for m in messages if isinstance(m, StagedPart)])


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream. Its manifests have the query id or write_id, and the batch id."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a task of one batch."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY_ID)
        batch = None if task is None else task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            raise MessageError("write: no query id and batch id: must be called in a micro-batch")
        source = self._target.options.write_id or query
        return self._target.stage(source, int(batch), iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        """Make the rows of a batch visible. Do nothing if the batch was committed before."""
        parts = [one.staged for one in messages if isinstance(one, StagedPart)]
        sources = {one.source for one in parts}
        versions = {one.version for one in parts} | {batchId}
        if len(sources) > 1 or len(versions) > 1:
            raise MessageError(
                f"commit: parts of several batches: wanted one source and batch {batchId}, "
                f"got {sorted(sources)} and {sorted(versions)}"
            )
        source = self._target.options.write_id or next(iter(sources), "")
        if source:  # an empty source: no tasks, hence no rows
            commit(self._target.area, source, batchId, parts)
        if self._target.options.ingest == "inline":
            self._target.ingest()

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803, ARG002 - Spark's
    ) -> None:
        """Remove the staged files, unless they are committed."""
        abort(self._target.area, [m.staged for m in messages if isinstance(m, StagedPart)])
