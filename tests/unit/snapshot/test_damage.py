"""A store read with files that are damaged, or not there."""

import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench
from tests.support.reader_and_owner import fill, trace
from timerstore import (
    CorruptError,
)


def test_read_only_store_reports_damage_with_place(bench: Bench) -> None:
    fill(bench)
    place = bench.store.pull("t", 0, 1).messages[0].log_offset
    bench.close()
    path = bench.root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[place + 90] ^= 0xFF
    path.write_bytes(data)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        assert len(one.pull("t", 0, 0, max_count=1).messages) == 1
        with pytest.raises(CorruptError, match=rf"{path}.* offset {place}"):
            one.pull("t", 0, 1)
        assert not one.verify().clean
    data[place + 90] ^= 0xFF
    path.write_bytes(data)
    bench.open()


@pytest.mark.parametrize(
    "lost", ["consumequeue", "timerstore/state", "timerstore/counts", "timerwheel"]
)
def test_read_only_store_reads_without_derived_files(bench: Bench, lost: str) -> None:
    fill(bench)
    told = [list(bench.store.pending()), bench.out("t"), bench.store.query("u", "lev")]
    bench.close()
    path = bench.root / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = trace(bench.root)
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert [
            list(one.pending()),
            list(one.pull("t", 0, 0).messages),
            one.query("u", "lev"),
        ] == told
    assert trace(bench.root) == before
    bench.open()


def test_read_only_store_reads_restored_store_before_first_opening(
    bench: Bench, tmp_path: Path
) -> None:
    fill(bench)
    told = [list(bench.store.pending()), bench.out("t")]
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "again")
    before = trace(tmp_path / "again")
    with timerstore.open(
        tmp_path / "again", bench.config, clock=bench.clock, read_only=True
    ) as one:
        assert [list(one.pending()), list(one.pull("t", 0, 0).messages)] == told
    assert trace(tmp_path / "again") == before


def test_read_only_store_distrusts_queues_that_owner_rebuilds(bench: Bench) -> None:
    fill(bench)
    told = bench.out("t")
    bench.close()
    (bench.root / "timerstore" / "watermark").unlink()
    shutil.rmtree(bench.root / "consumequeue" / "t")  # the others are there, to the log's end
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        assert list(one.pull("t", 0, 0).messages) == told
    bench.open()


def test_missing_queues_begin_where_retention_left_them(bench: Bench) -> None:
    bench.store.put("u", b"once")
    for turn in range(6):
        for k in range(40):
            bench.store.put("t", b"%d %d" % (turn, k) + bytes(20_000))
        bench.turn(60_000)
        bench.store.flush()
    asked = [("t", 0), ("t", bench.store.pull("t", 0, 0).min_offset), ("u", 0), ("u", 1)]
    told = [bench.store.pull(topic, 0, offset) for topic, offset in asked]
    assert told[1].min_offset > 0
    bench.close()
    shutil.rmtree(bench.root / "consumequeue")
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        found = [one.pull(topic, 0, offset) for topic, offset in asked]
    assert found == told
    bench.open()


def test_pending_reports_unreadable_message(bench: Bench) -> None:
    receipt = bench.store.put("t", b"waits", delay=50)
    bench.store.put("t", b"waits, too", delay=60)
    bench.turn()
    bench.close()
    path = bench.root / "commitlog" / ("0" * 20)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"REAL_TOPIC", b"REAL_TOPOC", 1))
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        for ask in (lambda: list(one.pending()), one.histogram, one.congestion):
            with pytest.raises(CorruptError, match=rf"{path} offset {receipt.log_offset}"):
                ask()
    path.write_bytes(data)
    bench.open()
