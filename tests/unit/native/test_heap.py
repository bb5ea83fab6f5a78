"""The heap of the open slot: order by (wake time, id), entries that leave, entries that roll."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.base.native import lib
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DUE, Records

PRECISION_MS = 100
FAR = 10**6


def entries(rows: list[tuple[int, int]], flags: int = 0, wake_ms: int | None = None) -> Records:
    """Return entries of (due time, id)."""
    out = np.zeros(len(rows), DUE)
    for entry, (due_ms, timer_id) in zip(out, rows, strict=True):
        entry["due_ms"], entry["id"], entry["flags"] = due_ms, timer_id, flags
        entry["wake_ms"] = due_ms if wake_ms is None else wake_ms
    return out


def pairs(found: Records) -> list[tuple[int, int]]:
    return [(int(e["due_ms"]), int(e["id"])) for e in found]


ROWS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), unique=True, max_size=60)


@given(st.lists(st.tuples(ROWS, st.integers(0, 60), st.integers(1, 7)), max_size=6))
def test_pop_is_ordered_by_time_then_id_and_not_past_now(
    rounds: list[tuple[list[tuple[int, int]], int, int]],
) -> None:
    open_slot = OpenSlot(PRECISION_MS, lambda: False)
    model: list[tuple[int, int]] = []
    for rows, now_ms, capacity in rounds:
        open_slot.push(entries(rows), FAR)
        model = sorted(model + rows)
        while True:
            found, loaded_slot = open_slot.pop(now_ms, capacity)
            wanted = [row for row in model if row[0] <= now_ms][:capacity]
            assert pairs(found) == wanted
            assert loaded_slot == FAR
            if not wanted:
                break
            model = model[len(wanted) :]
        assert len(open_slot) == len(model)
        assert open_slot.next_wake_ms() == (model[0][0] if model else None)


def test_pop_waits_until_all_earlier_slots_are_loaded() -> None:
    open_slot = OpenSlot(PRECISION_MS, lambda: False)
    open_slot.push(entries([(500, 1), (501, 2)]), 5)  # slots below 5: due up to 500
    found, _ = open_slot.pop(FAR, 9)
    assert pairs(found) == [(500, 1)]
    assert open_slot.next_wake_ms() is None  # not before its slot is complete
    open_slot.push(entries([]), 6)
    assert open_slot.next_wake_ms() == 501
    assert pairs(open_slot.pop(FAR, 9)[0]) == [(501, 2)]


def test_rolling_entry_leaves_at_its_slot_and_keeps_its_flag() -> None:
    open_slot = OpenSlot(PRECISION_MS, lambda: False)
    open_slot.push(entries([(5000, 1)], lib.TS_FLAG_ROLL, wake_ms=200), 3)
    found, _ = open_slot.pop(200, 9)
    assert pairs(found) == [(5000, 1)]
    assert found[0]["flags"] == lib.TS_FLAG_ROLL


def test_entry_does_not_roll_when_its_own_slot_was_loaded() -> None:
    open_slot = OpenSlot(PRECISION_MS, lambda: False)
    open_slot.push(entries([(550, 1)], lib.TS_FLAG_ROLL, wake_ms=200), 6)  # slot 5 is below 6
    assert pairs(open_slot.pop(549, 9)[0]) == []
    assert open_slot.next_wake_ms() == 550
    found, _ = open_slot.pop(550, 9)
    assert pairs(found) == [(550, 1)]
    assert found[0]["flags"] == 0


def test_outstanding_slots_are_counted_until_the_last_is_finished() -> None:
    open_slot = OpenSlot(PRECISION_MS, lambda: False)
    open_slot.expect([(7, 2)])
    open_slot.expect([(5, 1)])
    assert open_slot.replay_slot(9) == 5
    open_slot.done([(5, 1)])
    assert open_slot.replay_slot(9) == 7
    open_slot.done([(7, 2)])
    assert open_slot.replay_slot(9) == 9
