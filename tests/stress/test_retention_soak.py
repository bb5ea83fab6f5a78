"""Run a steady load with retention, and check that no resource grows.

The resources are disk, memory, descriptors, threads and maps.

TIMERSTORE_SOAK_S: duration in seconds (12; `make soak` and `make nightly` take longer).
TIMERSTORE_SOAK_RATE: messages a second (2000). Choose fewer on a busy machine, because messages
that the reader has not read are kept, and this is no leak.
"""

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from timerstore import TimerStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(0)]

SECONDS = float(os.environ.get("TIMERSTORE_SOAK_S", "12"))
PER_SECOND = int(os.environ.get("TIMERSTORE_SOAK_RATE", "2000"))
MIB = 1 << 20


@dataclass
class Sample:
    """The resources of the process and of the directory at one time."""

    disk_bytes: int
    files: int
    descriptors: int
    threads: int
    maps: int
    memory_bytes: int


def sample(root: Path) -> Sample:
    sizes = []
    for path in root.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # a file that was removed just now
            continue
        if path.is_file():
            sizes.append(status.st_blocks * 512)
    maps = Path("/proc/self/maps").read_text().count(str(root))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return Sample(sum(sizes), len(sizes), descriptors, threading.active_count(), maps, pages * 4096)


@dataclass
class Load:
    """Put and read messages, in threads that run until `stop`."""

    store: TimerStore
    stop: threading.Event = field(default_factory=threading.Event)
    put_count: int = 0
    far: list[str] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)  # number -> deliveries
    removed: int = 0
    wrong: list[str] = field(default_factory=list)

    def put(self) -> None:
        draw, begun, store = random.Random(1), time.monotonic(), self.store
        while not self.stop.is_set():
            bodies = [
                b"%09d" % (self.put_count + k) + bytes(draw.randrange(600)) for k in range(40)
            ]
            delays = [draw.choice((0.0, 0.05, 0.3, 0.8)) for _ in bodies]
            store.put_many("t", bodies, delay=delays)
            self.put_count += len(bodies)
            if self.put_count % 4000 == 0:
                self.far.append(store.put("far", b"x" * 300, delay=86_400).handle)
            time.sleep(max(0.0, begun + self.put_count / PER_SECOND - time.monotonic()))

    def read(self) -> None:
        with self.store.consumer("t", "g") as reader:
            idle = 0
            while idle < 20:
                messages = reader.poll(500, 0.1)
                for message in messages:
                    number = int(message.body[:9])
                    self.seen[number] = self.seen.get(number, 0) + 1
                    if message.delivered_ms < message.due_ms:
                        self.wrong.append(f"early: {message}")
                reader.commit()
                idle = 0 if messages or not self.stop.is_set() else idle + 1
            self.removed = reader.removed_count

    def look_back(self) -> None:
        """Read messages that retention is about to remove, so that a reader always holds a view."""
        while "t" not in self.store.topics():
            time.sleep(0.01)
        while not self.stop.is_set():
            found = self.store.pull_batch("t", 0, 0, max_count=200)
            self.store.pull_batch("t", 0, found.next_offset, max_count=200)
            self.store.query("t", "nobody", max_count=1)


def test_resources_do_not_grow_under_a_steady_load(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = small(
        commit_log_segment_bytes=MIB, queue_segment_bytes=20_000, index_entry_count=20_000,
        timer_log_segment_bytes=64 * 1024, precision_ms=100, retention_ms=1000,
        retention_disk_percent=0, checkpoint_interval_ms=100,
    )  # fmt: skip
    store = timerstore.open(root, config)
    load = Load(store)
    threads = [threading.Thread(target=one) for one in (load.put, load.read, load.look_back)]
    for thread in threads:
        thread.start()
    samples = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.25)
        samples.append(sample(root))
    load.stop.set()
    for thread in threads:
        thread.join()
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]
    print(f"\n{load.put_count} put, {max(before, key=lambda s: s.disk_bytes)}, then "
          f"{max(after, key=lambda s: s.disk_bytes)}; {store.stats()}")  # fmt: skip
    for name, more in (
        ("disk_bytes", 12 * MIB), ("files", 12), ("descriptors", 8), ("threads", 0), ("maps", 12),
        ("memory_bytes", 24 * MIB),
    ):  # fmt: skip
        was, now = (max(getattr(one, name) for one in part) for part in (before, after))
        assert now <= was + more, f"{name}: at most {was}, then {now}"
    assert store.stats()["retention_log_files"] > 2
    assert not load.wrong
    assert load.removed == 0
    assert sorted(load.seen) == list(range(load.put_count))
    assert set(load.seen.values()) == {1}
    assert sorted(one.handle for one in store.pending(topic="far")) == sorted(load.far)
    report = store.verify()
    assert report.clean, report
    store.close()
