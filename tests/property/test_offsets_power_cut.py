"""Test committed offsets after a power cut: a group skips no message that follows a lost one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.bench import NOW, small
from tests.support.driver import abandon
from tests.support.durable.shadow_disk import ShadowDisk
from timerstore import TimerStore
from timerstore.testing import ManualClock, Stepper

CONFIG = small(commit_log_segment_bytes=16 * 1024, staging_bytes=4096, visibility="written")


@contextmanager
def opened(shadow: ShadowDisk, root: Path) -> Iterator[TimerStore]:
    """Open a store that is never closed, but runs until the power is cut."""
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
    """Commit messages that are only written, cut the power, continue, and cut it again.

    Return the number of messages left of ten.
    """
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
            # More messages exist than were committed then, so the reverted offset stays.
            assert store.committed("t", "g") == {0: left}
            assert [m.body for m in store.consumer("t", "g", wait=0)] == new
    return left


def test_group_skips_no_message_after_a_power_cut(tmp_path: Path) -> None:
    left = []
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        left.append(lose(tmp_path / str(seed), seed))
    assert min(left) < 10, "nothing was ever lost: this shows nothing"
