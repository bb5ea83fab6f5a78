"""Planning a read without a JVM: shards, parts, bounds and pinned states."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import disk_reader as disk
from tests.support.bench import NOW, Bench, small
from tests.support.shards import ShardBench
from timerstore._engine.snapshot.columns.table_scan import Part, Wanted, records, units
from timerstore._engine.snapshot.position import take
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.spark import latest_offsets, plan
from timerstore.spark.plan import split_log, split_timers
from timerstore.spark.read_options import parse


def options(path: Path, **given: Any) -> Any:
    return parse({"path": str(path)} | {name: str(value) for name, value in given.items()})


def tasks(path: Path, **given: Any) -> list[plan.Task]:
    asked = options(path, **given)
    return plan.plan(asked, asked.wanted(("log_offset",), times_as_long=False)).tasks


def offsets_of(found: list[plan.Task]) -> list[tuple[int, int]]:
    """Return (shard, log offset) of every record that the tasks read."""
    return [
        (task.part.shard, int(at))
        for task in found
        for some in records(task.part, task.wanted)
        for at in some.rows["log_offset"]
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several segments and topics, whose store times increase."""
    root = tmp_path_factory.mktemp("plan") / "store"
    bench = Bench(root, small(commit_log_segment_bytes=256 * 1024))
    for n in range(60):
        bench.store.put_many(("t", "orders", "mail")[n // 20], [b"x" * 300] * 40)
        bench.store.put("later", b"y", delay=3000 + n)
        bench.turn(600_000)
    bench.store.flush()
    bench.close()
    return root


def all_offsets(root: Path) -> list[tuple[int, int]]:
    return [(0, record.log_offset) for record in disk.records(root)]


@pytest.mark.parametrize("size", ["64k", "100k", "300k", "1g"])
def test_parts_cover_log_once(filled: Path, size: str) -> None:
    found = tasks(filled, max_partition_bytes=size)
    wanted = all_offsets(filled)
    assert offsets_of(found) == wanted
    starts = {at for _, at in wanted}
    assert all(task.part.begin in starts for task in found)
    bytes_max = {"64k": 64 << 10, "100k": 100 << 10, "300k": 300 << 10, "1g": 1 << 30}[size]
    total = wanted[-1][1]
    assert len(found) >= total // bytes_max
    # A cut is at most one record and one blank away from its target.
    assert all(one.part.end - one.part.begin <= bytes_max + 4096 for one in found)


def test_parts_begin_at_segments_when_queues_are_missing(filled: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(filled, copy)
    shutil.rmtree(copy / "consumequeue")
    (copy / "timerstore" / "watermark").unlink()
    found = tasks(copy, max_partition_bytes="64k")
    assert {task.part.begin % (256 * 1024) for task in found} == {0}
    assert len(found) > 2
    assert offsets_of(found) == all_offsets(filled)


def test_plan_ignores_wrong_queue_units(filled: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(filled, copy)
    for path in (copy / "consumequeue").rglob("0*"):
        if path.is_file():
            raw = path.read_bytes()
            wrong = bytearray(raw)
            for at in range(7, len(raw), 20):
                wrong[at] = (raw[at] + 1) % 256  # changes each log offset by one
            path.write_bytes(bytes(wrong))
    found = tasks(copy, max_partition_bytes="64k")
    assert offsets_of(found) == all_offsets(filled)


@pytest.mark.more
@given(
    low=st.none() | st.integers(-1, 61),
    high=st.none() | st.integers(-1, 61),
    topics=st.none()
    | st.lists(st.sampled_from(["t", "orders", "mail", "none", "../t"]), min_size=1, max_size=3),
)
def test_plan_drops_only_rows_outside_bounds(
    filled: Path, low: int | None, high: int | None, topics: list[str] | None
) -> None:
    times = [None if one is None else NOW + one * 600_000 for one in (low, high)]
    asked = {
        "topics": None if topics is None else ",".join(topics),
        "stored_from_ms": times[0],
        "stored_to_ms": times[1],
    }
    given = {name: value for name, value in asked.items() if value is not None}
    found = tasks(filled, max_partition_bytes="64k", **given)
    got = {at for _, at in offsets_of(found)}
    wanted = {
        record.log_offset
        for record in disk.records(filled)
        if (times[0] is None or record.store_ms >= times[0])
        and (times[1] is None or record.store_ms < times[1])
        and (topics is None or record.topic in topics)
    }
    assert got == wanted


def test_bounds_reduce_bytes_read(filled: Path) -> None:
    def read(**given: Any) -> int:
        found = tasks(filled, max_partition_bytes="64k", **given)
        return sum(task.part.end - task.part.begin for task in found)

    everything = read()
    assert read(topics="orders") < everything / 2
    assert read(topics="none") == 0
    assert read(stored_from_ms=NOW + 50 * 600_000) < everything / 2
    assert read(stored_to_ms=NOW) < everything / 2
    assert read(deliver_from_ms=5, deliver_to_ms=5) == 0


@pytest.mark.parametrize(
    "what", ["all queues", "one topic", "incomplete", "queues and topics.json"]
)
def test_plan_keeps_all_rows_when_queues_are_incomplete(
    filled: Path, tmp_path: Path, what: str
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(filled, copy)
    queues = copy / "consumequeue"
    if what == "incomplete":  # like an older copy: each queue lacks its last units
        for path in queues.rglob("0*"):
            if path.is_file():
                raw = path.read_bytes()
                used = len(raw.rstrip(b"\0")) // 20 * 20
                path.write_bytes(raw[: used // 40 * 20].ljust(len(raw), b"\0"))
    else:
        shutil.rmtree(queues / "orders" if what == "one topic" else queues)
    if what == "queues and topics.json":
        for path in (copy / "config").glob("topics.json*"):
            path.unlink()
    wanted = [(0, one.log_offset) for one in disk.records(filled) if one.topic == "orders"]
    assert len(wanted) == 800
    found = tasks(copy, max_partition_bytes="64k", topics="orders")
    assert offsets_of(found) == wanted


def test_plan_keeps_all_rows_when_clock_goes_back_less_than_hour(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=64 * 1024))
    for n in range(60):
        bench.store.put_many("t", [b"x" * 900] * 8)
        bench.clock.set(NOW + (n * 613 % 60) * 60_000 - 59 * 60_000)
    bench.store.flush()
    for minute in range(-60, 60, 7):
        edge = NOW + minute * 60_000
        for given_edge in ({"stored_from_ms": edge}, {"stored_to_ms": edge}):
            found = tasks(tmp_path / "s", max_partition_bytes="64k", **given_edge)
            is_from = "stored_from_ms" in given_edge
            wanted = [
                (0, record.log_offset)
                for record in disk.records(tmp_path / "s")
                if (record.store_ms >= edge if is_from else record.store_ms < edge)
            ]
            assert offsets_of(found) == wanted
    bench.store.close()


@pytest.mark.parametrize("parts_ahead", [1, 40])
def test_plan_keeps_rows_when_clock_ran_ahead_a_day(tmp_path: Path, parts_ahead: int) -> None:
    """In one part only the option shows how far the clock ran; over several, their edges do too."""
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=64 * 1024))
    for n in range(120):
        is_ahead = 40 <= n < 40 + parts_ahead
        bench.clock.set(NOW + n * 60_000 + (86_400_000 if is_ahead else 0))
        bench.store.put_many("t", [b"x" * 900] * 8)
    bench.store.flush()
    edge = NOW + 80_000_000
    step = {"clock_step_ms": "90000000"} if parts_ahead == 1 else {}
    found = tasks(tmp_path / "s", max_partition_bytes="64k", stored_from_ms=edge, **step)
    wanted = [
        (0, record.log_offset) for record in disk.records(tmp_path / "s") if record.store_ms >= edge
    ]
    assert len(wanted) == 8 * parts_ahead
    assert offsets_of(found) == wanted
    bench.store.close()


def test_timer_parts_cover_timer_log_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_log_segment_bytes=4096))
    for n in range(300):
        bench.store.put("t", b"x", delay=10 + n % 50)
    bench.turn()
    bench.store.flush()
    store = take(tmp_path / "s")
    wanted = [unit.pos for unit in disk.timer_units(tmp_path / "s")]
    assert len(wanted) == 300
    for size in (1, 52, 53, 1000, 5000, 1 << 20):
        parts = split_timers(0, store, store.timer_log_begin, store.timer_log_end, size)
        got = [
            int(pos)
            for part in parts
            for rows in units(part, Wanted("timer_units", ()))
            for pos in rows["timer_pos"]
        ]
        assert got == wanted, size
    bench.close()


def test_empty_range_has_no_parts(filled: Path) -> None:
    store = take(filled)
    assert split_log(0, store, store.log_end, store.log_end, 1) == []
    assert split_timers(0, store, 0, 0, 1) == []


# --- shards ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = ShardBench(tmp_path_factory.mktemp("plan") / "cluster", 3)
    for n in range(60):
        bench.store.put("t", b"%d" % n, keys=[f"k{n}"])
    bench.store.flush()
    bench.close()
    return bench.root


def test_shard_under_creation_is_empty(cluster: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(cluster, copy)
    shutil.rmtree(copy / "shard-00001")
    (copy / "shard-00001").mkdir()
    (copy / "shard-00001" / "lock").write_bytes(b"lock")
    wanted = [one for one in offsets_of(tasks(cluster)) if one[0] != 1]
    assert offsets_of(tasks(copy)) == wanted
    # A shard without its log is not new, and a lock file alone is not a shard.
    (copy / "shard-00001" / "config").mkdir()
    with pytest.raises(ConfigError, match="holds no store"):
        tasks(copy)
    (copy / "store").mkdir()
    (copy / "store" / "lock").write_bytes(b"lock")
    with pytest.raises(ConfigError, match="holds no store"):
        tasks(copy / "store")


def test_plan_covers_all_shards_of_directory(cluster: Path) -> None:
    wanted = {
        (shard, record.log_offset)
        for shard in range(3)
        for record in disk.records(cluster / f"shard-{shard:05d}")
    }
    assert len(wanted) == 60
    assert set(offsets_of(tasks(cluster))) == wanted
    some = {one for one in wanted if one[0] != 1}
    assert set(offsets_of(tasks(cluster, shards="0,2"))) == some
    assert set(offsets_of(tasks(cluster, shards="1"))) == wanted - some


def test_unknown_shard_is_rejected(cluster: Path) -> None:
    with pytest.raises(ConfigError, match="shards 0 to 2, got"):
        tasks(cluster, shards="2-3")


def test_shard_numbers_continue_across_paths(cluster: Path, filled: Path) -> None:
    found = plan.find_stores((filled, cluster))
    assert list(found) == [0, 1, 2, 3]
    assert found[0] == filled
    assert found[3].name == "shard-00002"


def test_shard_never_opened_is_empty(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "c", 2)
    bench.close()
    import shutil

    shutil.rmtree(tmp_path / "c" / "shard-00001")
    (tmp_path / "c" / "shard-00001").mkdir()
    for table in ("messages", "timers", "timer_units", "slots", "deliveries"):
        assert tasks(tmp_path / "c", table=table) == []


# --- as of ----------------------------------------------------------------------------------------


def test_as_of_pins_state_of_read(bench: Bench) -> None:
    bench.store.put("t", b"1")
    bench.store.flush()
    pinned = latest_offsets(bench.root)
    before = offsets_of(tasks(bench.root))
    bench.store.put("t", b"2")
    bench.store.flush()
    assert offsets_of(tasks(bench.root, as_of=pinned)) == before
    assert len(offsets_of(tasks(bench.root))) == 2


def test_plan_logs_the_state_that_it_reads(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.store.put("t", b"1")
    bench.store.flush()
    pinned = latest_offsets(bench.root)
    store = take(bench.root)
    assert json.loads(pinned)["shards"]["00000"] == {
        "p": store.log_end, "t": store.timer_log_end, "ms": store.as_of_ms,
    }  # fmt: skip
    with caplog.at_level(logging.INFO, "timerstore.spark"):
        tasks(bench.root, as_of=pinned)
    assert f"shard=0 log_end={store.log_end} timer_log_end=0 as_of={store.as_of}" in caplog.text


def test_invalid_as_of_is_rejected(bench: Bench, cluster: Path) -> None:
    bench.store.put("t", b"1")
    bench.store.flush()
    end = take(bench.root).log_end
    wrong = {
        f'{{"format":1,"shards":{{"00000":{{"p":{end + 1}}}}}}}': "asked for",
        '{"format":1,"shards":{"00003":{"p":0}}}': "got \\[3\\]",
        '{"format":2,"shards":{}}': "format 1",
        "nonsense": "not valid JSON",
    }
    for text, message in wrong.items():
        with pytest.raises(TimerStoreError, match=message):
            tasks(bench.root, as_of=text)
    with pytest.raises(ConfigError, match="no t"):
        tasks(bench.root, table="timer_units", as_of='{"format":1,"shards":{"00000":{"p":0}}}')


def test_as_of_skips_shards_it_does_not_name(cluster: Path) -> None:
    pinned = latest_offsets(cluster, shards="1")
    assert {shard for shard, _ in offsets_of(tasks(cluster, as_of=pinned))} == {1}


def test_task_survives_pickling(filled: Path) -> None:
    import pickle

    task = tasks(filled)[0]
    again = pickle.loads(pickle.dumps(task))
    assert again == task
    assert isinstance(again.part, Part)
