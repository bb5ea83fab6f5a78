"""Small stores whose retention drops files of their log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import timerstore
from tests.support.bench import NOW, Bench, small
from timerstore import StoreConfig, TimerStore
from timerstore.testing import ManualClock, Stepper

KIB = 1024
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SIZES = small(
    commit_log_segment_bytes=16 * KIB, retention_log_bytes=20 * KIB, queue_segment_bytes=200
)
"""A file of the log is removed as soon as there is another."""


def config(**changes: Any) -> StoreConfig:
    """Return a config with files of a dozen records and no rolls within days."""
    base = StoreConfig(
        commit_log_segment_bytes=16 * KIB,
        queue_segment_bytes=200,
        timer_log_segment_bytes=2048,
        wheel_slot_count=2048,
        precision_ms=60_000,
        index_slot_count=5,
        index_entry_count=40,
        staging_bytes=4 * KIB,
        reserve_bytes=0,
        retention_ms=HOUR_MS,
        level_delays="1s 2h",
    )
    return replace(base, **changes)


def begin_of(bench: Bench) -> int:
    """Return the offset at which the log begins."""
    return int(bench.store.stats()["log_begin_bytes"])


def fill(bench: Bench, begin: int) -> None:
    """Put messages that are due at once until the log begins after `begin`."""
    while begin_of(bench) <= begin:
        for _ in range(13):
            bench.store.put("other", bytes(1200))
        bench.turn()


class RetentionBench:
    """A store in one directory, with a manual clock and manual steps of its services."""

    def __init__(self, root: Path, config_: StoreConfig | None = None) -> None:
        self.root = root
        self.config = config_ or config()
        self.clock = ManualClock(NOW)
        self.open()

    def open(self) -> None:
        """Open the store."""
        self.store: TimerStore = timerstore.open(
            self.root, self.config, clock=self.clock, threads=False
        )
        self.stepper = Stepper(self.store)

    def reopen(self) -> None:
        """Close the store and open it again."""
        self.store.close()
        self.open()

    def fill(self, count: int = 24, topic: str = "t") -> None:
        """Put and deliver messages that are due at once. 24 of them take more than one file."""
        for _ in range(count):
            self.store.put(topic, bytes(1200))
        self.stepper.settle()

    def age(self, ms: int = HOUR_MS) -> None:
        """Advance the clock, and run all services until they are idle."""
        self.clock.advance(ms)
        self.stepper.settle()

    def stat(self, name: str) -> int:
        """Return a statistic."""
        return int(self.store.stats()[name])

    @property
    def log_files(self) -> list[int]:
        """Return the log offsets at which the files of the commit log begin."""
        return [int(path.name) for path in sorted((self.root / "commitlog").iterdir())]

    def bodies(self, topic: str = "t") -> list[bytes]:
        """Return the bodies of all messages that can be pulled."""
        found: list[bytes] = []
        offset = self.store.pull(topic, 0, 2**62).min_offset
        while True:
            result = self.store.pull(topic, 0, offset)
            found += [message.body for message in result.messages]
            if result.next_offset <= offset:
                return found
            offset = result.next_offset

    def check(self) -> None:
        """Verify the store."""
        report = self.store.verify()
        assert report.clean, report
