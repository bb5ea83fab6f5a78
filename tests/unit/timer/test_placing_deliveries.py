"""Another operation runs between planning and placing a delivery or a roll."""

import pytest

from tests.support.bench import SECOND, Bench
from tests.support.inside import inside
from tests.support.placing_races import (
    LAP_S,
    Act,
    assert_all_delivered,
    at_failpoint,
    before_space,
    cancelling,
    full,
    recounted,
    turn_seconds,
)
from timerstore import (
    FullError,
)


@pytest.mark.parametrize("rate", [None, 1000])
def test_delivery_is_cancelled_before_it_is_placed(bench: Bench, rate: float | None) -> None:
    bench.store.pace("t", rate)
    receipts = [bench.store.put("t", b"%d" % k, delay=2) for k in range(5)]
    bench.turn()
    with before_space(bench, "dequeue-put", cancelling(bench, receipts[0], receipts[3])):
        bench.turn(3 * SECOND)
    assert_all_delivered(bench, [b"1", b"2", b"4"])


def test_delivery_is_rescheduled_before_it_is_placed(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=2) for k in range(5)]
    bench.turn()
    with before_space(bench, "dequeue-put", lambda: bench.store.reschedule(receipts[1], delay=100)):
        bench.turn(3 * SECOND)
    assert len(bench.bodies()) == 4
    assert_all_delivered(bench, [b"%d" % k for k in range(5)])


@pytest.mark.parametrize("chosen", [(0,), (2, 4), (0, 1, 2, 3, 4)])
def test_roll_is_cancelled_before_it_is_placed(bench: Bench, chosen: tuple[int, ...]) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=3 * LAP_S) for k in range(5)]
    bench.turn()
    with before_space(bench, "dequeue-put", cancelling(bench, *(receipts[k] for k in chosen))):
        turn_seconds(bench, LAP_S)
    rolls, rest = divmod(
        bench.store.stats()["dequeue_put_rolled_messages"], max(1, 5 - len(chosen))
    )
    assert rest == 0
    assert (rolls > 0) == (len(chosen) < 5)
    assert recounted(bench) == 5 - len(chosen)
    parts = inside(bench.store)
    assert parts.open_slot.outstanding().tolist() == []
    assert_all_delivered(bench, [b"%d" % k for k in range(5) if k not in chosen])


def test_roll_is_rescheduled_before_it_is_placed(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=3 * LAP_S) for k in range(3)]
    bench.turn()
    with before_space(bench, "dequeue-put", lambda: bench.store.reschedule(receipts[1], delay=5)):
        turn_seconds(bench, LAP_S)
    assert_all_delivered(bench, [b"0", b"1", b"2"])


@pytest.mark.parametrize("delay_s", [2, 3 * LAP_S])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_delivery_or_roll_is_placed_after_disk_was_full_repeatedly(
    bench: Bench, delay_s: int, times: int
) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, delay=delay_s)
    bench.turn()
    with before_space(bench, "dequeue-put", *[full] * times):
        for _ in range(times):
            with pytest.raises(FullError):
                turn_seconds(bench, LAP_S)
            assert recounted(bench) == 5
            inside(bench.store).log.native.append_limit = 0
    assert_all_delivered(bench, [b"%d" % k for k in range(5)])


def test_checkpoint_is_completed_before_a_delivery_is_placed(bench: Bench) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, delay=2)
    bench.turn()
    with before_space(bench, "dequeue-put", bench.store.flush):
        bench.turn(3 * SECOND)
    assert_all_delivered(bench, [b"%d" % k for k in range(5)])


def _delivered(bench: Bench) -> tuple[int, int]:
    return len(bench.bodies("a")), len(bench.bodies("b"))


