"""A small directory of shards on a manual clock, and functions that count its messages.

Invariants: every shard that is closed has been checked by `verify` first.
"""

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import timerstore
from tests.support.bench import NOW, small
from tests.support.inside import inside
from timerstore import ShardedStore, StoreConfig
from timerstore.testing import ManualClock, Stepper


class ShardBench:
    """One directory, one clock, and shards that may be opened again."""

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
        if not inside(self.store.stores[0]).is_closed:
            for report in self.store.verify():
                assert report.clean, report
        self.store.close()

    def reopen(self) -> ShardedStore:
        self.close()
        return self.open()

    def turn(self, ms: int = 0) -> None:
        """Advance the clock, and run all services of all shards until they are idle."""
        self.clock.set(self.clock.now_ms + ms)
        for stepper in self.steppers:
            stepper.settle()

    def bodies(self, topic: str = "t") -> list[list[bytes]]:
        """Return the bodies of a topic, by shard."""
        return [bodies_of(one, topic) for one in self.store.stores]

    def counted(self, topic: str = "t") -> Counter[bytes]:
        """Return how often each body was delivered, in all shards."""
        return Counter(body for part in self.bodies(topic) for body in part)


def bodies_of(store: timerstore.TimerStore, topic: str) -> list[bytes]:
    """Return the bodies of all queues of a topic, queue by queue."""
    found: list[bytes] = []
    for queue_id in range(store.topics().get(topic, 0)):
        offset = 0
        while (page := store.pull(topic, queue_id, offset, max_count=1000)).messages:
            found += [one.body for one in page.messages]
            offset = page.next_offset
    return found


def shard_of(key: str, n: int = 3) -> int:
    """Return the shard of a key, computed independently of the package."""
    return zlib.crc32(key.encode()) % n
