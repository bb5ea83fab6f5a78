"""Batch writes: each row is stored once in its shard, in spite of failures."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import small
from tests.support.inside import Disk
from tests.support.shards import bodies_of
from timerstore import shards
from timerstore.shards import committing, manifest
from timerstore.shards.shard_paths import ShardsTree
from timerstore.testing import Stepper

ROWS = "topic string, body binary, deliver_at timestamp, key string"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three small shards, closed."""
    timerstore.open_shards(tmp_path / "s", 3, small(), threads=False).close()
    return tmp_path / "s"


def make(spark: Any, count: int, parts: int = 4) -> Any:
    """Return rows `body-0` and so on, with past due times."""
    return spark.range(0, count, 1, parts).selectExpr(
        "'t' as topic",
        "cast(concat('body-', id) as binary) as body",
        "timestamp_millis(946684800000 + id) as deliver_at",
        "concat('key-', id) as key",
    )


def save(rows: Any, root: Path, **options: str) -> None:
    rows.write.format("timerstore").mode("append").options(**options).save(str(root))


def came(root: Path) -> Counter[bytes]:
    """Ingest committed rows. Return how often each body is in its topic."""
    with timerstore.open_shards(root, threads=False) as store:
        store.ingest()
        for one in store.stores:
            Stepper(one).settle()
            report = one.verify()
            assert report.clean, report
        bodies = (body for one in store.stores for body in bodies_of(one, "t"))
        return Counter(body.rstrip(b".") for body in bodies)


def each_once(count: int) -> Counter[bytes]:
    return Counter({b"body-%d" % k: 1 for k in range(count)})


def test_write_stores_each_row_once_in_its_shard(spark: Any, root: Path) -> None:
    save(make(spark, 1000), root)
    assert not list(
        (root / "_ingest/staging").rglob("*.arrow")
    )  # the shards were closed, so they ingested
    assert came(root) == each_once(1000)
    with timerstore.open_shards(root, threads=False) as store:
        for shard, one in enumerate(store.stores):
            keys = {store.shard_of(f"key-{b[5:].decode()}") for b in bodies_of(one, "t")}
            assert keys == {shard}


