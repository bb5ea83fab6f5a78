"""A timer unit with changed bits is detected when it is read; the next opening repairs it."""

from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, SECOND, Bench, copied_at, flush_for_ever, small
from tests.support.inside import inside
from timerstore import CorruptError, FailedError, verify_directory
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore.testing import ManualClock

COUNT = 6


def flip(root: Path, unit: int, byte: int, mask: int) -> Path:
    path = next(iter(sorted(Tree(root).timer_log.iterdir())))
    raw = bytearray(path.read_bytes())
    raw[unit * UNIT_BYTES + byte] ^= mask
    path.write_bytes(raw)
    return path


def filled(tmp_path: Path) -> Bench:
    """Return a closed store whose pending messages have a slot each."""
    bench = Bench(tmp_path / "store", small())
    for n in range(COUNT):
        bench.store.put("t", b"%d" % n, delay=(n + 5) * 1.0)
    bench.turn()
    bench.close()
    return bench


@pytest.mark.parametrize(
    ("byte", "mask"),
    [(15, 4), (35, 1), (34, 2), (7, 1), (27, 1), (39, 1), (43, 1), (51, 1), (44, 1)],
    ids=["delete", "offset", "offset-high", "previous", "delay", "size", "topic", "crc", "magic"],
)
def test_changed_bit_is_detected_and_healed(tmp_path: Path, byte: int, mask: int) -> None:
    """Some of these bits could hide a message: a delete bit, or bits of the log offset."""
    closed = filled(tmp_path)
    path = flip(closed.root, 3, byte, mask)
    assert any(str(path) in problem.where for problem in verify_directory(closed.root).problems)
    late_ms = NOW + (COUNT + 10) * SECOND
    store = timerstore.open(closed.root, small(), clock=ManualClock(late_ms))
    with pytest.raises(FailedError, match="timerlog"):
        flush_for_ever(store)  # until dequeue-get has read it
    store.close()
    assert "timerlog" in Tree(closed.root).timer_damaged.read_text()
    healed = Bench(closed.root, small(), late_ms)
    assert not Tree(closed.root).timer_damaged.exists()
    healed.turn()
    assert sorted(healed.bodies("t")) == [b"%d" % n for n in range(COUNT)]
    healed.close()
    assert verify_directory(closed.root).clean


def test_timer_log_is_rebuilt_when_unit_was_torn_while_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing rewrites units, even dead ones outside the chains, and a power cut may tear one."""
    bench = Bench(tmp_path / "store", small())
    receipts = [bench.store.put("t", b"%d" % n, delay=5.0) for n in range(COUNT)]
    bench.turn()
    bench.store.cancel(receipts[2])
    bench.turn()
    copy = tmp_path / "copy"
    with copied_at(monkeypatch, "close_buried", bench.root, copy):
        bench.close()
    flip(copy, 2, 20, 1)  # the write time of the dead unit
    again = Bench(copy, small(), NOW + 10 * SECOND)
    again.turn()
    assert again.bodies("t") == [b"%d" % n for n in range(COUNT) if n != 2]
    again.close()
    assert verify_directory(copy).clean


def test_timer_log_is_rebuilt_when_unit_after_watermark_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery walks slots back over such units."""
    bench = Bench(tmp_path / "store", small())
    for n in range(3):
        bench.store.put("t", b"%d" % n, delay=5.0)
    bench.turn()
    bench.store.flush()
    for n in range(3, COUNT):
        bench.store.put("t", b"%d" % n, delay=5.0)
    bench.turn()
    copy = tmp_path / "copy"
    with copied_at(monkeypatch, "checkpoint_wheel_written", bench.root, copy):
        bench.store.flush()
    bench.close()
    flip(copy, 4, 35, 1)
    again = Bench(copy, small(), NOW + 10 * SECOND)
    again.turn()
    assert again.bodies("t") == [b"%d" % n for n in range(COUNT)]
    again.close()


def test_retention_moves_message_when_its_unit_is_damaged(tmp_path: Path) -> None:
    """The unit belongs to a delivered message; a pending one is in the same old log file."""
    config = small(
        commit_log_segment_bytes=16 * 1024, retention_ms=3_600_000, precision_ms=60_000,
        wheel_slot_count=2048, timer_log_segment_bytes=2048,
    )  # fmt: skip
    bench = Bench(tmp_path / "store", config)
    bench.store.put("t", b"soon", delay=60.0)
    bench.store.put("t", b"late", delay=30 * 3600.0)
    bench.turn(120 * SECOND)
    for _ in range(60):
        bench.store.put("filler", bytes(1000))
    bench.reopen()
    flip(bench.root, 0, 43, 1)
    for _ in range(20):
        bench.store.put("filler", b"x")
        bench.turn(3_600 * SECOND)
    assert inside(bench.store).log.segments.begin > 0
    with pytest.raises(CorruptError, match="timerlog"):
        bench.store.close()
    again = Bench(bench.root, config, bench.clock.now_ms)
    assert len(list(again.store.pending())) == 1
    again.turn(30 * 3_600 * SECOND)
    assert [message.body for message in again.out("t", 0, 1)] == [b"late"]
    again.close()


def test_units_without_checksum_are_read(tmp_path: Path) -> None:
    """Older versions and brokers write such units."""
    closed = filled(tmp_path)
    path = next(iter(sorted(Tree(closed.root).timer_log.iterdir())))
    raw = bytearray(path.read_bytes())
    for unit in range(COUNT):
        raw[unit * UNIT_BYTES + 44 : (unit + 1) * UNIT_BYTES] = bytes(8)
    path.write_bytes(raw)
    assert verify_directory(closed.root).clean
    bench = Bench(closed.root, small(), NOW + (COUNT + 10) * SECOND)
    bench.turn()
    assert bench.bodies("t") == [b"%d" % n for n in range(COUNT)]
    bench.close()
