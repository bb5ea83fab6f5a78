"""A store of ours for a broker to open: a child process makes it, then closes it or is killed.

The file made.json next to the directory records the acknowledged calls. Every body begins with a
unique number.

Thread safety: the child has one thread. It steps the services on a manual clock, which ends at the
    current wall-clock time, because a broker uses the wall clock only.
"""

import dataclasses
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.support import disk_reader as disk
from timerstore import CancelResult, Message, PutReceipt, StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

TOPICS = ("orders", "reminders")
QUEUES = [(topic, queue_id) for topic in TOPICS for queue_id in (0, 1)]
GROUP = "billing"
SMALL = {
    "commit_log_segment_bytes": 65_536,
    "timer_log_segment_bytes": 4096,
    "queue_segment_bytes": 400,
    "index_slot_count": 500,
    "index_entry_count": 2000,
    "message_bytes_max": 16_384,
    "roll_window_slots": 20,
    "topic_queue_count": 2,
    "reserve_bytes": 0,
}
LEVEL_COUNT = 18
_PAST_MS = 60_000
_SOON_S = 5
_YEAR_MS = 31_557_600_000


@dataclasses.dataclass
class Put:
    """One acknowledged put."""

    number: int
    topic: str
    queue_id: int
    due_ms: int
    key: str
    message_id: str
    handle: str
    level: int = 0
    is_cancelled: bool = False


@dataclasses.dataclass
class Made:
    """A store and the record of the calls that its child made."""

    root: Path
    config: StoreConfig
    end_ms: int
    puts: list[Put]
    committed: dict[tuple[str, int], int]
    soon_s: int = 0

    @property
    def soon_over_ms(self) -> int:
        """Return the time at which all messages of the near part are due."""
        return self.end_ms + 1000 * (self.soon_s + _SOON_S)

    def out_by(self, time_ms: int) -> set[int]:
        """Return the numbers of messages that must be delivered by a time."""
        return {one.number for one in self.puts if not one.is_cancelled and one.due_ms <= time_ms}

    @property
    def due_ms(self) -> dict[int, int]:
        """Return the due time of each message, by number."""
        return {one.number: one.due_ms for one in self.puts}


def body_of(number: int, size: int) -> bytes:
    """Return a body that begins with its number."""
    return (b"%06d." % number).ljust(size, b"x")


def number_of(body: bytes | bytearray | memoryview) -> int:
    """Return the number of a body."""
    return int(bytes(body[:6]))


def make(
    root: Path, config: Mapping[str, Any], end_ms: int, *, soon_s: int, dies: bool = False
) -> Made:
    """Make a store at time `end_ms`; some messages are due from `soon_s` seconds later on."""
    delays = [f"{soon_s + n}s" for n in range(1, _SOON_S)] * LEVEL_COUNT
    config = {**config, "level_delays": " ".join(delays[:LEVEL_COUNT])}
    child = multiprocessing.get_context("spawn").Process(
        target=_work, args=(root, config, end_ms, soon_s, dies)
    )
    child.start()
    child.join(100)
    assert child.exitcode == (-signal.SIGKILL if dies else 0)
    found = json.loads(root.with_suffix(".json").read_text())
    return Made(
        root,
        StoreConfig(**config),
        end_ms,
        [Put(**one) for one in found["puts"]],
        {(topic, int(queue_id)): offset for topic, queue_id, offset in found["committed"]},
        soon_s,
    )


def recover(made: Made) -> None:
    """Open and close it, as an operator must before a broker opens it."""
    clock = ManualClock(made.end_ms)
    with timerstore.open(made.root, made.config, clock=clock, threads=False) as store:
        report = store.verify()
        assert report.clean, report


