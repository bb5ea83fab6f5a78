"""The open slot against a sorted list: large batches (runs), small ones (heap), rolls."""

import random

import numpy as np
import pytest

from timerstore.native import lib
from timerstore.timer.open_slot import OpenSlot
from timerstore.timer.request import DUE, Records

PRECISION_MS = 1000
FRONTIER = 1_000  # slots below are loaded


def entries(rows: list[tuple[int, int]]) -> Records:
    """Entries from (due ms, id), none of which rolls."""
    made = np.zeros(len(rows), DUE)
    for at, (due_ms, number) in enumerate(rows):
        made[at]["wake_ms"] = made[at]["due_ms"] = due_ms
        made[at]["id"] = number
    return made


def pairs(popped: Records) -> list[tuple[int, int]]:
    """(Wake ms, id) of what came out."""
    return list(zip(popped["wake_ms"].tolist(), popped["id"].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_comes_out_as_from_a_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    slot = OpenSlot(PRECISION_MS)
    model: list[tuple[int, int]] = []
    numbers = iter(range(10**6))
    for step in range(120):
        size = chance.choice([1, 3, 40, 511, 512, 700, 3000])
        rows = [(chance.randrange(step * 500, step * 500 + 20_000), next(numbers))
                for _ in range(size)]  # fmt: skip
        chance.shuffle(rows)
        slot.push(entries(rows), FRONTIER)
        model = sorted(model + rows)
        assert len(slot) == len(model)
        assert slot.next_wake_ms() == model[0][0]
        now_ms = step * 500 + chance.randrange(8_000)
        capacity = chance.choice([1, 100, 5_000, 100_000])
        due = [row for row in model if row[0] <= now_ms][:capacity]
        assert pairs(slot.pop(now_ms, capacity)[0]) == due
        model = model[len(due) :]
    assert pairs(slot.pop(10**6, 10**6)[0]) == model
    assert len(slot) == 0
    assert slot.next_wake_ms() is None


def test_nothing_leaves_before_a_slot_is_loaded_again_after_the_clock_was_set_back() -> None:
    slot = OpenSlot(PRECISION_MS)
    slot.push(entries([]), FRONTIER, 0)
    slot.follow_back(5, 1)
    slot.push(entries([(5_500, 2)]))
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([]), FRONTIER, 0)  # said before the clock was set back
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([(5_500, 1)]), 6, 1)
    assert pairs(slot.pop(5_999, 10)[0]) == [(5_500, 1), (5_500, 2)]


def test_same_time_comes_out_in_order_of_ids_from_runs_and_heap() -> None:
    slot = OpenSlot(PRECISION_MS)
    numbers = list(range(5000))
    random.Random(7).shuffle(numbers)
    for begin in range(0, 5000, 1000):
        slot.push(entries([(77, n) for n in numbers[begin : begin + 990]]), FRONTIER)
        for n in numbers[begin + 990 : begin + 1000]:
            slot.push(entries([(77, n)]))
    assert [n for _, n in pairs(slot.pop(77, 10_000)[0])] == list(range(5000))


def test_few_runs_however_many_batches() -> None:
    slot = OpenSlot(PRECISION_MS)
    for batch in range(60):
        rows = [(n % 1000, batch * 512 + n) for n in range(512)]
        slot.push(entries(rows), FRONTIER)
        assert len(slot._runs) <= 7  # each is less than half the one before it
    assert len(slot.pop(1000, 10**6)[0]) == 60 * 512


def test_rolls_that_are_not_needed_any_more_wait_for_their_time() -> None:
    """More of them at once than the heap has room for when they leave their run."""
    slot = OpenSlot(PRECISION_MS)
    rolling = entries([(900_000 + n, n) for n in range(4000)])
    rolling["wake_ms"] = 500
    rolling["flags"] = lib.TS_FLAG_ROLL
    slot.push(rolling, 10)
    first, _ = slot.pop(600, 100)
    assert (first["flags"] == lib.TS_FLAG_ROLL).all()  # their own slot is not loaded: they roll
    assert first["id"].tolist() == list(range(100))
    slot.push(entries([]), FRONTIER)
    assert len(slot.pop(600, 10_000)[0]) == 0
    assert slot.next_wake_ms() == 900_100
    last, _ = slot.pop(999_999, 10_000)
    assert last["id"].tolist() == list(range(100, 4000))
    assert not last["flags"].any()
