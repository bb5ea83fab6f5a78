"""Define the Spark data source `timerstore`.

Raises: ConfigError for invalid options when a reader or writer is created, before any task starts.
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

from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.errors import ConfigError
from timerstore.spark.backup_reader import BackupReader, split_backup
from timerstore.spark.batch import BatchReader
from timerstore.spark.read_options import parse
from timerstore.spark.schema_map import schema_of, wanted_of
from timerstore.spark.stream import StreamReader
from timerstore.spark.table_options import (
    completed,
    has_path,
    is_create_table,
    own_options,
    with_options,
)
from timerstore.spark.writer import BatchWriter, StreamWriter, check_target


class TimerStoreDataSource(DataSource):
    """Read the tables of stores, and write rows to shards."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = own_options(options)
        self._is_create_table = is_create_table(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return "timerstore"

    def schema(self) -> StructType:
        """Return the schema to use if the user gives none.

        At CREATE TABLE, it has the options of the table. A table without a path is created too: its
        queries give one.
        """
        if not self._is_create_table:
            return schema_of(parse(split_backup(self._given)[0]))
        # All columns: INSERT INTO can fill only those that the table has.
        names = ",".join(one.name for one in TABLES.get(self._given.get("table", "messages"), ()))
        whole = {"columns": names} | self._given if names else self._given
        if not has_path(self._given):
            return schema_of(parse({**whole, "path": "."}))
        # The schema of a bucket is the same whatever is in it.
        return with_options(schema_of(parse(split_backup(whole)[0])), self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a batch query."""
        given, backup = split_backup(completed(self._given, schema))
        options = parse(given)
        if backup is not None:
            return BackupReader(options, wanted_of(options, schema), backup)
        return BatchReader(options, wanted_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return a reader for a streaming query."""
        given, backup = split_backup(completed(self._given, schema))
        if backup is not None:
            raise ConfigError(f"path: a stream cannot read a backup in a bucket, got {backup.url}")
        options = parse(given)
        return StreamReader(options, wanted_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer for a batch write to shards."""
        return BatchWriter(check_target(self._given, schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """Return a writer for a streaming write to shards."""
        return StreamWriter(check_target(self._given, schema, overwrite=overwrite))