def test_write_stores_all_columns_in_any_order(spark: Any, root: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = spark.sql(
            """select map('x', '1', 'y', 'é') as properties, 'id-1' as message_id, 'red' as tags,
            array('a', 'b') as keys, timestamp'2031-07-01 12:00:00.123456' as deliver_at,
            'hello' as body, 't' as topic"""
        )
        save(rows, root)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with timerstore.open_shards(root, threads=False) as store:
        for one in store.stores:
            Stepper(one).settle()
        (waiting,) = store.pending()
        assert waiting.due_ms == 1_940_688_000_124  # 16:00 UTC; microseconds are rounded up
        assert waiting.message_id == "id-1"
        (found,) = store.query("t", "b")
        assert (found.body, found.tags, found.keys) == (b"hello", "red", ("a", "b"))
        assert found.properties["y"] == "é"


def test_same_write_id_writes_once(spark: Any, root: Path) -> None:
    for parts in (4, 1, 7):
        save(make(spark, 500, parts), root, write_id="import/7")
    assert came(root) == each_once(500)
    with pytest.raises(Exception, match=r"committed with other rows.*another write_id"):
        save(make(spark, 501), root, write_id="import/7")
    assert came(root) == each_once(500)
    save(make(spark, 500), root)
    assert set(came(root).values()) == {2}


def test_temporary_view_accepts_insert_and_select(spark: Any, root: Path) -> None:
    save(make(spark, 10), root)
    options = f"path '{root}', columns 'topic,body,deliver_at,key', null_body 'empty'"
    spark.sql(f"create or replace temp view v using timerstore options ({options})")
    rows = (
        make(spark, 60)
        .where("key != 'key-7'")
        .selectExpr("topic", "body", "deliver_at", "cast(key as binary) as key")
    )
    try:
        rows.createOrReplaceTempView("r")
        spark.sql("insert into v select * from r where int(substr(cast(key as string), 5)) >= 10")
        assert came(root) == each_once(60)
        assert spark.sql("select * from v where topic = 't'").count() == 60
    finally:
        spark.catalog.dropTempView("v")
        spark.catalog.dropTempView("r")


def test_path_may_be_file_uri(spark: Any, root: Path) -> None:
    make(spark, 50).write.format("timerstore").mode("append").save(f"file://{root}")
    assert came(root) == each_once(50)


def test_owner_of_open_shards_ingests_rows(spark: Any, root: Path) -> None:
    with timerstore.open_shards(root, ingest_every=0.05) as store:
        save(make(spark, 300), root)
        with store.consumer("t", "g", wait=60) as consumer:
            found = Counter(next(consumer).body for _ in range(300))
    assert found == each_once(300)
    assert came(root) == each_once(300)


def test_rows_not_ingested_wait_for_owner(spark: Any, root: Path) -> None:
    save(make(spark, 100), root, ingest="none")
    assert list((root / "_ingest/staging").rglob("*.arrow"))
    assert came(root) == each_once(100)


# --- tasks that fail ---


def _fails_once(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    task = TaskContext.get()
    for k, batch in enumerate(batches):
        if task.attemptNumber() == 0 and task.partitionId() == 1 and k == 2:
            raise ValueError("planted")
        yield batch


def _dies_once(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    task = TaskContext.get()
    for k, batch in enumerate(batches):
        if task.attemptNumber() == 0 and task.partitionId() in (0, 2) and k == 2:
            os._exit(1)
        yield batch


@pytest.mark.parametrize("failing", [_fails_once, _dies_once])
def test_write_stores_each_row_once_when_tasks_fail(spark: Any, root: Path, failing: Any) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        save(make(spark, 2000).mapInArrow(failing, ROWS), root)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert came(root) == each_once(2000)


def _fails_always(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().partitionId() == 3:
        raise ValueError("planted")


def test_failed_write_stores_nothing_and_can_be_repeated(spark: Any, root: Path) -> None:
    rows = make(spark, 400)
    with pytest.raises(Exception, match="planted"):
        save(rows.mapInArrow(_fails_always, ROWS), root, write_id="w")
    assert came(root) == Counter()
    save(rows, root, write_id="w")
    assert came(root) == each_once(400)
    shards.clean(root, old_ms=-3_600_000)
    assert not list((root / "_ingest/staging").rglob("*.arrow"))


# --- rows and columns that are wrong ---


def test_invalid_rows_fail_write_or_are_quarantined(spark: Any, root: Path) -> None:
    rows = make(spark, 100).selectExpr(
        "topic",
        "body",
        "deliver_at",
        "case when key = 'key-7' then 'two words' else key end as key",
    )
    with pytest.raises(Exception, match="key: wanted text without spaces") as caught:
        save(rows, root)
    assert "on_invalid=quarantine" in str(caught.value)
    assert came(root) == Counter()
    save(rows, root, on_invalid="quarantine", write_id="w")
    (aside,) = committing.quarantined(root, "w", 0)
    assert aside.rows == 1
    assert came(root) == each_once(100) - Counter([b"body-7"])
    nulls = make(spark, 10).selectExpr("topic", "body", "cast(null as timestamp) deliver_at")
    with pytest.raises(Exception, match="deliver_at: NULL"):
        save(nulls, root)
    with pytest.raises(Exception, match="has passed"):
        save(make(spark, 10), root, past="fail")


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        (["topic", "body", "key"], {}, "deliver_at: wanted a column deliver_at"),
        (["*", "1 as x"], {}, "column x: not known"),
        (["topic", "body", "timestamp_ntz'2030-01-01' as deliver_at"], {}, "not timestamp_ntz"),
        (["topic", "body", "interval 1 day as deliver_at"], {}, "deliver_at: wanted timestamp"),
        (["*"], {"on_invald": "fail"}, "did you mean on_invalid"),
        (["*"], {"past": "x"}, "past: wanted"),
        (["*"], {"shard_by": "customer"}, "no column 'customer'"),
    ],
)
def test_invalid_write_is_rejected_before_any_task(
    spark: Any, root: Path, columns: list[str], options: dict[str, str], why: str
) -> None:
    with pytest.raises(Exception, match=why) as caught:
        save(make(spark, 10).selectExpr(*columns), root, **options)
    assert type(caught.value).__name__ == "AnalysisException"
    assert not (root / "_ingest").exists()


def test_invalid_paths_and_modes_are_rejected(spark: Any, root: Path, tmp_path: Path) -> None:
    rows = make(spark, 10)
    with pytest.raises(Exception, match=r"no cluster\.json"):
        save(rows, tmp_path)
    with pytest.raises(Exception, match="wanted a path mounted on every host"):
        rows.write.format("timerstore").mode("append").save("hdfs://host/x")
    with pytest.raises(Exception, match="does not overwrite"):
        rows.write.format("timerstore").mode("overwrite").save(str(root))
    with pytest.raises(Exception, match="path: missing"):
        rows.write.format("timerstore").mode("append").save()
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        rows.write.format("timerstore").save(str(root))
    assert came(root) == Counter()


def test_shard_by_routes_by_column(spark: Any, root: Path) -> None:
    rows = make(spark, 200).selectExpr("*", "cast(substr(key, 5) as int) % 5 as customer")
    save(rows, root, shard_by="customer", write_id="w")
    done = manifest.load(Disk(), ShardsTree(root), "w", 0)
    assert done is not None
    assert done.row_count == 200
    with timerstore.open_shards(root, threads=False) as store:
        for one in store.stores:
            Stepper(one).settle()
        homes: dict[int, set[int]] = {}
        for shard, one in enumerate(store.stores):
            for body in bodies_of(one, "t"):
                homes.setdefault(int(body[5:]) % 5, set()).add(shard)
        assert homes == {k: {store.shard_of(str(k))} for k in range(5)}
