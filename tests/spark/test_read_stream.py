"""Stream reads with a real Spark: each record once, with limits, restarts and new data."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.shards import ShardBench


def put(bench: Any, first: int, count: int) -> None:
    for n in range(first, first + count):
        bench.store.put("t", b"%d" % n, keys=[f"k{n}"])
    bench.store.flush()


class Stream:
    """A stream into memory with a checkpoint, which can be run repeatedly."""

    def __init__(self, spark: Any, path: Path, scratch: Path, **options: Any) -> None:
        self.spark, self.path, self.scratch = spark, path, scratch
        options = {"columns": "*"} | options
        self.options = {name: str(value) for name, value in options.items()}
        self.batches: list[tuple[int, list[Any]]] = []

    def run(self, column: str = "body", **more: Any) -> list[Any]:
        """Run the stream with AvailableNow, and return the values of the column."""
        given = self.options | {name: str(value) for name, value in more.items()}
        frame = self.spark.readStream.format("timerstore").options(**given).load(str(self.path))
        found: list[Any] = []

        def take(batch: Any, number: int) -> None:
            rows = [row[0] for row in batch.select(column).collect()]
            found.extend(rows)
            self.batches.append((number, rows))

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.scratch / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return found


def numbers(found: list[Any]) -> list[int]:
    return sorted(int(bytes(one)) for one in found)


def test_stream_reads_each_record_once_across_restarts(spark: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    put(bench, 0, 30)
    stream = Stream(spark, tmp_path / "s", tmp_path)
    assert numbers(stream.run()) == list(range(30))
    assert stream.run() == []
    put(bench, 30, 10)
    assert numbers(stream.run()) == list(range(30, 40))
    assert [number for number, _ in stream.batches] == [0, 1]  # no batch for a run without new data
    bench.close()


def test_max_records_per_trigger_limits_batches(spark: Any, tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 3)
    put(bench, 0, 50)
    stream = Stream(spark, tmp_path / "s", tmp_path, max_records_per_trigger=20)
    assert numbers(stream.run()) == list(range(50))
    sizes = [len(rows) for _, rows in stream.batches]
    assert max(sizes) <= 20
    assert len(sizes) in (3, 4)
    bench.close()


def test_max_bytes_per_trigger_limits_batches(spark: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    put(bench, 0, 40)
    size = bench.store.stats()["log_end_bytes"]
    stream = Stream(spark, tmp_path / "s", tmp_path, max_bytes_per_trigger=size // 4)
    assert numbers(stream.run()) == list(range(40))
    assert 4 <= len(stream.batches) <= 6
    bench.close()


def test_stream_reads_deliveries(spark: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    for n in range(20):
        bench.store.put("t", b"x", delay=1 + n)
    bench.turn(10_000)
    bench.store.flush()
    stream = Stream(spark, tmp_path / "s", tmp_path, table="deliveries", time_type="long")
    first = stream.run("deliver_at")
    assert sorted(first) == [NOW + 1000 * (n + 1) for n in range(10)]
    bench.turn(30_000)
    bench.store.flush()
    assert sorted(stream.run("deliver_at")) == [NOW + 1000 * (n + 1) for n in range(10, 20)]
    bench.close()


def test_stream_reads_timer_units(spark: Any, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_log_segment_bytes=4096))
    for n in range(200):
        bench.store.put("t", b"x", delay=10 + n % 5)
    bench.turn()
    bench.store.flush()
    columns = "timer_pos,deliver_at"
    options = {"table": "timer_units", "columns": columns, "max_records_per_trigger": 90}
    stream = Stream(spark, tmp_path / "s", tmp_path, **options)
    found = stream.run("timer_pos")
    assert len(found) == len(set(found)) == 200
    assert [len(rows) for _, rows in stream.batches] == [90, 90, 20]
    bench.close()


def test_starting_offsets_set_first_record(spark: Any, tmp_path: Path) -> None:
    from timerstore.spark import latest_offsets

    bench = Bench(tmp_path / "s")
    put(bench, 0, 10)
    latest = latest_offsets(tmp_path / "s")
    bench.clock.set(NOW + 60_000)
    put(bench, 10, 5)
    since = f"timestamp:{NOW + 1}"
    for n, (start, wanted) in enumerate([(latest, range(10, 15)), (since, range(10, 15))]):
        scratch = tmp_path / str(n)
        stream = Stream(spark, tmp_path / "s", scratch, starting_offsets=start)
        assert numbers(stream.run()) == list(wanted)
    bench.close()


def test_stream_fails_when_store_was_set_back(spark: Any, tmp_path: Path) -> None:
    import shutil

    from pyspark.errors import StreamingQueryException

    bench = Bench(tmp_path / "s")
    put(bench, 0, 5)
    bench.close()
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    bench.open()
    put(bench, 5, 20)
    bench.close()
    stream = Stream(spark, tmp_path / "s", tmp_path)
    assert numbers(stream.run()) == list(range(25))
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "old", tmp_path / "s")
    with pytest.raises(StreamingQueryException, match="was set back"):
        stream.run()
    bench.open()
    bench.store.put_many("t", [b"other sizes"] * 40)
    bench.store.flush()
    bench.close()
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        stream.run()


def test_invalid_stream_options_are_rejected(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    bench = Bench(tmp_path / "s")
    put(bench, 0, 1)
    for options, text in (
        ({"table": "slots"}, "for a stream, got slots"),
        ({"table": "timer_units"}, "column cancelled"),
        ({"table": "timers"}, "for a stream, got timers"),
        ({"starting_offsets": "latest"}, "latest_offsets"),
    ):
        with pytest.raises((AnalysisException, StreamingQueryException)) as caught:
            Stream(spark, tmp_path / "s", tmp_path / options.get("table", "x"), **options).run("1")
        assert text in str(caught.value)
    bench.close()
