"""Flow control: `slot_messages_max`, FlowControlError, and the counts of slots."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import counted_slots, counts_by_slot, inside, recount
from timerstore import (
    BusyError,
    CancelResult,
    FlowControlError,
    FullError,
    NotPendingError,
)
from timerstore._engine.storage.disk import Disk

LIMIT = 3
SLOT = NOW + 10_000  # begins a slot, which has the messages due in (SLOT, SLOT + 1000]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store", small(slot_messages_max=LIMIT))
    yield made
    made.close()


def fill(bench: Bench, count: int = LIMIT, slot: int = SLOT) -> list[timerstore.PutReceipt]:
    return [bench.store.put("t", b"%d" % at, deliver_ms=slot + 1 + at) for at in range(count)]


def test_error_is_its_own_kind_and_can_be_retried() -> None:
    assert issubclass(FlowControlError, BusyError)
    assert FlowControlError.retryable


def test_flow_control_is_off_by_default(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.store.put_many("t", [b"x"] * 3000, deliver_ms=SLOT + 1)
    assert bench.store.congestion() == {SLOT: 3000}
    bench.close()


@pytest.mark.parametrize("stage", ["in the log", "on the wheel"])
def test_message_above_the_limit_is_rejected_and_nothing_is_lost(bench: Bench, stage: str) -> None:
    fill(bench)
    if stage == "on the wheel":
        bench.turn()
    with bench.refused(FlowControlError, f"slot_messages_max.*slot of {SLOT} ms; wanted at most 3"):
        bench.store.put("t", b"x", deliver_ms=SLOT + 500)
    assert bench.store.stats()["flow_control_rejected_messages"] == 1
    bench.turn(DAY)
    assert bench.bodies() == [b"0", b"1", b"2"]


def test_limit_applies_up_to_the_edges_of_a_slot(bench: Bench) -> None:
    fill(bench)
    bench.store.put("t", b"at its beginning: the slot before", deliver_ms=SLOT)
    bench.store.put("t", b"after its end", deliver_ms=SLOT + 1001)
    with bench.refused(FlowControlError):
        bench.store.put("t", b"at its end", deliver_ms=SLOT + 1000)
    with bench.refused(FlowControlError):
        bench.store.put("t", b"just in it", delay=10.001)
    assert bench.store.congestion() == {SLOT - 1000: 1, SLOT: 3, SLOT + 1000: 1}


def test_message_without_delay_has_no_limit(bench: Bench) -> None:
    for at in range(2 * LIMIT):
        bench.store.put("t", b"now")
        bench.store.put("t", b"past", deliver_ms=NOW - at)
    bench.store.put_many("t", [b"x"] * 9, deliver_ms=0)
    assert bench.store.stats()["flow_control_rejected_messages"] == 0


def test_rejected_put_creates_no_topic(bench: Bench) -> None:
    fill(bench)
    with bench.refused(FlowControlError):
        bench.store.put("new", b"x", deliver_ms=SLOT + 1)
    with bench.refused(FlowControlError):
        bench.store.put_many("new", [b"x"], deliver_ms=SLOT + 1)


def test_put_many_is_admitted_whole_or_not_at_all(bench: Bench) -> None:
    with bench.refused(FlowControlError, "0 messages wait for it.*got 4 more"):
        bench.store.put_many("t", [b"x"] * 5, deliver_ms=[SLOT + 1] * 4 + [SLOT + 5000])
    assert bench.store.stats()["flow_control_rejected_messages"] == 5
    bench.store.put_many("t", [b"x"] * 5, deliver_ms=[SLOT + 1] * 3 + [SLOT + 5000, 0])
    with bench.refused(FlowControlError, "3 messages wait for it.*got 1 more"):
        bench.store.put_many("t", [b"x"] * 2, deliver_ms=[SLOT + 6000, SLOT + 9])
    assert bench.store.congestion() == {SLOT: 3, SLOT + 4000: 1}


def test_cancel_releases_one_place_once(bench: Bench) -> None:
    first, second, _ = fill(bench)
    assert bench.store.cancel(first) is CancelResult.CANCELLED
    assert bench.store.cancel(first) is CancelResult.ALREADY_CANCELLED
    fill(bench, 1)
    with bench.refused(FlowControlError):
        fill(bench, 1)
    assert bench.store.cancel(second.handle) is CancelResult.CANCELLED
    fill(bench, 1)
    with bench.refused(FlowControlError):
        fill(bench, 1)


def test_failed_put_releases_its_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.store.put("t", b"x")

    def full(*_: object) -> None:
        raise FullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(inside(bench.store).log, "append", full)
        with pytest.raises(FullError):
            fill(bench, 1)
    fill(bench)  # all three fit
    with bench.refused(FlowControlError):
        fill(bench, 1)
    assert bench.store.congestion() == {SLOT: LIMIT}


def test_stored_part_of_a_failed_batch_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's segment has room for two large messages, and the disk for no other segment."""
    bench.store.put("t", b"x")
    real = Disk.open

    def no_new_segments(disk: Disk, path: Path, *args: object, **given: object) -> object:
        if path.parent.name == "commitlog" and not path.exists():
            raise FullError("no space", where=path)
        return real(disk, path, *args, **given)

    monkeypatch.setattr(Disk, "open", no_new_segments)
    size = 400_000
    with pytest.raises(FullError) as caught:
        bench.store.put_many("t", [bytes(size)] * 3, deliver_ms=SLOT + 1)
    stored = caught.value.stored_count
    assert 0 < stored < 3
    monkeypatch.undo()
    left = LIMIT - stored
    fill(bench, left)
    with bench.refused(FlowControlError):
        fill(bench, 1)


