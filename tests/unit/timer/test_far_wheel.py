"""The far wheel: years of delay cost one body in, one body out; units of 52 bytes in between."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import DAY, NOW, SECOND, YEAR, Bench, flush_for_ever, small
from tests.support.inside import FAR_BATCH, inside
from timerstore import CancelResult, ConfigError, CorruptError, FailedError, StoreConfig
from timerstore._engine.base import failpoints
from timerstore._engine.format import far_table, watermark
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.timer import far_wheel as far_module
from timerstore._engine.timer.timer_log import TimerLog
from timerstore.testing import ManualClock

WHEEL_BYTES = 128 * 32
WINDOW = 48  # slots of a second, of a wheel of 128


def far(**changes: Any) -> StoreConfig:
    return small(**({"far_wheel": "shared", "roll_window_slots": WINDOW} | changes))


def bench(root: Path, **changes: Any) -> Bench:
    return Bench(root, far(**changes))


def stat(at: Bench, name: str) -> int:
    return int(at.store.stats()[name])


def go(at: Bench, ms: int, steps: int = 40) -> None:
    """Let time go by in steps, with the services at work."""
    end_ms = at.clock.now_ms + ms
    for n in range(1, steps + 1):
        at.turn(end_ms - (ms * (steps - n)) // steps - at.clock.now_ms)


def bodies(at: Bench) -> list[bytes]:
    return [message.body for message in at.out()]


def tree(at: Bench) -> Tree:
    return Tree(at.root)


# --- what it costs, and when it comes ---


@pytest.mark.parametrize("mode", ["shared", "own"])
def test_a_years_wait_writes_the_body_twice(tmp_path: Path, mode: str) -> None:
    at = bench(tmp_path, far_wheel=mode)
    at.store.put("t", b"x" * 1000, delay=YEAR / 1000)
    at.turn()
    begun = stat(at, "log_end_bytes")
    go(at, YEAR - SECOND, 60)
    assert stat(at, "log_end_bytes") == begun
    assert stat(at, "dequeue_put_rolled_messages") == 0
    assert bodies(at) == []
    at.turn(SECOND)
    assert bodies(at) == [b"x" * 1000]
    assert stat(at, "log_end_bytes") - begun < 2 * 1000
    assert stat(at, "far_messages") == 0
    at.close()


def test_off_rolls_through_the_log_as_the_ancestor_does(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="off")
    at.store.put("t", b"m", delay=600)
    go(at, 600_000)
    assert bodies(at) == [b"m"]
    assert stat(at, "dequeue_put_rolled_messages") > 3
    assert stat(at, "far_added_messages") == 0
    assert not tree(at).far_log.exists()
    at.close()


@pytest.mark.parametrize(
    "slots", [WINDOW - 1, WINDOW, WINDOW + 1, *range(WINDOW + 5, WINDOW + 8), 127, 128]
)
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_to_the_millisecond_at_the_edges_of_window_and_lap(
    tmp_path: Path, slots: int, edge: int
) -> None:
    at = bench(tmp_path)
    at.store.put("t", b"m", deliver_ms=NOW + slots * SECOND + edge)
    go(at, slots * SECOND + edge - 1, 7)
    assert bodies(at) == []
    at.turn(1)
    assert bodies(at) == [b"m"]
    assert stat(at, "dequeue_put_rolled_messages") == 0
    at.close()


def test_equal_due_times_keep_the_order_of_puts_near_or_far(tmp_path: Path) -> None:
    at = bench(tmp_path)
    due_ms = NOW + 200 * SECOND
    at.store.put("t", b"first, far", deliver_ms=due_ms)
    go(at, 190 * SECOND)
    at.store.put("t", b"second, near", deliver_ms=due_ms)
    at.turn(10 * SECOND)
    assert bodies(at) == [b"first, far", b"second, near"]
    at.close()


def test_nothing_overtakes_what_is_still_on_the_far_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAR_BATCH, 2)
    at = bench(tmp_path)
    for n in range(5):
        at.store.put("t", b"far %d" % n, deliver_ms=NOW + 300 * SECOND)
    at.turn()
    at.clock.advance(320 * SECOND)  # it was asleep while they came near and were due
    at.store.put("t", b"near", delay=1)
    at.clock.advance(2 * SECOND)
    for _ in range(2):  # one step moves two of them down and links the near one
        for name in ("dispatch", "enqueue_get"):
            at.stepper.step(name)
    at.stepper.step("enqueue_put")
    for _ in range(5):
        for name in ("dequeue_get", "dequeue_get_message", "dequeue_put", "dispatch"):
            at.stepper.step(name)
    assert bodies(at) == []
    at.turn()
    assert bodies(at) == [b"far %d" % n for n in range(5)] + [b"near"]
    at.close()


def test_down_in_bounded_steps_a_window_before_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAR_BATCH, 7)
    at = bench(tmp_path)
    at.store.put_many("t", [b"m"] * 30, deliver_ms=NOW + 500 * SECOND)
    at.turn()
    assert stat(at, "far_messages") == 30
    at.clock.set(NOW + (500 - WINDOW - 6) * SECOND)
    assert not at.stepper.step("enqueue_put")
    at.clock.set(NOW + (500 - WINDOW + 1) * SECOND)
    left = []
    while at.stepper.step("enqueue_put"):
        left.append(stat(at, "far_messages"))
    assert left[:5] == [23, 16, 9, 2, 0]
    assert at.store.services()["enqueue_put"].idle_s() is None
    at.turn(WINDOW * SECOND)
    assert len(bodies(at)) == 30
    at.close()


def test_it_wakes_when_something_comes_near(tmp_path: Path) -> None:
    at = bench(tmp_path, roll_window_slots=2)
    at.store.put(
        "t", b"m", deliver_ms=NOW + 9 * SECOND
    )  # due in slot 8 from now, whose far slot is as wide
    at.turn()
    assert at.store.services()["enqueue_put"].idle_s() == pytest.approx(7)
    at.turn(7 * SECOND)
    assert stat(at, "far_messages") == 0
    at.close()


def test_beyond_the_last_far_slot_it_waits_there_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_module, "SLOTS_MAX", 20)
    at = bench(tmp_path)  # far slots of 6 s: it reaches 2 minutes
    at.store.put("t", b"m", delay=3600)
    go(at, 3599 * SECOND, 100)
    assert bodies(at) == []
    at.turn(SECOND)
    assert bodies(at) == [b"m"]
    assert 10 < stat(at, "far_added_messages") < 60
    at.close()


def test_a_window_that_is_wider_from_an_opening_on_than_all_far_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from 8 slots to the default: far slots are as wide as they were made."""
    monkeypatch.setattr(far_module, "SLOTS_MAX", 20)
    at = bench(tmp_path, far_wheel="own", roll_window_slots=8)
    at.store.put("t", b"m", delay=3600)
    at.turn()
    at.config = replace(at.config, roll_window_slots=WINDOW)
    at.reopen()
    go(at, 3599 * SECOND, 100)
    assert bodies(at) == []
    at.turn(SECOND)
    assert bodies(at) == [b"m"]
    assert stat(at, "far_added_messages") < 100
    at.close()


