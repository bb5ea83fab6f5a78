"""Messages on the far wheel: when they are delivered, and how calls see them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import DAY, NOW, SECOND, YEAR
from tests.support.far_bench import WINDOW, bodies, far_bench, go, stat, tree
from tests.support.inside import FAR_BATCH, inside
from timerstore import CancelResult
from timerstore._engine.timer import far_wheel as far_module


@pytest.mark.parametrize("mode", ["shared", "own"])
def test_far_message_due_in_a_year_is_written_twice(tmp_path: Path, mode: str) -> None:
    bench = far_bench(tmp_path, far_wheel=mode)
    bench.store.put("t", b"x" * 1000, delay=YEAR / 1000)
    bench.turn()
    begun = stat(bench, "log_end_bytes")
    go(bench, YEAR - SECOND, 60)
    assert stat(bench, "log_end_bytes") == begun
    assert stat(bench, "dequeue_put_rolled_messages") == 0
    assert bodies(bench) == []
    bench.turn(SECOND)
    assert bodies(bench) == [b"x" * 1000]
    assert stat(bench, "log_end_bytes") - begun < 2 * 1000
    assert stat(bench, "far_messages") == 0
    bench.close()


def test_far_message_rolls_through_log_when_far_wheel_is_off(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="off")
    bench.store.put("t", b"m", delay=600)
    go(bench, 600_000)
    assert bodies(bench) == [b"m"]
    assert stat(bench, "dequeue_put_rolled_messages") > 3
    assert stat(bench, "far_added_messages") == 0
    assert not tree(bench).far_log.exists()
    bench.close()


@pytest.mark.parametrize(
    "slots", [WINDOW - 1, WINDOW, WINDOW + 1, *range(WINDOW + 5, WINDOW + 8), 127, 128]
)
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_far_message_is_delivered_on_its_millisecond_at_edges_of_window_and_lap(
    tmp_path: Path, slots: int, edge: int
) -> None:
    bench = far_bench(tmp_path)
    bench.store.put("t", b"m", deliver_ms=NOW + slots * SECOND + edge)
    go(bench, slots * SECOND + edge - 1, 7)
    assert bodies(bench) == []
    bench.turn(1)
    assert bodies(bench) == [b"m"]
    assert stat(bench, "dequeue_put_rolled_messages") == 0
    bench.close()


def test_near_and_far_messages_with_equal_due_times_keep_put_order(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    due_ms = NOW + 200 * SECOND
    bench.store.put("t", b"first, far", deliver_ms=due_ms)
    go(bench, 190 * SECOND)
    bench.store.put("t", b"second, near", deliver_ms=due_ms)
    bench.turn(10 * SECOND)
    assert bodies(bench) == [b"first, far", b"second, near"]
    bench.close()


def test_near_message_does_not_overtake_messages_on_far_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAR_BATCH, 2)
    bench = far_bench(tmp_path)
    for n in range(5):
        bench.store.put("t", b"far %d" % n, deliver_ms=NOW + 300 * SECOND)
    bench.turn()
    bench.clock.advance(320 * SECOND)  # the far slot came near and is due without any step
    bench.store.put("t", b"near", delay=1)
    bench.clock.advance(2 * SECOND)
    for _ in range(2):  # one step moves two of them down and links the near one
        for name in ("dispatch", "enqueue_get"):
            bench.stepper.step(name)
    bench.stepper.step("enqueue_put")
    for _ in range(5):
        for name in ("dequeue_get", "dequeue_get_message", "dequeue_put", "dispatch"):
            bench.stepper.step(name)
    assert bodies(bench) == []
    bench.turn()
    assert bodies(bench) == [b"far %d" % n for n in range(5)] + [b"near"]
    bench.close()


def test_far_messages_move_down_in_bounded_steps_one_window_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAR_BATCH, 7)
    bench = far_bench(tmp_path)
    bench.store.put_many("t", [b"m"] * 30, deliver_ms=NOW + 500 * SECOND)
    bench.turn()
    assert stat(bench, "far_messages") == 30
    bench.clock.set(NOW + (500 - WINDOW - 6) * SECOND)
    assert not bench.stepper.step("enqueue_put")
    bench.clock.set(NOW + (500 - WINDOW + 1) * SECOND)
    left = []
    while bench.stepper.step("enqueue_put"):
        left.append(stat(bench, "far_messages"))
    assert left[:5] == [23, 16, 9, 2, 0]
    assert bench.store.services()["enqueue_put"].idle_s() is None
    bench.turn(WINDOW * SECOND)
    assert len(bodies(bench)) == 30
    bench.close()


def test_enqueue_put_wakes_when_far_slot_comes_near(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, roll_window_slots=2)
    bench.store.put(
        "t", b"m", deliver_ms=NOW + 9 * SECOND
    )  # due in slot 8 from now, whose far slot is as wide
    bench.turn()
    assert bench.store.services()["enqueue_put"].idle_s() == pytest.approx(7)
    bench.turn(7 * SECOND)
    assert stat(bench, "far_messages") == 0
    bench.close()


def test_message_past_last_far_slot_is_linked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_module, "SLOTS_MAX", 20)
    bench = far_bench(tmp_path)  # far slots of 6 s, 2 minutes in all
    bench.store.put("t", b"m", delay=3600)
    go(bench, 3599 * SECOND, 100)
    assert bodies(bench) == []
    bench.turn(SECOND)
    assert bodies(bench) == [b"m"]
    assert 10 < stat(bench, "far_added_messages") < 60
    bench.close()


@pytest.mark.parametrize("beyond", [0, 1, 9])
def test_message_past_last_far_slot_waits_in_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    monkeypatch.setattr(far_module, "SLOTS_MAX", 20)
    bench = far_bench(tmp_path, far_wheel="own")
    far = inside(bench.store).far_wheel
    last = (NOW // SECOND + WINDOW) // far.width + 20 - 1
    bench.store.put("t", b"m", deliver_ms=(last + beyond) * far.width * SECOND + 1)
    bench.turn()
    assert far.lowest == last
    assert far.count == 1
    bench.close()


def test_message_is_on_time_when_window_becomes_wider_than_all_far_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far slots keep the width that they were created with."""
    monkeypatch.setattr(far_module, "SLOTS_MAX", 20)
    bench = far_bench(tmp_path, far_wheel="own", roll_window_slots=8)
    bench.store.put("t", b"m", delay=3600)
    bench.turn()
    bench.config = replace(bench.config, roll_window_slots=WINDOW)
    bench.reopen()
    go(bench, 3599 * SECOND, 100)
    assert bodies(bench) == []
    bench.turn(SECOND)
    assert bodies(bench) == [b"m"]
    assert stat(bench, "far_added_messages") < 100
    bench.close()