def test_far_messages_count_in_the_slot_of_their_due_time(bench: Bench) -> None:
    """They roll on the way, and count once."""
    far = NOW + 30 * DAY
    for _ in range(LIMIT):
        bench.store.put("t", b"x", deliver_ms=far)
    for _ in range(3):
        bench.turn(60_000)
        assert bench.store.congestion() == {far - 1000: LIMIT}
        with bench.refused(FlowControlError):
            bench.store.put("t", b"x", deliver_ms=far)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_counts_are_the_same_after_reopening(bench: Bench, tmp_path: Path, end: str) -> None:
    fill(bench)
    bench.turn()
    fill(bench, 1, SLOT + 1000)
    if end == "closed":
        bench.reopen()
    else:
        copy = tmp_path / "copy"
        shutil.copytree(bench.root, copy)
        abandon(bench.store)
        bench.root = copy
        bench.open()
    with bench.refused(FlowControlError):
        fill(bench, 1)
    fill(bench, LIMIT - 1, SLOT + 1000)
    with bench.refused(FlowControlError):
        fill(bench, 1, SLOT + 1000)


def test_messages_above_a_lowered_limit_are_delivered(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.store.put_many("t", [b"x"] * 10, deliver_ms=SLOT + 1)
    bench.close()
    bench.config = small(slot_messages_max=LIMIT)
    bench.open()
    with bench.refused(FlowControlError, "10 messages wait"):
        fill(bench, 1)
    bench.turn(DAY)
    assert len(bench.bodies()) == 10
    bench.close()


def test_only_passed_slots_are_forgotten(bench: Bench) -> None:
    bench.turn(10_000)  # SLOT begins
    fill(bench)
    counts = inside(bench.store).slot_counts
    for _ in range(20):
        bench.turn(500)
        bench.store.put("t", b"x", delay=5)
    assert len(bench.bodies()) > LIMIT
    assert len(counts_by_slot(counts)) <= 7
    counted = {key for key, *_ in counted_slots(counts).expire(2**62)}
    assert counts_by_slot(counts).keys() == counted


def test_full_current_slot_stays_full_after_it_was_read(bench: Bench) -> None:
    bench.turn(10_000)
    bench.store.put("t", b"x", delay=0.1)
    bench.turn(1)
    fill(bench, LIMIT - 1, SLOT + 500)
    bench.turn()
    with bench.refused(FlowControlError):
        bench.store.put("t", b"x", deliver_ms=SLOT + 900)


def test_empty_current_slot_counts_new_messages_after_it_was_read(
    bench: Bench,
) -> None:
    bench.turn(10_001)
    for _ in range(LIMIT):
        bench.store.put("t", b"x", deliver_ms=SLOT + 900)
        bench.turn()
    with bench.refused(FlowControlError):
        bench.store.put("t", b"x", deliver_ms=SLOT + 901)


def test_delivered_messages_do_not_count_when_the_clock_is_set_back(bench: Bench) -> None:
    fill(bench)
    bench.turn(10_500)
    assert len(bench.bodies()) == LIMIT
    bench.turn(-10_000)
    fill(bench)
    with bench.refused(FlowControlError):
        fill(bench, 1)


def test_failed_recount_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending messages are counted again after the clock was set back, which may need space."""
    fill(bench)
    bench.clock.set(NOW - 5_000)

    def full(*_: object) -> None:
        raise FullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(type(inside(bench.store).pending), "entries", full)
        with pytest.raises(FullError):
            bench.store.put("t", b"x", deliver_ms=SLOT + 1)
    with pytest.raises(FlowControlError):
        bench.store.put("t", b"x", deliver_ms=SLOT + 1)


def test_counts_are_exact_when_the_clock_is_set_back_within_read_slots(bench: Bench) -> None:
    """Here the wheel does not tell that it went on and back: its frontier is far ahead."""
    bench.turn(100_000)
    bench.turn(-100_000)
    fill(bench)
    bench.turn(10_500)
    assert len(bench.bodies()) == LIMIT
    bench.store.put("t", b"x", delay=50)
    bench.turn(-10_000)
    fill(bench)
    with bench.refused(FlowControlError):
        fill(bench, 1)


def test_clock_that_stays_back_causes_one_recount(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.turn(100_000)
    bench.turn(-100_000)
    counts = inside(bench.store).slot_counts
    looks = []
    waiting = recount(counts)
    reading = waiting.value
    monkeypatch.setattr(*waiting, lambda: looks.append(1) or reading())  # type: ignore[func-returns-value]
    fill(bench)
    bench.store.put("t", b"x", delay=50)
    assert len(looks) == 1


def test_rescheduled_message_counts_only_in_its_new_slot(bench: Bench) -> None:
    first, second, _ = fill(bench)
    fill(bench, LIMIT - 1, SLOT + 5000)
    moved = bench.store.reschedule(first, deliver_ms=SLOT + 5500)
    with bench.refused(FlowControlError, f"slot of {SLOT + 5000} ms"):
        bench.store.reschedule(second, deliver_ms=SLOT + 5600)
    assert bench.store.stats()["flow_control_rejected_messages"] == 1
    fill(bench, 1)  # where the first was
    with bench.refused(FlowControlError):
        fill(bench, 1)
    again = bench.store.reschedule(moved, deliver_ms=SLOT + 5700)  # full, but it is in it
    assert bench.store.congestion() == {SLOT: LIMIT, SLOT + 5000: LIMIT}
    bench.store.reschedule(again, deliver_ms=NOW)
    fill(bench, 1, SLOT + 5000)
    with bench.refused(FlowControlError):
        fill(bench, 1, SLOT + 5000)


def test_reschedule_of_a_message_not_pending_counts_nothing(bench: Bench) -> None:
    first, *_ = fill(bench)
    bench.store.cancel(first)
    for _ in range(LIMIT + 1):
        with pytest.raises(NotPendingError):
            bench.store.reschedule(first, deliver_ms=SLOT + 5500)
    fill(bench, LIMIT, SLOT + 5000)
    fill(bench, 1)
    with bench.refused(FlowControlError):
        fill(bench, 1)


@pytest.mark.parametrize("end", ["cancelled", "delivered"])
def test_reschedule_of_a_message_not_pending_into_a_full_slot_raises_not_pending(
    bench: Bench, end: str
) -> None:
    first = bench.store.put("t", b"x", deliver_ms=NOW + 1)
    fill(bench)
    if end == "cancelled":
        bench.store.cancel(first)
    else:
        bench.turn(2000)
    with pytest.raises(NotPendingError) as refused:
        bench.store.reschedule(first, deliver_ms=SLOT + 500)
    assert refused.value.result is timerstore.CancelResult[f"ALREADY_{end.upper()}"]
    assert bench.store.stats()["flow_control_rejected_messages"] == 0


@pytest.mark.parametrize("due", [SLOT + 1, np.int64(SLOT + 1)])
def test_numpy_due_times_count(bench: Bench, due: int) -> None:
    for _ in range(LIMIT):
        bench.store.put("t", b"x", deliver_ms=due)
    with bench.refused(FlowControlError):
        bench.store.put("t", b"x", deliver_ms=due)


@pytest.mark.more
def test_puts_from_many_threads_never_overfill_a_slot(tmp_path: Path) -> None:
    limit, each = 100, 60
    config = small(slot_messages_max=limit)
    with timerstore.open(tmp_path / "store", config) as store:
        due_ms = (time.time_ns() // 10**9 + 3600) * 1000 + 1

        def put(_: int) -> int:
            taken = 0
            for _ in range(each):
                try:
                    store.put("t", b"x", deliver_ms=due_ms)
                    taken += 1
                except FlowControlError:
                    pass
            return taken

        with ThreadPoolExecutor(4) as pool:
            taken = sum(pool.map(put, range(4)))
        assert taken == limit
        assert list(store.congestion().values()) == [limit]
        assert store.stats()["flow_control_rejected_messages"] == 4 * each - limit