def test_a_clock_set_back_as_something_comes_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = bench(tmp_path)
    at.store.put("t", b"m", delay=500)
    at.turn()
    at.clock.advance(460 * SECOND)
    real = far_module.FarWheel.first_of

    def first_of(far: Any, slot: int) -> Any:
        at.clock.set(NOW)
        return real(far, slot)

    monkeypatch.setattr(far_module.FarWheel, "first_of", first_of)
    at.stepper.step("enqueue_put")
    monkeypatch.setattr(far_module.FarWheel, "first_of", real)
    go(at, 499 * SECOND)
    assert bodies(at) == []
    at.turn(SECOND)
    assert bodies(at) == [b"m"]
    at.close()


# --- what callers ask ---


def test_pending_stats_and_distribution_know_what_is_far(tmp_path: Path) -> None:
    at = bench(tmp_path)
    far_one = at.store.put("t", b"far", delay=2 * 86_400)
    at.store.put("u", b"near", delay=3)
    at.turn()
    found = list(at.store.pending())
    assert [one.due_ms for one in found] == [NOW + 3 * SECOND, NOW + 2 * DAY]
    assert found[1].handle == far_one.handle
    assert [one.topic for one in at.store.pending(topic="t")] == ["t"]
    assert [one.topic for one in at.store.pending(begin_ms=NOW + DAY)] == ["t"]
    assert at.store.timing_distribution()[None] == 1
    assert (NOW + 2 * DAY - 1) // 1000 * 1000 in at.store.congestion()
    assert stat(at, "pending_messages") == 2
    assert stat(at, "far_messages") == 1
    at.close()


