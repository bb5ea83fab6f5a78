"""What a broker wrote behind our end is taken in whole, whatever cuts the opening off, and whatever
ids its clients name.
"""

import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import NOW, Bench, copied_at, small
from tests.support.broker import resent as sent_on
from timerstore import TimerStore
from timerstore._engine.base import failpoints
from timerstore.testing import ManualClock, Stepper

DUE_MS = NOW + 30_000
WILD = (2**25, 2**40, 2**62)  # beyond what any record of a small log can have had


def closed(root: Path) -> str:
    """A store with one message that came, and one that waits; the TS_ID of the first."""
    bench = Bench(root)
    bench.store.put("orders", b"came", delay=1, queue_id=0)
    bench.store.put("orders", b"waits", deliver_ms=DUE_MS, queue_id=0)
    bench.clock.advance(1001)
    bench.stepper.settle()
    [came] = bench.store.pull("orders", 0, 0).messages
    bench.close()
    return came.properties["TS_ID"]


def wild(ours: str, timer_id: int) -> str:
    store = disk.decode_ts_id(ours)
    assert store is not None
    return disk.encode_ts_id(store[0], timer_id)


def opened(root: Path) -> tuple[TimerStore, Stepper, ManualClock]:
    clock = ManualClock(NOW + 2000)
    store = timerstore.open(root, small(), clock=clock, threads=False)
    stepper = Stepper(store)
    stepper.settle()
    return store, stepper, clock


def assert_all_come(root: Path, more: int) -> None:
    """What waits, and so many that a client sent; once, also where the store is opened again."""
    for _ in range(2):
        store, stepper, clock = opened(root)
        assert store.verify().clean
        clock.set(DUE_MS)
        stepper.settle()
        found = [message.body for message in store.pull("orders", 0, 0).messages]
        assert sorted(found) == [b"came", *[b"sent on"] * more, b"waits"]
        assert store.verify().clean
        store.close()


def test_an_opening_behind_a_broker_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that broker wrote behind the watermark had no state: it never came."""
    closed(tmp_path / "s")
    sent_on.delayed(tmp_path / "s", "K", DUE_MS, store_ms=NOW)
    with copied_at(monkeypatch, "recover_wheel_lengthened", tmp_path / "s", tmp_path / "killed"):
        opened(tmp_path / "s")[0].close()
    assert_all_come(tmp_path / "killed", 1)


def test_an_opening_behind_a_broker_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(tmp_path / "s")
    sent_on.delayed(tmp_path / "s", "K", DUE_MS, store_ms=NOW)

    def fail(point: str) -> None:
        if point == "recover_wheel_lengthened":
            raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", fail)
        for _ in range(2):
            with pytest.raises(MemoryError):
                opened(tmp_path / "s")
    assert_all_come(tmp_path / "s", 1)


def test_a_broker_that_removed_the_first_files_before_an_opening_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retention may; that is no loss of ours."""
    root, config = tmp_path / "s", small(commit_log_segment_bytes=64 * 1024, message_bytes_max=9000)
    bench = Bench(root, config)
    for _ in range(20):
        bench.store.put("orders", bytes(8000), queue_id=0)
    bench.store.put("orders", b"waits", deliver_ms=DUE_MS, queue_id=0)
    bench.stepper.settle()
    bench.close()
    sent_on.delayed(root, "K", DUE_MS, store_ms=NOW)
    disk.segments(root / "commitlog")[0][1].unlink()
    with copied_at(monkeypatch, "recover_wheel_lengthened", root, tmp_path / "killed"):
        timerstore.open(root, config, clock=bench.clock, threads=False).close()
    clock = ManualClock(DUE_MS)
    with timerstore.open(tmp_path / "killed", config, clock=clock, threads=False) as store:
        Stepper(store).settle()
        begin = store.pull("orders", 0, 0, max_count=1).min_offset
        found = [message.body for message in store.pull("orders", 0, begin, max_count=99).messages]
        assert sorted(body for body in found if len(body) < 100) == [b"sent on", b"waits"]


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("timer_id", WILD)
def test_an_id_of_ours_that_none_can_have_had_is_a_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timer_id: int, *, is_cut_off: bool
) -> None:
    """No damage, as it was called: what it is on comes, delayed or at once."""
    root = tmp_path / "s"
    ours = wild(closed(root), timer_id)
    sent_on.delayed(root, "K1", DUE_MS, store_ms=NOW, TS_ID=ours)
    sent_on.write(root, "orders", {"TS_ID": ours, "UNIQ_KEY": "K2"}, store_ms=NOW)
    if is_cut_off:
        with copied_at(monkeypatch, "recover_wheel_lengthened", root, tmp_path / "killed"):
            opened(root)[0].close()
        shutil.rmtree(root)
        (tmp_path / "killed").rename(root)
    assert_all_come(root, 2)


@pytest.mark.parametrize("is_delayed", [False, True])
@pytest.mark.parametrize("timer_id", WILD)
def test_behind_the_watermark_of_a_store_that_was_killed(
    tmp_path: Path, timer_id: int, *, is_delayed: bool
) -> None:
    """No broker opens such a store; who writes to it all the same does not keep it from opening."""
    ours = wild(closed(tmp_path / "s"), timer_id)
    store, _, _ = opened(tmp_path / "s")
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    store.close()
    if is_delayed:
        sent_on.delayed(tmp_path / "killed", "K", DUE_MS, store_ms=NOW, TS_ID=ours)
    else:
        properties = {"TS_ID": ours, "UNIQ_KEY": "K"}
        sent_on.write(tmp_path / "killed", "orders", properties, store_ms=NOW)
    assert_all_come(tmp_path / "killed", 1)
