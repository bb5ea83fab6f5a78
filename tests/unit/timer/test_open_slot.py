"""The open slot against a sorted list: large batches (runs), small ones (heap), rolls."""

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.inside import RUN_MAX, run_count
from timerstore._engine.base.native import lib
from timerstore._engine.timer import due_queue, open_slot
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DUE, Records

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


def by(slot: OpenSlot, now_ms: int) -> Counter[tuple[int, int]]:
    """What is to be looked at by a time."""
    return Counter(pair for part in slot.by(now_ms) for pair in pairs(part))


@pytest.mark.parametrize("seed", sample(range(6), "seeds"))
def test_comes_out_as_from_a_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    slot = OpenSlot(PRECISION_MS, lambda: False)
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
        due = [row for row in model if row[0] <= now_ms]
        assert by(slot, now_ms) >= Counter(due)
        taken = due[:capacity]
        assert pairs(slot.pop(now_ms, capacity)[0]) == taken
        assert by(slot, now_ms) == Counter(due)  # what was popped last is told, too
        model = model[len(taken) :]
    assert pairs(slot.pop(10**6, 10**6)[0]) == model
    assert len(slot) == 0
    assert slot.next_wake_ms() is None


def test_nothing_leaves_before_a_slot_is_loaded_again_after_the_clock_was_set_back() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    slot.push(entries([]), FRONTIER, 0)
    slot.follow_back(5, 1)
    slot.push(entries([(5_500, 2)]))
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([]), FRONTIER, 0)  # said before the clock was set back
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([(5_500, 1)]), 6, 1)
    assert pairs(slot.pop(5_999, 10)[0]) == [(5_500, 1), (5_500, 2)]


def test_same_time_comes_out_in_order_of_ids_from_runs_and_heap() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    numbers = list(range(5000))
    random.Random(7).shuffle(numbers)
    for begin in range(0, 5000, 1000):
        slot.push(entries([(77, n) for n in numbers[begin : begin + 990]]), FRONTIER)
        for n in numbers[begin + 990 : begin + 1000]:
            slot.push(entries([(77, n)]))
    assert [n for _, n in pairs(slot.pop(77, 10_000)[0])] == list(range(5000))


def test_few_runs_however_many_batches() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    for batch in range(60):
        rows = [(n % 1000, batch * 512 + n) for n in range(512)]
        slot.push(entries(rows), FRONTIER)
        assert run_count(slot) <= 14  # seven of each size at most
    assert len(slot.pop(1000, 10**6)[0]) == 60 * 512


def test_runs_are_merged_for_room_where_they_are_too_large_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(due_queue, "RUN_MIN", 2)
    monkeypatch.setattr(*RUN_MAX, 15)
    slot = OpenSlot(PRECISION_MS, lambda: False)
    rows = [(n * 7919 % 1000, n) for n in range(1000)]
    counts = []
    for at in range(0, len(rows), 2):
        slot.push(entries(rows[at : at + 2]), FRONTIER)
        counts.append(run_count(slot))
    assert max(counts) == lib.TS_RUNS_MAX - 1
    assert pairs(slot.pop(1000, 10**6)[0]) == sorted(rows)


def test_rolls_that_are_not_needed_any_more_wait_for_their_time() -> None:
    """More of them at once than the heap has room for when they leave their run."""
    slot = OpenSlot(PRECISION_MS, lambda: False)
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


