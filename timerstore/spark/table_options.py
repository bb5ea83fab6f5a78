"""Keep the options of a permanent SQL table in the metadata of its column `shard`.

    CREATE TABLE orders USING timerstore OPTIONS (path '/data/orders.shards')
    SELECT count(*) FROM orders

Spark passes the options of a table to a Python data source at CREATE TABLE only, where it asks for
the schema. Later it passes none of them, but it passes the schema, with the metadata of columns.

Raises: ConfigError.
See also: docs/spark.md, SQL tables.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from timerstore.errors import ConfigError
from timerstore.shards.write_options import OPTION_NAMES
from timerstore.spark.read_options import READER_OPTIONS

_KEY = "timerstore.options"
_PROVIDER = "provider"
"""The property by which the options of CREATE TABLE are recognized."""
_OF_SPARK = frozenset(
    {_PROVIDER, "owner", "location", "external", "comment", "collation", "is_managed_location"}
)
_OPTION_PREFIX = "option."
"""Spark passes each option of OPTIONS a second time, with this prefix."""

INSERT_COLUMN = "shard"
"""The column whose options INSERT INTO uses. Spark passes the schema of the inserted rows: if names
and types of their columns are those of the table, also their metadata. Rows that were read from
another table have its options then, and they always have a shard. New rows never have one."""

MISSING = (
    "path: missing; use .load(path), .save(path) or .option('path', ...). Spark passes the options "
    "of a SQL table only if CREATE TABLE has no list of columns and no AS SELECT; else use SELECT "
    "... FROM t WITH (`path` = '...'), INSERT INTO t WITH (`path` = '...') VALUES ..., or a "
    "temporary view"
)


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the data source, without the table properties that Spark adds.

    A user's TBLPROPERTIES are ignored too, unless they are options of the data source.
    """
    low = {name.lower(): value for name, value in given.items()}
    if _PROVIDER not in low:
        return dict(given)
    known = READER_OPTIONS | frozenset(OPTION_NAMES)
    return {
        name: value
        for name, value in low.items()
        if name in known
        or (_OPTION_PREFIX + name in low and name not in _OF_SPARK)  # an unknown option
    }


def is_create_table(given: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the schema of a new permanent table."""
    return any(name.lower() == _PROVIDER for name in given)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a new table, which has the options in one of its columns.

    That is the column `shard`, if the table has it, else the first one.
    """
    names = schema.fieldNames()
    place = names.index(INSERT_COLUMN) if INSERT_COLUMN in names else 0
    fields = list(schema.fields)
    one = fields[place]
    text = json.dumps(dict(sorted(options.items())))
    fields[place] = StructField(one.name, one.dataType, one.nullable, {_KEY: text})
    return StructType(fields)


def options_in(schema: StructType, column: str | None = None) -> dict[str, str] | None:
    """Return the options that `with_options` put into a schema, or None.

    column: look only there.
    """
    for field in schema.fields:
        text = (field.metadata or {}).get(_KEY)
        if isinstance(text, str) and column in (None, field.name):
            found = json.loads(text)
            assert isinstance(found, dict), text
            return {str(name): str(value) for name, value in found.items()}
    return None


def has_path(given: Mapping[str, str]) -> bool:
    """Return whether the options name a store."""
    return any(given.get(name) for name in given if name.lower() in {"path", "paths"})


def completed(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a query. Those of its table are added, unless the query has a path."""
    if has_path(given):
        return dict(given)
    stored = options_in(schema)
    if stored is None or not has_path(stored):
        raise ConfigError(MISSING)
    return stored | {name.lower(): value for name, value in given.items()}
