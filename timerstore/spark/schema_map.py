"""Map the tables of a store to Spark schemas, and check schemas given by the user.

Invariants:
    Every column is nullable, because Spark requires the exact schema from each record batch.
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
    """Return the schema of a table, limited to the columns named in the options."""
    return StructType(
        [
            StructField(one.name, LongType() if _is_long(one.kind, options) else _TYPES[one.kind])
            for one in chosen(options.table, options.columns)
        ]
    )


def _is_long(kind: Kind, options: ReadOptions) -> bool:
    return kind == "time" and options.times_as_long


def wanted_of(options: ReadOptions, schema: StructType) -> Wanted:
    """Return the scan that produces the columns of a schema.

    A schema may have any columns of the table in any order. Its time columns are all timestamps or
    all long (epoch ms). Raise ConfigError for other names and types.
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
        problems.append("time columns: wanted all timestamp or all long (epoch ms), got both")
    if problems:
        raise ConfigError(problems)
    return options.wanted(tuple(one.name for one in columns), times_as_long=times == {LongType})