def test_cancel_and_reschedule_of_far_messages(tmp_path: Path) -> None:
    at = bench(tmp_path)
    receipts = [at.store.put("t", b"%d" % n, delay=500 + n) for n in range(4)]
    at.turn()
    at.reopen()
    assert at.store.cancel(receipts[0]) is CancelResult.CANCELLED
    assert at.store.cancel(receipts[0].handle) is CancelResult.ALREADY_CANCELLED
    at.store.reschedule(receipts[1], delay=2)
    at.store.reschedule(receipts[2].handle, delay=86_400)
    at.turn(2 * SECOND)
    assert bodies(at) == [b"1"]
    go(at, 600 * SECOND)
    assert bodies(at) == [b"1", b"3"]
    go(at, DAY)
    assert bodies(at) == [b"1", b"3", b"2"]
    assert at.store.cancel(receipts[3]) is CancelResult.ALREADY_DELIVERED
    at.close()


def test_what_was_due_while_it_was_far_counts_as_behind(tmp_path: Path) -> None:
    at = bench(tmp_path)
    at.store.put("t", b"m", delay=500)
    at.turn()
    at.clock.advance(700 * SECOND)
    assert stat(at, "delivery_lag_messages") == 1
    assert stat(at, "delivery_lag_ms") == 200 * SECOND
    at.turn()
    assert stat(at, "delivery_lag_messages") == 0
    at.close()


# --- opening and closing ---


@pytest.mark.parametrize("before", ["off", "shared", "own"])
@pytest.mark.parametrize("after", ["off", "shared", "own"])
def test_any_mode_goes_on_with_what_another_left(tmp_path: Path, before: str, after: str) -> None:
    at = bench(tmp_path, far_wheel=before)
    dues = [30, 70, 200, 500, 1000]
    for due in dues:
        at.store.put("t", b"%d" % due, delay=due)
    at.turn()
    go(at, 100 * SECOND)
    at.config = far(far_wheel=after)
    at.reopen()
    assert [one.due_ms for one in at.store.pending()] == [NOW + s * SECOND for s in dues[2:]]
    go(at, 300 * SECOND)
    at.config = far(far_wheel=before)
    at.reopen()
    go(at, 700 * SECOND)
    assert bodies(at) == [b"%d" % due for due in dues]
    at.close()


@pytest.mark.parametrize("window", [2, 5, 20, 56])
def test_another_roll_window_after_reopening(tmp_path: Path, window: int) -> None:
    at = bench(tmp_path, far_wheel="own")
    dues = [55, 200, 500, 1000]
    for due in dues:
        at.store.put("t", b"%d" % due, delay=due)
    at.turn()
    at.config = far(far_wheel="own", roll_window_slots=window)
    at.reopen()
    at.store.put("t", b"2000", delay=2000)
    go(at, 2000 * SECOND, 100)
    assert bodies(at) == [b"%d" % due for due in [*dues, 2000]]
    assert stat(at, "dequeue_put_rolled_messages") == 0
    at.close()


def test_closed_as_shared_the_wheel_holds_all_and_has_the_brokers_length(tmp_path: Path) -> None:
    at = bench(tmp_path)
    at.store.put_many("t", [b"m"] * 100, delay=600)
    at.turn()
    at.close()
    assert tree(at).timer_wheel.stat().st_size == WHEEL_BYTES
    at.open()
    assert stat(at, "far_messages") == 0
    go(at, 60 * SECOND)  # their slots came: they are far again, and no body was written
    assert stat(at, "far_messages") == 100
    assert stat(at, "dequeue_put_relinked_messages") == 100
    go(at, 540 * SECOND)
    assert len(bodies(at)) == 100
    at.close()