class TestCrowds:
    """A topic with many has a queue of its own."""

    @pytest.fixture
    def topics(self) -> list[int]:
        """Is emptied where all entries are of one topic."""
        return [1, 2]

    @pytest.fixture
    def slot(self, monkeypatch: pytest.MonkeyPatch, topics: list[int]) -> OpenSlot:
        monkeypatch.setattr(open_slot, "BURST_MESSAGES", 100)
        monkeypatch.setattr(open_slot, "RUN_MIN", 10)
        return OpenSlot(PRECISION_MS, lambda: bool(topics))

    def of_topic(self, topic_hash: int, ids: Iterable[int], due_ms: int = 5000) -> Records:
        made = entries([(due_ms, number) for number in ids])
        made["topic_hash"] = topic_hash
        return made

    def test_a_share_of_each_is_taken(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(1, range(90)), FRONTIER)
        assert slot.rest_count == 90
        slot.push(np.concatenate([self.of_topic(1, range(90, 200)), self.of_topic(2, [300])]))
        slot.push(self.of_topic(3, range(400, 500), 5001))
        assert (len(slot), slot.rest_count) == (301, 1)
        popped, _ = slot.pop(6000, 40)
        assert popped["topic_hash"].tolist() == [2] + 20 * [3] + 19 * [1]
        assert popped["id"].tolist() == [300, *range(400, 420), *range(19)]
        popped, _ = slot.pop(6000, 1000)
        assert (len(popped), len(slot), slot.rest_count) == (261, 0, 0)
        assert popped["id"][popped["topic_hash"] == 1].tolist() == list(range(19, 200))

    def test_the_order_of_a_topic_is_kept(self, slot: OpenSlot) -> None:
        """Whatever came before it had a queue, what is given back, and what comes late."""
        slot.push(self.of_topic(1, range(50, 90)), FRONTIER)
        slot.push(self.of_topic(1, [5]))
        slot.push(self.of_topic(1, range(90, 200)))
        assert slot.rest_count == 0
        popped, _ = slot.pop(6000, 30)
        slot.push(popped[10:])
        slot.push(self.of_topic(1, [1]))
        popped, _ = slot.pop(6000, 1000)
        assert popped["id"].tolist() == [1, *range(59, 200)]

    def test_each_has_its_turn(self, slot: OpenSlot) -> None:
        for topic_hash in range(1, 5):
            slot.push(self.of_topic(topic_hash, range(200 * topic_hash, 200 * topic_hash + 150)))
        slot.push(entries([]), FRONTIER)
        first = [int(slot.pop(6000, 1)[0]["topic_hash"][0]) for _ in range(8)]
        assert set(first) == {1, 2, 3, 4}

    def test_it_wakes_for_the_first_of_all(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(1, range(150), 7000), FRONTIER)
        slot.push(self.of_topic(2, [1], 6000))
        assert slot.next_wake_ms() == 6000
        assert len(slot.pop(6500, 10)[0]) == 1
        assert slot.next_wake_ms() == 7000
        assert len(slot.pop(6999, 10)[0]) == 0

    def test_one_topic_alone_needs_none(self, slot: OpenSlot, topics: list[int]) -> None:
        topics.clear()
        slot.push(self.of_topic(1, range(500)), FRONTIER)
        assert slot.rest_count == 500

    def test_a_crowd_that_was_alone_stands_aside_later(
        self, slot: OpenSlot, topics: list[int]
    ) -> None:
        topics.clear()
        slot.push(self.of_topic(0, range(500)), FRONTIER)
        assert len(slot.pop(6000, 10)[0]) == 10
        topics.append(2)
        slot.push(self.of_topic(2, [900], 5500))
        assert slot.rest_count == 1
        assert slot.pop(6000, 3)[0]["topic_hash"].tolist() == [2, 0, 0]

    def test_it_stands_aside_before_anything_of_another_is_read(
        self, slot: OpenSlot, topics: list[int]
    ) -> None:
        """For what is read of no crowd keeps further slots from being read."""
        topics.clear()
        slot.push(self.of_topic(1, range(500)), FRONTIER)
        topics.append(2)
        slot.pop(6000, 10)
        assert (slot.rest_count, len(slot)) == (0, 490)

    def test_what_is_a_small_part_gets_none(self, slot: OpenSlot) -> None:
        slot.push(np.concatenate([self.of_topic(n, range(n, n + 30)) for n in range(5)]), FRONTIER)
        assert slot.rest_count == 150

    def test_there_are_64_at_most(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(999, range(101)), FRONTIER)
        for topic_hash in range(100):
            slot.push(self.of_topic(topic_hash, range(120)))
        assert slot.rest_count == 37 * 120
        assert len(slot.pop(6000, 10**6)[0]) == 101 + 100 * 120
