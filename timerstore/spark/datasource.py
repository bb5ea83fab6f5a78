"""The data source `timerstore`.

Holds:    options are checked when a reader or writer is made, so that what is wrong is said before
          a job.
"""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from timerstore.spark.batch import BatchReader
from timerstore.spark.read_options import parse
from timerstore.spark.schemas import schema_of, wanted_of
from timerstore.spark.stream import StreamReader
from timerstore.spark.writing import BatchWriter, StreamWriter, check_target


class TimerStoreDataSource(DataSource):
    """Stores as tables, and shards as a sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Give the name for `format`."""
        return "timerstore"

    def schema(self) -> StructType:
        """Give the columns where the user names none."""
        return schema_of(parse(self._given))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once."""
        options = parse(self._given)
        return BatchReader(options, wanted_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Read on and on."""
        options = parse(self._given)
        return StreamReader(options, wanted_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Write once, into shards."""
        return BatchWriter(check_target(self._given, schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Write on and on, into shards."""
        return StreamWriter(check_target(self._given, schema, overwrite=overwrite))