def test_the_timer_log_ends_with_the_last_records_unit(tmp_path: Path) -> None:
    at = bench(tmp_path)
    for n in range(4):
        last = at.store.put("t", b"%d" % n, delay=600 - n)
    at.turn()
    at.close()
    raw = (tree(at).timer_log / f"{0:020d}").read_bytes().rstrip(b"\0")
    units = [raw[at : at + 52].ljust(52, b"\0") for at in range(0, len(raw), 52)]
    assert int.from_bytes(units[-1][28:36], "big") == last.log_offset
    assert len(units) == 4 + 4 + 1


def test_closed_as_own_a_broker_refuses_it_while_anything_is_far(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="own")
    at.store.put("t", b"m", delay=600)
    at.turn()
    at.close()
    assert tree(at).timer_wheel.stat().st_size == WHEEL_BYTES + 32
    at.open()
    assert stat(at, "far_messages") == 1
    go(at, 600 * SECOND)
    at.close()
    assert tree(at).timer_wheel.stat().st_size == WHEEL_BYTES


def test_a_delete_in_anothers_slot_has_nothing_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete of what is far has its unit where that would roll; the count of the slot goes down,
    though it has another message.
    """
    at = bench(tmp_path, far_wheel="own")
    while (at.clock.now_ms // SECOND + WINDOW) % 6 == 0:  # there a far slot begins
        at.clock.advance(SECOND)
    at.store.put("t", b"far", delay=86_400)
    at.store.put("t", b"near", deliver_ms=at.clock.now_ms + WINDOW * SECOND + 1)
    at.turn()
    at.store.cancel(at.store.put("t", b"gone", delay=86_400))
    at.turn()
    wheel = inside(at.store).wheel
    assert wheel.units_from(wheel.frontier, inside(at.store).timer_log.end) == 0
    at.close()
    reached: list[str] = []
    monkeypatch.setattr(failpoints, "hook", reached.append)
    at.open()
    monkeypatch.setattr(failpoints, "hook", None)
    assert "recover_rebuild_begun" not in reached
    assert len(list(at.store.pending())) == 2
    at.close()


def test_convert_there_and_back(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="own")
    at.store.put_many("t", [b"m"] * 10, delay=600)
    at.turn()
    at.close()
    report = timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    assert report == (10, 10, 0)
    assert tree(at).timer_wheel.stat().st_size == WHEEL_BYTES
    report = timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    assert report == (10, 0, 0)
    report = timerstore.convert(at.root, to="timerstore", config=at.config, clock=at.clock)
    assert report.waiting == 10
    at.open()
    go(at, 600 * SECOND)
    assert len(bodies(at)) == 10
    assert stat(at, "dequeue_put_rolled_messages") == 0
    at.close()


def test_converted_no_unit_leads_a_broker_to_what_is_out(tmp_path: Path) -> None:
    """A broker that loads links the last units again, each into the slot that it says."""
    at = bench(tmp_path, far_wheel="own")
    at.store.put("t", b"far", delay=600)
    slot_ms = at.clock.now_ms // SECOND * SECOND + 2 * SECOND
    at.store.put("t", b"later", deliver_ms=slot_ms + 700)
    at.store.put("t", b"out", deliver_ms=slot_ms + 300)  # its unit is behind the other's
    at.turn()
    at.turn(slot_ms + 500 - at.clock.now_ms)
    assert bodies(at) == [b"out"]
    at.close()
    timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    check = disk.read_timer_check(at.root)
    assert check is not None
    units = [one for one in disk.timer_units(at.root) if one.slot_ms >= check.read_ms]
    waits = [disk.read_record(at.root, one.log_offset, one.store_size).body for one in units]
    assert sorted(waits) == [b"far", b"later"]


def test_convert_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted the directory of a store"):
        timerstore.convert(tmp_path / "none", to="rocketmq")
    assert not (tmp_path / "none").exists()
    for given in ({"config": {"flush": "sync"}}, {"clock": 5}):
        with pytest.raises(ConfigError, match=f"{next(iter(given))}: wanted a "):
            timerstore.convert(tmp_path, to="rocketmq", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="wanted 'rocketmq' or 'timerstore'"):
        timerstore.convert(tmp_path, to="kafka")  # type: ignore[arg-type]
    at = bench(tmp_path / "open")
    with pytest.raises(ConfigError, match="config: wanted a StoreConfig, got str"):
        timerstore.verify_directory(at.root, "flush=sync")  # type: ignore[arg-type]
    with pytest.raises(timerstore.LockedError):
        timerstore.convert(at.root, to="rocketmq", config=at.config)
    at.close()


@pytest.mark.parametrize("with_config", [True, False])
def test_convert_refuses_queue_files_that_a_broker_cannot_open(
    tmp_path: Path, with_config: bool
) -> None:
    """It looks in the last file of a queue for its second unit, again and again."""
    at = bench(tmp_path, far_wheel="own", queue_segment_bytes=20)
    at.store.put_many("t", [b"m"] * 3, delay=600)
    at.turn()
    at.close()
    before = {path: path.stat().st_mtime_ns for path in at.root.rglob("*")}
    with pytest.raises(ConfigError) as caught:
        timerstore.convert(at.root, "rocketmq", at.config if with_config else None, clock=at.clock)
    assert str(caught.value).startswith(
        "queue_segment_bytes: wanted 40 or more for a broker, which never finishes opening queues "
        f"of one unit a file, got 20 in {tree(at).queues}"
    )
    assert {path: path.stat().st_mtime_ns for path in at.root.rglob("*")} == before
    timerstore.convert(at.root, "timerstore", at.config, clock=at.clock)
    wide = bench(tmp_path / "wide", far_wheel="own", queue_segment_bytes=40)
    wide.store.put("t", b"m", delay=600)
    wide.turn()
    wide.close()
    timerstore.convert(wide.root, "rocketmq", wide.config, clock=wide.clock)


def test_convert_tells_a_level_out_of_turn_from_a_full_wheel(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="own", level_delays="1h")
    at.store.put("t", b"put first", level=1)
    at.turn()
    at.turn(-1800 * SECOND)
    at.store.put("t", b"put second", level=1)
    at.turn()
    at.turn(3600 * SECOND)
    assert bodies(at) == [b"put second"]
    at.close()
    with pytest.raises(FailedError, match="a message of a fixed level came before one of its"):
        timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    at.open()
    at.turn(1800 * SECOND)
    at.close()
    report = timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    assert report == (0, 0, 0)
    at.open()
    assert bodies(at) == [b"put second", b"put first"]
    at.close()


# --- files ---


def test_dead_units_are_tidied_away_while_some_wait_for_years(tmp_path: Path) -> None:
    at = bench(tmp_path, timer_log_segment_bytes=520, far_wheel="own")  # ten units a file
    for n in range(30):
        at.store.put("t", b"%d years" % n, delay=(1 + n) * 86_400 * 365)
    at.turn()
    for n in range(60):
        at.store.put_many("t", [b"soon"] * 10, delay=100 + n)
        go(at, 10 * SECOND, 1)
        at.store.flush()
    go(at, 200 * SECOND)
    for _ in range(40):
        at.store.flush()
        at.turn()
    files = sorted(path.name for path in tree(at).far_log.iterdir())
    assert stat(at, "far_messages") == 30
    assert stat(at, "far_added_messages") >= 630
    assert len(files) <= 12, files  # of 63 and more that were begun
    at.reopen()
    assert len(list(at.store.pending())) == 30
    at.turn(40 * YEAR)
    assert len(bodies(at)) == 630
    at.close()


def test_cancelled_ones_are_not_copied(tmp_path: Path) -> None:
    at = bench(tmp_path, timer_log_segment_bytes=520, far_wheel="own")
    kept = at.store.put("t", b"kept", delay=86_400 * 400)
    gone = [at.store.put("t", b"gone", delay=86_400 * 300) for _ in range(40)]
    at.turn()
    for one in gone:
        at.store.cancel(one)
    at.store.put_many("t", [b"soon"] * 90, delay=60)
    go(at, 60 * SECOND)
    assert stat(at, "far_messages") == 1
    assert [one.timer_id for one in at.store.pending()] == [int(kept.timer_id)]
    at.close()


@pytest.mark.parametrize("damage", ["unit", "table", "tables gone", "units gone", "short file"])
def test_damaged_or_lost_it_is_made_anew_from_the_log(tmp_path: Path, damage: str) -> None:
    at = bench(tmp_path, far_wheel="own")
    for n in range(20):
        at.store.put("t", b"%d" % n, delay=300 + 40 * n)
    at.turn()
    at.close()
    mark = watermark.read(tree(at).watermark.read_bytes())
    assert mark is not None
    table, units = tree(at).far_table(mark.far_number), tree(at).far_log / f"{0:020d}"
    assert timerstore.verify_directory(at.root, at.config).clean
    if damage in ("unit", "table"):
        path = units if damage == "unit" else table
        data = bytearray(path.read_bytes())
        data[60] ^= 4
        path.write_bytes(data)
    elif damage == "tables gone":
        table.unlink()
    elif damage == "units gone":
        units.unlink()
    else:
        units.write_bytes(units.read_bytes()[:-52])
    report = timerstore.verify_directory(at.root, at.config)
    assert any("far" in problem.what for problem in report.problems), report
    at.open()
    go(at, 1500 * SECOND)
    assert bodies(at) == [b"%d" % n for n in range(20)]
    at.close()


def test_a_unit_that_is_damaged_while_the_store_is_open_stops_it(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="own")
    for n in range(20):
        at.store.put("t", b"%d" % n, delay=300 + 40 * n)
    at.turn()
    at.store.flush()
    units = tree(at).far_log / f"{0:020d}"
    with units.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff")
    assert not at.store.verify().clean
    with pytest.raises(CorruptError, match=f"{units} offset 52") as caught:
        go(at, 1500 * SECOND)
    inside(at.store).log.fail(caught.value)  # as a service's loop does
    at.store.close()
    at.open()
    go(at, 1500 * SECOND)
    assert bodies(at) == [b"%d" % n for n in range(20)]
    at.close()


def test_any_bit_of_a_table_is_covered() -> None:
    import numpy as np

    rows = np.array([(4, 9, 7, 2), (5, 8, 8, 1)], far_table.ROW)
    raw = far_table.write(far_table.FarTable(3, 7, 10, 6, 1092, rows))
    found = far_table.read(raw, 3)
    assert found is not None
    assert found[:-1] == (3, 7, 10, 6, 1092)
    assert found.rows.tolist() == rows.tolist()
    assert far_table.read(raw, 2) is None
    assert far_table.read(None, 3) is None
    assert far_table.read(raw[:-1], 3) is None
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit >> 3] ^= 1 << (bit & 7)
        assert far_table.read(bytes(changed), 3) is None


def test_a_units_bytes_are_those_of_the_drawing(tmp_path: Path) -> None:
    at = bench(tmp_path, far_wheel="own")
    at.store.put("t", b"m", delay=600)
    receipt = at.store.put("t", b"m", deliver_ms=NOW + 600 * SECOND)
    at.turn()
    raw = (tree(at).far_log / f"{0:020d}").read_bytes()[52:104]
    log_size = at.store.stats()["log_end_bytes"] - receipt.log_offset
    wanted = b"".join(
        number.to_bytes(8, "big")
        for number in (0, 1, receipt.log_offset, receipt.due_ms, (receipt.due_ms - 1) // 6000)
    )
    wanted += log_size.to_bytes(4, "big") + ord("t").to_bytes(4, "big")
    wanted += zlib.crc32((1).to_bytes(8, "big") + wanted).to_bytes(4, "big")
    assert raw == wanted
    at.close()


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_watermarks_of_older_versions_have_fewer_fields(version: int) -> None:
    magic = b"TSMARK0%d" % version
    mark = watermark.Watermark(7, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1000, 128, 9, 10, 11, 12)
    fields = list(mark)[: 12 + version]
    head = magic + b"".join(field.to_bytes(8, "little") for field in fields)
    raw = (head + zlib.crc32(head).to_bytes(4, "little")).ljust(512, b"\0")
    found = watermark.read(raw)
    assert found is not None
    assert found == watermark.Watermark(*fields[:15])
    assert found.wheel_writes == -1


# --- crashes ---


class _DiedError(Exception):
    """In place of a kill: the copy taken before is what is opened."""


@pytest.mark.parametrize(
    "point",
    ["enqueue_far_written", "far_moved_down", "far_relinked", "checkpoint_far_written",
     "checkpoint_counts_written", "checkpoint_watermark_written", "far_handed_over",
     "close_checkpointed", "enqueue_slots_linked"],
)  # fmt: skip
def test_killed_at_every_step_each_comes_once(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    copies: list[Path] = []

    def copy(name: str) -> None:
        if name == point and len(copies) < 3:
            copies.append(tmp_path / f"killed {len(copies)}")
            shutil.copytree(tmp_path / "store", copies[-1])

    at = bench(tmp_path / "store", flush="sync")
    for n in range(12):
        at.store.put("t", b"%02d" % n, delay=55 + 9 * n)
    at.turn()
    at.store.flush()
    monkeypatch.setattr(failpoints, "hook", copy)
    at.store.put("t", b"more", delay=170)
    for _ in range(3):
        at.turn(31 * SECOND)
        at.store.flush()
    at.reopen()
    for _ in range(3):
        at.turn(31 * SECOND)
        at.store.flush()
    monkeypatch.setattr(failpoints, "hook", None)
    at.close()
    assert copies
    for root in copies:
        again = Bench(root, far(flush="sync"), now_ms=NOW)
        go(again, 300 * SECOND, 20)
        came = bodies(again)
        assert [body for body in came if body != b"more"] == [b"%02d" % n for n in range(12)]
        assert came.count(b"more") <= 1
        again.close()


def test_a_clock_set_back_loses_nothing_that_was_linked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that was read keeps what moved on until a checkpoint has where it went: the wheel's
    page is on the disk before the watermark is.
    """
    import shutil

    at = bench(tmp_path / "store", far_wheel="shared", flush="sync")
    at.store.put("t", b"m", delay=600)
    at.turn()
    at.reopen()  # it rolls now
    at.store.flush()
    names = [name for name in at.stepper.names if name != "flush"]
    for ms in (WINDOW * SECOND, 0):
        at.clock.set(NOW + ms)  # read, linked again: on the far wheel; then back
        while sum(at.stepper.step(name) for name in names):
            pass
    assert stat(at, "dequeue_put_relinked_messages") == 1
    root = tmp_path / "killed"

    def copy(name: str) -> None:
        if name == "checkpoint_wheel_written" and not root.exists():
            shutil.copytree(tmp_path / "store", root)

    monkeypatch.setattr(failpoints, "hook", copy)
    at.store.flush()
    monkeypatch.setattr(failpoints, "hook", None)
    at.close()
    reached: list[str] = []
    monkeypatch.setattr(failpoints, "hook", reached.append)
    again = Bench(root, far(flush="sync"), now_ms=NOW)
    monkeypatch.setattr(failpoints, "hook", None)
    assert "recover_rebuild_begun" not in reached  # else that the wheel leads to too few was seen
    assert len(list(again.store.pending())) == 1
    go(again, 700 * SECOND)
    assert bodies(again) == [b"m"]
    again.close()


