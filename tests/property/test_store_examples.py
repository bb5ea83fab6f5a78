"""Repeat failures that the state machine found. Each test is named by its visible effect."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.property.test_store_machine import SmallBatchMachine
from tests.support import disk_reader
from tests.support.driver import DAY_MS, HOW, START_MS, YEAR_MS, Driver, PowerDriver, tiny
from tests.support.durable.shadow_disk import ShadowDisk
from timerstore import CancelResult

QUEUE = ("orders", 0)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path, tiny(1000, "sync"))
    yield driver
    driver.drop()


def test_put_after_clock_went_back_31_years_keeps_a_readable_chain(at: Driver) -> None:
    at.settle()
    at.clock.set(START_MS - 31 * YEAR_MS)
    at.put(QUEUE, at.clock.now_ms + 5000, 20)
    at.stepper.settle()  # linked 31 years in the future: more than 32 bits of ms
    at.compare_pending()
    at.kill()
    at.compare_pending()
    at.clock.advance(5000)
    at.settle()
    at.finish()


def test_put_after_clock_went_back_is_not_late_after_a_restart(at: Driver) -> None:
    at.clock.advance(10 * DAY_MS)
    at.settle()
    at.clock.set(START_MS)
    at.put(QUEUE, START_MS + 5000, 20)
    at.put(QUEUE, START_MS + 5 * DAY_MS, 20)
    at.put(QUEUE, START_MS + 50 * DAY_MS, 20)
    at.settle()
    at.reopen()
    at.clock.advance(5000)
    at.settle()
    at.kill()
    at.clock.advance(5 * DAY_MS)
    at.settle()
    at.finish()


def test_late_unit_is_not_overwritten_by_one_linked_in_the_same_batch(at: Driver) -> None:
    at.settle()
    frontier_ms = START_MS + 1000
    at.clock.set(START_MS - 6750 * 128 * 1000)  # whole laps, so that old and new slots share places
    at.put_many(QUEUE, [(at.clock.now_ms + 500, 20)] * 3, buffer=False)
    at.put_many(QUEUE, [(frontier_ms + 500, 20), (frontier_ms + 1500, 20)] * 3, buffer=False)
    at.settle()
    at.compare_pending()
    at.reopen()
    at.compare_pending()
    at.finish()


def test_pending_includes_slots_more_than_a_lap_ahead_of_the_read_slot(at: Driver) -> None:
    at.settle()
    at.clock.advance(DAY_MS)
    at.put(QUEUE, at.clock.now_ms + 5000, 20)
    for name in ("dispatch", "enqueue_get", "enqueue_put"):
        at.stepper.step(name)
    at.compare_pending()
    at.finish()


@pytest.mark.parametrize("how", HOW)
def test_cancel_of_a_message_due_at_once_returns_already_delivered(at: Driver, how: str) -> None:
    at.put(QUEUE, None, 20)
    [one] = at.model.puts.values()
    assert at.cancel(one, how) is CancelResult.ALREADY_DELIVERED
    at.finish()


def test_reopening_continues_from_the_watermark(at: Driver) -> None:
    at.put(QUEUE, START_MS + 5000, 20)
    at.reopen()  # the driver checks that the log is not scanned from its beginning
    at.kill()
    at.finish()


def test_rolled_message_is_not_overtaken_by_a_later_put_for_the_same_time(at: Driver) -> None:
    due_ms = START_MS + 100_000
    at.put(QUEUE, due_ms, 20)  # past the window of 48 slots, so that it rolls
    at.settle()
    at.clock.set(START_MS + 98_000)  # the time of its roll has passed, but the slot is unread
    at.put(QUEUE, due_ms, 20)
    for name in ("dispatch", "enqueue_get", "enqueue_put"):
        at.stepper.step(name)
    for name in ("dequeue_get", "dequeue_get_message", "dequeue_put"):
        at.stepper.step(name)  # rolls the first message
    at.clock.set(due_ms)
    for name in ("dequeue_get", "dequeue_get_message", "dequeue_put"):
        at.stepper.step(name)  # its new record is not on the wheel yet
    at.settle()
    at.finish()


def test_store_opens_after_a_power_cut_that_kept_only_the_later_segment(tmp_path: Path) -> None:
    for seed in range(10):
        with ShadowDisk(seed) as shadow:
            path = tmp_path / str(seed)
            path.mkdir()
            at = PowerDriver(path, tiny(1000, "sync"), shadow)
            at.put(QUEUE, START_MS + 5000, 20)
            dues = [(START_MS + 9000, 3000)] * 15  # three segments, cut before their sync
            at.kill_in_put_many("log_synced", 99, QUEUE, dues)
            at.kill_in_put_many("log_rolled", 2, QUEUE, dues)
            at.finish()
            at.drop()


@pytest.mark.parametrize("property_crc", [True, False])
def test_record_that_lost_a_sector_to_a_power_cut_is_ignored(
    tmp_path: Path, property_crc: bool
) -> None:
    for size in range(20, 532, 48):
        path = tmp_path / str(size)
        path.mkdir()
        config = dataclasses.replace(tiny(1000, "sync"), property_crc=property_crc)
        at = Driver(path, config)
        at.put(QUEUE, START_MS + 500, size)
        at.settle()
        at.clock.advance(2000)
        with at.dying("log_written_out", 1, is_opened=False):
            at.settle_quietly()
        (at.store_path() / "timerstore" / "staging").unlink()  # of another boot
        *_, last = disk_reader.records(at.store_path())
        assert last.topic == "orders"
        edge = (last.position + last.size - 1) // 512 * 512  # start of its last sector
        if edge > last.position:
            with (at.store_path() / "commitlog" / f"{0:020}").open("r+b") as file:
                file.seek(edge)
                file.write(bytes(512))
        at.open_again()
        at.finish()
        at.drop()


def test_order_is_kept_while_linking_waits_for_a_checkpoint() -> None:
    """Rolled records find no slot before a checkpoint frees some.

    Until then no message may overtake them.
    """
    machine = SmallBatchMachine()
    machine.begin(precision_ms=100, seed=0, limit=0, retention_ms=0)
    far = [("far", 946_728_000_000, -1), ("far", 86_400_000, -1), ("far", 34_560_000_000, -1)]
    edge = ("slot", 127, -1)
    due = [
        None,
        None,
        far[0],
        far[1],
        ("ms", 62, 0),
        ("slot", 49, -1),
        ("ms", 4366, 0),
        None,
        far[2],
    ]
    sizes = [6, 6, 6, 55, 6, 1000, 6, 6, 6]
    machine.put_many(buffer=False, items=list(zip(due, sizes, strict=True)), queue=QUEUE)
    machine.kill_in_put_many(count=12, due=None, nth=1, point="segment_created", queue=QUEUE)
    machine.jump(ms=259_200_001)
    machine.put_many(buffer=False, items=[(edge, 42)], queue=QUEUE)
    machine.reopen(far_wheel=None)
    machine.settle()
    machine.kill_in_put_many(count=11, due=edge, nth=1, point="log_rolled", queue=QUEUE)
    machine.jump_back(ms=5000)
    machine.teardown()  # delivers all, and compares with the model


def test_message_without_a_slot_does_not_delay_due_messages(at: Driver) -> None:
    """Due messages take every slot, and a record from before the kill waits for one of them."""

    def idle(*names: str) -> None:
        while sum(at.stepper.step(name) for name in names):
            pass

    first = at.clock.now_ms // 1000 + 1
    at.stepper.step("dequeue_get")
    for n in range(128):  # the number of slots of the wheel
        at.put(QUEUE, (first + n) * 1000 + 500, 20)
        idle("dispatch", "enqueue_get", "enqueue_put")
        at.clock.advance(1000)
    at.store.flush()
    at.clock.advance(1000)
    idle("flush")
    at.put(QUEUE, (first + 130) * 1000 + 500 + 30 * YEAR_MS, 20)  # in the log, but on no wheel yet
    at.store.flush()
    at.kill()
    idle("dispatch", "dequeue_get", "dequeue_get_message")
    at.settle()
    assert at.store.stats()["pending_messages"] == 1
    assert at.store.stats()["enqueue_lag_messages"] == 0  # it has found a slot since
    at.finish()
