"""`convert` moves messages of the far wheel to slots that a broker reads, and back."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import SECOND
from tests.support.far_bench import WHEEL_BYTES, bodies, far_bench, go, stat, tree
from timerstore import ConfigError, FailedError
from timerstore._engine.timer.timer_log import TimerLog


def test_convert_to_rocketmq_and_back(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put_many("t", [b"m"] * 10, delay=600)
    bench.turn()
    bench.close()
    report = timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    assert report == (10, 10, 0)
    assert tree(bench).timer_wheel.stat().st_size == WHEEL_BYTES
    report = timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    assert report == (10, 0, 0)
    report = timerstore.convert(bench.root, to="timerstore", config=bench.config, clock=bench.clock)
    assert report.pending == 10
    bench.open()
    go(bench, 600 * SECOND)
    assert len(bodies(bench)) == 10
    assert stat(bench, "dequeue_put_rolled_messages") == 0
    bench.close()


def test_converted_units_lead_broker_to_pending_messages_only(tmp_path: Path) -> None:
    """On loading, a broker links the last units again, each into the slot that it names."""
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put("t", b"far", delay=600)
    slot_ms = bench.clock.now_ms // SECOND * SECOND + 2 * SECOND
    bench.store.put("t", b"later", deliver_ms=slot_ms + 700)
    bench.store.put("t", b"out", deliver_ms=slot_ms + 300)  # its unit follows the other's
    bench.turn()
    bench.turn(slot_ms + 500 - bench.clock.now_ms)
    assert bodies(bench) == [b"out"]
    bench.close()
    timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    check = disk.read_timer_check(bench.root)
    assert check is not None
    units = [one for one in disk.timer_units(bench.root) if one.slot_ms >= check.read_ms]
    waits = [disk.read_record(bench.root, one.log_offset, one.store_size).body for one in units]
    assert sorted(waits) == [b"far", b"later"]


def test_convert_reports_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted the directory of a store"):
        timerstore.convert(tmp_path / "none", to="rocketmq")
    assert not (tmp_path / "none").exists()
    for given in ({"config": {"flush": "sync"}}, {"clock": 5}):
        with pytest.raises(ConfigError, match=f"{next(iter(given))}: wanted a "):
            timerstore.convert(tmp_path, to="rocketmq", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="wanted 'rocketmq' or 'timerstore'"):
        timerstore.convert(tmp_path, to="kafka")  # type: ignore[arg-type]
    bench = far_bench(tmp_path / "open")
    with pytest.raises(ConfigError, match="config: wanted a StoreConfig, got str"):
        timerstore.verify_directory(bench.root, "flush=sync")  # type: ignore[arg-type]
    with pytest.raises(timerstore.LockedError):
        timerstore.convert(bench.root, to="rocketmq", config=bench.config)
    bench.close()


@pytest.mark.parametrize("with_config", [True, False])
def test_convert_rejects_queue_files_that_a_broker_cannot_open(
    tmp_path: Path, with_config: bool
) -> None:
    """The broker would look for a second unit in the queue's last file, in an endless loop."""
    bench = far_bench(tmp_path, far_wheel="own", queue_segment_bytes=20)
    bench.store.put_many("t", [b"m"] * 3, delay=600)
    bench.turn()
    bench.close()
    before = {path: path.stat().st_mtime_ns for path in bench.root.rglob("*")}
    with pytest.raises(ConfigError) as caught:
        timerstore.convert(
            bench.root, "rocketmq", bench.config if with_config else None, clock=bench.clock
        )
    assert str(caught.value).startswith(
        "queue_segment_bytes: wanted 40 or more for a broker, which never finishes opening queues "
        f"of one unit a file, got 20 in {tree(bench).queues}"
    )
    assert {path: path.stat().st_mtime_ns for path in bench.root.rglob("*")} == before
    timerstore.convert(bench.root, "timerstore", bench.config, clock=bench.clock)
    wide = far_bench(tmp_path / "wide", far_wheel="own", queue_segment_bytes=40)
    wide.store.put("t", b"m", delay=600)
    wide.turn()
    wide.close()
    timerstore.convert(wide.root, "rocketmq", wide.config, clock=wide.clock)


def test_convert_distinguishes_level_out_of_order_from_full_wheel(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="own", level_delays="1h")
    bench.store.put("t", b"put first", level=1)
    bench.turn()
    bench.turn(-1800 * SECOND)
    bench.store.put("t", b"put second", level=1)
    bench.turn()
    bench.turn(3600 * SECOND)
    assert bodies(bench) == [b"put second"]
    bench.close()
    with pytest.raises(
        FailedError, match="a delay-level message was delivered before an earlier one"
    ):
        timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    bench.open()
    bench.turn(1800 * SECOND)
    bench.close()
    report = timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    assert report == (0, 0, 0)
    bench.open()
    assert bodies(bench) == [b"put second", b"put first"]
    bench.close()


def test_convert_raises_full_error_when_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put_many("t", [b"m"] * 10, delay=600)
    bench.turn()
    bench.close()

    def full(_self: Any, _count: int, **_more: Any) -> None:
        raise timerstore.FullError("by the test", where=tmp_path)

    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "reserve", full)
        with pytest.raises(timerstore.FullError, match="by the test"):
            timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    report = timerstore.convert(bench.root, to="rocketmq", config=bench.config, clock=bench.clock)
    assert report == (10, 10, 0)
