"""The far wheel's files: their format, their space, and damage to them."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, SECOND, YEAR, Bench, flush_for_ever
from tests.support.far_bench import bodies, far_bench, far_config, go, stat, tree
from tests.support.inside import inside
from timerstore import CorruptError, FailedError
from timerstore._engine.format import far_table, watermark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.timer import far_wheel as far_module
from timerstore.testing import ManualClock


def test_dead_far_units_are_removed_while_others_are_pending_for_years(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, timer_log_segment_bytes=520, far_wheel="own")  # ten units a file
    for n in range(30):
        bench.store.put("t", b"%d years" % n, delay=(1 + n) * 86_400 * 365)
    bench.turn()
    for n in range(60):
        bench.store.put_many("t", [b"soon"] * 10, delay=100 + n)
        go(bench, 10 * SECOND, 1)
        bench.store.flush()
    go(bench, 200 * SECOND)
    for _ in range(40):
        bench.store.flush()
        bench.turn()
    files = sorted(path.name for path in tree(bench).far_log.iterdir())
    assert stat(bench, "far_messages") == 30
    assert stat(bench, "far_added_messages") >= 630
    assert len(files) <= 12, files  # of 63 and more that were begun
    bench.reopen()
    assert len(list(bench.store.pending())) == 30
    bench.turn(40 * YEAR)
    assert len(bodies(bench)) == 630
    bench.close()


def test_far_units_of_cancelled_messages_are_not_copied(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, timer_log_segment_bytes=520, far_wheel="own")
    kept = bench.store.put("t", b"kept", delay=86_400 * 400)
    gone = [bench.store.put("t", b"gone", delay=86_400 * 300) for _ in range(40)]
    bench.turn()
    for one in gone:
        bench.store.cancel(one)
    bench.store.put_many("t", [b"soon"] * 90, delay=60)
    go(bench, 60 * SECOND)
    assert stat(bench, "far_messages") == 1
    assert [one.timer_id for one in bench.store.pending()] == [int(kept.timer_id)]
    bench.close()


@pytest.mark.parametrize("damage", ["unit", "table", "tables gone", "units gone", "short file"])
def test_far_wheel_is_rebuilt_from_log_when_damaged_or_lost(tmp_path: Path, damage: str) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    for n in range(20):
        bench.store.put("t", b"%d" % n, delay=300 + 40 * n)
    bench.turn()
    bench.close()
    mark = watermark.read(tree(bench).watermark.read_bytes())
    assert mark is not None
    table, units = tree(bench).far_table(mark.far_number), tree(bench).far_log / f"{0:020d}"
    assert timerstore.verify_directory(bench.root, bench.config).clean
    if damage in ("unit", "table"):
        path = units if damage == "unit" else table
        data = bytearray(path.read_bytes())
        data[60] ^= 4
        path.write_bytes(data)
    elif damage == "tables gone":
        table.unlink()
    elif damage == "units gone":
        units.unlink()
    else:
        units.write_bytes(units.read_bytes()[:-52])
    report = timerstore.verify_directory(bench.root, bench.config)
    assert any("far" in problem.what for problem in report.problems), report
    bench.open()
    go(bench, 1500 * SECOND)
    assert bodies(bench) == [b"%d" % n for n in range(20)]
    bench.close()


def test_verify_directory_checks_other_side_files_when_far_table_is_unreadable(
    tmp_path: Path,
) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put("t", b"later", delay=300)
    bench.turn()
    bench.close()
    mark = watermark.read(tree(bench).watermark.read_bytes())
    assert mark is not None
    table, state = tree(bench).far_table(mark.far_number), tree(bench).state
    state.write_bytes(bytes(byte ^ 0xFF for byte in state.read_bytes()))
    table.unlink()
    table.mkdir()  # a read of it fails
    report = timerstore.verify_directory(bench.root, bench.config)
    for path in (table, state):
        assert any(one.where.startswith(str(path)) for one in report.problems), report
    table.rmdir()
    bench.open()
    bench.close()


def test_store_fails_when_far_unit_is_damaged_while_open(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    for n in range(20):
        bench.store.put("t", b"%d" % n, delay=300 + 40 * n)
    bench.turn()
    bench.store.flush()
    units = tree(bench).far_log / f"{0:020d}"
    with units.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff")
    assert not bench.store.verify().clean
    with pytest.raises(CorruptError, match=f"{units} offset 52") as caught:
        go(bench, 1500 * SECOND)
    inside(bench.store).log.fail(caught.value)  # as a service's loop does
    bench.store.close()
    bench.open()
    go(bench, 1500 * SECOND)
    assert bodies(bench) == [b"%d" % n for n in range(20)]
    bench.close()


def test_far_table_rejects_any_changed_bit() -> None:
    import numpy as np

    rows = np.array([(4, 9, 7, 2), (5, 8, 8, 1)], far_table.ROW)
    raw = far_table.write(far_table.FarTable(3, 7, 10, 6, 1092, rows))
    found = far_table.read(raw, 3)
    assert found is not None
    assert found[:-1] == (3, 7, 10, 6, 1092)
    assert found.rows.tolist() == rows.tolist()
    assert far_table.read(raw, 2) is None
    assert far_table.read(None, 3) is None
    assert far_table.read(raw[:-1], 3) is None
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit >> 3] ^= 1 << (bit & 7)
        assert far_table.read(bytes(changed), 3) is None


def test_far_unit_bytes_match_documented_format(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put("t", b"m", delay=600)
    receipt = bench.store.put("t", b"m", deliver_ms=NOW + 600 * SECOND)
    bench.turn()
    raw = (tree(bench).far_log / f"{0:020d}").read_bytes()[52:104]
    log_size = bench.store.stats()["log_end_bytes"] - receipt.log_offset
    wanted = b"".join(
        number.to_bytes(8, "big")
        for number in (0, 1, receipt.log_offset, receipt.due_ms, (receipt.due_ms - 1) // 6000)
    )
    wanted += log_size.to_bytes(4, "big") + ord("t").to_bytes(4, "big")
    wanted += zlib.crc32((1).to_bytes(8, "big") + wanted).to_bytes(4, "big")
    assert raw == wanted
    bench.close()


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_watermark_reads_older_versions_with_fewer_fields(version: int) -> None:
    magic = b"TSMARK0%d" % version
    mark = watermark.Watermark(7, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1000, 128, 9, 10, 11, 12)
    fields = list(mark)[: 12 + version]
    head = magic + b"".join(field.to_bytes(8, "little") for field in fields)
    raw = (head + zlib.crc32(head).to_bytes(4, "little")).ljust(512, b"\0")
    found = watermark.read(raw)
    assert found is not None
    assert found == watermark.Watermark(*fields[:15])
    assert found.wheel_writes == -1


def test_far_wheel_is_unchanged_when_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = far_bench(tmp_path)
    bench.store.put("t", b"m", delay=600)
    real: Callable[..., None] = far_module.FarWheel.reserve

    def full(self: Any, count: int) -> None:
        raise timerstore.FullError("by the test", where=tmp_path)

    monkeypatch.setattr(far_module.FarWheel, "reserve", full)
    bench.stepper.step("dispatch")
    bench.stepper.step("enqueue_get")
    with pytest.raises(timerstore.FullError):
        bench.stepper.step("enqueue_put")
    assert stat(bench, "far_messages") == 0
    monkeypatch.setattr(far_module.FarWheel, "reserve", real)
    bench.turn()
    assert stat(bench, "far_messages") == 1
    bench.turn(600 * SECOND)
    assert bodies(bench) == [b"m"]
    bench.close()


def test_far_units_of_another_store_are_detected_once_and_healed(tmp_path: Path) -> None:
    """Each unit is valid but names another record. The far wheel is rebuilt from the log."""
    count = 30
    for name, salt in (("a", b"A"), ("b", b"BB")):
        bench = far_bench(tmp_path / name, far_wheel="own")
        for n in range(count):
            bench.store.put("t", salt * (1 + n % 3) + b"%03d" % n, delay=DAY / 1000 * (n + 1))
        bench.turn()
        bench.close()
    names = [path.name for path in (tmp_path / "b" / "timerstore" / "far").iterdir()]
    for name in names:
        other = tmp_path / "b" / "timerstore" / "far" / name
        (tmp_path / "a" / "timerstore" / "far" / name).write_bytes(other.read_bytes())
    late_ms = NOW + (count + 2) * DAY
    config = far_config(far_wheel="own")
    store = timerstore.open(tmp_path / "a", config, clock=ManualClock(late_ms))
    with pytest.raises(FailedError, match="not the one that was pointed at"):
        flush_for_ever(store)  # until dequeue-get-message has read it
    store.close()
    assert Tree(tmp_path / "a").timer_damaged.exists()
    healed = Bench(tmp_path / "a", config, late_ms)
    assert not tree(healed).timer_damaged.exists()
    healed.turn()
    assert [body[-3:] for body in bodies(healed)] == [b"%03d" % n for n in range(count)]
    healed.close()
