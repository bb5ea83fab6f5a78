"""Divide Parquet files into tasks by row groups, so that workers read their parts without Spark.

Invariants:
    The same files and the same `rows_per_task` give the same pieces in the same order, so that a
    repeated run stages the same rows.
Raises: ConfigError if a path has no Parquet file, or if files differ in the requested columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from timerstore.errors import ConfigError

ROWS_PER_TASK = 1_000_000
_BATCH_ROWS = 32_768


class Piece(NamedTuple):
    """Consecutive row groups of one file."""

    path: str
    first_group: int
    group_count: int
    rows: int


Task = tuple[Piece, ...]


def parquet_files(path: str) -> list[Path]:
    """Return the file, or all Parquet files below a directory. Skip names that begin with _ or ."""
    root = Path(path)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ConfigError(f"{path}: no such file or directory")
    found = sorted(
        one
        for one in root.rglob("*.parquet")
        if not any(part[0] in "_." for part in one.relative_to(root).parts)
    )
    if not found:
        raise ConfigError(f"{path}: the directory has no Parquet files")
    return found


def schema_of(files: Sequence[Path], columns: Iterable[str]) -> pa.Schema:
    """Return the schema of the first file. Raise ConfigError if files differ in the columns."""
    schema: pa.Schema | None = None
    problems: list[str] = []
    wanted = sorted(set(columns))
    for file in files:
        found = _open(file).schema_arrow
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


def tasks_of(files: Iterable[Path], rows_per_task: int = ROWS_PER_TASK) -> list[Task]:
    """Divide the files in order into tasks of about `rows_per_task` rows, by whole row groups."""
    tasks: list[list[Piece]] = []
    rows_left = 0
    for file in files:
        metadata = _open(file).metadata
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if not tasks or rows > rows_left:
                tasks.append([])
                rows_left = rows_per_task
            rows_left -= rows
            _add(tasks[-1], Piece(str(file), group, 1, rows))
    return [tuple(task) for task in tasks]


def _add(task: list[Piece], piece: Piece) -> None:
    last = task[-1] if task else None
    if (
        last
        and last.path == piece.path
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
        file = _open(Path(piece.path))
        int96 = _int96_columns(file)
        for batch in file.iter_batches(batch_rows, row_groups=groups, columns=list(columns)):
            yield _with_utc(batch, int96)


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """Return the columns of the deprecated type INT96, which Spark writes by default."""
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return frozenset(one.path for one in columns if one.physical_type == "INT96")


def _with_utc(batch: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    """Set the zone of INT96 columns to UTC. It is UTC by definition, but pyarrow omits it."""
    for place, name in enumerate(batch.schema.names):
        if name in names:
            kind = pa.timestamp("us", tz="UTC")
            column = batch.column(place).cast(pa.int64()).cast(kind)
            batch = batch.set_column(place, pa.field(name, kind), column)
    return batch


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{file}: not a readable Parquet file: {error}") from error
