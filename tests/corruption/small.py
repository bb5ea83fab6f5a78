"""Make the smallest golden store that has every kind of byte. Every bit of this store is flipped.

It has two segments, with a blank between them, of the log, of the timer topic, of the timer log and
of the index. Its messages are delivered, pending, rolling, cancelled or rescheduled. It also has
levels, rows, a message id, the offsets of a group, and a recurring message.

Invariants:
    1. Configuration and times are the same every time, as in golden.py.
"""

from dataclasses import replace
from pathlib import Path

import timerstore
from tests.corruption import golden
from tests.corruption.golden import CONFIG, NOW_MS, Asked, Golden
from timerstore.testing import ManualClock, Stepper

_CONFIG = replace(
    CONFIG,
    commit_log_segment_bytes=4736,  # the smallest size in which rows fit
    queue_segment_bytes=7 * 20,
    timer_log_segment_bytes=256,
    index_slot_count=8,
    index_entry_count=18,
    wheel_slot_count=32,
    roll_window_slots=12,
    topic_queue_count=1,
    level_delays="9s",
    checkpoint_interval_ms=600_000,  # no checkpoint during the questions; closing makes one
)
SMALL = Asked(
    _CONFIG,
    (("orders", "k-0"), ("mails", "k-m"), ("mails", "k-above")),
    (10_000, 1_000_000),
    once="o-1",
)
_BEGIN_MS = NOW_MS - 10_000
_STEP_MS = 5000


def make(root: Path, *, is_closed: bool, far_wheel: str = "off") -> Golden:
    """Make the store, and leave it as a kill does, with a part above the watermark."""
    asked = SMALL._replace(config=replace(_CONFIG, far_wheel=far_wheel))
    clock = ManualClock(_BEGIN_MS)
    config = replace(asked.config, checkpoint_interval_ms=CONFIG.checkpoint_interval_ms)
    store = timerstore.open(root, config, clock=clock, threads=False)
    older = _work(store, clock, root)
    if is_closed:
        store.close()
        return Golden(golden.read(root), is_closed, older, asked)
    store.flush()
    store.put("mails", b"above", keys="k-above")
    store.put("orders", b"waits", delay=7.0)
    files = golden.read(root)
    store.close()
    return Golden(files, is_closed, older, asked)


def _work(store: timerstore.TimerStore, clock: ManualClock, root: Path) -> dict[str, bytes]:
    stepper = Stepper(store)
    store.put("orders", b"now", tags="paid", keys="k-0", message_id=SMALL.once)
    store.put("mails", b"out", tags="late", properties={"n": "1"}, deliver_ms=_BEGIN_MS + 4000)
    store.put("mails", b"far", deliver_ms=NOW_MS + 100_000)
    store.put("orders", b"level", level=1)
    store.put_every("orders", b"again", every=600, name="r")
    store.ingest("table", 1, [golden.batch(2, "orders", NOW_MS + 1000)])
    clock.advance(_STEP_MS)
    stepper.settle()
    store.flush()
    older = golden.read(root)
    gone = store.put("mails", b"gone", deliver_ms=NOW_MS + 4000)
    moved = store.put("mails", b"moved", tags="paid", keys="k-m", deliver_ms=NOW_MS + 6000)
    clock.advance(_STEP_MS)
    stepper.settle()
    store.cancel(gone)
    store.reschedule(moved, deliver_ms=NOW_MS + 30_000)
    with store.consumer("orders", "group", wait=0) as consumer:
        consumer.poll(2)
        consumer.commit()
    store.put("orders", b"level", level=1)
    store.put("mails", b"last", delay=3.0)
    stepper.settle()
    return older
