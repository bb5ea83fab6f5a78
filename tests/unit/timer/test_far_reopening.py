"""Stores with a far wheel that are closed and opened, also in another mode or for a broker."""

from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND
from tests.support.far_bench import (
    WHEEL_BYTES,
    WINDOW,
    bodies,
    far_bench,
    far_config,
    go,
    stat,
    tree,
)
from tests.support.inside import inside
from timerstore._engine.base import failpoints


@pytest.mark.parametrize("before", ["off", "shared", "own"])
@pytest.mark.parametrize("after", ["off", "shared", "own"])
def test_mode_continues_with_messages_of_another_mode(
    tmp_path: Path, before: str, after: str
) -> None:
    bench = far_bench(tmp_path, far_wheel=before)
    dues = [30, 70, 200, 500, 1000]
    for due in dues:
        bench.store.put("t", b"%d" % due, delay=due)
    bench.turn()
    go(bench, 100 * SECOND)
    bench.config = far_config(far_wheel=after)
    bench.reopen()
    assert [one.due_ms for one in bench.store.pending()] == [NOW + s * SECOND for s in dues[2:]]
    go(bench, 300 * SECOND)
    bench.config = far_config(far_wheel=before)
    bench.reopen()
    go(bench, 700 * SECOND)
    assert bodies(bench) == [b"%d" % due for due in dues]
    bench.close()


@pytest.mark.parametrize("window", [2, 5, 20, 56])
def test_far_messages_are_on_time_with_another_roll_window_after_reopening(
    tmp_path: Path, window: int
) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    dues = [55, 200, 500, 1000]
    for due in dues:
        bench.store.put("t", b"%d" % due, delay=due)
    bench.turn()
    bench.config = far_config(far_wheel="own", roll_window_slots=window)
    bench.reopen()
    bench.store.put("t", b"2000", delay=2000)
    go(bench, 2000 * SECOND, 100)
    assert bodies(bench) == [b"%d" % due for due in [*dues, 2000]]
    assert stat(bench, "dequeue_put_rolled_messages") == 0
    bench.close()


def test_shared_mode_closes_with_all_messages_on_wheel(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    bench.store.put_many("t", [b"m"] * 100, delay=600)
    bench.turn()
    bench.close()
    assert tree(bench).timer_wheel.stat().st_size == WHEEL_BYTES
    bench.open()
    assert stat(bench, "far_messages") == 0
    go(bench, 60 * SECOND)  # their slots were read: they are far again, and no body was written
    assert stat(bench, "far_messages") == 100
    assert stat(bench, "dequeue_put_relinked_messages") == 100
    go(bench, 540 * SECOND)
    assert len(bodies(bench)) == 100
    bench.close()


def test_closed_timer_log_ends_with_unit_of_last_record(tmp_path: Path) -> None:
    bench = far_bench(tmp_path)
    for n in range(4):
        last = bench.store.put("t", b"%d" % n, delay=600 - n)
    bench.turn()
    bench.close()
    raw = (tree(bench).timer_log / f"{0:020d}").read_bytes().rstrip(b"\0")
    units = [raw[at : at + 52].ljust(52, b"\0") for at in range(0, len(raw), 52)]
    assert int.from_bytes(units[-1][28:36], "big") == last.log_offset
    assert len(units) == 4 + 4 + 1


def test_own_mode_keeps_broker_out_while_any_message_is_far(tmp_path: Path) -> None:
    bench = far_bench(tmp_path, far_wheel="own")
    bench.store.put("t", b"m", delay=600)
    bench.turn()
    bench.close()
    assert tree(bench).timer_wheel.stat().st_size == WHEEL_BYTES + 32
    bench.open()
    assert stat(bench, "far_messages") == 1
    go(bench, 600 * SECOND)
    bench.close()
    assert tree(bench).timer_wheel.stat().st_size == WHEEL_BYTES


def test_opening_does_not_rebuild_when_delete_is_in_slot_of_another_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delete of a far message has its unit in the slot where the message would roll.

    The count of that slot decreases, although it has another message.
    """
    bench = far_bench(tmp_path, far_wheel="own")
    while (bench.clock.now_ms // SECOND + WINDOW) % 6 == 0:  # a far slot begins there
        bench.clock.advance(SECOND)
    bench.store.put("t", b"far", delay=86_400)
    bench.store.put("t", b"near", deliver_ms=bench.clock.now_ms + WINDOW * SECOND + 1)
    bench.turn()
    bench.store.cancel(bench.store.put("t", b"gone", delay=86_400))
    bench.turn()
    wheel = inside(bench.store).wheel
    assert wheel.units_from(wheel.read_slot, inside(bench.store).timer_log.end) == 0
    bench.close()
    reached: list[str] = []
    monkeypatch.setattr(failpoints, "hook", reached.append)
    bench.open()
    monkeypatch.setattr(failpoints, "hook", None)
    assert "recover_rebuild_begun" not in reached
    assert len(list(bench.store.pending())) == 2
    bench.close()
