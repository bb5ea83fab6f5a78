"""Records that a broker appended after this store's end are imported completely.

This holds also if the opening is interrupted, and for any ids that the records have.
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
WILD = (2**25, 2**40, 2**62)  # higher than any id of a record in a small log


def closed(root: Path) -> str:
    """Return the TS_ID of a delivered message, of a store that also has a pending one."""
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
    """Check that all pending and sent messages are delivered once, also after a reopening."""
    for _ in range(2):
        store, stepper, clock = opened(root)
        assert store.verify().clean
        clock.set(DUE_MS)
        stepper.settle()
        found = [message.body for message in store.pull("orders", 0, 0).messages]
        assert sorted(found) == [b"came", *[b"sent on"] * more, b"waits"]
        assert store.verify().clean
        store.close()


def test_broker_records_are_imported_after_an_opening_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that the broker wrote after the watermark had no state and were not delivered."""
    closed(tmp_path / "s")
    sent_on.delayed(tmp_path / "s", "K", DUE_MS, store_ms=NOW)
    with copied_at(monkeypatch, "recover_wheel_lengthened", tmp_path / "s", tmp_path / "killed"):
        opened(tmp_path / "s")[0].close()
    assert_all_come(tmp_path / "killed", 1)


def test_broker_records_are_imported_after_an_opening_failed(
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


def test_files_that_a_broker_removed_are_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's retention may remove files of the log."""
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
def test_impossible_own_id_belongs_to_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timer_id: int, *, is_cut_off: bool
) -> None:
    """It is not damage. Its message is delivered, delayed or at once."""
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
def test_foreign_records_after_the_watermark_of_a_killed_store_are_imported(
    tmp_path: Path, timer_id: int, *, is_delayed: bool
) -> None:
    """No broker opens such a store, but foreign records in it must not prevent opening."""
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
