"""Tables of a store that is open: its limits, its states, its wheel."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import disk_reader as disk
from tests.support import tables_expected
from tests.support.arrow_rows import read_rows
from tests.support.bench import DAY, NOW, Bench, small
from timerstore._engine.snapshot.position import refreshed, take
from timerstore.errors import ConfigError, CorruptError

ALL = ("messages", "timers", "timer_units", "slots", "deliveries")


def read_all(root: Path, **how: Any) -> dict[str, list[dict[str, Any]]]:
    return {table: read_rows(root, table, **how) for table in ALL}


def expected(root: Path, cancelled: set[int], precision_ms: int = 1000) -> dict[str, Any]:
    return {
        "timers": read_rows(root, "timers"),  # tests/property/test_timers_table.py
        "messages": tables_expected.messages(root, precision_ms),
        "timer_units": tables_expected.timer_units(root, precision_ms, cancelled),
        "slots": tables_expected.slots(root, precision_ms),
        "deliveries": tables_expected.deliveries(root, precision_ms),
    }


def used(bench: Bench) -> set[int]:
    """Use a store in every way; return the log offsets of the cancelled messages."""
    gone = set()
    for n in range(40):
        bench.store.put("t", b"now %d" % n, tags="green", keys=[f"k{n}"])
        receipt = bench.store.put("orders", b"later", delay=2 + n % 7)
        if n % 5 == 0:
            bench.store.cancel(receipt)
            gone.add(receipt.log_offset)
        if n % 8 == 1:
            bench.store.put("t", b"level", level=1 + n % 3)
    far = bench.store.put("far", b"", delay=300)
    bench.turn(4321)
    bench.turn(120_000)
    bench.store.cancel(far)  # it has rolled: both copies of it are cancelled
    gone |= {one.log_offset for one in disk.records(bench.root) if _waits_as(one, far.message_id)}
    bench.turn()
    return gone


def _waits_as(record: disk.Record, message_id: str) -> bool:
    is_delete = "TIMER_DEL_UNIQKEY" in record.properties
    return (
        record.topic == disk.TIMER_TOPIC
        and record.properties.get("UNIQ_KEY") == message_id
        and not is_delete
    )


def test_tables_have_what_the_files_have(bench: Bench) -> None:
    gone = used(bench)
    bench.store.flush()
    got = read_all(bench.root)
    assert got == expected(bench.root, gone)
    assert sum(row["cancelled"] for row in got["timer_units"]) == len(gone)
    assert {row["kind"] for row in got["messages"]} == {
        "ordinary", "timer", "delete", "delivered", "level", "level_delivered",
    }  # fmt: skip
    assert all(row["lateness_ms"] >= 0 for row in got["deliveries"])
    assert got["slots"]
    [rolled] = [row for row in got["messages"] if row["rolls"] and row["kind"] == "timer"]
    assert rolled["timer_id"] != rolled["queue_offset"]
    assert rolled["log_offset"] in gone


def test_closed_store_has_same_tables(bench: Bench) -> None:
    gone = used(bench)
    bench.close()
    assert read_all(bench.root) == expected(bench.root, gone)
    bench.open()


def test_tables_have_precision_of_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(precision_ms=100))
    gone = used(bench)
    bench.store.flush()
    assert read_all(bench.root) == expected(bench.root, gone, 100)
    bench.close()


def test_messages_past_checkpoint_are_not_read(bench: Bench) -> None:
    bench.store.put("t", b"1")
    bench.store.flush()
    bench.store.put("t", b"2")
    assert [row["body"] for row in read_rows(bench.root)] == [b"1"]
    bench.store.flush()
    assert [row["body"] for row in read_rows(bench.root)] == [b"1", b"2"]


def test_snapshot_has_same_rows_when_store_goes_on(bench: Bench) -> None:
    """The wheel too: its slots go back to the units below the limit."""
    waiting = [bench.store.put("t", b"x", delay=10 + n % 3) for n in range(30)]
    bench.turn()
    bench.store.flush()
    then = take(bench.root)
    before = read_all(bench.root)
    for n in range(45):
        bench.store.put("t", b"y", delay=10 + n % 4)
        if n < 7:
            bench.store.cancel(waiting[n])  # its unit counts the slot down
    bench.turn()
    bench.store.flush()
    after = read_all(bench.root, snapshot=then)
    assert after == before
    assert read_all(bench.root) != before
    assert refreshed(then) == take(bench.root)
    assert sum(row["count"] for row in before["slots"]) == 30


def test_snapshot_says_when_its_checkpoint_was_written(bench: Bench) -> None:
    bench.store.put("t", b"x", delay=60)
    bench.turn()
    bench.store.flush()
    watermark = bench.root / "timerstore" / "watermark"
    os.utime(watermark, (1_600_000_000, 1_600_000_000))
    store = take(bench.root)
    assert (store.as_of_ms, store.as_of) == (1_600_000_000_000, "2020-09-13T12:26:40.000+00:00")
    os.utime(watermark, (1_600_000_001, 1_600_000_001))
    assert refreshed(store).as_of_ms == 1_600_000_001_000
    assert store.pinned(store.log_end, None).as_of is None


def test_cancel_past_snapshot_does_not_count(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    bench.turn()
    bench.store.flush()
    then = take(bench.root)
    bench.store.cancel(receipt)
    bench.turn()
    bench.store.flush()
    assert [row["cancelled"] for row in read_rows(bench.root, "timer_units", snapshot=then)] == [
        False
    ]
    assert [row["cancelled"] for row in read_rows(bench.root, "timer_units")] == [True, False]


def test_cancel_without_timer_unit_counts(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    bench.turn()
    bench.store.cancel(receipt)
    bench.store.services()["dispatch"].step()
    bench.store.flush()
    assert [row["cancelled"] for row in read_rows(bench.root, "timer_units")] == [True]


def test_pinned_rejects_limit_past_the_end(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.store.flush()
    store = take(bench.root)
    store.pinned(store.log_end, store.timer_log_end)
    for log_end, timers in ((store.log_end + 1, 0), (0, store.timer_log_end + 1), (-1, 0)):
        with pytest.raises(ConfigError, match="as_of"):
            store.pinned(log_end, timers)


def test_empty_store_has_no_rows(bench: Bench) -> None:
    assert read_all(bench.root) == {key: [] for key in ALL}
    bench.store.flush()
    assert read_all(bench.root) == {key: [] for key in ALL}


def test_read_takes_no_lock_and_writes_nothing(bench: Bench) -> None:
    used(bench)
    bench.store.flush()

    def state() -> list[tuple[str, int, int]]:
        paths = (path for path in sorted(bench.root.rglob("*")) if path.is_file())
        return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]

    before = state()
    read_all(bench.root)
    assert state() == before


def test_take_reads_log_past_watermark_when_broker_went_on(bench: Bench) -> None:
    """The log of a cleanly closed store goes on past the watermark: a broker had it."""
    bench.store.put("t", b"ours")
    bench.close()
    store = take(bench.root)
    at = store.log_end
    path = bench.root / "commitlog" / f"{at // (1 << 20) * (1 << 20):020d}"
    raw = disk.encode_record("t", b"theirs", {}, log_offset=at, store_ms=NOW)
    with path.open("r+b") as file:
        file.seek(at % (1 << 20))
        file.write(raw)
    found = take(bench.root)
    assert found.store_id is None
    assert found.log_end == at + len(raw)
    assert [row["body"] for row in read_rows(bench.root)] == [b"ours", b"theirs"]
    path.write_bytes(path.read_bytes().replace(raw, bytes(len(raw))))
    bench.open()


def test_timers_years_ahead_are_read(bench: Bench) -> None:
    due = NOW + 3000 * DAY
    bench.store.put("t", b"x", deliver_ms=due)
    bench.turn()
    bench.store.flush()
    assert next(row["deliver_at"] for row in read_rows(bench.root)) == due


def test_units_read_on_when_retention_removes_a_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_log_segment_bytes=256))
    for n in range(40):
        bench.store.put("t", b"soon", delay=2 + n % 3)
    bench.store.put("t", b"later", delay=60)
    bench.turn()
    bench.store.flush()
    then = take(bench.root)
    before = read_rows(bench.root, "timer_units", snapshot=then)
    bench.turn(10_000)
    bench.store.flush()
    bench.turn()
    begin = then.timer_log_begin_now
    assert begin > then.timer_log_begin
    left = [row for row in before if row["timer_pos"] >= begin]
    assert left
    assert len(left) < len(before)
    assert read_rows(bench.root, "timer_units", snapshot=then) == left
    for _ in range(40):
        bench.store.put("t", b"more", delay=60)
    bench.turn()
    bench.close()
    now = take(bench.root)
    sorted((bench.root / "timerlog").iterdir())[1].rename(tmp_path / "lost")
    with pytest.raises(CorruptError, match="missing"):
        read_rows(bench.root, "timer_units", snapshot=now)
