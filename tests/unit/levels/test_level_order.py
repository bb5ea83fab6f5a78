"""The order of deliveries from delay levels, also after the clock or the table was changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import disk_reader as disk
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import LEVEL_BATCH
from tests.support.level_bench import no_side_files
from timerstore._engine.timer.level_pending import Runs
from timerstore._engine.timer.wheel import SLOT_BYTES


def test_levels_are_delivered_in_order_of_due_time_and_put(bench: Bench) -> None:
    wanted = []
    for k in range(60):
        receipt = bench.store.put("t", b"%d" % k, level=1 + k % 3)
        wanted.append((receipt.due_ms, k))
        bench.clock.advance(k % 4 * 400)
    bench.turn(60 * SECOND)
    assert [int(body) for body in bench.bodies()] == [k for _, k in sorted(wanted)]


def test_levels_are_delivered_in_order_with_small_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LEVEL_BATCH, 7)
    test_levels_are_delivered_in_order_of_due_time_and_put(bench)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("late", [2, 7, 9])
def test_levels_are_delivered_in_order_with_small_batches_when_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, late: int
) -> None:
    """A level's queue then has two runs of ascending due times.

    Unread messages of the second run must precede later ones of the first run and other levels.
    """
    monkeypatch.setattr(*LEVEL_BATCH, 7)
    bench = Bench(tmp_path / "store", small(level_async=is_async, level_pending_max=7))
    bench.clock.set(NOW + 100 * SECOND)
    for _ in range(late):
        bench.store.put("t", b"1", level=1)
    bench.turn()
    bench.clock.set(NOW)
    for k in range(10):
        bench.clock.set(NOW + 10 * k)
        bench.store.put("t", b"1", level=1)
    bench.store.put("t", b"2", level=2)
    bench.clock.advance(500 * SECOND)
    bench.turn()
    due_ms = [m.due_ms for m in bench.out() if m.body == b"1" or not is_async]
    assert len(due_ms) == late + 10 + (not is_async)
    assert due_ms == sorted(due_ms)
    bench.close()


def test_units_are_read_few_times_when_clock_was_set_back_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level's queue then has many runs of ascending due times; a batch needs the first few."""
    monkeypatch.setattr(*LEVEL_BATCH, 7)
    for back in range(40):
        for k in range(10):
            bench.clock.set(NOW + 100 * SECOND + 10 * k - back)
            bench.store.put("t", b"x", level=1)
    found: list[int] = []
    real = Runs.due

    def due(runs: Runs, *given: Any) -> Any:
        entries = real(runs, *given)
        found.append(len(entries))
        return entries

    monkeypatch.setattr(Runs, "due", due)
    bench.clock.set(NOW + 500 * SECOND)
    bench.turn()
    due_ms = [m.due_ms for m in bench.out()]
    assert due_ms == sorted(due_ms)
    assert len(due_ms) == 400
    assert sum(found) < 5 * 400


def test_level_is_not_early_when_the_clock_goes_back_by_1_ms_during_a_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_ms = bench.store.put("t", b"x", level=1).due_ms
    bench.turn()
    real = Runs.due

    def due(runs: Runs, *given: Any) -> Any:
        entries = real(runs, *given)
        bench.clock.set(due_ms - 1)
        return entries

    with monkeypatch.context() as patched:
        patched.setattr(Runs, "due", due)
        bench.clock.set(due_ms)
        bench.store.services()["schedule_deliver"].step()
    bench.turn()
    assert bench.out() == []
    bench.turn(1)
    assert [one.body for one in bench.out()] == [b"x"]


def test_level_message_put_after_clock_was_set_back_is_on_time(bench: Bench) -> None:
    """RocketMQ's queue would be blocked until its first message is due."""
    bench.store.put("t", b"first", level=2)
    bench.clock.set(NOW - 60 * SECOND)
    bench.store.put("t", b"second", level=2)
    bench.turn(5 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"second"]
    for how in (bench.reopen, lambda: no_side_files(bench)):
        how()
        bench.turn()
        assert bench.bodies() == [b"second"]
        assert bench.store.stats()["level_pending_messages"] == 1
    bench.clock.set(NOW + 5 * SECOND - 1)
    bench.turn()
    assert bench.bodies() == [b"second"]
    bench.turn(1)
    assert bench.bodies() == [b"second", b"first"]


def test_broker_is_kept_out_when_delivery_is_past_level_cursor(bench: Bench) -> None:
    """One offset for each level cannot express it: a broker would deliver the message again."""
    usual_bytes = bench.config.wheel_slot_count * SLOT_BYTES
    bench.store.put("t", b"first", level=2)
    bench.clock.set(NOW - 60 * SECOND)
    bench.store.put("t", b"second", level=2)
    bench.turn(5 * SECOND)
    bench.close()
    assert (bench.root / "timerwheel").stat().st_size > usual_bytes
    bench.open()
    bench.clock.set(NOW + 5 * SECOND)
    bench.turn()
    bench.close()
    assert (bench.root / "timerwheel").stat().st_size == usual_bytes
    assert disk.read_level_offsets(bench.root) == {2: 2}
    bench.open()
    assert bench.bodies() == [b"second", b"first"]


def test_shorter_delay_counts_from_put(bench: Bench) -> None:
    """A due time further ahead than the level's delay is corrected, but no message is early."""
    bench.store.put("t", b"a", level=18)
    bench.turn(3 * SECOND)
    bench.store.put("t", b"b", level=18)
    bench.turn()
    bench.config = replace(bench.config, level_delays="1s 10s")
    bench.close()
    bench.open()
    bench.turn(7 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]
    bench.turn(3 * SECOND - 1)
    assert bench.bodies() == [b"a"]
    bench.turn(1)
    assert [(m.body, m.due_ms - NOW) for m in bench.out()] == [(b"a", 10_000), (b"b", 13_000)]


def test_longer_delay_does_not_change_pending_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(level_delays="5s"))
    bench.store.put("t", b"a", level=1)
    bench.turn()
    bench.config = small(level_delays="10s")
    bench.reopen()
    bench.turn(5 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]
    bench.close()


def test_level_message_is_not_early_when_clock_was_set_back(bench: Bench) -> None:
    bench.store.put("t", b"a", level=2)
    bench.turn(-3600 * SECOND)
    assert bench.bodies() == []
    bench.turn(3600 * SECOND + 5 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]


def test_table_may_have_64_levels_of_any_unit(tmp_path: Path) -> None:
    table = " ".join(["1s", "2m", "3h", "4d", *(f"{n}s" for n in range(5, 65))])
    bench = Bench(tmp_path, small(level_delays=table))
    wanted = [1000, 120_000, 10_800_000, 345_600_000, *(n * 1000 for n in range(5, 65))]
    got = [bench.store.put("t", b"", level=level).due_ms - NOW for level in range(1, 66)]
    assert got == [*wanted, 64_000]
    bench.turn(345_600_000)
    assert len(bench.out()) == 65
    bench.close()
