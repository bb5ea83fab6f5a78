"""Streams without a JVM: call the reader as Spark does, over damaged and truncated logs."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support import disk_reader as disk
from tests.support.bench import Bench, small
from timerstore._engine.snapshot.columns.table_scan import records, units
from timerstore._engine.snapshot.position import refreshed, take
from timerstore.errors import CorruptError, FailedError
from timerstore.spark.offsets import ends_of, make
from timerstore.spark.read_options import parse
from timerstore.spark.stream import StreamReader


def reader(root: Path, **given: Any) -> StreamReader:
    options = parse({"path": str(root)} | {name: str(value) for name, value in given.items()})
    column = "timer_pos" if options.table == "timer_units" else "log_offset"
    return StreamReader(options, options.wanted((column,), times_as_long=False))


def streamed(stream: StreamReader) -> tuple[list[int], int]:
    """Read all batches; return the log offsets of the rows, and the number of batches."""
    start, found, count = stream.initialOffset(), [], 0
    while True:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if end == start:
            return found, count
        for partition in stream.partitions(start, end):
            task = partition.value
            found += [
                int(at)
                for some in records(task.part, task.wanted)
                for at in some.rows["log_offset"]
            ]
        start, count = end, count + 1


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, list[int], int]:
    """A store with one damaged record header: its root, all offsets, and the damaged one."""
    bench = Bench(tmp_path / "s")
    for n in range(40):
        bench.store.put("t", b"%d" % n * 100)
    bench.turn()
    bench.store.flush()
    bench.close()
    offsets = [one.log_offset for one in disk.records(tmp_path / "s")]
    bad = offsets[17]
    with (tmp_path / "s" / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(bad + 4)
        file.write(b"\xff" * 4)
    return tmp_path / "s", offsets, bad


@pytest.mark.parametrize(
    "limit",
    [
        *({"max_records_per_trigger": n} for n in (1, 5, 17, 18, 100)),
        *({"max_bytes_per_trigger": n} for n in (1, 1000, 1 << 20)),
        {"max_records_per_trigger": 6, "max_bytes_per_trigger": 2000},
        {},
    ],
)
def test_limited_stream_continues_after_damage(
    damaged: tuple[Path, list[int], int], limit: dict[str, int]
) -> None:
    root, offsets, bad = damaged
    found, count = streamed(reader(root, on_corrupt="skip", **limit))
    assert found == [one for one in offsets if one != bad]
    assert count > 1 or not limit or max(limit.values()) >= 100


def test_limited_stream_raises_at_damage_when_skip_is_off(
    damaged: tuple[Path, list[int], int],
) -> None:
    root, offsets, bad = damaged
    stream = reader(root, max_records_per_trigger=10)
    start, ends = stream.initialOffset(), []
    for _ in range(2):
        start = stream.latestOffset(start, stream.getDefaultReadLimit())
        ends.append(ends_of(start)[0])
    with pytest.raises(CorruptError, match=r"shard 0.*on_corrupt=skip"):
        stream.latestOffset(start, stream.getDefaultReadLimit())
    assert ends == [offsets[10], bad]
    assert offsets.index(bad) == 17


def test_timers_removed_by_retention_are_data_loss(tmp_path: Path) -> None:
    root = tmp_path / "s"
    bench = Bench(root, small(timer_log_segment_bytes=4096))
    for n in range(300):
        bench.store.put("t", b"x", delay=10 + n % 50)
    bench.turn()
    bench.store.flush()
    before = take(root)
    loses, goes_on = (
        reader(root, table="timer_units", columns="timer_pos", fail_on_data_loss=way)
        for way in ("true", "false")
    )
    limit = loses.getDefaultReadLimit()
    ends = [one.latestOffset(one.initialOffset(), limit) for one in (loses, goes_on)]
    assert ends[0] == ends[1]
    begin = make({0: 52})
    os.unlink(root / "timerlog" / f"{0:020d}")  # noqa: PTH108 - as retention does
    assert (before.timer_log_begin, refreshed(before).timer_log_begin) == (0, 4096)
    with pytest.raises(FailedError, match="retention removed 4044 bytes"):
        loses.partitions(begin, ends[0])
    found = [
        int(pos)
        for partition in goes_on.partitions(begin, ends[0])
        for rows in units(partition.value.part, partition.value.wanted)
        for pos in rows["timer_pos"]
    ]
    assert found == [one.pos for one in disk.timer_units(root) if one.pos >= 4096]
    with pytest.raises(FailedError, match="moved, or replaced"):
        bench.store.close()  # the test removed the segment, not retention
