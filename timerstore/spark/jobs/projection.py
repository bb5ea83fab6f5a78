"""Read the messages of a store, and tables whose columns are named by options.

The functions only plan a read.

Raises: ConfigError for each missing column, and for due times of a type that is not a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, IntegerType, LongType, TimestampType

from timerstore.errors import ConfigError
from timerstore.spark.jobs.parquet_table import read_parquet


@dataclass(frozen=True, slots=True)
class Projection:
    """The column names of a table. `topic` applies to all rows, instead of a topic column."""

    topic: str | None = None
    topic_column: str | None = None
    body_column: str = "body"
    due_column: str = "deliver_at"
    id_column: str | None = "message_id"
    key_column: str | None = None
    tags_column: str | None = None


PROJECTION_FIELDS = tuple(one.name for one in fields(Projection))


class _Option(NamedTuple):
    name: str
    default: str | None
    help: str


_OPTIONS = {
    "topic": _Option("--topic", None, "The topic of all rows."),
    "topic_column": _Option("--topic-column", None, "Column of topics, instead of --topic."),
    "body_column": _Option("--body-column", "body", "Column of bodies: binary or string."),
    "due_column": _Option(
        "--due-column", "deliver_at", "Column of due times: a timestamp, or epoch ms."
    ),
    "id_column": _Option("--id-column", "message_id", "Column of message ids; empty for none."),
    "key_column": _Option("--key-column", None, "Column of keys; determines the shard."),
    "tags_column": _Option("--tags-column", None, "Column of tags."),
}


def projection_options(names: Sequence[str]) -> tuple[click.Option, ...]:
    """Return the click options for these fields of Projection."""
    chosen = (_OPTIONS[name] for name in names)
    return tuple(
        click.Option([one.name], default=one.default, callback=_or_none, help=one.help)
        for one in chosen
    )


def _or_none(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """Return None for an empty name."""
    return given or None


def read_messages(
    spark: SparkSession,
    path: str,
    schema: str,
    *,
    as_of: str | None = None,
    properties: Sequence[str] = (),
) -> DataFrame:
    """Return columns of the table `messages` of a store or of all shards. Times are epoch ms.

    properties: names of the properties that are read; none for all.
    """
    reader = spark.read.format("timerstore").option("path", path).option("time_type", "long")
    if as_of is not None:
        reader = reader.option("as_of", as_of)
    if properties:
        reader = reader.option("properties", ",".join(properties))
    return reader.schema(schema).load()


def read_table(spark: SparkSession, path: str, projection: Projection) -> DataFrame:
    """Return topic, msg_id (binary) and due_ms of a Parquet table."""
    table = read_parquet(spark, path)
    check_columns(table, projection, ("topic_column", "id_column", "due_column"))
    if projection.id_column is None:
        raise ConfigError("id_column: missing; rows are compared by message id")
    return table.select(
        topic_of(projection).alias("topic"),
        F.col(projection.id_column).cast("binary").alias("msg_id"),
        due_ms(table, projection.due_column).alias("due_ms"),
    )


def rows_of(table: DataFrame, projection: Projection) -> DataFrame:
    """Return topic, message_id, deliver_ms, body, key and tags, null where there is no column."""
    check_columns(
        table,
        projection,
        ("topic_column", "body_column", "due_column", "id_column", "key_column", "tags_column"),
    )

    def text(name: str | None) -> Column:
        return F.lit(None).cast("string") if name is None else F.col(name).cast("string")

    return table.select(
        topic_of(projection).alias("topic"),
        text(projection.id_column).alias("message_id"),
        due_ms(table, projection.due_column).alias("deliver_ms"),
        F.col(projection.body_column).cast("binary").alias("body"),
        text(projection.key_column).alias("key"),
        text(projection.tags_column).alias("tags"),
    )


def topic_of(projection: Projection) -> Column:
    """Return the topic as a Spark column."""
    if projection.topic_column is not None:
        return F.col(projection.topic_column)
    return F.lit(projection.topic)


def due_ms(table: DataFrame, column: str) -> Column:
    """Return a due time in epoch ms, rounded up so that no message is early."""
    if isinstance(table.schema[column].dataType, TimestampType):
        at = F.col(column)
        # Spark divides as doubles: a ms late after the year 2255, early after 4253.
        has_rest = F.pmod(F.unix_micros(at), F.lit(1000)) > 0
        return F.unix_millis(at) + has_rest.cast("long")
    return F.col(column).cast("long")


def check_columns(table: DataFrame, projection: Projection, names: Sequence[str]) -> None:
    """Raise ConfigError if a column is missing, or if due times have a wrong type."""
    problems: list[str] = []
    if (projection.topic is None) == (projection.topic_column is None):
        problems.append("topic: wanted one of --topic and --topic-column")
    for name in names:
        column = getattr(projection, name)
        if column is not None and column not in table.columns:
            problems.append(f"{name}: wanted one of {', '.join(table.columns)}; got {column!r}")
    due = projection.due_column
    if "due_column" in names and due in table.columns:
        kind = table.schema[due].dataType
        if not _says_time(kind):
            problems.append(f"due_column: wanted a timestamp or epoch ms, got {kind.typeName()}")
    if problems:
        raise ConfigError(problems)


def _says_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType | LongType | IntegerType)
