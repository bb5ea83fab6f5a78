"""Stream writes: each row is stored once across restarts, replays and failed tasks."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.spark.test_write import ROWS, came, each_once, make
from tests.support.bench import small
from tests.support.inside import Disk
from timerstore.shards import manifest
from timerstore.shards.shard_paths import ShardsTree


class Stream:
    """A stream from a directory of Parquet files, one per batch, into three shards."""

    def __init__(self, spark: Any, tmp_path: Path) -> None:
        self.spark = spark
        self.root = tmp_path / "s"
        self.input = tmp_path / "in"
        self.checkpoint = tmp_path / "checkpoint"
        self.rows = 0
        timerstore.open_shards(self.root, 3, small(), threads=False).close()

    def add(self, count: int) -> None:
        """Add one input file."""
        rows = make(self.spark, self.rows + count, 1).where(f"int(substr(key, 5)) >= {self.rows}")
        rows.coalesce(1).write.mode("append").parquet(str(self.input))
        self.rows += count

    def run(self, through: Any = None, **options: str) -> None:
        """Write the available input, then stop."""
        read = self.spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
        rows = read.parquet(str(self.input)).repartition(2)
        if through is not None:
            rows = rows.mapInArrow(through, ROWS)
        query = (
            rows.writeStream.format("timerstore")
            .option("checkpointLocation", str(self.checkpoint))
            .options(**options)
            .trigger(availableNow=True)
            .start(str(self.root))
        )
        try:
            query.awaitTermination(240)
        finally:
            query.stop()

    def versions(self) -> dict[str, list[int]]:
        """Return the committed versions of each source."""
        disk, tree = Disk(), ShardsTree(self.root)
        return {one: manifest.versions(disk, tree, one) for one in manifest.sources(disk, tree)}

    @contextmanager
    def set_aside(self) -> Iterator[Path]:
        """Undo at exit everything done in the block. Yield the checkpoint restored at exit."""
        self.checkpoint.mkdir(exist_ok=True)
        kept = [one.with_name(f"{one.name}-kept") for one in (self.root, self.checkpoint)]
        for one, copy in zip((self.root, self.checkpoint), kept, strict=True):
            shutil.copytree(one, copy)
        yield kept[1]
        for one, copy in zip((self.root, self.checkpoint), kept, strict=True):
            shutil.rmtree(one)
            copy.rename(one)

    def forget_commit(self, batch: int) -> None:
        """Make Spark replay a batch, as if the driver had died before recording it."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_stream_writes_batches_once_across_restarts_and_replays(stream: Stream) -> None:
    for count in (300, 200, 100):
        stream.add(count)
    stream.run()
    (versions,) = stream.versions().values()
    assert versions == [0, 1, 2]
    stream.run()
    stream.forget_commit(2)
    stream.run()
    stream.add(50)
    stream.forget_commit(2)
    stream.run(ingest="inline")
    (versions,) = stream.versions().values()
    assert versions == [0, 1, 2, 3]
    assert came(stream.root) == each_once(650)
    assert not list((stream.root / "_ingest/staging").rglob("*.arrow"))


def test_stream_writes_once_when_driver_dies_after_source_log_entry(stream: Stream) -> None:
    """Spark's source has recorded a file as read, but no batch with it exists.

    The next batch then has that file and the following one. Spark decides which rows are a version.
    """
    note = Path("sources/0/0")
    stream.add(300)
    with stream.set_aside() as later:
        stream.run()
        (later / note).parent.mkdir(parents=True)
        shutil.copy(stream.checkpoint / note, later / note)
    stream.add(50)
    stream.run()
    (versions,) = stream.versions().values()
    assert versions == [0], "two files, one batch"
    assert came(stream.root) == each_once(350)


def _dies_once(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    task = TaskContext.get()
    for batch in batches:
        yield batch.slice(0, 10)
        if task.attemptNumber() == 0:
            os._exit(1)
        yield batch.slice(10)


def test_stream_writes_once_when_tasks_die(stream: Stream) -> None:
    stream.add(300)
    stream.run(through=_dies_once)
    assert came(stream.root) == each_once(300)


def test_new_checkpoint_with_same_write_id_adds_nothing(stream: Stream) -> None:
    stream.add(100)
    stream.run(write_id="orders")
    shutil.rmtree(stream.checkpoint)
    stream.run(write_id="orders")
    assert stream.versions() == {"orders": [0]}
    assert came(stream.root) == each_once(100)


def test_foreach_batch_with_write_id_writes_once(stream: Stream) -> None:
    stream.add(100)
    stream.add(100)

    def write(rows: Any, batch: int) -> None:
        save = rows.write.format("timerstore").mode("append").option("write_id", f"q/{batch}")
        save.save(str(stream.root))

    for _ in range(2):
        read = stream.spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
        query = (
            read.parquet(str(stream.input))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(stream.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(240)
        stream.forget_commit(1)
    assert came(stream.root) == each_once(200)


def test_invalid_row_fails_stream_without_storing_its_batch(stream: Stream) -> None:
    stream.add(100)

    with pytest.raises(Exception, match="key: wanted text without spaces"):
        stream.run(through=_breaks_a_key)
    assert came(stream.root) == Counter()
    stream.run()
    assert came(stream.root) == each_once(100)


def _breaks_a_key(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        keys = pa.array(["two words"] * len(batch))
        yield batch.set_column(3, "key", keys)
