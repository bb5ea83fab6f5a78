"""Linking, reading and cutting the wheel, call by call, on buffers of the test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.disk_reader import (
    TIMER_DEFAULT,
    TIMER_DELETE,
    TIMER_ROLL,
    TIMER_UNIT_BYTES,
    encode_timer_blank,
)
from tests.support.wheel_bench import NOW, PRECISION_MS, WINDOW, WheelBench, slot_ms
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.timer.timer_arrays import CHAINED


@pytest.fixture
def bench() -> WheelBench:
    return WheelBench()


# --- which slot -----------------------------------------------------------------------------------


def rolled_slot(ahead: int) -> tuple[int, bool]:
    """Return the slots ahead of the present, and whether the message rolls."""
    if ahead < WINDOW:
        return ahead, False
    return (WINDOW // 2 if ahead - WINDOW < WINDOW // 3 else WINDOW), True


@pytest.mark.parametrize(
    "ahead",
    [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + WINDOW // 3 - 1, WINDOW + WINDOW // 3,
     2 * WINDOW, 128, 129, 10**6, 10**10],
)  # fmt: skip
@pytest.mark.parametrize("edge_ms", [1, PRECISION_MS // 2, PRECISION_MS])
def test_slot_follows_the_rolling_rule(bench: WheelBench, ahead: int, edge_ms: int) -> None:
    due_ms = slot_ms(NOW + ahead) + edge_ms  # due lies in (slot, slot + 1]
    count, late = bench.put(bench.request(due_ms))
    assert (count, len(late)) == (1, 0)
    wanted, rolls = rolled_slot(ahead)
    unit = bench.unit(0)
    assert unit.slot_ms == slot_ms(NOW + wanted)
    assert unit.write_ms == slot_ms(NOW)
    assert unit.magic == TIMER_DEFAULT | (TIMER_ROLL if rolls else 0)
    assert (unit.prev_pos, unit.log_offset, unit.store_size) == (-1, 0, 77)
    assert bench.slot(NOW + wanted) == (NOW + wanted, 0, 0, 1)
    assert bench.link.first_slot == NOW + wanted


@pytest.mark.parametrize("behind", [0, 1, 5, 300])
def test_late_message_enters_the_open_slot_and_a_read_slot(bench: WheelBench, behind: int) -> None:
    due_ms = slot_ms(NOW - behind) + 7
    count, late = bench.put(bench.request(due_ms))
    assert (count, len(late)) == (1, 1)
    linked = NOW - behind
    assert bench.unit(0).slot_ms == slot_ms(linked)
    assert bench.slot(linked)[0] == linked
    [entry] = late
    assert (entry["due_ms"], entry["wake_ms"], entry["slot"], entry["flags"]) == (
        due_ms, due_ms, linked, 0,
    )  # fmt: skip


def test_late_message_is_linked_for_recovery_when_clock_was_set_back(
    bench: WheelBench,
) -> None:
    bench.link.read_slot = NOW + 10**7
    count, late = bench.put(bench.request(slot_ms(NOW + 5) + 1), bench.request(slot_ms(NOW + 900)))
    assert (count, len(late)) == (2, 2)
    assert late["slot"].tolist() == [NOW, NOW]
    assert bench.unit(0).slot_ms == bench.unit(52).slot_ms == slot_ms(NOW)


def test_far_message_is_in_the_next_unread_slot_when_clock_was_set_back(
    bench: WheelBench,
) -> None:
    frontier = NOW + 10**9  # more ms ahead than 32 bits hold
    bench.link.read_slot = frontier
    count, late = bench.put(bench.request(slot_ms(frontier + 5) + 1))
    assert (count, len(late)) == (1, 0)
    unit = bench.unit(0)
    assert unit.slot_ms == slot_ms(frontier)
    assert unit.magic == TIMER_DEFAULT | TIMER_ROLL
    assert bench.load(frontier) == [0]


def test_message_rolls_from_an_earlier_slot_when_its_slot_has_another_lap(
    bench: WheelBench,
) -> None:
    bench.put(bench.request(slot_ms(NOW + 20) + 1))
    bench.link.write_slot = NOW + 128
    bench.link.read_slot = NOW + 120  # not beyond slot + 128
    bench.put(bench.request(slot_ms(NOW + 148) + 1))
    unit = bench.unit(52)
    assert unit.slot_ms == slot_ms(NOW + 147)
    assert unit.magic == TIMER_DEFAULT | TIMER_ROLL
    assert bench.slot(NOW + 20) == (NOW + 20, 0, 0, 1)  # untouched
    assert bench.slot(NOW + 147) == (NOW + 147, 52, 52, 1)


def test_slot_is_reused_when_no_recovery_needs_its_lap(bench: WheelBench) -> None:
    bench.put(bench.request(slot_ms(NOW + 20) + 1))
    bench.link.write_slot = NOW + 128
    bench.link.read_slot = NOW + 129
    bench.link.reuse_below = NOW + 20
    bench.put(bench.request(slot_ms(NOW + 148) + 1))
    assert bench.unit(52).slot_ms == slot_ms(NOW + 147)  # not below: it is needed
    bench.link.reuse_below = NOW + 21
    bench.put(bench.request(slot_ms(NOW + 148) + 1))
    assert bench.unit(104).slot_ms == slot_ms(NOW + 148)
    assert bench.unit(104).prev_pos == -1  # the old lap's chain is not this one's
    assert bench.slot(NOW + 148) == (NOW + 148, 104, 104, 1)


def test_link_is_blocked_when_every_slot_is_needed(bench: WheelBench) -> None:
    for ahead in range(1, 128):
        bench.link.roll_slots = 1000
        bench.put(bench.request(slot_ms(NOW + ahead) + 1))
    bench.put(bench.request(slot_ms(NOW + 128) + 1))
    pos = bench.link.pos
    bench.link.write_slot, bench.link.read_slot = NOW + 128, NOW + 129
    bench.link.reuse_below = NOW
    count, late = bench.put(bench.request(slot_ms(NOW + 128 + 17) + 1))
    assert (count, len(late)) == (lib.TS_BLOCKED, 0)
    assert (bench.link.pos, bench.link.bytes) == (pos, 0)
    count, late = bench.put(bench.request(slot_ms(NOW + 128) + 1))  # late, into its own slot
    assert (count, len(late)) == (1, 1)


def test_message_due_soon_is_not_blocked_when_every_slot_is_needed(bench: WheelBench) -> None:
    """It waits in memory, with a unit in a read slot from which a broker rolls it."""
    bench.link.roll_slots = 1000
    for ahead in range(1, 17):
        bench.put(bench.request(slot_ms(NOW + 128 + ahead) + 1))
    bench.link.reuse_below = NOW
    due_ms, pos = slot_ms(NOW + 16) + 7, bench.link.pos
    count, late = bench.put(
        bench.request(due_ms, lib.TS_FLAG_DELETE), bench.request(due_ms), bench.request(due_ms + 1)
    )
    assert (count, len(late)) == (3, 2)
    assert late["due_ms"].tolist() == late["wake_ms"].tolist() == [due_ms, due_ms + 1]
    assert late["flags"].tolist() == [0, 0]
    assert late["slot"].tolist() == [NOW, NOW]
    assert bench.unit(pos).prev_pos == -1  # of the delete: in no chain
    assert bench.unit(pos + 52).slot_ms == slot_ms(NOW)
    assert bench.unit(pos + 52).magic == TIMER_DEFAULT | TIMER_ROLL
    assert bench.slot(NOW) == (NOW, pos + 52, pos + 104, 2)
    count, late = bench.put(bench.request(slot_ms(NOW + 128) + 1))  # a lap on: it keeps its slot
    assert bench.unit(pos + 156).slot_ms == slot_ms(NOW + 127)


def test_late_unit_reserves_its_slot_within_one_call(bench: WheelBench) -> None:
    bench.link.reuse_below = NOW + 1
    late_ms, other_ms = slot_ms(NOW) + 1, slot_ms(NOW + 128) + 1
    bench.link.roll_slots = 1000
    count, late = bench.put(bench.request(late_ms), bench.request(other_ms))
    assert (count, len(late)) == (2, 1)
    assert bench.slot(NOW)[0] == NOW
    assert bench.unit(52).slot_ms == slot_ms(NOW + 127)


def test_undeliverable_request_has_a_unit_in_no_chain(bench: WheelBench) -> None:
    count, late = bench.put(
        bench.request(slot_ms(NOW + 5) + 1, waits=False),
        bench.request(0, lib.TS_FLAG_UNUSABLE),
        bench.request(slot_ms(NOW - 5), lib.TS_FLAG_DELETE),
    )
    assert (count, len(late)) == (3, 0)
    assert bench.link.bytes == 3 * TIMER_UNIT_BYTES
    for n in range(3):
        unit = bench.unit(n * TIMER_UNIT_BYTES)
        assert (unit.prev_pos, unit.slot_ms) == (-1, slot_ms(NOW - 1))
    assert not bench.slots.any()
    assert bench.link.first_slot == 2**63 - 1


def test_delete_record_is_in_the_chain_and_decreases_the_count(bench: WheelBench) -> None:
    due_ms = slot_ms(NOW + 5) + 1
    bench.put(bench.request(due_ms), bench.request(due_ms, lib.TS_FLAG_DELETE))
    assert bench.unit(52).magic == TIMER_DEFAULT | TIMER_DELETE
    assert bench.slot(NOW + 5) == (NOW + 5, 0, 52, 0)
    assert bench.load(NOW + 5) == [1000, 0]


# --- the timer log's segments ---------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 1, 51, 67, 68])
def test_segment_ends_with_a_blank_when_unit_and_blank_do_not_fit(spare: int) -> None:
    bench = WheelBench(segment_bytes=3 * 52 + 16 + spare)
    requests = [bench.request(slot_ms(NOW + 2 + n) + 1) for n in range(5)]
    fits = 3 if spare < 52 else 4
    count, _ = bench.put(*requests)
    assert count == fits
    assert bench.link.cut == 1
    left = 3 * 52 + 16 + spare - fits * 52
    begin = fits * 52
    assert bench.log[begin : begin + 16].tobytes() == encode_timer_blank(left)
    assert bench.link.bytes == begin + 16
    assert bench.link.pos == bench.link.segment_bytes
    count, _ = bench.put(*requests[fits:])
    assert count == 5 - fits
    assert bench.unit(bench.link.segment_bytes).slot_ms == slot_ms(NOW + 2 + fits)


def test_link_returns_zero_when_only_a_blank_fits() -> None:
    bench = WheelBench(segment_bytes=52 + 16 + 10)
    assert bench.put(bench.request(slot_ms(NOW + 2) + 1), room=52)[0] == 1
    assert bench.put(bench.request(slot_ms(NOW + 3) + 1))[0] == 0
    assert (bench.link.cut, bench.link.bytes) == (1, 16)
    assert bench.put(bench.request(slot_ms(NOW + 3) + 1))[0] == 1


# --- chains ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), max_size=80), st.integers(1, 9))
def test_slot_chains_have_linked_units_newest_first(aheads: list[int], capacity: int) -> None:
    bench, model = WheelBench(), dict[int, list[int]]()
    for ahead in aheads:
        request = bench.request(slot_ms(NOW + ahead) + 1)
        bench.put(request)
        model.setdefault(NOW + ahead, []).insert(0, int(request["log_offset"][0]))
    used, at = [], NOW
    while (slot := bench.next_used(at, NOW + 200)) >= 0:
        used.append(slot)
        assert bench.load(slot, capacity) == model[slot]
        assert bench.slot(slot)[3] == len(model[slot])
        at = slot + 1
    assert used == sorted(model)
    assert bench.count(NOW, NOW + 200)[:2] == (lib.TS_OK, len(aheads))
    assert bench.count(NOW + 20, NOW + 30)[1] == sum(20 <= ahead < 30 for ahead in aheads)
    bench.dirty[:] = 1


def test_count_stops_at_a_damaged_chain(bench: WheelBench) -> None:
    for ahead in (3, 5, 5, 9):
        bench.put(bench.request(slot_ms(NOW + ahead) + 1))
    bench.log[52 : 52 + 52] = 0
    assert bench.count(NOW, NOW + 200) == (lib.TS_CORRUPT, 2, NOW + 5)


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(0, 40))
def test_cut_restores_each_slot_to_units_below(aheads: list[int], kept: int) -> None:
    whole, part = WheelBench(), WheelBench()
    for n, ahead in enumerate(aheads):
        for bench in (whole, part)[: 2 if n < kept else 1]:
            bench.put(bench.request(slot_ms(NOW + ahead) + 1))
    whole.dirty[:] = 0
    changed = lib.ts_wheel_cut(whole.view(), whole.wheel, part.link.pos)
    assert changed == len(set(aheads[kept:]))
    assert bool(whole.dirty.any()) == (changed > 0)
    assert (whole.slots == part.slots).all()
    assert lib.ts_wheel_cut(whole.view(), whole.wheel, part.link.pos) == 0


def test_next_used_finds_the_nearest_slot_past_a_lap(bench: WheelBench) -> None:
    far = NOW + 1000 * 128
    for now in (far, NOW):
        bench.link.write_slot, bench.link.read_slot = now, now + 1
        bench.put(bench.request(slot_ms(now + 3) + 1))
        bench.put(bench.request(slot_ms(now + 1) + 1))
    found, at = [], NOW
    while (slot := bench.next_used(at, 2**62)) >= 0:
        found.append(slot)
        at = slot + 1
    # Two laps need the same indexes: the second messages went to empty slots.
    assert found[-2:] == [far + 1, far + 3]
    out = np.empty(64, np.int64)
    units = np.empty(64, np.int64)
    natives = [ffi.from_buffer("int64_t[]", one) for one in (out, units)]
    for room in (0, 1, 2, len(found), 64):
        count = lib.ts_wheel_next_many(bench.wheel, NOW, 2**62, *natives, room)
        assert out[:count].tolist() == found[:room]
        assert (units[:count] == 1).all()
    assert bench.next_used(NOW, NOW) == -1
    assert bench.next_used(far + 2, far + 3) == -1


def test_dirty_pages_are_those_of_changed_slots() -> None:
    bench = WheelBench(slot_count=1024)
    bench.put(bench.request(slot_ms(NOW + 1) + 1))
    assert np.flatnonzero(bench.dirty).tolist() == [(NOW + 1) % 1024 * 32 // 4096]
    pages, data = np.zeros(8, np.int64), np.zeros((8, 4096), np.uint8)
    got = lib.ts_wheel_copy_dirty(
        bench.wheel, ffi.from_buffer("int64_t[]", pages), ffi.from_buffer("uint8_t[]", data), 8
    )
    assert got == 1
    at = pages[0] * 4096
    assert (data[0] == bench.slots[at : at + 4096]).all()
    assert not bench.dirty.any()


@pytest.mark.parametrize("at", [0, 4, 12, 16, 24])
def test_damaged_chain_is_corrupt_and_ends(bench: WheelBench, at: int) -> None:
    """The changed byte is in the size, previous position, magic, write time, or delay."""
    bench.put(*(bench.request(slot_ms(NOW + 5) + 1) for _ in range(3)))
    bench.log[104 + at] ^= 0x40
    if at == 4:
        bench.log[104 + 4 : 104 + 12] = np.frombuffer((104).to_bytes(8, "big"), np.uint8)
    pos = ffi.new("int64_t *", -1)
    part = np.zeros(9, CHAINED)
    view = bench.view()
    out = ffi.from_buffer("ts_chained[]", part)
    assert lib.ts_wheel_load(view, bench.wheel, NOW + 5, pos, 9, out) == lib.TS_CORRUPT
    assert (view.fault, view.fault_offset) == (lib.TS_FAULT_CHAIN, 104)


def test_empty_keeps_given_slots_and_slots_outside(bench: WheelBench) -> None:
    times = {5: 5, 6: 6, 7: 128 + 7, 8: 8, 9: 9, 10: 10}  # place: the slot that lies there
    for at, time in times.items():
        bench.slots[at * 32 : at * 32 + 8] = np.array([time], ">i8").view(np.uint8)
        bench.slots[at * 32 + 8] = 1
    kept = np.array([3, 8, 200], np.int64)
    count = lib.ts_wheel_empty(bench.wheel, 6, 10, ffi.from_buffer("int64_t[]", kept), len(kept))
    assert count == 2
    left = {at for at in range(128) if bench.slots[at * 32 : at * 32 + 32].any()}
    assert left == {5, 7, 8, 10}
    assert bench.dirty[0] == 1
    bench.dirty[:] = 0
    assert lib.ts_wheel_empty(bench.wheel, 6, 10, ffi.from_buffer("int64_t[]", kept), 0) == 1
    assert lib.ts_wheel_empty(bench.wheel, 6, 10, ffi.NULL, 0) == 0
