"""Check that a live broker counts by the rule of tests/support/broker/counts.py.

With one thread that reads messages the result is deterministic: the number after each step is
known.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import disk_reader as disk
from tests.support.broker import counts
from tests.support.broker import process as rocketmq
from tests.support.broker.process import RocketMQ
from timerstore import StoreConfig

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]

TOPIC = "orders"
CONFIG = StoreConfig(timer_log_segment_bytes=4096, queue_segment_bytes=400, reserve_bytes=0)
GIVE_UP_MS = 30_000
ROLL_SLOTS = 8


class Counted(NamedTuple):
    """The counts of a broker for one topic."""

    count: int
    counter: int


class Steps:
    """One broker, and the steps of its counts."""

    def __init__(self, process: RocketMQ, root: Path, **more: int) -> None:
        self.process = process
        self.name = root.name
        self.root = root
        self.given_back = 0
        process.open(self.name, root, CONFIG, timerGetMessageThreadNum=1, **more)
        process.ask("topic", self.name, topic=TOPIC, queues=1)
        # Whole seconds, with enough time before the next second to finish a step.
        self.begin_ms = (rocketmq.now_ms() // 1000 + 1) * 1000
        process.wait_until(self.begin_ms + 100)
        self.handles: dict[str, str] = {}

    def put(self, key: str, after_ms: int) -> None:
        due_ms = self.begin_ms + after_ms
        (answer,) = self.process.send(
            self.name,
            [{"topic": TOPIC, "queue_id": 0, "body": key.encode(),
              "properties": {"UNIQ_KEY": key, "TIMER_DELIVER_MS": due_ms}}],
        )  # fmt: skip
        self.handles[key] = answer["recallHandle"]

    def recall(self, key: str) -> None:
        self.process.recall(self.name, TOPIC, self.handles[key])

    def wait(self, after_ms: int) -> None:
        self.process.wait_until(self.begin_ms + after_ms)

    def expect(self, count: int, counter: int) -> None:
        """Check that the broker counts this, and that the rule computes the same from its files."""
        wanted = Counted(count, counter)
        give_up_ms = rocketmq.now_ms() + GIVE_UP_MS
        while (got := self._counted()) != wanted and rocketmq.now_ms() < give_up_ms:
            self.process.wait_until(rocketmq.now_ms() + 100)
        assert got == wanted
        found = counts.events(self.root)
        by_rule = counts.total(found)[TOPIC] + self.given_back
        assert (by_rule, len(found) + self.given_back) == wanted

    def _counted(self) -> Counted:
        state = self.process.ask("state", self.name)
        return Counted(state["counts"].get(TOPIC, 0), state["counter"])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    rocketmq.need_rocketmq()
    process = RocketMQ(tmp_path_factory.mktemp("java"))
    yield process
    process.kill()


def test_broker_reverts_counts_of_deletes_that_were_applied(
    process: RocketMQ, tmp_path: Path
) -> None:
    steps = Steps(process, tmp_path / "deletes")
    for key in ("A", "B", "C"):
        steps.put(key, 6000)
    steps.put("D", 10_000)
    steps.put("E", 10_000)
    steps.expect(5, 5)
    steps.recall("A")
    steps.expect(4, 6)
    steps.recall("D")
    steps.expect(3, 7)
    steps.wait(7000)
    # A is dropped, B and C are delivered: the count is right so far.
    steps.expect(1, 9)
    steps.wait(11_000)
    # D is dropped, E is delivered. The delete of A is reverted although it was applied. The delete
    # of D
    # is kept for deletes that this thread reads next.
    steps.given_back = 1
    steps.expect(1, 11)
    (queue,) = [process.messages(steps.name, TOPIC, 0)]
    assert sorted(one.body for one in queue) == [b"B", b"C", b"E"]  # no message is pending any more
    # The file has the same counts after its next write. There, too, no more deletes are reverted
    # than
    # were applied before the last slot that has any.
    process.wait_until(rocketmq.now_ms() + 1500)
    theirs = counts.read_metrics(steps.root)
    assert (theirs.counts, theirs.counter) == ({TOPIC: 1}, 11)
    assert [dict(slot) for slot in counts.carried_out(steps.root)] == [{TOPIC: 1}, {TOPIC: 1}]


def test_broker_counts_a_rolled_delete_again(process: RocketMQ, tmp_path: Path) -> None:
    steps = Steps(process, tmp_path / "rolls", timerRollWindowSlot=ROLL_SLOTS)
    steps.put("A", 15_000)
    steps.expect(1, 1)
    steps.recall("A")
    steps.expect(0, 2)
    # Both leave the wheel and enter it again; the delete is subtracted both times.
    steps.wait(9000)
    steps.expect(-2, 6)
    units = list(disk.timer_units(steps.root))
    assert [unit.magic & (disk.TIMER_DELETE | disk.TIMER_ROLL) for unit in units][:2] == [
        disk.TIMER_ROLL,
        disk.TIMER_ROLL | disk.TIMER_DELETE,
    ]
    steps.wait(16_000)
    # Applied at its target; no count is reverted, because there are no later deletes.
    steps.expect(-2, 6)
    assert process.messages(steps.name, TOPIC, 0) == []
