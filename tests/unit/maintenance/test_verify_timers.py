"""verify: damage of timer log, wheel, states and side files is reported."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.support.driver import START_MS
from tests.support.filled_bench import CONFIG, FilledBench, check_reports, flip, segment
from tests.support.inside import inside
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import timer_unit, wheel_slot
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.maintenance.expected_states import IdStates, LogFold, differing, pending
from timerstore.errors import CorruptError
from timerstore.testing import ManualClock, Stepper


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (3, "timer unit: size"),
        (11, "timer unit: previous position"),
        (15, "timer unit"),
        (23, "timer unit"),
        (27, "timer unit"),
        (35, "timer unit does not match its record"),
        (39, "timer unit does not match its record"),
        (43, "timer unit does not match its record"),
        (51, "timer unit: checksum"),
    ],
)
def test_verify_reports_changed_timer_unit(filled: FilledBench, at: int, what: str) -> None:
    filled.stepper.settle()
    path = segment(filled.root, "timerlog", 0, CONFIG.timer_log_segment_bytes)
    flip(path, 52 * 30 + at, 0x55)
    check_reports(filled.store.verify(), what, path, f"offset {52 * 30}")
    flip(path, 52 * 30 + at, 0x55)
    assert filled.store.verify().clean


@pytest.mark.parametrize(
    ("name", "at", "what"),
    [
        ("timerlog", 3, "timer unit: size"),
        ("timerlog", 11, "timer unit: previous position"),
        ("timerlog", 35, "timer unit: log offset"),
        ("timerlog", 51, "timer unit: checksum"),
    ],
)
def test_verify_directory_reports_changed_timer_unit(
    filled: FilledBench, name: str, at: int, what: str
) -> None:
    """The checks of an open store, on the view of a directory."""
    filled.stepper.settle()
    filled.store.close()
    assert timerstore.verify_directory(filled.root).clean
    path = segment(filled.root, name, 0, CONFIG.timer_log_segment_bytes)
    flip(path, 52 * 30 + at, 0x55)
    report = timerstore.verify_directory(filled.root)
    check_reports(report, what, path, f"offset {52 * 30}")
    assert all("derived" in one.what for one in report.problems)


def test_verify_directory_walks_chains_of_slots(filled: FilledBench) -> None:
    """A unit that leads into another slot is found from the slot whose chain it is in."""
    filled.stepper.settle()
    filled.store.close()
    slots = wheel_slot.read((filled.root / "timerwheel").read_bytes()[: 128 * 32])
    slot = slots[slots["count"] > 1][0]
    size = CONFIG.timer_log_segment_bytes
    number, at = divmod(int(slot["last_pos"]), size)
    path = segment(filled.root, "timerlog", number, size)
    flip(path, at + 11, 52 ^ 104)
    report = timerstore.verify_directory(filled.root)
    check_reports(report, "timer unit: checksum (derived", path, f"offset {at}")
    check_reports(report, f"slot {slot['time']}: ")


def test_verify_reports_changed_blank_and_bytes_past_timer_log_end(filled: FilledBench) -> None:
    filled.stepper.settle()
    size = CONFIG.timer_log_segment_bytes
    end = filled.store.stats()["timer_log_end_bytes"]
    assert end > size
    blank = timer_unit.units_per_segment(size) * 52
    first = segment(filled.root, "timerlog", 0, size)
    flip(first, blank + 12)
    check_reports(filled.store.verify(), "no blank", first, f"offset {blank}")
    flip(first, blank + 12)
    last = segment(filled.root, "timerlog", end // size, size)
    flip(last, end % size + 60)
    check_reports(filled.store.verify(), "past the end", last, f"offset {end % size + 60}")


def slot_of_a_waiting_one(filled: FilledBench) -> int:
    """Byte offset of a slot that still has to be read and holds something."""
    wheel = inside(filled.store).wheel
    slot = wheel.next_used(wheel.read_slot, wheel.read_slot + wheel.slot_count)
    assert slot is not None
    return slot % wheel.slot_count * 32


def flip_memory(filled: FilledBench, at: int, bits: int) -> None:
    wheel = inside(filled.store).wheel
    wheel.native.slots[at] ^= bits
    wheel.native.dirty_pages[at // 4096] = 1
    wheel.native.used[at // 32 // 64] |= 1 << at // 32 % 64


@pytest.mark.parametrize(
    ("at", "bits", "what"),
    [
        (7, 1, "its time does not belong here"),
        (15, 1, "first position"),
        (8, 0x80, "first position"),
        (23, 1, "last position"),
        (16, 0x80, "last position"),
        (24, 0x80, "count"),
        (26, 1, "count"),
        (31, 1, "magic"),
    ],
)
def test_verify_reports_slot_changed_in_memory(
    filled: FilledBench, at: int, bits: int, what: str
) -> None:
    filled.stepper.settle()
    slot = slot_of_a_waiting_one(filled)
    flip_memory(filled, slot + at, bits)
    check_reports(filled.store.verify(), what, filled.root / "timerwheel", f"offset {slot}")
    flip_memory(filled, slot + at, bits)
    assert filled.store.verify().clean


def test_verify_reports_unreached_timers_when_slot_is_lost(filled: FilledBench) -> None:
    filled.stepper.settle()
    wheel = inside(filled.store).wheel
    slot = wheel.next_used(wheel.read_slot, wheel.read_slot + wheel.slot_count)
    at = slot % wheel.slot_count * 32
    ffi.buffer(wheel.native.slots + at, 32)[:] = bytes(32)
    check_reports(
        filled.store.verify(), "is pending, but nothing leads to it", filled.root / "timerwheel"
    )


def test_verify_reports_chain_into_another_slot(filled: FilledBench) -> None:
    filled.stepper.settle()
    wheel = inside(filled.store).wheel
    slot = slot_of_a_waiting_one(filled)
    last = int.from_bytes(bytes(wheel.native.slots[slot + 16 : slot + 24]), "big")
    other = last - 52
    for k, byte in enumerate(other.to_bytes(8, "big")):
        wheel.native.slots[slot + 16 + k] = byte
    assert not filled.store.verify().clean


def test_verify_reports_wheel_file_that_differs_from_memory(filled: FilledBench) -> None:
    filled.stepper.settle()
    filled.store.flush()
    path = filled.root / "timerwheel"
    assert filled.store.verify().clean
    at = slot_of_a_waiting_one(filled) + 20
    wheel = inside(filled.store).wheel
    for page in range(0, wheel.slot_count * 32, 4096):  # a page of its own, as a used one is
        wheel.native.slots[page] ^= 0
    flip(path, at)
    check_reports(filled.store.verify(), "the file differs from memory", path, f"offset {at}")


@pytest.mark.parametrize("state", ["DELIVERED", "CANCELLED", "NONE"])
def test_verify_reports_state_changed_in_memory(filled: FilledBench, state: str) -> None:
    filled.stepper.settle()
    one = next(iter(filled.store.pending()))
    states = inside(filled.store).states
    lib.ts_state_set(states.native, one.timer_id, getattr(lib, f"TS_{state}"))
    check_reports(filled.store.verify(), f"state of timer id {one.timer_id}")


def test_verify_reports_changed_count(filled: FilledBench) -> None:
    filled.stepper.settle()
    parts = inside(filled.store)
    parts.states.native.pending += 1
    check_reports(filled.store.verify(), "number of pending timers")
    parts.states.native.pending -= 1
    route = parts.routes.get("topic-1", 0)
    assert route is not None
    route.native.pending -= 1
    check_reports(filled.store.verify(), "pending of topic topic-1 queue 0")


def test_verify_reports_changed_sector_of_states(filled: FilledBench) -> None:
    filled.stepper.settle()
    filled.store.flush()
    path = filled.root / "timerstore" / "state"
    for sector in range(path.stat().st_size // 512):
        flip(path, 512 * sector + 40)
    check_reports(filled.store.verify(), "no valid sector", path)


def test_verify_reports_wrong_states_with_right_crc(filled: FilledBench) -> None:
    """A wrong state that was written with a right CRC."""
    filled.stepper.settle()
    one = next(iter(filled.store.pending()))
    parts = inside(filled.store)
    lib.ts_state_set(parts.states.native, one.timer_id, lib.TS_DELIVERED)
    filled.store.flush()
    report = filled.store.verify()
    check_reports(report, f"states: timer id {one.timer_id} ", filled.root / "timerstore" / "state")
    check_reports(report, f"state of timer id {one.timer_id}")


def test_verify_reports_changed_watermark_and_counts(filled: FilledBench) -> None:
    filled.stepper.settle()
    filled.store.flush()
    side = filled.root / "timerstore"
    for slot in (0, 512):
        flip(side / "watermark", slot + 20)
    counts = (side / "counts").read_bytes()
    (side / "counts").write_bytes(counts.replace(b'"topic-1": {"0": ', b'"topic-1": {"0": 1'))
    report = filled.store.verify()
    check_reports(report, "watermark", side / "watermark")
    check_reports(report, "counts", side / "counts")


def test_verify_reports_damage_after_reopening(filled: FilledBench) -> None:
    """What an opening trusts unread: a unit of the timer log, a queue unit far from the end."""
    filled.stepper.settle()
    filled.store.close()
    timer_log = segment(filled.root, "timerlog", 0, CONFIG.timer_log_segment_bytes)
    queue = filled.root / "consumequeue/topic-2/0" / f"{0:020d}"
    flip(timer_log, 52 * 9 + 42)
    flip(queue, 20 * 2 + 10)
    filled.open()
    report = filled.store.verify()
    check_reports(report, "timer unit does not match its record", timer_log, f"offset {52 * 9}")
    check_reports(report, "queue unit", queue, "offset 40")


def test_verify_reports_double_delivery(filled: FilledBench) -> None:
    """Handed twice, because its state was set back."""
    filled.stepper.settle()
    one = next(iter(filled.store.pending()))
    parts = inside(filled.store)
    again = [e for e in inside(filled.store).pending.entries() if e["id"] == one.timer_id]
    filled.clock.set(max(filled.clock.now_ms, one.due_ms))
    filled.stepper.settle()
    lib.ts_state_set(parts.states.native, one.timer_id, lib.TS_PENDING)
    parts.open_slot.expect((int(one["slot"]), 1) for one in again)
    parts.open_slot.push(np.array(again, again[0].dtype))
    filled.stepper.settle()
    report = filled.store.verify()
    check_reports(report, "a delivery beyond its source", filled.root / "commitlog")


@pytest.mark.parametrize("is_source", [True, False])
def test_verify_reports_delivery_with_impossible_timer_id(
    tmp_path: Path, *, is_source: bool
) -> None:
    """Verify takes it for the id of a client, which may be any. On a source it does no harm. A
    delivery with it is reported, as it has no source. Folding it would take memory for all ids
    up to it.
    """
    config = dataclasses.replace(CONFIG, property_crc=False)
    clock = ManualClock(START_MS)
    store = timerstore.open(tmp_path / "s", config, clock=clock, threads=False)
    stepper = Stepper(store)
    store.put("t", b"x", delay=50, queue_id=0)
    stepper.settle()
    store.flush()
    path = segment(tmp_path / "s", "commitlog", 0, config.commit_log_segment_bytes)
    source = path.read_bytes().index(b"TS_ID\x01") + 12
    if is_source:
        flip(path, source, ord("A") ^ ord("B"))
    clock.advance(50_000)
    stepper.settle()
    [came] = store.pull("t", 0, 0).messages
    assert store.verify().clean
    store.flush()
    flip(path, path.read_bytes().index(b"TS_ID\x01", source) + 12, ord("A") ^ ord("B"))
    if is_source:
        assert store.verify().clean
    else:
        check_reports(
            store.verify(), "a delivery without a source before it", f"offset {came.log_offset}"
        )
    store.close()


def test_verify_raises_when_store_has_failed(filled: FilledBench) -> None:
    inside(filled.store).log.fail(CorruptError("made by a test"))
    with pytest.raises(timerstore.FailedError, match="made by a test"):
        filled.store.verify()


def test_packed_states_return_what_was_put() -> None:
    states = IdStates()
    ids = np.array([0, 3, 5, 4 * 5000 + 1], np.int64)
    states.put(ids, np.array([1, 2, 3, 1], np.uint8))
    assert states.get(np.arange(6)).tolist() == [1, 0, 0, 2, 0, 3]
    assert np.concatenate(list(pending(states.copy()))).tolist() == [0, 20_001]
    other = IdStates()
    other.put(ids, np.array([1, 2, 2, 0], np.uint8))
    assert list(differing(states.copy(), other.copy(), only_known=False)) == [
        (5, 3, 2),
        (20_001, 1, 0),
    ]
    assert list(differing(other.copy(), states.copy(), only_known=True)) == [(5, 2, 3)]


def test_log_fold_accepts_empty_batch() -> None:
    one = LogFold(7, 0, {})
    one.add(np.zeros(0, SCAN_DTYPE))
    assert not one.foreign
    assert not one.pending
