"""Make a store of our own with puts, rolls, cancels and deliveries, for the second reader."""

import dataclasses
from pathlib import Path

import timerstore
from timerstore import CancelResult, PutReceipt, StoreConfig
from timerstore.testing import ManualClock, Stepper

START_MS = 1_800_000_000_000
CONFIG = StoreConfig(
    commit_log_segment_bytes=16_384,
    timer_log_segment_bytes=4096,
    queue_segment_bytes=400,
    roll_window_slots=20,
    index_slot_count=100,
    index_entry_count=500,
    message_bytes_max=4096,
    reserve_bytes=0,
    flush="async",
)


@dataclasses.dataclass
class Made:
    """A closed store, and the calls that were made to it."""

    root: Path
    closed_ms: int
    waiting: dict[str, PutReceipt]
    delivered: dict[str, PutReceipt]
    cancelled: set[str]


def make(root: Path, config: StoreConfig) -> Made:
    """Make a store by two minutes of puts, rolls, cancels and deliveries. Reopen it once."""
    clock = ManualClock(START_MS)
    found = Made(root, 0, {}, {}, set())
    for part in range(2):
        with timerstore.open(root, config, clock=clock, threads=False) as store:
            stepper = Stepper(store)
            for n in range(300):
                due_ms = clock.now_ms + n * 211 % 90_000 if n % 7 else None
                topic = "orders" if n % 3 else "reminders"
                receipt = store.put(
                    topic, bytes([n % 256]) * (n * 13 % 700), deliver_ms=due_ms,
                    tags="TagA" if n % 2 else "TopicTest", keys=f"key-{n}", queue_id=n % 2,
                )  # fmt: skip
                target = found.waiting if receipt.queue_offset is None else found.delivered
                target[receipt.message_id] = receipt
                if n % 10 == 9:
                    clock.advance(900)
                    stepper.settle()
                if n % 25 == 24:
                    for key in list(found.waiting)[:: 30 + part]:
                        if store.cancel(found.waiting[key]) is CancelResult.CANCELLED:
                            found.cancelled.add(key)
                            del found.waiting[key]
            stepper.settle()
            waiting = {one.message_id for one in store.pending()}
            for key in found.waiting.keys() - waiting:
                found.delivered[key] = found.waiting.pop(key)
            assert found.waiting.keys() == waiting
            assert len(waiting) > 50
    found.closed_ms = clock.now_ms
    assert found.cancelled
    return found
