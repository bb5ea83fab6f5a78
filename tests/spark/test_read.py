"""Batch reads with a real Spark: tables, schemas, filters, time zones, errors and SQL."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import tables_expected
from tests.support.arrow_rows import read_rows
from tests.support.bench import NOW, Bench, small
from tests.support.broker import fixtures as broker
from tests.support.shards import ShardBench

ALL = ("messages", "timers", "timer_units", "slots", "deliveries", "transactions")
Row = dict[str, Any]


def load(spark: Any, path: Path, table: str = "messages", **options: Any) -> Any:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("timerstore").option("table", table).options(**given).load(str(path))


def rows_of(frame: Any) -> list[Row]:
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        for name in ("body", "msg_id", "key"):
            if row.get(name) is not None:
                row[name] = bytes(row[name])
    return found


class Filled:
    """A closed store with all kinds of messages, and the expected rows of its tables."""

    def __init__(self, root: Path) -> None:
        self.root = root
        bench = Bench(root, small(commit_log_segment_bytes=256 * 1024))
        cancelled = set()
        for n in range(300):
            bench.store.put(("t", "orders")[n % 2], b"now %d" % n, tags="green", keys=["k"])
            receipt = bench.store.put("orders", b"x" * (n % 50), delay=2 + n % 40)
            if n % 9 == 0:
                bench.store.cancel(receipt)
                cancelled.add(receipt.log_offset)
            if n % 30 == 0:
                bench.store.put("t", b"level", level=2)
                bench.turn(1500)
        bench.turn(5000)
        bench.close()
        self.tables = {
            "messages": tables_expected.messages(root, 1000),
            "timers": read_rows(root, "timers"),
            "timer_units": tables_expected.timer_units(root, 1000, cancelled),
            "slots": tables_expected.slots(root, 1000),
            "deliveries": tables_expected.deliveries(root, 1000),
            "transactions": [],
        }


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return Filled(tmp_path_factory.mktemp("read") / "store")


def sort_key(row: Row) -> tuple[int, ...]:
    names = ("shard", "log_offset", "timer_pos", "slot")
    return tuple(row[name] for name in names if row.get(name) is not None)


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ALL)
def test_table_equals_files(spark: Any, filled: Filled, table: str) -> None:
    options = {"columns": "*", "time_type": "long", "max_partition_bytes": "64k"}
    frame = load(spark, filled.root, table, **options)
    if table in ("messages", "deliveries"):
        assert frame.rdd.getNumPartitions() > 1
    got = sorted(rows_of(frame), key=sort_key)
    assert got == sorted(filled.tables[table], key=sort_key)


@pytest.mark.parametrize("name", ["doubled-by-broker", "precision-100ms"])
def test_broker_store_is_read_unchanged(spark: Any, name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    got = rows_of(load(spark, root, "deliveries", time_type="long"))
    wanted = tables_expected.deliveries(root, broker.precision_ms(name))
    assert sorted(got, key=sort_key) == wanted
    copies = load(spark, root, "deliveries").groupBy("topic", "msg_id").count()
    [row] = copies.selectExpr("sum(count - 1) doubled").collect()
    assert row["doubled"] == (81 if name == "doubled-by-broker" else 0)


def test_shard_directory_is_one_table(spark: Any, tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "c", 3)
    for n in range(90):
        bench.store.put("t", b"%d" % n, keys=[f"k{n}"])
    bench.store.flush()
    frame = load(spark, tmp_path / "c", columns="shard,body")
    assert Counter(bytes(row["body"]) for row in frame.collect()) == {
        b"%d" % n: 1 for n in range(90)
    }
    by_shard = {row["shard"]: row["count"] for row in frame.groupBy("shard").count().collect()}
    assert by_shard == {n: len(part) for n, part in enumerate(bench.bodies())}
    assert load(spark, tmp_path / "c", shards="0,2").count() == by_shard[0] + by_shard[2]
    bench.close()


def test_transactions_table_lists_ingested_versions(spark: Any, tmp_path: Path) -> None:
    import numpy as np

    from timerstore import RowBatch

    bench = ShardBench(tmp_path / "c", 2)
    for shard, store in enumerate(bench.store.stores):
        for version in range(3):
            bodies = np.arange(version + 1) * 0
            rows = RowBatch("t", b"", np.append(bodies, 0), np.zeros(version + 1, np.int64))
            store.ingest(f"source-{shard}", version, [rows])
    bench.store.flush()
    frame = load(spark, tmp_path / "c", "transactions", columns="shard,source,version,rows")
    assert sorted(tuple(row) for row in frame.collect()) == [
        (shard, f"source-{shard}", version, version + 1)
        for shard in range(2)
        for version in range(3)
    ]
    bench.close()


def test_empty_stores_have_empty_tables(spark: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    for table in ALL:
        frame = load(spark, tmp_path / "s", table)
        assert frame.collect() == []
        assert frame.count() == 0
    bench.close()


def test_count_works_without_columns(spark: Any, filled: Filled) -> None:
    assert load(spark, filled.root).count() == len(filled.tables["messages"])


# --- schemas and columns --------------------------------------------------------------------------


def test_schema_selects_and_orders_columns(spark: Any, filled: Filled) -> None:
    schema = "log_offset long, topic string, deliver_at long"
    frame = spark.read.format("timerstore").schema(schema).load(str(filled.root))
    assert frame.columns == ["log_offset", "topic", "deliver_at"]
    wanted = [
        (row["log_offset"], row["topic"], row["deliver_at"]) for row in filled.tables["messages"]
    ]
    assert sorted(tuple(row) for row in frame.collect()) == sorted(wanted)
    assert load(spark, filled.root, columns="body_len,shard").columns == ["body_len", "shard"]
    every, default = (load(spark, filled.root, **one).columns for one in ({"columns": "*"}, {}))
    assert set(every) - set(default) == {"body", "properties"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("nope string", "has no 'nope'"),
        ("topic int", "column topic: wanted string, got int"),
        ("deliver_at date", "column deliver_at: wanted timestamp or bigint, got date"),
        ("deliver_at timestamp, stored_at long", "all timestamp or all long"),
    ],
)
def test_invalid_schema_is_rejected(spark: Any, filled: Filled, schema: str, text: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as caught:
        spark.read.format("timerstore").schema(schema).load(str(filled.root)).collect()
    assert text in str(caught.value)


def test_times_are_same_instants_in_any_session_zone(spark: Any, filled: Filled) -> None:
    wanted = sorted(row["stored_at"] for row in filled.tables["messages"])
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("America/New_York", "Asia/Kathmandu", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            frame = load(spark, filled.root).selectExpr("unix_millis(stored_at) ms")
            assert sorted(row["ms"] for row in frame.collect()) == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    shown = load(spark, filled.root, columns="stored_at").sort("stored_at").first()["stored_at"]
    assert shown == datetime.fromtimestamp(wanted[0] / 1000, UTC).replace(tzinfo=None)


# --- filters --------------------------------------------------------------------------------------

AT = f"timestamp_millis({NOW + 3000})"
PREDICATES = [
    f"deliver_at >= {AT}",
    f"deliver_at > {AT} and deliver_at <= timestamp_millis({NOW + 9000})",
    f"deliver_at < {AT} - interval 500 microseconds",
    f"deliver_at = {AT}",
    f"deliver_at between {AT} and timestamp_millis({NOW + 4000})",
    "deliver_at is null",
    f"not deliver_at > {AT}",
    f"deliver_at > {AT} or topic = 't'",
    "cast(stored_at as date) = date'2023-11-14'",
    f"stored_at < {AT}",
    "topic = 'orders'",
    "topic in ('t', 'none')",
    "topic <=> 'orders'",
    "topic = 'none'",
    "shard = 0",
    "shard in (1, 2)",
    "log_offset >= 100000 and log_offset < 200000",
    "log_offset in (0, 5)",
    "queue_offset > 5",
    "tags = 'green' and body_len > 3",
    "msg_id is not null and key = X'6B'",
    "kind = 'delivered'",
]


@pytest.mark.parametrize("table", ["messages", "deliveries"])
def test_filters_equal_spark_filters(spark: Any, filled: Filled, table: str) -> None:
    known = {"deliveries": {"stored_at", "tags", "key", "kind", "body_len"}}.get(table, set())
    columns = "shard, log_offset"
    scanned = load(spark, filled.root, table, max_partition_bytes="64k")
    known_rows = spark.createDataFrame(scanned.collect(), scanned.schema)
    queries = [one for one in PREDICATES if not any(name in one for name in known)]

    def union(frame: Any) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        parts = [
            frame.where(one).selectExpr(f"{n} as n", *columns.split(", "))
            for n, one in enumerate(queries)
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionAll(part)  # one job for all of them
        found.update(tuple(row) for row in whole.collect())
        return found

    assert union(scanned) == union(known_rows)


@pytest.mark.parametrize("switch", ["true", "false"])
def test_query_ignores_filters_of_previous_query(spark: Any, tmp_path: Path, switch: str) -> None:
    """Spark keeps one plan for all queries of a DataFrame."""
    bench = ShardBench(tmp_path, 3)
    for n in range(30):
        bench.store.put("t", b"x", keys=[str(n)])
    bench.close()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", switch)
    try:
        frame = load(spark, tmp_path, columns="shard", pushdown="true")
        parts = [frame.where(f"shard = {n}") for n in range(3)]
        found = [part.count() for part in parts]
        assert min(found) > 0
        assert (sum(found), frame.count()) == (30, 30)
        assert parts[0].union(parts[1]).count() == found[0] + found[1]
        assert frame.where("shard = 0 or shard = 2").count() == found[0] + found[2]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_options_narrow_rows(spark: Any, filled: Filled) -> None:
    edge = NOW + 6000
    frame = load(spark, filled.root, deliver_from_ms=edge, topics="orders", columns="log_offset")
    wanted = {
        row["log_offset"]
        for row in filled.tables["messages"]
        if row["topic"] == "orders" and (row["deliver_at"] or 0) >= edge
    }
    assert wanted
    assert {row["log_offset"] for row in frame.collect()} == wanted
    keyed = load(spark, filled.root, keys="none,k", columns="log_offset")
    wanted = {row["log_offset"] for row in filled.tables["messages"] if row["key"] == b"k"}
    assert wanted
    assert {row["log_offset"] for row in keyed.collect()} == wanted


# --- concurrent writer ----------------------------------------------------------------------------


def test_as_of_reads_same_state_while_store_is_written(spark: Any, tmp_path: Path) -> None:
    from timerstore.spark import latest_offsets

    bench = Bench(tmp_path / "s")
    for n in range(20):
        bench.store.put("t", b"x", delay=5 + n)
    bench.turn(10_000)
    bench.store.flush()
    pinned = latest_offsets(tmp_path / "s")

    def everything() -> list[list[Row]]:
        return [rows_of(load(spark, tmp_path / "s", t, as_of=pinned).sort("shard")) for t in ALL]

    before = everything()
    for _ in range(20):
        bench.store.put("t", b"y", delay=5)
    bench.turn(10_000)
    bench.store.flush()
    assert [sorted(map(str, one)) for one in everything()] == [
        sorted(map(str, one)) for one in before
    ]
    assert load(spark, tmp_path / "s").count() > len(before[0])
    bench.close()


# --- errors ---------------------------------------------------------------------------------------


def test_corrupt_error_names_file(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    bench = Bench(tmp_path / "s")
    for n in range(20):
        bench.store.put("t", b"body %d" % n)
    bench.close()
    [path] = [p for p in (tmp_path / "s" / "commitlog").iterdir() if b"body 7" in p.read_bytes()]
    path.write_bytes(path.read_bytes().replace(b"body 7", b"bodi 7"))
    with pytest.raises(PythonException) as caught:
        load(spark, tmp_path / "s").collect()
    for wanted in ("CorruptError", "shard 0", str(path), "CRC", "on_corrupt=skip"):
        assert wanted in str(caught.value)
    assert load(spark, tmp_path / "s", on_corrupt="skip").count() == 19
    assert load(spark, tmp_path / "s", on_corrupt="stop").count() == 7
    assert load(spark, tmp_path / "s", verify_crc="false").count() == 20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "CREATE TEMPORARY VIEW"),
        ({"path": "/nonexistent"}, "/nonexistent is no directory"),
        ({"path": "/tmp", "tabel": "timers"}, "tabel: unknown option"),
        ({"path": "/tmp", "table": "nope"}, "wanted one of messages"),
    ],
)
def test_invalid_read_options_are_rejected_before_job(spark: Any, options: Any, text: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as caught:
        spark.read.format("timerstore").options(**options).load().collect()
    assert text in str(caught.value)


# --- names ----------------------------------------------------------------------------------------


def test_temporary_view_is_readable_in_sql(spark: Any, filled: Filled) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW due USING TimerStore "
        f"OPTIONS (path '{filled.root}', table 'timer_units')"
    )
    [row] = spark.sql("SELECT count(*) n, count_if(cancelled) gone FROM due").collect()
    timers = filled.tables["timer_units"]
    assert (row["n"], row["gone"]) == (len(timers), sum(one["cancelled"] for one in timers))


def test_register_makes_source_available(spark: Any, filled: Filled) -> None:
    from timerstore.spark import register

    register(spark)
    assert load(spark, filled.root, "slots").count() == len(filled.tables["slots"])


def test_limit_returns_requested_rows(spark: Any, filled: Filled) -> None:
    assert len(load(spark, filled.root, batch_rows=10).limit(3).collect()) == 3
