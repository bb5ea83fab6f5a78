"""Messages due at the edges of the roll window, of a lap and of far slots: not early, not late."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import SECOND, Bench, small
from timerstore._engine.base.native import lib
from timerstore._engine.timer.timer_arrays import DUE


@pytest.mark.parametrize("far_wheel", ["off", "shared"])
@pytest.mark.parametrize("step_slots", [1, 1000])
def test_message_at_the_edge_of_a_window_is_delivered_on_its_millisecond(
    tmp_path: Path, far_wheel: str, step_slots: int
) -> None:
    """`step_slots`: the clock goes slot by slot, or from one due time to the next."""
    bench = Bench(tmp_path / "s", small(far_wheel=far_wheel))
    roll, lap = bench.store.config.roll_slots, bench.store.config.wheel_slot_count
    slots = {edge * times + k for edge in (roll, lap) for times in (1, 2, 3) for k in (-1, 0, 1)}
    due_ms = sorted(bench.clock.now_ms + slot * SECOND + ms for slot in slots for ms in (-1, 0, 1))
    for number, one in enumerate(reversed(due_ms)):
        bench.store.put("t", b"%d" % number, deliver_ms=one)
    bench.stepper.settle()
    for count, one in enumerate(due_ms):
        while bench.clock.now_ms < one - 1:
            bench.turn(min(step_slots * SECOND, one - 1 - bench.clock.now_ms))
        assert bench.store.stats()["pending_messages"] == len(due_ms) - count, "early"
        bench.turn(one - bench.clock.now_ms)
        assert bench.store.stats()["pending_messages"] == len(due_ms) - count - 1, "late"
    assert bench.bodies() == [b"%d" % number for number in reversed(range(len(due_ms)))]
    bench.close()


def test_service_wakes_when_a_far_slot_enters_the_roll_window(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(far_wheel="shared"))
    bench.store.put("t", b"x", delay=400)
    bench.turn()
    for _ in range(100):  # it also wakes at other times
        left_s = bench.store.services()["enqueue_put"].idle_s()
        assert left_s is not None
        left_ms = round(left_s * SECOND)
        bench.clock.set(bench.clock.now_ms + left_ms - 1)
        assert not bench.stepper.step("enqueue_put")
        bench.clock.set(bench.clock.now_ms + 1)
        if bench.stepper.step("enqueue_put"):
            break
    else:
        raise AssertionError("the message stays on the far wheel")
    bench.turn(400 * SECOND)
    assert bench.bodies() == [b"x"]
    bench.close()


def test_entry_rolls_if_its_own_slot_is_not_loaded(bench: Bench) -> None:
    """An entry at the end of the last loaded slot does not; one in the first slot after it does."""
    service: Any = bench.store.services()["dequeue_put"]
    due = np.zeros(2, DUE)
    due["flags"] = lib.TS_FLAG_ROLL
    due["due_ms"] = 100 * SECOND, 100 * SECOND + 1
    assert service._rolling(due, 100).tolist() == [1]