def test_retention_moves_what_is_far(tmp_path: Path) -> None:
    at = bench(
        tmp_path, far_wheel="own", commit_log_segment_bytes=16_384, retention_ms=3_600_000,
        timer_log_segment_bytes=1040,
    )  # fmt: skip
    at.store.put_many("t", [b"far"] * 5, delay=30 * 86_400)
    for _ in range(30):
        at.store.put_many("t", [bytes(1000)] * 10)
        at.store.put("t", b"near", delay=1)
        go(at, 600 * SECOND, 4)
        at.store.flush()
        at.turn()
    assert stat(at, "retention_log_files") > 10
    assert stat(at, "retention_moved_messages") >= 5
    assert len(list(at.store.pending())) == 5
    at.reopen()
    go(at, 31 * DAY, 100)
    begin = at.store.pull("t", 0, 2**62).min_offset
    assert [message.body for message in at.out(offset=begin)].count(b"far") == 5
    at.close()


def test_copies_do_not_multiply_where_messages_roll_again(tmp_path: Path) -> None:
    """Retention would move, of each that rolled, the old copy beside the new one, and both roll."""
    at = bench(
        tmp_path, far_wheel="shared", commit_log_segment_bytes=16_384, retention_ms=60_000,
        timer_log_segment_bytes=1040,
    )  # fmt: skip
    at.store.put_many("t", [b"far"] * 5, delay=2000)
    go(at, 100 * SECOND)
    assert stat(at, "far_messages") == 5
    at.config = replace(at.config, far_wheel="off")
    at.reopen()
    for _ in range(14):
        at.store.put_many("t", [bytes(1000)] * 16)
        go(at, 60 * SECOND, 2)
        at.store.flush()
        at.turn()
    assert stat(at, "retention_log_files") > 5
    assert stat(at, "dequeue_put_rolled_messages") >= 5 * 10
    units = list(inside(at.store).pending.parts())
    assert sum(len(part) for part in units) <= 2 * 5
    go(at, 2000 * SECOND)
    begin = at.store.pull("t", 0, 2**62).min_offset
    assert [message.body for message in at.out(offset=begin)].count(b"far") == 5
    at.close()


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = bench(tmp_path)
    at.store.put("t", b"m", delay=600)
    real: Callable[..., None] = far_module.FarWheel.reserve

    def full(self: Any, count: int) -> None:
        raise timerstore.FullError("by the test", where=tmp_path)

    monkeypatch.setattr(far_module.FarWheel, "reserve", full)
    at.stepper.step("dispatch")
    at.stepper.step("enqueue_get")
    with pytest.raises(timerstore.FullError):
        at.stepper.step("enqueue_put")
    assert stat(at, "far_messages") == 0
    monkeypatch.setattr(far_module.FarWheel, "reserve", real)
    at.turn()
    assert stat(at, "far_messages") == 1
    at.turn(600 * SECOND)
    assert bodies(at) == [b"m"]
    at.close()


