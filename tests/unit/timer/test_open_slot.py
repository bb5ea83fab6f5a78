"""Compare the open slot with a sorted list: large batches (runs), small ones (heap), rolls."""

import random
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.inside import RUN_MAX, run_count
from timerstore._engine.base.native import lib
from timerstore._engine.timer import open_slot
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import DUE, Records

PRECISION_MS = 1000
LOADED_SLOT = 1_000  # slots below are loaded


def entries(rows: list[tuple[int, int]]) -> Records:
    """Return entries with these (due ms, id), none of which rolls."""
    made = np.zeros(len(rows), DUE)
    for at, (due_ms, number) in enumerate(rows):
        made[at]["wake_ms"] = made[at]["due_ms"] = due_ms
        made[at]["id"] = number
    return made


def pairs(popped: Records) -> list[tuple[int, int]]:
    """Return (wake ms, id) of popped entries."""
    return list(zip(popped["wake_ms"].tolist(), popped["id"].tolist(), strict=True))


def by(slot: OpenSlot, now_ms: int) -> Counter[tuple[int, int]]:
    """Return the entries with a wake time up to `now_ms`."""
    return Counter(pair for part in slot.by(now_ms) for pair in pairs(part))


@pytest.mark.parametrize("seed", sample(range(6), "seeds"))
def test_open_slot_agrees_with_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    slot = OpenSlot(PRECISION_MS, lambda: False)
    model: list[tuple[int, int]] = []
    numbers = iter(range(10**6))
    for step in range(120):
        size = chance.choice([1, 3, 40, 511, 512, 700, 3000])
        rows = [(chance.randrange(step * 500, step * 500 + 20_000), next(numbers))
                for _ in range(size)]  # fmt: skip
        chance.shuffle(rows)
        slot.push(entries(rows), LOADED_SLOT)
        model = sorted(model + rows)
        assert len(slot) == len(model)
        assert slot.next_wake_ms() == model[0][0]
        now_ms = step * 500 + chance.randrange(8_000)
        capacity = chance.choice([1, 100, 5_000, 100_000])
        due = [row for row in model if row[0] <= now_ms]
        assert by(slot, now_ms) >= Counter(due)
        taken = due[:capacity]
        assert pairs(slot.pop(now_ms, capacity)[0]) == taken
        assert by(slot, now_ms) == Counter(due)  # with those popped last
        model = model[len(taken) :]
    assert pairs(slot.pop(10**6, 10**6)[0]) == model
    assert len(slot) == 0
    assert slot.next_wake_ms() is None


def test_pop_returns_nothing_before_slot_is_loaded_again_when_clock_was_set_back() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    slot.push(entries([]), LOADED_SLOT, 0)
    slot.follow_back(5, 1)
    slot.push(entries([(5_500, 2)]))
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([]), LOADED_SLOT, 0)  # read before the clock was set back
    assert pairs(slot.pop(5_999, 10)[0]) == []
    slot.push(entries([(5_500, 1)]), 6, 1)
    assert pairs(slot.pop(5_999, 10)[0]) == [(5_500, 1), (5_500, 2)]


def test_equal_times_are_ordered_by_id_across_runs_and_heap() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    numbers = list(range(5000))
    random.Random(7).shuffle(numbers)
    for begin in range(0, 5000, 1000):
        slot.push(entries([(77, n) for n in numbers[begin : begin + 990]]), LOADED_SLOT)
        for n in numbers[begin + 990 : begin + 1000]:
            slot.push(entries([(77, n)]))
    assert [n for _, n in pairs(slot.pop(77, 10_000)[0])] == list(range(5000))


def test_number_of_runs_stays_small_with_many_batches() -> None:
    slot = OpenSlot(PRECISION_MS, lambda: False)
    for batch in range(60):
        rows = [(n % 1000, batch * 512 + n) for n in range(512)]
        slot.push(entries(rows), LOADED_SLOT)
        assert run_count(slot) <= 14  # seven of each size at most
    assert len(slot.pop(1000, 10**6)[0]) == 60 * 512


def test_large_runs_are_merged_when_their_number_reaches_the_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_slot, "RUN_MIN", 2)
    monkeypatch.setattr(*RUN_MAX, 15)
    slot = OpenSlot(PRECISION_MS, lambda: False)
    rows = [(n * 7919 % 1000, n) for n in range(1000)]
    counts = []
    for at in range(0, len(rows), 2):
        slot.push(entries(rows[at : at + 2]), LOADED_SLOT)
        counts.append(run_count(slot))
    assert max(counts) == lib.TS_RUNS_MAX - 1
    assert pairs(slot.pop(1000, 10**6)[0]) == sorted(rows)


