"""Spark's types of the tables, and what a user schema asks for.

Holds:    every column is nullable, as Spark compares a batch's schema exactly.
"""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from timerstore._engine.snapshot.columns.schemas import Kind, chosen
from timerstore._engine.snapshot.columns.table_scan import Wanted
from timerstore.errors import ConfigError
from timerstore.spark.read_options import ReadOptions

_TYPES: dict[Kind, DataType] = {
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "map": MapType(StringType(), StringType()),
    "time": TimestampType(),
}


def schema_of(options: ReadOptions) -> StructType:
    """Give the schema of a table, or of the columns that the options name."""
    return StructType(
        [
            StructField(one.name, LongType() if _is_long(one.kind, options) else _TYPES[one.kind])
            for one in chosen(options.table, options.columns)
        ]
    )


def _is_long(kind: Kind, options: ReadOptions) -> bool:
    return kind == "time" and options.times_as_long


def wanted_of(options: ReadOptions, schema: StructType) -> Wanted:
    """Give what a schema asks for: any of the table's columns, in any order; times as timestamp or
    as long (epoch ms). ConfigError on other names and types.
    """
    columns = chosen(options.table, tuple(schema.fieldNames()))
    problems, times = [], set()
    for column, field in zip(columns, schema.fields, strict=True):
        allowed = [_TYPES[column.kind]]
        if column.kind == "time":
            allowed.append(LongType())
            times.add(type(field.dataType))
        if field.dataType not in allowed:
            names = " or ".join(one.simpleString() for one in allowed)
            problems.append(
                f"column {column.name}: wanted {names}, got {field.dataType.simpleString()}"
            )
        if not field.nullable:
            problems.append(f"column {column.name}: wanted nullable, got NOT NULL")
    if len(times) > 1:
        problems.append("columns with times: wanted all timestamp or all long (epoch ms)")
    if problems:
        raise ConfigError(problems)
    return options.wanted(tuple(one.name for one in columns), times_as_long=times == {LongType})
