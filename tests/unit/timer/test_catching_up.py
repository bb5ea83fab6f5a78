"""Many slots are due at once: dequeue-get reads several concurrently, and limits loaded entries."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import (
    CONCURRENT_UNITS_MAX,
    DEQUEUE_GET_BATCH,
    DEQUEUE_GET_LOADED_AHEAD_MAX,
    DEQUEUE_GET_LOADED_MAX,
    inside,
    slots_in_reading,
)

LOADED_MAX = 8


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Make a store with given numbers of messages in the next slots, and a clock after all."""
    monkeypatch.setattr(*DEQUEUE_GET_BATCH, 5)
    monkeypatch.setattr(*DEQUEUE_GET_LOADED_MAX, LOADED_MAX)
    monkeypatch.setattr(*DEQUEUE_GET_LOADED_AHEAD_MAX, 30)
    monkeypatch.setattr(*CONCURRENT_UNITS_MAX, 12)

    def make(*counts: int) -> Bench:
        bench = Bench(tmp_path / "store", small())
        for slot, count in enumerate(counts):
            bodies = [b"%d" % slot] * count
            bench.store.put_many("t", bodies, deliver_ms=NOW + (slot + 2) * SECOND)
        bench.turn()
        bench.clock.advance((len(counts) + 1) * SECOND)
        return bench

    return make


def read_all(bench: Bench) -> int:
    """Read while nothing is delivered. Return the number of messages in the open slot."""
    while any([bench.stepper.step("dequeue_get"), bench.stepper.step("dequeue_get_message")]):
        pass
    return int(bench.store.stats()["open_slot_messages"])


def assert_comes_out(bench: Bench, *counts: int) -> None:
    bench.turn()
    wanted = [b"%d" % slot for slot, count in enumerate(counts) for _ in range(count)]
    assert [bytes(body) for body in bench.bodies("t")] == wanted
    bench.close()


def test_burst_is_read_alone(made: Callable[..., Bench]) -> None:
    """Slots that are read concurrently finish at the same time, so the first would be late."""
    bench = made(20, 20)
    while not bench.stepper.step("dequeue_put"):
        bench.stepper.step("dequeue_get")
        bench.stepper.step("dequeue_get_message")
    assert bench.store.stats()["dequeue_get_units"] == 20
    assert_comes_out(bench, 20, 20)


def test_small_slots_are_read_concurrently_up_to_limit(made: Callable[..., Bench]) -> None:
    """Up to the limit together, and not one more."""
    bench = made(6, 6, 1)
    bench.stepper.step("dequeue_get")
    reading = inside(bench.store).pipeline.dequeue_get
    assert slots_in_reading(reading) == [NOW // SECOND + 1, NOW // SECOND + 2]
    assert_comes_out(bench, 6, 6, 1)


@pytest.mark.parametrize(
    ("counts", "loaded"),
    [
        ((40, 20), 40),  # the next slot can be read once these are delivered
        ((20, 20), 40),
        ((20, 20, 20), 40),
        ((25, 60), 85),
        ((60, 100), 60),  # no further slot is read, however large
        ((40, 1, 1), 42),  # with the last units of the burst
        ((5, 1, 1), 7),
        ((20, *[2] * 12), 44),  # all slots that are begun together
    ],
)
def test_burst_is_read_while_earlier_messages_are_delivered(
    made: Callable[..., Bench], counts: tuple[int, ...], loaded: int
) -> None:
    bench = made(*counts)
    assert read_all(bench) == loaded
    assert_comes_out(bench, *counts)
