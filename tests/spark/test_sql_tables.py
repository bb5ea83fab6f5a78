"""Permanent SQL tables: CREATE TABLE, SELECT, INSERT INTO, and what Spark does not pass on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.spark.test_write import came
from tests.support.bench import small
from timerstore.spark import TABLES

NEW = "(topic, body, deliver_at)"
A_ROW = "'t' AS topic, X'61' AS body, timestamp'2000-02-01' AS deliver_at"


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories of small shards, closed."""
    for name in ("one", "two"):
        timerstore.open_shards(tmp_path / name, 2, small(), threads=False).close()
    return tmp_path / "one", tmp_path / "two"


@pytest.fixture
def tables(spark: Any, roots: tuple[Path, Path]) -> Iterator[None]:
    """The tables t1 and t2."""
    for name, root in zip(("t1", "t2"), roots, strict=True):
        spark.sql(f"CREATE TABLE {name} USING timerstore OPTIONS (path '{root}')")
    yield
    for name in ("t1", "t2"):
        spark.sql(f"DROP TABLE {name}")


def count(spark: Any, text: str) -> int:
    return int(spark.sql(text).first()[0])


def test_table_is_readable_and_writable(spark: Any, roots: tuple[Path, Path], tables: None) -> None:
    assert count(spark, "SELECT count(*) FROM t1") == 0
    spark.sql(f"INSERT INTO t1 {NEW} SELECT {A_ROW}")
    spark.sql(f"INSERT INTO t1 BY NAME SELECT {A_ROW}, map('x', '1') AS properties")
    spark.sql(
        f"INSERT INTO t1 WITH (write_id = 'w') (topic, body, deliver_at, msg_id) "
        f"SELECT {A_ROW}, X'62'"
    )
    mine = "topic = 't'"
    assert count(spark, f"SELECT count(*) FROM t1 WHERE {mine}") == 3
    assert count(spark, f"SELECT count(*) FROM t1 WHERE {mine} AND msg_id = X'62'") == 1
    assert count(spark, f"SELECT count(*) FROM t1 WHERE {mine} AND properties['x'] = '1'") == 1
    assert came(roots[0]) == {b"a": 3}
    assert came(roots[1]) == {}


def test_rows_of_one_table_never_go_to_the_other(
    spark: Any, roots: tuple[Path, Path], tables: None
) -> None:
    """Spark passes the metadata of t1, as the columns are the same."""
    spark.sql(f"INSERT INTO t1 {NEW} SELECT {A_ROW}")
    with pytest.raises(Exception, match="wanted no values in shard"):
        spark.sql("INSERT INTO t2 SELECT * FROM t1")
    back = spark.table("t1").where("topic = 't'").write.format("timerstore").mode("append")
    with pytest.raises(Exception, match="shard: it has the options of the SQL table"):
        back.option("rows", "messages").save(str(roots[1]))
    assert (came(roots[0]), came(roots[1])) == ({b"a": 1}, {})
    spark.sql(
        f"INSERT INTO t2 {NEW} SELECT topic, body, deliver_at FROM "
        f"(SELECT topic, body, stored_at AS deliver_at FROM t1 WHERE topic = 't')"
    )
    rows = spark.table("t1").where("topic = 't'").drop("shard")
    rows.write.format("timerstore").mode("append").option("rows", "messages").save(str(roots[1]))
    assert came(roots[1]) == {b"a": 2}


def test_insert_overwrite_and_missing_values_are_rejected(spark: Any, tables: None) -> None:
    with pytest.raises(Exception, match="does not overwrite"):
        spark.sql(f"INSERT OVERWRITE t1 {NEW} SELECT {A_ROW}")
    with pytest.raises(Exception, match="deliver_at: NULL"):
        spark.sql("INSERT INTO t1 (topic, body) VALUES ('t', X'61')")


