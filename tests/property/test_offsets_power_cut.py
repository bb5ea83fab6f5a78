"""Committed offsets after a power cut: nobody skips what comes after what was lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.bench import NOW, small
from tests.support.driver import abandon
from tests.support.durable.shadow_disk import ShadowDisk
from timerstore import TimerStore
from timerstore.testing import ManualClock, Stepper

CONFIG = small(commit_log_segment_bytes=16 * 1024, staging_bytes=4096, visibility="written")


@contextmanager
def opened(shadow: ShadowDisk, root: Path) -> Iterator[TimerStore]:
    """A store that is never closed: it is there until the power is cut."""
    root.mkdir(exist_ok=True)
    shadow.start(root)
    store = TimerStore(root, CONFIG, clock=ManualClock(NOW), threads=False)
    try:
        yield store
    finally:
        abandon(store)


def put(store: TimerStore, bodies: list[bytes]) -> None:
    for body in bodies:
        store.put("t", body)
    while Stepper(store).step("dispatch"):
        pass


def lose(tmp_path: Path, seed: int) -> int:
    """Commit what is only written, cut, go on, cut; how many messages were left of ten."""
    old = [b"old %d" % k for k in range(10)]
    new = [b"new %d" % k for k in range(15)]
    with ShadowDisk(seed) as shadow:
        with opened(shadow, tmp_path / "a") as store:
            put(store, old)
            consumer = store.consumer("t", "g", wait=0)
            assert [message.body for message in consumer] == old
            assert consumer.commit() == {0: 10}
            shadow.cut(tmp_path / "b")
        with opened(shadow, tmp_path / "b") as store:
            left = store.pull("t", 0, 2**62).max_offset
            assert store.committed("t", "g") == {0: left}
            put(store, new)
            store.flush()
            shadow.cut(tmp_path / "c")
        with opened(shadow, tmp_path / "c") as store:
            # More are there than were committed then: the offset that was taken back stays so.
            assert store.committed("t", "g") == {0: left}
            assert [m.body for m in store.consumer("t", "g", wait=0)] == new
    return left


@pytest.mark.slow
def test_a_group_does_not_skip_what_comes_after_what_was_lost(tmp_path: Path) -> None:
    left = []
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        left.append(lose(tmp_path / str(seed), seed))
    assert min(left) < 10, "nothing was ever lost: this shows nothing"