def test_far_message_is_on_time_when_clock_is_set_back_during_move_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = far_bench(tmp_path)
    bench.store.put("t", b"m", delay=500)
    bench.turn()
    bench.clock.advance(460 * SECOND)
    real = far_module.FarWheel.first_of

    def first_of(far: Any, slot: int) -> Any:
        bench.clock.set(NOW)
        return real(far, slot)

    monkeypatch.setattr(far_module.FarWheel, "first_of", first_of)
    bench.stepper.step("enqueue_put")
    monkeypatch.setattr(far_module.FarWheel, "first_of", real)
    go(bench, 499 * SECOND)
    assert bodies(bench) == []
    bench.turn(SECOND)
    assert bodies(bench) == [b"m"]
    bench.close()


def test_pending_and_stats_include_far_messages(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    far_one = bench.store.put("t", b"far", delay=2 * 86_400)
    bench.store.put("u", b"near", delay=3)
    bench.turn()
    found = list(bench.store.pending())
    assert [one.due_ms for one in found] == [NOW + 3 * SECOND, NOW + 2 * DAY]
    assert found[1].handle == far_one.handle
    assert [one.topic for one in bench.store.pending(topic="t")] == ["t"]
    assert [one.topic for one in bench.store.pending(begin_ms=NOW + DAY)] == ["t"]
    assert bench.store.timing_distribution()[None] == 1
    assert (NOW + 2 * DAY - 1) // 1000 * 1000 in bench.store.congestion()
    assert stat(bench, "pending_messages") == 2
    assert stat(bench, "far_messages") == 1
    bench.close()


def test_far_messages_can_be_cancelled_and_rescheduled(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    receipts = [bench.store.put("t", b"%d" % n, delay=500 + n) for n in range(4)]
    bench.turn()
    bench.reopen()
    assert bench.store.cancel(receipts[0]) is CancelResult.CANCELLED
    assert bench.store.cancel(receipts[0].handle) is CancelResult.ALREADY_CANCELLED
    bench.store.reschedule(receipts[1], delay=2)
    bench.store.reschedule(receipts[2].handle, delay=86_400)
    bench.turn(2 * SECOND)
    assert bodies(bench) == [b"1"]
    go(bench, 600 * SECOND)
    assert bodies(bench) == [b"1", b"3"]
    go(bench, DAY)
    assert bodies(bench) == [b"1", b"3", b"2"]
    assert bench.store.cancel(receipts[3]) is CancelResult.ALREADY_DELIVERED
    bench.close()


def test_delivery_lag_includes_due_far_messages(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    bench.store.put("t", b"m", delay=500)
    bench.turn()
    bench.clock.advance(700 * SECOND)
    assert stat(bench, "delivery_lag_messages") == 1
    assert stat(bench, "delivery_lag_ms") == 200 * SECOND
    bench.turn()
    assert stat(bench, "delivery_lag_messages") == 0
    bench.close()


def test_explain_reports_place_of_far_message(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    receipt = bench.store.put("t", b"m", deliver_ms=NOW + 600 * SECOND)
    bench.turn()
    found = bench.store.explain(receipt)
    assert (found.state, found.where) == ("pending", "far wheel")
    assert found.slot_ms is not None
    assert 594 * SECOND <= found.slot_ms - NOW <= 600 * SECOND
    bench.turn((600 - WINDOW) * SECOND)
    assert bench.store.explain(receipt).where == "wheel"
    bench.turn(WINDOW * SECOND)
    assert bench.store.explain(receipt).state == "delivered"
    bench.close()
