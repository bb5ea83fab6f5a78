"""Run a store with threads on a system clock that is set forward and back (fake_clock.c).

    python -m tests.crash.clock_child <store> <clock file> [--patient]

With `--patient`, no thread calls the store after a step forward, so that the store must notice the
step itself.
"""

import argparse
import json
import mmap
import struct
import sys
import time
from pathlib import Path

import timerstore
from timerstore import StoreConfig, TimerStore

_HOUR_MS = 3_600_000
_QUIET_S = 0.4
_SOON_S = 5.0
_NOTICED_S = 12.0  # a service that waits for a wall time checks the clock again after ten seconds
CONFIG = StoreConfig(
    commit_log_segment_bytes=1 << 20, wheel_slot_count=4096, precision_ms=100,
    timer_log_segment_bytes=1 << 16, queue_segment_bytes=20_000, index_enabled=False,
)  # fmt: skip


class FakeClock:
    """Set the clock of this process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 24)
        # pairs of the number of messages put and the clock time then
        self.peaks: list[tuple[int, int]] = []
        self.put_count = 0

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def set(self, wall_ms: int, permille: int = 1000) -> None:
        """Set the clock. It continues at the given thousandths of its normal speed."""
        self.peaks.append((self.put_count, self.now_ms))
        self._map[:] = struct.pack("=3q", wall_ms * 1_000_000, time.monotonic_ns(), permille)

    def step(self, ms: int, permille: int = 1000) -> None:
        self.set(self.now_ms + ms, permille)

    def latest_since(self, put: int) -> int:
        """Return the latest time that the clock showed since this many messages were put."""
        return max([self.now_ms, *(ms for count, ms in self.peaks if count >= put)])


class Child:
    """Put messages, set the clock, and check the deliveries."""

    def __init__(self, root: Path, clock: FakeClock, *, is_patient: bool) -> None:
        self._root = root
        self._clock = clock
        self._is_patient = is_patient
        # number -> due time, number of messages put before
        self._due: dict[int, tuple[int, int]] = {}
        self._came: list[int] = []
        self.store: TimerStore = timerstore.open(root, CONFIG)

    def put(self, count: int, first_ms: int, last_ms: int) -> None:
        """Put messages that are due between two times from now."""
        now_ms = self._clock.now_ms
        for n in range(count):
            due_ms = now_ms + first_ms + (last_ms - first_ms) * n // max(1, count - 1)
            number, before = len(self._due), self._clock.put_count
            self._clock.put_count += 1
            receipt = self.store.put("t", b"%d" % number, deliver_ms=due_ms, queue_id=0)
            # not later than the clock at the end, which is later on a slow machine
            assert receipt.due_ms >= due_ms
            self._due[number] = receipt.due_ms, before

    def look(self, wait_s: float = 0.0) -> int:
        """Read new messages. For each, the clock must have shown its due time since the put."""
        found = self.store.pull("t", 0, len(self._came), max_count=1000, wait=wait_s).messages
        for one in found:
            number = int(bytes(one.body))
            due_ms, put = self._due[number]
            assert number not in self._came, f"twice: {one}"
            assert one.due_ms == due_ms, one
            assert one.delivered_ms is not None
            assert one.delivered_ms >= due_ms, f"early by its own word: {one}"
            latest_ms = self._clock.latest_since(put)
            assert latest_ms >= due_ms, f"early: it was {latest_ms} at most: {one}"
            self._came.append(number)
        return len(found)

    def quiet(self) -> None:
        """Check that no message is delivered for a while."""
        end = time.monotonic() + _QUIET_S
        while time.monotonic() < end:
            assert not self.look(0.05), f"it came: {self._came[-1]}"

    def all_come(self, but: int = 0) -> float:
        """Wait until all but some messages were delivered, and return how long it took."""
        begun = time.monotonic()
        limit_s = _NOTICED_S if self._is_patient else _SOON_S
        if not self._is_patient:
            self.put(1, 1, 1)  # a pending timer makes the services look at the clock
        while len(self._came) < len(self._due) - but:
            assert time.monotonic() < begun + limit_s, f"late: {self.store.stats()}"
            self.look(0.1)
        assert len(self._came) == len(self._due) - but
        return time.monotonic() - begun

    def in_order(self, since: int) -> None:
        """Check that the messages since then are in the order of their due times."""
        dues = [self._due[number][0] for number in self._came[since:]]
        wanted = sorted(dues[:-1]) if not self._is_patient else sorted(dues)
        assert [d for d in dues if d in wanted] == wanted or dues == sorted(dues), "out of order"

    def reopen(self) -> None:
        self.store.close()
        self.store = timerstore.open(self._root, CONFIG)

    def run(self) -> dict[str, float]:
        """Run all steps, and return the measured delays in seconds."""
        clock, took = self._clock, {}
        self.put(100, 20, 800)
        took["as the clock goes"] = self.all_come()
        self.put(100, _HOUR_MS // 2, _HOUR_MS)
        self.quiet()
        clock.step(_HOUR_MS + 1000)
        took["an hour forward"] = self.all_come()
        self.put(100, _HOUR_MS, 2 * _HOUR_MS)
        clock.step(-2 * _HOUR_MS)
        self.quiet()
        self.put(20, 50, 200)  # due at times that the clock has shown before
        took["after two hours back"] = self.all_come(but=100)
        clock.step(0, permille=0)  # the clock stands still
        self.put(20, 100, 200)
        self.quiet()
        clock.step(0, permille=10_000)
        took["ten times as fast"] = self.all_come(but=100)
        clock.step(0)
        clock.step(-10 * 365 * 24 * _HOUR_MS)
        self.quiet()
        self.reopen()
        self.quiet()
        clock.step(10 * 365 * 24 * _HOUR_MS)
        self.quiet()
        since = len(self._came)
        clock.step(5 * _HOUR_MS)  # as after a suspend: the monotonic clock stood still
        took["a suspend"] = self.all_come()
        self.in_order(since)
        self.put(50, _HOUR_MS, 2 * _HOUR_MS)
        self.store.close()
        clock.step(24 * _HOUR_MS)
        self.store = timerstore.open(self._root, CONFIG)
        took["a day closed"] = self.all_come()
        assert self.store.verify().clean
        self.store.close()
        return took


def main() -> None:
    """Run the steps, and print the delays."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("clock", type=Path)
    parser.add_argument("--patient", action="store_true")
    given = parser.parse_args()
    child = Child(given.store, FakeClock(given.clock), is_patient=given.patient)
    print(json.dumps(child.run()))


if __name__ == "__main__":
    sys.exit(main())
