"""Let a real broker open and continue a directory whose oldest part was removed by retention."""

import time
from collections import Counter
from pathlib import Path

import pytest

import timerstore
from tests.support.broker import process as rocketmq
from tests.support.broker.process import RocketMQ
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

pytestmark = [pytest.mark.deep, pytest.mark.timeout(200)]

CONFIG = StoreConfig(
    commit_log_segment_bytes=1 << 20,
    queue_segment_bytes=6000,
    timer_log_segment_bytes=5200,
    index_slot_count=1000,
    index_entry_count=4000,
    retention_ms=3_600_000,
)
HOUR_MS = 3_600_000
SOON_S = 15


def make(root: Path) -> tuple[int, int]:
    """Put ten messages that stay pending during five hours of others, and cancel one.

    Return the first offset and the end of the log.
    """
    now_ms = time.time_ns() // 1_000_000
    clock = ManualClock(now_ms - 5 * HOUR_MS)
    store = timerstore.open(root, CONFIG, clock=clock, threads=False)
    stepper = Stepper(store)
    due_ms = now_ms + SOON_S * 1000
    far = [store.put("T", b"far-%d" % k, deliver_ms=due_ms + k) for k in range(10)]
    for _ in range(10):
        for _ in range(300):
            store.put("T", bytes(1000), delay=5)
        clock.advance(HOUR_MS // 2)
        stepper.settle()
    assert store.stats()["retention_moved_messages"] >= 10
    store.cancel(far[9])
    bounds = store.pull("T", 0, 2**62)
    assert bounds.min_offset > 1000
    store.close()
    return bounds.min_offset, bounds.max_offset


def test_broker_reads_retained_messages_and_delivers_moved_ones_once(tmp_path: Path) -> None:
    rocketmq.need_rocketmq()
    root = tmp_path / "store"
    process = RocketMQ(tmp_path / "java")
    try:
        first, end = make(root)
        process.open("retained", root, CONFIG)
        process.wait_until(rocketmq.now_ms() + (SOON_S + 8) * 1000)
        found = process.messages("retained", "T", 0)
        process.close("retained")
    finally:
        process.kill()
    assert [one.queue_offset for one in found] == list(range(first, end + 9))
    came = Counter(one.body for one in found if one.body.startswith(b"far"))
    assert came == {b"far-%d" % k: 1 for k in range(9)}
    with timerstore.open(root, CONFIG) as store:
        report = store.verify()
        assert report.clean, report
        assert store.stats()["pending_messages"] == 0
