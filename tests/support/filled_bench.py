"""A store with messages in every state, to damage and verify."""

from pathlib import Path

import numpy as np

import timerstore
from tests.support.driver import START_MS, tiny
from timerstore import CancelResult, Report
from timerstore.testing import ManualClock, Stepper

CONFIG = tiny(1000, "async")


class FilledBench:
    """A store with some of everything: delivered, cancelled, waiting, rolled, not linked yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(START_MS)
        self.open()
        self.fill()

    def open(self) -> None:
        self.store = timerstore.open(self.root, CONFIG, clock=self.clock, threads=False)
        self.stepper = Stepper(self.store)

    def fill(self) -> None:
        store, now_ms = self.store, self.clock.now_ms
        for k in range(60):
            store.put(f"topic-{k % 3}", b"%d" % k * 20, deliver_ms=now_ms + 700 * k, tags=f"t{k}")
        store.put_many("topic-2", [b"%d" % k for k in range(20)], delay=30)
        far = [store.put("topic-0", b"far", delay=1000.0 * k) for k in range(1, 8)]
        self.stepper.settle()
        assert store.cancel(far[0]) is CancelResult.CANCELLED
        self.clock.advance(20_000)
        self.stepper.settle()
        store.put_many("topic-1", [b"late"] * 5, delay=np.arange(5) / 10)

    def reopen(self) -> None:
        self.store.close()
        self.open()


def flip(path: Path, offset: int, bits: int = 0xFF) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        one = file.read(1)
        file.seek(offset)
        file.write(bytes([one[0] ^ bits]))


def check_reports(report: Report, what: str, *where: object) -> None:
    """Some problem is of this kind, and at this place."""
    hits = [p for p in report.problems if what in p.what and all(str(w) in p.where for w in where)]
    assert hits, f"{what} at {where}:\n{report}"


def segment(root: Path, name: str, number: int, size: int) -> Path:
    return root / name / f"{number * size:020d}"