@pytest.mark.parametrize(
    "clause",
    [
        "LOCATION '{root}'",
        "OPTIONS (path '{root}') COMMENT 'x' TBLPROPERTIES ('team' = 'a', 'owner2' = 'b')",
        "TBLPROPERTIES ('path' = '{root}')",
    ],
)
def test_path_of_a_table(spark: Any, roots: tuple[Path, Path], clause: str) -> None:
    spark.sql(f"CREATE TABLE p USING timerstore {clause.format(root=roots[0])}")
    try:
        assert count(spark, "SELECT count(*) FROM p") == 0
    finally:
        spark.sql("DROP TABLE p")
    assert (roots[0] / "cluster.json").exists()
    assert (roots[0] / "shard-00001").is_dir()


def test_options_of_a_table(spark: Any, roots: tuple[Path, Path]) -> None:
    with pytest.raises(Exception, match="tabel: unknown option"):
        spark.sql(f"CREATE TABLE o USING timerstore OPTIONS (path '{roots[0]}', tabel 'timers')")
    spark.sql(
        f"CREATE TABLE o USING timerstore OPTIONS (path '{roots[0]}', table 'timers', "
        "columns 'deliver_at,level')"
    )
    try:
        assert spark.table("o").columns == ["deliver_at", "level"]
        assert spark.table("o").count() == 0
        with pytest.raises(Exception, match="timer_units"):
            spark.readStream.table("o").writeStream.format("noop").start().processAllAvailable()
    finally:
        spark.sql("DROP TABLE o")


def test_table_can_be_read_as_a_stream(spark: Any, roots: tuple[Path, Path]) -> None:
    spark.sql(f"CREATE TABLE m USING timerstore OPTIONS (path '{roots[0]}')")
    try:
        assert spark.readStream.table("m").isStreaming
    finally:
        spark.sql("DROP TABLE m")


def test_table_with_given_columns_needs_the_path_in_each_query(
    spark: Any, roots: tuple[Path, Path]
) -> None:
    path = f"WITH (`path` = '{roots[0]}')"
    spark.sql(
        "CREATE TABLE c (topic string, body binary, deliver_at timestamp) USING timerstore "
        f"OPTIONS (path '{roots[0]}')"
    )
    try:
        for text in ("SELECT * FROM c", f"INSERT INTO c SELECT {A_ROW}"):
            with pytest.raises(Exception, match=r"path: missing.* no list of columns"):
                spark.sql(text).collect()
        spark.sql(f"INSERT INTO c {path} SELECT {A_ROW}")
        assert count(spark, f"SELECT count(*) FROM c {path} WHERE topic = 't'") == 1
    finally:
        spark.sql("DROP TABLE c")


def test_create_as_select_is_rejected(spark: Any, roots: tuple[Path, Path]) -> None:
    with pytest.raises(Exception, match=r"path: missing.* no AS SELECT"):
        spark.sql(f"CREATE TABLE q USING timerstore OPTIONS (path '{roots[0]}') AS SELECT {A_ROW}")
    assert not spark.catalog.tableExists("q")


def test_save_as_table_and_write_to_take_a_path(spark: Any, roots: tuple[Path, Path]) -> None:
    rows, path = spark.sql(f"SELECT {A_ROW}"), str(roots[0])
    try:
        for _ in range(2):
            rows.write.format("timerstore").mode("append").option("path", path).saveAsTable("g")
        rows.writeTo("h").using("timerstore").option("path", path).create()
        rows.writeTo("h").option("path", path).append()
        with pytest.raises(Exception, match="path: missing"):
            rows.writeTo("h").append()
        assert spark.read.option("path", path).table("g").where("topic = 't'").count() == 4
    finally:
        for name in ("g", "h"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
    assert came(roots[0]) == {b"a": 4}


def test_temporary_view_takes_inserts(spark: Any, roots: tuple[Path, Path]) -> None:
    columns = ",".join(one.name for one in TABLES["messages"])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW w USING timerstore "
        f"OPTIONS (path '{roots[0]}', columns '{columns}')"
    )
    spark.sql(f"INSERT INTO w {NEW} SELECT {A_ROW}")
    assert came(roots[0]) == {b"a": 1}