def test_convert_says_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = bench(tmp_path, far_wheel="own")
    at.store.put_many("t", [b"m"] * 10, delay=600)
    at.turn()
    at.close()

    def full(_self: Any, _count: int, **_more: Any) -> None:
        raise timerstore.FullError("by the test", where=tmp_path)

    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "reserve", full)
        with pytest.raises(timerstore.FullError, match="by the test"):
            timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    report = timerstore.convert(at.root, to="rocketmq", config=at.config, clock=at.clock)
    assert report == (10, 10, 0)


def test_explain_says_where_it_is(tmp_path: Path) -> None:
    at = bench(tmp_path)
    receipt = at.store.put("t", b"m", deliver_ms=NOW + 600 * SECOND)
    at.turn()
    found = at.store.explain(receipt)
    assert (found.state, found.where) == ("waiting", "far wheel")
    assert found.slot_ms is not None
    assert 594 * SECOND <= found.slot_ms - NOW <= 600 * SECOND
    at.turn((600 - WINDOW) * SECOND)
    assert at.store.explain(receipt).where == "wheel"
    at.turn(WINDOW * SECOND)
    assert at.store.explain(receipt).state == "delivered"
    at.close()


def test_the_units_of_another_store_are_met_once(tmp_path: Path) -> None:
    """Each is whole, and leads to a record that is not its own: from the log all is made anew."""
    count = 30
    for name, salt in (("a", b"A"), ("b", b"BB")):
        at = bench(tmp_path / name, far_wheel="own")
        for n in range(count):
            at.store.put("t", salt * (1 + n % 3) + b"%03d" % n, delay=DAY / 1000 * (n + 1))
        at.turn()
        at.close()
    names = [path.name for path in (tmp_path / "b" / "timerstore" / "far").iterdir()]
    for name in names:
        other = tmp_path / "b" / "timerstore" / "far" / name
        (tmp_path / "a" / "timerstore" / "far" / name).write_bytes(other.read_bytes())
    late_ms = NOW + (count + 2) * DAY
    config = far(far_wheel="own")
    store = timerstore.open(tmp_path / "a", config, clock=ManualClock(late_ms))
    with pytest.raises(FailedError, match="not the one that was pointed at"):
        flush_for_ever(store)  # until dequeue-get-message has met it
    store.close()
    assert Tree(tmp_path / "a").timer_damaged.exists()
    healed = Bench(tmp_path / "a", config, late_ms)
    assert not tree(healed).timer_damaged.exists()
    healed.turn()
    assert [body[-3:] for body in bodies(healed)] == [b"%03d" % n for n in range(count)]
    healed.close()
