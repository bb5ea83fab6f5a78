"""Divide Parquet files into tasks by row groups, so that workers read their parts without Spark.

Invariants:
    The same files and the same `rows_per_task` give the same pieces in the same order, so that a
    repeated run stages the same rows.
Raises: ConfigError if a path has no Parquet file, or if files differ in the requested columns.
    BucketError if an object was replaced since it was listed.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore._engine.buckets import BucketUrl, location_of
from timerstore._engine.buckets.bucket import BucketFile, find_files, in_parallel
from timerstore.errors import ConfigError

ROWS_PER_TASK = 1_000_000
_BATCH_ROWS = 32_768


ParquetPath = Path | BucketFile
"""A local file, or an object of a bucket in the state that it had when it was listed."""


class Piece(NamedTuple):
    """Consecutive row groups of one file."""

    file: ParquetPath
    first_group: int
    group_count: int
    rows: int


Task = tuple[Piece, ...]


def parquet_files(location: str) -> list[ParquetPath]:
    """Return the file, or all Parquet files below a directory or the URL of a bucket.

    Names that begin with _ or . are skipped.
    """
    root = location_of("path", location)
    found: list[ParquetPath] = []
    if isinstance(root, BucketUrl):
        objects = find_files(root)
        if len(objects) == 1 and str(objects[0]) == str(root):
            return [objects[0]]
        found += [one for one in objects if _is_shown(one.object.path)]
    elif root.is_file():
        return [root]
    elif root.is_dir():
        every = sorted(root.rglob("*.parquet"))
        found += [one for one in every if _is_shown(one.relative_to(root).as_posix())]
    else:
        raise ConfigError(f"{location}: no such file or directory")
    if not found:
        raise ConfigError(f"{location}: there are no Parquet files below it")
    return found


def _is_shown(name: str) -> bool:
    return name.endswith(".parquet") and not any(part[0] in "_." for part in name.split("/"))


def schema_of(files: Sequence[ParquetPath], columns: Iterable[str]) -> pa.Schema:
    """Return the schema of the first file. Raise ConfigError if files differ in the columns."""
    schema: pa.Schema | None = None
    problems: list[str] = []
    wanted = sorted(set(columns))
    schemas = in_parallel(_schema, files)
    for file, found in zip(files, schemas, strict=True):
        schema = schema or found
        for name in wanted:
            if name not in found.names:
                problems.append(f"{file}: wanted a column {name!r}, got {', '.join(found.names)}")
            elif name in schema.names and found.field(name).type != schema.field(name).type:
                problems.append(
                    f"{file}: column {name!r}: wanted {schema.field(name).type} as in {files[0]}, "
                    f"got {found.field(name).type}"
                )
    if problems or schema is None:
        raise ConfigError(problems or ["no Parquet files"])
    return schema


def tasks_of(files: Sequence[ParquetPath], rows_per_task: int = ROWS_PER_TASK) -> list[Task]:
    """Divide the files in order into tasks of about `rows_per_task` rows, by whole row groups."""
    tasks: list[list[Piece]] = []
    rows_left = 0
    footers = in_parallel(lambda file: open_parquet(file).metadata, files)
    for file, metadata in zip(files, footers, strict=True):
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if not tasks or rows > rows_left:
                tasks.append([])
                rows_left = rows_per_task
            rows_left -= rows
            _add(tasks[-1], Piece(file, group, 1, rows))
    return [tuple(task) for task in tasks]


def _add(task: list[Piece], piece: Piece) -> None:
    last = task[-1] if task else None
    if (
        last
        and last.file == piece.file
        and last.first_group + last.group_count == piece.first_group
    ):
        task[-1] = last._replace(group_count=last.group_count + 1, rows=last.rows + piece.rows)
    else:
        task.append(piece)


def read_task(
    task: Task, columns: Sequence[str], batch_rows: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in batches."""
    for piece in task:
        groups = range(piece.first_group, piece.first_group + piece.group_count)
        file = open_parquet(piece.file)
        int96 = _int96_columns(file)
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=list(columns)):
            yield _with_utc(batch, int96)


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """Return the columns of the deprecated type INT96, which Spark writes by default."""
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return frozenset(one.path for one in columns if one.physical_type == "INT96")


_UTC = pa.timestamp("us", tz="UTC")


def _schema(file: ParquetPath) -> pa.Schema:
    """Return the schema of the batches of a file."""
    opened = open_parquet(file)
    schema = opened.schema_arrow
    for name in _int96_columns(opened) & set(schema.names):
        schema = schema.set(schema.get_field_index(name), pa.field(name, _UTC))
    return schema


def _with_utc(batch: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    """Set the zone of INT96 columns to UTC. It is UTC by definition, but pyarrow omits it."""
    for place, name in enumerate(batch.schema.names):
        if name in names:
            column = batch.column(place).cast(pa.int64()).cast(_UTC)
            batch = batch.set_column(place, pa.field(name, _UTC), column)
    return batch


def open_parquet(file: ParquetPath) -> pq.ParquetFile:
    """Open a file. Raise ConfigError if it is not Parquet."""
    try:
        source = file.open() if isinstance(file, BucketFile) else file
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{file}: not a readable Parquet file: {error}") from error