def test_entry_waits_until_due_when_its_roll_is_not_needed() -> None:
    """More entries leave their run at once than the heap has capacity for."""
    slot = OpenSlot(PRECISION_MS, lambda: False)
    rolling = entries([(900_000 + n, n) for n in range(4000)])
    rolling["wake_ms"] = 500
    rolling["flags"] = lib.TS_FLAG_ROLL
    slot.push(rolling, 10)
    first, _ = slot.pop(600, 100)
    assert (first["flags"] == lib.TS_FLAG_ROLL).all()  # their own slot is not loaded: they roll
    assert first["id"].tolist() == list(range(100))
    slot.push(entries([]), LOADED_SLOT)
    assert len(slot.pop(600, 10_000)[0]) == 0
    assert slot.next_wake_ms() == 900_100
    last, _ = slot.pop(999_999, 10_000)
    assert last["id"].tolist() == list(range(100, 4000))
    assert not last["flags"].any()


class TestBursts:
    """A topic with a burst has a queue of its own."""

    @pytest.fixture
    def topics(self) -> list[int]:
        """The topics with timers; tests with a single topic empty the list."""
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

    def test_pop_takes_a_share_of_each_queue(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(1, range(90)), LOADED_SLOT)
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

    def test_topic_keeps_its_order(self, slot: OpenSlot) -> None:
        """This includes entries from before the queue, returned entries and late entries."""
        slot.push(self.of_topic(1, range(50, 90)), LOADED_SLOT)
        slot.push(self.of_topic(1, [5]))
        slot.push(self.of_topic(1, range(90, 200)))
        assert slot.rest_count == 0
        popped, _ = slot.pop(6000, 30)
        slot.push(popped[10:])
        slot.push(self.of_topic(1, [1]))
        popped, _ = slot.pop(6000, 1000)
        assert popped["id"].tolist() == [1, *range(59, 200)]

    def test_each_burst_has_its_turn(self, slot: OpenSlot) -> None:
        for topic_hash in range(1, 5):
            slot.push(self.of_topic(topic_hash, range(200 * topic_hash, 200 * topic_hash + 150)))
        slot.push(entries([]), LOADED_SLOT)
        first = [int(slot.pop(6000, 1)[0]["topic_hash"][0]) for _ in range(8)]
        assert set(first) == {1, 2, 3, 4}

    def test_wake_time_is_that_of_the_first_entry(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(1, range(150), 7000), LOADED_SLOT)
        slot.push(self.of_topic(2, [1], 6000))
        assert slot.next_wake_ms() == 6000
        assert len(slot.pop(6500, 10)[0]) == 1
        assert slot.next_wake_ms() == 7000
        assert len(slot.pop(6999, 10)[0]) == 0

    def test_single_topic_gets_no_queue_of_its_own(self, slot: OpenSlot, topics: list[int]) -> None:
        topics.clear()
        slot.push(self.of_topic(1, range(500)), LOADED_SLOT)
        assert slot.rest_count == 500

    def test_single_topic_becomes_burst_when_another_topic_arrives(
        self, slot: OpenSlot, topics: list[int]
    ) -> None:
        topics.clear()
        slot.push(self.of_topic(0, range(500)), LOADED_SLOT)
        assert len(slot.pop(6000, 10)[0]) == 10
        topics.append(2)
        slot.push(self.of_topic(2, [900], 5500))
        assert slot.rest_count == 1
        assert slot.pop(6000, 3)[0]["topic_hash"].tolist() == [2, 0, 0]

    def test_single_topic_becomes_burst_before_another_topic_is_read(
        self, slot: OpenSlot, topics: list[int]
    ) -> None:
        """Otherwise the entries of the single topic would keep more slots from being read."""
        topics.clear()
        slot.push(self.of_topic(1, range(500)), LOADED_SLOT)
        topics.append(2)
        slot.pop(6000, 10)
        assert (slot.rest_count, len(slot)) == (0, 490)

    def test_small_topic_gets_no_queue_of_its_own(self, slot: OpenSlot) -> None:
        slot.push(
            np.concatenate([self.of_topic(n, range(n, n + 30)) for n in range(5)]), LOADED_SLOT
        )
        assert slot.rest_count == 150

    def test_at_most_64_topics_get_a_queue(self, slot: OpenSlot) -> None:
        slot.push(self.of_topic(999, range(101)), LOADED_SLOT)
        for topic_hash in range(100):
            slot.push(self.of_topic(topic_hash, range(120)))
        assert slot.rest_count == 37 * 120
        assert len(slot.pop(6000, 10**6)[0]) == 101 + 100 * 120
