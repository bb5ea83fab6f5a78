"""put(unique=True) agrees with a model, for two groups, in any order of calls and reopenings."""

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest

from tests.support.amounts import AMOUNTS, sample
from tests.support.bench import Bench, small
from timerstore import AckResult, CancelResult, LeasedMessage, PutReceipt

GROUPS = ("g", "h")
KEYS = ("a", "b")


class _World:
    """A store, and by message id what each group has done with the message."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = Random(seed)
        self.bench = Bench(root, small())
        self.newest: dict[str, PutReceipt] = {}
        self.cancelled: set[str] = set()
        self.leased: dict[str, dict[str, bool]] = {}  # is it acknowledged or a dead letter?
        self.held: list[tuple[str, LeasedMessage]] = []

    def is_done(self, key: str) -> bool:
        """Return whether no message with the key waits or is worked on."""
        newest = self.newest.get(key)
        if newest is None or newest.message_id in self.cancelled:
            return True
        groups = self.leased.get(newest.message_id, {})
        return bool(groups) and all(groups.values())

    def put(self) -> None:
        key = self.draw.choice(KEYS)
        wanted = self.is_done(key)
        receipt = self.bench.store.put(
            "t", b"x", key=key, unique=True, delay=self.draw.choice([0, 0, 3, 30]), queue_id=0
        )
        assert receipt.duplicate != wanted, (key, receipt)
        if receipt.duplicate:
            assert receipt.message_id == self.newest[key].message_id
        else:
            self.newest[key] = receipt

    def step(self) -> None:
        self.bench.turn(self.draw.choice([0, 1000, 5000, 40_000]))

    def receive(self) -> None:
        group = self.draw.choice(GROUPS)
        for one in self.bench.store.receive(
            "t", group, max_count=self.draw.randint(1, 3), lease=self.draw.choice([4, 60]),
            max_attempts=None, backoff=2,
        ):  # fmt: skip
            self.leased.setdefault(one.message_id, {})[group] = False
            self.held.append((group, one))

    def settle(self) -> None:
        if not self.held:
            return
        group, one = self.held.pop(self.draw.randrange(len(self.held)))
        store, kind = self.bench.store, self.draw.choice(["ack", "ack", "nack", "now", "bury"])
        settle = {"ack": store.ack, "bury": store.bury, "nack": store.nack}.get(
            kind, lambda lease: store.nack(lease, delay=0)
        )
        if settle(one) in (AckResult.ACKED, AckResult.BURIED):
            self.leased[one.message_id][group] = True

    def requeue(self) -> None:
        self.bench.turn()
        group = self.draw.choice(GROUPS)
        for letter in self.bench.store.dead_letters(group):
            self.leased[letter.message_id][group] = False
        self.bench.store.requeue(group)

    def cancel(self) -> None:
        for newest in self.newest.values():
            if self.bench.store.cancel(newest) is CancelResult.CANCELLED:
                self.cancelled.add(newest.message_id)

    def move(self) -> None:
        for key, newest in list(self.newest.items()):
            if newest.queue_offset is None and self.bench.store.explain(newest).state == "pending":
                self.newest[key] = self.bench.store.reschedule(newest, delay=7)

    def reopen(self) -> None:
        self.bench.close()
        if self.draw.random() < 0.3:
            shutil.rmtree(self.bench.root / "index")
        self.bench.open()


@pytest.mark.parametrize(
    "seed", sample(range(AMOUNTS["seeds of unique puts"].all), "seeds of unique puts")
)
def test_unique_put_agrees_with_model(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = _World(Path(directory) / "s", seed)
        steps = [world.put] * 4 + [world.step] * 3 + [world.receive] * 3 + [world.settle] * 4
        steps += [world.requeue, world.cancel, world.move, world.reopen]
        for _ in range(120):
            world.draw.choice(steps)()
        world.bench.close()