class _Worker:
    """The child's store and its records."""

    def __init__(self, store: TimerStore, clock: ManualClock, end_ms: int, soon_s: int) -> None:
        self.store = store
        self.clock = clock
        self.end_ms = end_ms
        self.soon_ms = end_ms + 1000 * soon_s
        self.random = Random(7)
        self.puts: list[Put] = []

    def put(self) -> None:
        number, random = len(self.puts), self.random
        topic, queue_id = QUEUES[random.randrange(len(QUEUES))]
        kind = random.randrange(10)
        level = random.randint(1, LEVEL_COUNT) if kind == 0 else None
        due_ms = None if kind < 2 else self._due_ms(kind)
        key = f"key-{number}"
        receipt: PutReceipt = self.store.put(
            topic, body_of(number, random.randrange(7, 700)), deliver_ms=due_ms, level=level,
            tags=random.choice(("paid", None)), keys=(key, f"also-{number}"),
            properties={"ключ": f"значение {number}"}, queue_id=queue_id,
        )  # fmt: skip
        put = Put(number, topic, queue_id, receipt.due_ms, key, receipt.message_id, receipt.handle)
        put.level = level or 0
        self.puts.append(put)

    def _due_ms(self, kind: int) -> int:
        """Return a time during the run, after a broker's opening, after its roll, or far ahead."""
        random = self.random
        if kind < 5:
            return self.clock.now_ms + random.randrange(30_000)
        if kind < 7:
            return self.soon_ms + random.randrange(1000 * _SOON_S)
        if kind < 9:
            return self.end_ms + 40_000 + random.randrange(30_000)
        return self.end_ms + 3_600_000 + random.randrange(172_800_000)

    def cancel(self) -> None:
        one = self.random.choice(self.puts)
        if one.handle and not one.is_cancelled:
            one.is_cancelled = self.store.cancel(one.handle) is CancelResult.CANCELLED

    def put_levels(self) -> None:
        """Put one message for each level, so that every level has a pending message."""
        for level in range(1, LEVEL_COUNT + 1):
            number = len(self.puts)
            receipt = self.store.put("orders", body_of(number, 20), level=level, queue_id=0)
            put = Put(number, "orders", 0, receipt.due_ms, "", receipt.message_id, "", level)
            self.puts.append(put)

    def commit(self) -> dict[int, int]:
        with self.store.consumer("orders", GROUP, wait=0) as consumer:
            committed: dict[int, int] = {}
            while len(committed) < 2:
                assert consumer.poll(30)
                consumer.commit()
                committed = self.store.committed("orders", GROUP)
        return committed


def _work(root: Path, config: dict[str, Any], end_ms: int, soon_s: int, dies: bool) -> None:
    clock = ManualClock(end_ms - _PAST_MS)
    store = timerstore.open(root, StoreConfig(**config), clock=clock, threads=False)
    stepper = Stepper(store)
    worker = _Worker(store, clock, end_ms, soon_s)
    parts = 12
    for _ in range(parts):
        for n in range(50):
            worker.put()
            if n % 4 == 0:
                worker.cancel()
            if n % 10 == 0:
                clock.advance(_PAST_MS // parts // 5)
                stepper.settle()
    assert clock.now_ms == end_ms
    stepper.settle()
    committed = worker.commit()
    worker.put_levels()
    for _ in range(30):  # the services do not run after these puts
        worker.put()
    found = {
        "puts": [dataclasses.asdict(one) for one in worker.puts],
        "committed": [("orders", queue_id, offset) for queue_id, offset in committed.items()],
    }
    root.with_suffix(".json").write_text(json.dumps(found))
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def records_of(root: Path, topic: str, queue_id: int) -> list[disk.Record]:
    """Return the records of a queue of a closed store, read by disk_reader."""
    return [
        disk.read_record(root, unit.log_offset, unit.size)
        for unit in disk.iter_queue(root, topic, queue_id)
    ]


def finish(made: Made, now_ms: int) -> dict[int, list[Message]]:
    """Run a directory until nothing is pending, and return its delivered messages by number."""
    clock = ManualClock(now_ms)
    with timerstore.open(made.root, made.config, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        stepper.settle()
        due_ms = [one.due_ms for one in store.pending()]
        for time_ms in (*due_ms[:: max(1, len(due_ms) // 20)], now_ms + _YEAR_MS):
            clock.set(max(clock.now_ms, time_ms))
            stepper.settle()
        assert not list(store.pending())
        report = store.verify()
        assert report.clean, report
        found: dict[int, list[Message]] = {}
        topics = store.topics()
        for topic, queue_id in [one for one in QUEUES if one[1] < topics.get(one[0], 0)]:
            for message in store.pull_batch(topic, queue_id, 0, max_count=100_000):
                found.setdefault(number_of(message.body), []).append(message)
    return found


def check_all_out_once(made: Made, found: dict[int, list[Message]]) -> None:
    """Check that each message is delivered once, not early, and not if it was cancelled."""
    counts = Counter({number: len(messages) for number, messages in found.items()})
    assert counts == Counter(one.number for one in made.puts if not one.is_cancelled)
    for one in made.puts:
        for message in found.get(one.number, []):
            assert (message.topic, message.queue_id) == (one.topic, one.queue_id)
            assert message.message_id == one.message_id
            assert message.store_ms >= one.due_ms


def files_of(root: Path) -> dict[str, bytes]:
    """Return every file of a directory with its bytes, without the zeros of holes."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes().rstrip(b"\0")
    return found