@pytest.mark.parametrize("placed", [0, 1, 4, 5, 6, 9])
@pytest.mark.parametrize("times", [1, 2])
def test_rate_tokens_are_returned_when_disk_is_full_during_batch(
    bench: Bench, placed: int, times: int
) -> None:
    """A full disk ends a batch of two topics early. The rest is delivered at the usual rate."""
    log = inside(bench.store).log
    for topic in ("a", "b"):
        bench.store.pace(topic, 100)
        bench.store.put_many(topic, [b"%03d" % k for k in range(60)], delay=2)
    bench.turn()
    before = log.end
    bench.turn(3 * SECOND)
    assert _delivered(bench) == (1, 1)  # a rate begins with one
    size = (log.end - before) // 2
    # Time for five of each topic. Tokens that are returned twice would show, as ten may leave at
    # once.
    bench.clock.set(bench.clock.now_ms + 50)
    with before_space(bench, "dequeue-put", *[full] * times):
        for lap in range(times):
            room = size * placed + size // 2 if lap == 0 else 0
            log.native.append_limit = log.end + room
            with pytest.raises(FullError):
                bench.stepper.settle()
            assert bench.store.stats()["dequeue_put_messages"] == 2 + placed
            assert recounted(bench) == 120 - 2 - placed
    bench.stepper.settle()
    assert _delivered(bench) == (6, 6)
    bench.turn(100)
    assert _delivered(bench) == (16, 16)
    bench.turn(50)
    assert _delivered(bench) == (21, 21)
    for _ in range(8):
        bench.turn(100)
    assert _delivered(bench) == (60, 60)
    assert inside(bench.store).open_slot.outstanding().tolist() == []
    assert recounted(bench) == 0


def test_rate_token_of_cancelled_message_is_not_lost_twice(bench: Bench) -> None:
    """A message cancelled between planning and placing uses its token; no other token is lost."""
    bench.store.pace("t", 100)
    receipts = [bench.store.put("t", b"%02d" % k, delay=2) for k in range(30)]
    bench.turn()
    bench.turn(3 * SECOND)
    assert len(bench.bodies()) == 1
    bench.clock.set(bench.clock.now_ms + 100)
    with before_space(bench, "dequeue-put", cancelling(bench, receipts[3])):
        bench.stepper.settle()
    assert len(bench.bodies()) == 10
    bench.turn(100)
    assert len(bench.bodies()) == 20
    assert_all_delivered(bench, [b"%02d" % k for k in range(30) if k != 3])


@pytest.mark.parametrize("placed", [0, 1, 4])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_level_delivery_is_placed_after_disk_was_full_repeatedly(
    bench: Bench, placed: int, times: int
) -> None:
    log = inside(bench.store).log
    bench.store.put("t", b"x", level=1)
    bench.turn()
    before = log.end
    bench.turn(2 * SECOND)
    size = log.end - before
    for k in range(5):
        bench.store.put("t", b"%d" % k, level=1)
    bench.turn()
    with before_space(bench, "schedule-deliver", *[full] * times):
        for lap in range(times):
            bench.clock.set(bench.clock.now_ms + 2 * SECOND)  # the service retries later
            log.native.append_limit = log.end + (size * placed + size // 2 if lap == 0 else 0)
            with pytest.raises(FullError):
                bench.stepper.settle()
            assert recounted(bench) == 5 - placed
    assert_all_delivered(bench, [b"x", *(b"%d" % k for k in range(5))])


@pytest.mark.parametrize("name", ["flush", "put", "clock"])
def test_level_delivery_is_correct_when_store_changes_before_placing(
    bench: Bench, name: str
) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, level=1)
    bench.turn()
    acts: dict[str, Act] = {
        "flush": bench.store.flush,
        "put": lambda: bench.store.put("t", b"5", level=1),
        "clock": lambda: bench.clock.set(bench.clock.now_ms - SECOND),
    }
    with at_failpoint("schedule_encoded", acts[name]):
        bench.turn(2 * SECOND)
    assert_all_delivered(bench, [b"%d" % k for k in range(6 if name == "put" else 5)])
