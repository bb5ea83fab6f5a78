"""Options of permanent SQL tables: Spark's table properties, and options kept in the schema."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

import timerstore
from tests.support.bench import small
from timerstore.errors import ConfigError, MessageError
from timerstore.shards.message_writeback import SET_BY_STORE
from timerstore.spark import TABLES
from timerstore.spark.datasource import TimerStoreDataSource
from timerstore.spark.table_options import completed, options_in, own_options, with_options
from timerstore.spark.writer import check_target, inserted_rows

OF_SPARK = {"provider": "timerstore", "owner": "me", "location": "file:/s", "external": "true"}


def test_table_properties_of_spark_are_ignored() -> None:
    given = {
        **OF_SPARK,
        "path": "file:/s",
        "option.table": "timers",
        "table": "timers",
        "team": "x",
    }
    assert own_options(given) == {"path": "file:/s", "table": "timers"}


def test_unknown_option_of_a_new_table_is_rejected() -> None:
    given = {**OF_SPARK, "path": "file:/s", "option.tabel": "timers", "tabel": "timers"}
    with pytest.raises(ConfigError, match="tabel: unknown option"):
        TimerStoreDataSource(given).schema()


def test_properties_are_options_outside_of_create_table() -> None:
    with pytest.raises(ConfigError, match="owner: unknown option"):
        TimerStoreDataSource({"path": "/s", "owner": "me"}).schema()


@pytest.mark.parametrize("table", ["messages", "timers", "transactions"])
def test_new_table_keeps_its_options_in_the_schema(table: str) -> None:
    schema = TimerStoreDataSource({**OF_SPARK, "path": "file:/s", "table": table}).schema()
    assert options_in(schema, "shard") == {"path": "file:/s", "table": table}
    assert completed({}, schema) == {"path": "file:/s", "table": table}
    assert completed({"Batch_Rows": "5"}, schema)["batch_rows"] == "5"
    assert completed({"PATH": "/other"}, schema) == {"PATH": "/other"}


def test_new_table_has_all_columns_unless_some_are_given() -> None:
    given = {**OF_SPARK, "path": "/s"}
    schema = TimerStoreDataSource(given).schema()
    assert schema.fieldNames() == [one.name for one in TABLES["messages"]]
    assert TimerStoreDataSource({**given, "columns": "topic"}).schema().fieldNames() == ["topic"]
    with pytest.raises(ConfigError, match="table: wanted one of"):
        TimerStoreDataSource({**given, "table": "nope"}).schema()


def test_new_table_without_a_path_keeps_nothing() -> None:
    schema = TimerStoreDataSource(OF_SPARK).schema()
    assert options_in(schema) is None
    with pytest.raises(ConfigError, match=r"path: missing.*CREATE TABLE has no list of columns"):
        TimerStoreDataSource({}).reader(schema)


def test_options_go_to_first_column_without_shard() -> None:
    schema = StructType([StructField("topic", StringType()), StructField("flags", LongType())])
    marked = with_options(schema, {"path": "/s"})
    assert options_in(marked) == {"path": "/s"}
    assert options_in(marked, "shard") is None
    assert marked == schema or marked.fieldNames() == schema.fieldNames()


def new_table(path: Path, **options: str) -> StructType:
    return TimerStoreDataSource({**OF_SPARK, "path": str(path), **options}).schema()


def test_insert_uses_path_of_the_table(tmp_path: Path) -> None:
    timerstore.open_shards(tmp_path / "s", 2, small(), threads=False).close()
    target = check_target({}, new_table(tmp_path / "s"), overwrite=False)
    assert (target.root, target.are_inserted) == (tmp_path / "s", True)
    for options, why in (
        ({"table": "timers"}, "wanted a table of messages"),
        ({"columns": "topic,body,deliver_at"}, "path: missing"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_target({}, new_table(tmp_path / "s", **options), overwrite=False)


def test_rows_of_another_table_are_not_written_to_a_path(tmp_path: Path) -> None:
    timerstore.open_shards(tmp_path / "s", 2, small(), threads=False).close()
    options = {"path": str(tmp_path / "s"), "rows": "messages"}
    with pytest.raises(ConfigError, match="shard: it has the options of the SQL table"):
        check_target(options, new_table(tmp_path / "other"), overwrite=False)
    assert not check_target(options, new_table(tmp_path / "s"), overwrite=False).are_inserted


def test_inserted_rows_have_no_values_that_the_store_sets() -> None:
    empty = {name: pa.array([None, None], pa.int64()) for name in SET_BY_STORE}
    given = {"topic": pa.array(["t", "u"]), "msg_id": pa.array([b"1", b"2"])}
    rows = inserted_rows(pa.record_batch({**empty, **given}))
    assert rows.to_pydict() == {"topic": ["t", "u"], "message_id": [b"1", b"2"]}
    with pytest.raises(MessageError, match="wanted no values in shard, which the store sets"):
        inserted_rows(pa.record_batch({**empty, **given, "shard": pa.array([None, 0])}))
