"""A small directory of shards on a clock turned by hand; what is in it, counted.

Holds:    every shard that it closes was checked before (verify).
"""

from collections import Counter
from pathlib import Path
from typing import Any

import timerstore
from tests.support.bench import NOW, small
from timerstore import ShardedStore, StoreConfig
from timerstore.testing import ManualClock, Stepper


class ShardBench:
    """One directory, one clock, shards that may be opened again."""

    def __init__(self, root: Path, n: int, config: StoreConfig | None = None) -> None:
        self.root = root
        self.n = n
        self.config = config if config is not None else small()
        self.clock = ManualClock(NOW)
        self.open()

    def open(self, **options: Any) -> ShardedStore:
        self.store = timerstore.open_shards(
            self.root, self.n, self.config, clock=self.clock, threads=False, **options
        )
        self.steppers = [Stepper(one) for one in self.store.stores]
        return self.store

    def close(self) -> None:
        """Check, then close."""
        if not self.store.stores[0]._closed:
            for report in self.store.verify():
                assert report.clean, report
        self.store.close()

    def reopen(self) -> ShardedStore:
        self.close()
        return self.open()

    def turn(self, ms: int = 0) -> None:
        """Turn the clock and let every service of every shard work until none has anything."""
        self.clock.set(self.clock.now_ms + ms)
        for stepper in self.steppers:
            stepper.settle()

    def bodies(self, topic: str = "t") -> list[list[bytes]]:
        """What is in a topic now, by shard."""
        return [bodies_of(one, topic) for one in self.store.stores]

    def counted(self, topic: str = "t") -> Counter[bytes]:
        """How often each body came, in all shards."""
        return Counter(body for part in self.bodies(topic) for body in part)


def bodies_of(store: timerstore.TimerStore, topic: str) -> list[bytes]:
    """What is in all queues of a topic, queue by queue."""
    found: list[bytes] = []
    for queue_id in range(store.topics().get(topic, 0)):
        offset = 0
        while (page := store.pull(topic, queue_id, offset, max_count=1000)).messages:
            found += [one.body for one in page.messages]
            offset = page.next_offset
    return found
