"""Make a golden store: a small store with every kind of file, as the reference for all damage.

Invariants:
    1. Configuration and times are the same every time. Store id and message ids are new, so the
       expected answers are taken from the store itself.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

import timerstore
from timerstore import RowBatch, StoreConfig
from timerstore.testing import ManualClock, Stepper

START_MS = 1_800_000_000_000
NOW_MS = START_MS + 60_000
CONFIG = StoreConfig(
    commit_log_segment_bytes=8192,
    queue_segment_bytes=20 * 16,
    timer_log_segment_bytes=1024,
    index_slot_count=16,
    index_entry_count=64,
    wheel_slot_count=64,
    roll_window_slots=20,
    staging_bytes=4096,
    reserve_bytes=4096,
    message_bytes_max=4000,
    topic_queue_count=2,
    level_delays="1s 5s 10m",
)
TAGS = ("paid", "late")


class Asked(NamedTuple):
    """How a store is opened, and the additional questions for it."""

    config: StoreConfig
    keys: tuple[tuple[str, str], ...]
    """Topics and keys, some of which do not exist."""
    later_ms: tuple[int, ...]
    """Times at which deliveries are read, in ms after NOW_MS."""
    once: str = ""
    """A message id that was put, if there is one."""


LARGE = Asked(
    CONFIG,
    tuple(
        (("mails", "orders")[n in {0, 10}], f"key-{n}") for n in (0, 1, 7, 10, 11, "last", "above")
    ),
    (1000, 4000, 25_000, 120_000, 1_000_000),
)


@dataclasses.dataclass(frozen=True)
class Golden:
    """The files of a directory as it was left."""

    files: dict[str, bytes]
    is_closed: bool
    older: dict[str, bytes]
    """The same store at its last checkpoint but one or more."""
    asked: Asked = LARGE

    def write(self, root: Path) -> None:
        """Write the files to an empty directory."""
        for name, data in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def batch(count: int, topic: str = "rows", due_ms: int = NOW_MS + 90_000) -> RowBatch:
    """Return rows, the first of them due now, the others later."""
    bodies = [b"row %d" % n for n in range(count)]
    offsets = np.cumsum([0, *map(len, bodies)]).astype(np.int64)
    due = np.full(count, due_ms, np.int64)
    due[0] = 0
    return RowBatch(topic=topic, bodies=b"".join(bodies), body_offsets=offsets, due_ms=due)


def _work(store: timerstore.TimerStore, clock: ManualClock, root: Path) -> dict[str, bytes]:
    stepper = Stepper(store)
    for n in range(12):
        topic = ("orders", "mails")[n % 2]
        receipt = store.put(
            topic,
            b"body %d of %s" % (n, topic.encode()),
            deliver_ms=START_MS + (1 + n * 9) * 1000 if n % 3 else None,
            tags=(*TAGS, None)[n % 3],
            keys=(f"key-{n}",),
            properties={"n": str(n)},
            queue_id=n // 2 % 2,
        )
        if n == 10:
            store.cancel(receipt)
        if n == 11:
            store.reschedule(receipt, deliver_ms=NOW_MS + 30_000)
    for level in (1, 3):
        store.put("orders", b"level %d" % level, level=level, queue_id=0, tags="paid")
    store.ingest("table", 1, [batch(4)])
    older: dict[str, bytes] = {}
    for n in range(12):
        clock.advance(5000)
        stepper.settle()
        if n == 6:
            store.flush()
            older = read(root)
    with store.consumer("orders", "group", wait=0) as consumer:
        consumer.poll(2)
        consumer.commit()
    store.put("mails", b"the last, which waits", delay=3.0, queue_id=0, keys=("key-last",))
    return older


def make(root: Path, *, is_closed: bool, asked: Asked = LARGE) -> Golden:
    """Make the store, and leave it as a kill does, with a part above the watermark."""
    clock = ManualClock(START_MS)
    store = timerstore.open(root, asked.config, clock=clock, threads=False)
    older = _work(store, clock, root)
    if is_closed:
        store.close()
        found = read(root)
    else:
        store.flush()
        store.put("mails", b"above the watermark", queue_id=1, keys=("key-above",))
        store.put("orders", b"above, and waits", delay=7.0, queue_id=1)
        found = read(root)
        store.close()
    return Golden(found, is_closed, older, asked)


def read(root: Path) -> dict[str, bytes]:
    """Return the files by their names."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}
