"""Let a real broker open directories whose far messages were given slots.

All are delivered, once and in time. Messages that the broker rolled are far again when we continue.
"""

import time
from pathlib import Path

import pytest

import timerstore
from tests.support.broker import process as rocketmq
from tests.support.broker.process import RocketMQ
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

pytestmark = [pytest.mark.more, pytest.mark.timeout(120)]

COUNT = 40
WINDOW_S = 6
SOON_S = 12
MODES = ("shared", "own")
HOUR_MS = 3_600_000


def config(mode: str) -> StoreConfig:
    return StoreConfig(
        commit_log_segment_bytes=1 << 20,
        queue_segment_bytes=6000,
        timer_log_segment_bytes=5200,
        index_slot_count=1000,
        index_entry_count=4000,
        roll_window_slots=WINDOW_S,
        far_wheel=mode,  # type: ignore[arg-type]
    )


def make(root: Path, mode: str) -> None:
    """Put messages past the window, some of them cancelled, and a few near ones."""
    now_ms = time.time_ns() // 1_000_000
    clock = ManualClock(now_ms - 30_000)
    store = timerstore.open(root, config(mode), clock=clock, threads=False)
    stepper = Stepper(store)
    for k in range(COUNT):
        receipt = store.put("T", b"far-%02d" % k, deliver_ms=now_ms + SOON_S * 1000 + 50 * k)
        if k % 10 == 9:
            store.cancel(receipt)
    for k in range(5):
        store.put("T", b"near-%d" % k, deliver_ms=now_ms + 3000 + k)
    store.put("late", b"in an hour", deliver_ms=now_ms + HOUR_MS)
    stepper.settle()
    clock.advance(30_000)
    stepper.settle()
    assert store.stats()["far_messages"] >= COUNT / 2
    store.close()
    if mode == "own":
        with pytest.raises(AssertionError):
            _open_with_broker(root, mode)
        timerstore.convert(root, to="rocketmq", config=config(mode), clock=clock)


def _open_with_broker(root: Path, mode: str) -> None:
    size = (root / "timerwheel").stat().st_size
    assert size == config(mode).wheel_slot_count * 32, "a broker refuses this length"


def test_broker_delivers_each_far_message_once(tmp_path: Path) -> None:
    rocketmq.need_rocketmq()
    process = RocketMQ(tmp_path / "java")
    found = {}
    try:
        for mode in MODES:
            make(tmp_path / mode, mode)
        end_ms = rocketmq.now_ms() + (SOON_S + 6) * 1000
        for mode in MODES:
            process.open(mode, tmp_path / mode, config(mode))
        process.wait_until(end_ms)
        for mode in MODES:
            found[mode] = process.messages(mode, "T", 0)
            process.close(mode)
    finally:
        process.kill()
    wanted = [b"far-%02d" % k for k in range(COUNT) if k % 10 != 9]
    for mode in MODES:
        came = sorted(one.body for one in found[mode])
        assert came == wanted + [b"near-%d" % k for k in range(5)], mode
        _goes_on(tmp_path / mode, mode)


def _goes_on(root: Path, mode: str) -> None:
    """Check that messages which the broker rolled through its log are delivered here at their
    times.
    """
    clock = ManualClock(rocketmq.now_ms())
    assert timerstore.convert(root, to="timerstore", config=config(mode), clock=clock).pending == 1
    with timerstore.open(root, config(mode), clock=clock, threads=False) as store:
        stepper = Stepper(store)
        stepper.settle()
        [late] = store.pending()
        clock.advance(2 * WINDOW_S * 1000)  # the time to which the broker would roll it next
        stepper.settle()
        assert store.stats()["far_messages"] >= 1  # one record for each roll of the broker
        clock.set(late.due_ms - 1)
        stepper.settle()
        assert store.pull("late", 0, 0).messages == ()
        clock.advance(1)
        stepper.settle()
        assert [one.body for one in store.pull("late", 0, 0).messages] == [b"in an hour"]
        assert len(store.pull_batch("T", 0, 0, max_count=100)) == COUNT - COUNT // 10 + 5
        report = store.verify()
        assert report.clean, report
        assert store.stats()["pending_messages"] == 0
