"""Fixed levels: each message once, on its millisecond, behind nothing that is due later."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import LEVEL_BATCH, forget_levels, forget_runs, inside, service_event
from timerstore import FullError, MessageError, PutReceipt
from timerstore._engine.base.native import lib
from timerstore._engine.format.delay_levels import parse_level_delays, real_queue
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.levels.level_runs import Runs
from timerstore._engine.queues.level_cursors import OFFSET_BITS
from timerstore._engine.timer.wheel import SLOT_BYTES
from timerstore.errors import CorruptError
from timerstore.testing import Stepper

DEFAULT = parse_level_delays(small().level_delays)


def levels(bench: Bench) -> Any:
    return inside(bench.store).levels


def no_side_files(bench: Bench) -> None:
    bench.close()
    shutil.rmtree(bench.root / "timerstore")
    bench.open()


def raw_level_put(bench: Bench, queue_id: int, properties: dict[str, str]) -> None:
    """What only a stranger would put into a level's queue."""
    routes = inside(bench.store).routes
    route = routes.make(SCHEDULE_TOPIC, queue_id, bench.clock.now_ms)
    text = disk.encode_properties(properties)
    now_ms, log = bench.clock.now_ms, inside(bench.store).log
    while lib.ts_put_one(log.native, route.native, b"x", 1, 0, text, len(text), now_ms) < 0:
        log.make_room(1000)
    if (real := real_queue(properties)) is not None:
        routes.make(*real, now_ms).native.level_pending += 1


# --- put ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_to_the_millisecond(bench: Bench, level: int) -> None:
    receipt = bench.store.put("t", b"x", level=level, tags="a", keys=["k"], properties={"p": "v"})
    due_ms = NOW + DEFAULT[level - 1]
    assert (receipt.due_ms, receipt.queue_offset, receipt.queue_id) == (due_ms, None, 0)
    bench.turn(DEFAULT[level - 1] - 1)
    assert bench.out() == []
    bench.turn(1)
    (message,) = bench.out()
    assert (message.body, message.tags, message.keys) == (b"x", "a", ("k",))
    assert message.properties["p"] == "v"
    assert message.properties["DELAY"] == str(level)
    assert message.message_id == receipt.message_id
    assert message.born_ms == NOW
    assert message.due_ms == message.delivered_ms == message.store_ms == due_ms


@pytest.mark.parametrize("level", [18, 19, 1000, 10**30])
def test_a_level_beyond_the_table_is_the_last(bench: Bench, level: int) -> None:
    receipt = bench.store.put("t", b"x", level=level)
    assert receipt.due_ms == NOW + DEFAULT[-1]
    bench.turn()
    (waiting,) = bench.out(SCHEDULE_TOPIC, 17)
    assert waiting.properties["DELAY"] == "18"
    assert waiting.due_ms == receipt.due_ms
    assert bench.store.topics()[SCHEDULE_TOPIC] == 18


@pytest.mark.parametrize("level", [0, -1, -(10**30), True, 1.0, "1", b"1"])
def test_what_is_no_level(bench: Bench, level: Any) -> None:
    with bench.refused(MessageError, match=r"level: wanted a whole number from 1 on, got"):
        bench.store.put("new", b"x", level=level)


@pytest.mark.parametrize("time", [{"delay": 1.0}, {"deliver_ms": NOW + 5}, {"deliver_ms": 0}])
def test_a_level_and_a_time(bench: Bench, time: dict[str, Any]) -> None:
    with bench.refused(MessageError, match=r"time: wanted one of .*level, got .*, level"):
        bench.store.put("new", b"x", level=1, **time)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"queue_id": -1}, "queue_id"),
        ({"flush": "x"}, "flush"),
        ({"tags": "\x01"}, "TAGS"),
        ({"properties": {"DELAY": "1"}}, "DELAY.*level="),
    ],
)
def test_other_wrong_arguments_beside_a_level(
    bench: Bench, wrong: dict[str, Any], why: str
) -> None:
    with bench.refused(MessageError, match=why):
        bench.store.put("new", b"x", level=1, **wrong)


def test_limits_of_properties_and_body_hold_for_the_copy_too(bench: Bench) -> None:
    limit = bench.config.properties_bytes_max
    found = 0
    for size in range(limit - 400, limit):
        try:
            bench.store.put("t", b"", level=1, properties={"p": "v" * size})
        except MessageError:
            break
        found += 1
    assert 50 < found < 399, "the limit lies in between"
    bench.turn(SECOND)
    assert len(bench.out()) == found


def test_no_handle_no_cancel(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", level=1)
    assert receipt.handle == ""
    assert receipt.waits_for_level
    for given in (receipt, receipt.handle):
        with pytest.raises(MessageError):
            bench.store.cancel(given)
    bench.turn(SECOND)
    assert bench.bodies() == [b"x"]


def test_a_mark_that_a_caller_brings_is_dropped(bench: Bench) -> None:
    bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    (first,) = bench.out()
    mark = {"TS_LEVEL": first.properties["TS_LEVEL"]}
    bench.store.put("t", b"y", level=1, properties=mark)
    bench.turn()
    (_, waiting) = bench.out(SCHEDULE_TOPIC, 0)
    assert "TS_LEVEL" not in waiting.properties


def test_the_mark_says_who_where_and_when(bench: Bench) -> None:
    for _ in range(3):
        bench.store.put("t", b"x", level=2)
    bench.turn(5 * SECOND)
    store_id = inside(bench.store).store_id
    marks = [disk.decode_ts_level(message.properties["TS_LEVEL"]) for message in bench.out()]
    assert marks == [(store_id, 1, k, NOW + 5 * SECOND) for k in range(3)]


# --- order ----------------------------------------------------------------------------------------


def test_in_order_of_due_time_and_put_over_all_levels(bench: Bench) -> None:
    wanted = []
    for k in range(60):
        receipt = bench.store.put("t", b"%d" % k, level=1 + k % 3)
        wanted.append((receipt.due_ms, k))
        bench.clock.advance(k % 4 * 400)
    bench.turn(60 * SECOND)
    assert [int(body) for body in bench.bodies()] == [k for _, k in sorted(wanted)]


def test_in_order_where_a_batch_is_full_in_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LEVEL_BATCH, 7)
    test_in_order_of_due_time_and_put_over_all_levels(bench)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("late", [2, 7, 9])
def test_in_order_where_a_clock_was_set_back_and_more_are_due_than_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, late: int
) -> None:
    """A level's queue has two ascending parts then; what was not read of the second came after
    what is due later, of the first and of other levels.
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


def test_a_clock_that_was_set_back_again_and_again_costs_little(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level's queue has many ascending parts then; each batch is of the first few."""
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


def test_due_in_between_when_the_clock_was_set_back(bench: Bench) -> None:
    """The ancestor's queue stands until its head is due; nothing is early either."""
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


def test_what_is_out_beyond_a_cursor_keeps_a_broker_out(bench: Bench) -> None:
    """One number a level cannot tell it: the broker would deliver it again."""
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


# --- tables that change ---------------------------------------------------------------------------


def test_a_shorter_delay_counts_from_the_put(bench: Bench) -> None:
    """What lies farther ahead than the level's whole delay is corrected, but never early."""
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


def test_a_longer_delay_leaves_what_waits_as_it_was(tmp_path: Path) -> None:
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


def test_a_clock_that_was_set_back_makes_nothing_early(bench: Bench) -> None:
    bench.store.put("t", b"a", level=2)
    bench.turn(-3600 * SECOND)
    assert bench.bodies() == []
    bench.turn(3600 * SECOND + 5 * SECOND - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"a"]


def test_64_levels_of_any_unit(tmp_path: Path) -> None:
    table = " ".join(["1s", "2m", "3h", "4d", *(f"{n}s" for n in range(5, 65))])
    bench = Bench(tmp_path, small(level_delays=table))
    wanted = [1000, 120_000, 10_800_000, 345_600_000, *(n * 1000 for n in range(5, 65))]
    got = [bench.store.put("t", b"", level=level).due_ms - NOW for level in range(1, 66)]
    assert got == [*wanted, 64_000]
    bench.turn(345_600_000)
    assert len(bench.out()) == 65
    bench.close()


# --- one by one, or not ---------------------------------------------------------------------------


def test_one_batch_waits_until_the_one_before_is_on_the_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LEVEL_BATCH, 3)
    for _ in range(5):
        bench.store.put("t", b"x", level=1)
    bench.turn()
    bench.clock.advance(SECOND)
    step = bench.stepper.step
    assert step("schedule_deliver")
    assert bench.store.stats()["level_pending_messages"] == 2
    assert not step("schedule_deliver")
    while step("flush"):
        pass
    assert step("schedule_deliver")
    assert bench.store.stats()["level_pending_messages"] == 0


@pytest.mark.parametrize("limit", [1, 2, 5, 2000])
def test_so_many_of_each_level_before_they_are_on_the_disk(tmp_path: Path, limit: int) -> None:
    bench = Bench(tmp_path, small(level_async=True, level_pending_max=limit))
    for level in (1, 2):
        for _ in range(6):
            bench.store.put("t", b"x", level=level)
    bench.turn()
    bench.clock.advance(5 * SECOND)
    while bench.stepper.step("schedule_deliver"):
        pass
    assert bench.store.stats()["level_pending_messages"] == 12 - 2 * min(limit, 6)
    bench.turn()
    assert len(bench.out()) == 12
    bench.close()


@pytest.mark.parametrize(("is_async", "waits_ms"), [(False, [100, 100]), (True, [100, 200])])
def test_a_full_disk_skips_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool, waits_ms: list[int]
) -> None:
    bench = Bench(tmp_path, small(level_async=is_async))
    for k in range(3):
        bench.store.put("t", b"%d" % k * 9000, level=1)
    bench.turn()
    log = inside(bench.store).log
    make_room = log.make_room

    def full(size: int) -> None:
        raise FullError("no space left", where="the test")

    bench.clock.advance(SECOND)
    for wait_ms in waits_ms:
        monkeypatch.setattr(log, "make_room", full)
        with pytest.raises(FullError):
            bench.stepper.step("schedule_deliver")
        assert not bench.stepper.step("schedule_deliver"), "not before its time"
        service = bench.store.services()["schedule_deliver"]
        assert service.idle_s() == wait_ms / 1000
        monkeypatch.setattr(log, "make_room", make_room)
        while bench.stepper.step("flush"):
            pass
        bench.clock.advance(wait_ms)
    assert bench.store.stats()["schedule_deliver_resends"] == 2
    bench.turn()
    assert bench.bodies() == [b"%d" % k * 9000 for k in range(3)]
    bench.close()


def test_held_by_the_operator(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(stop_dequeue=True))
    bench.store.put("t", b"x", level=1)
    bench.turn(9 * SECOND)
    assert bench.bodies() == []
    assert bench.store.services()["schedule_deliver"].idle_s() is None, "no busy loop"
    bench.config = small(start_delay_ms=500)
    bench.reopen()
    bench.turn(499)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"x"]
    bench.close()


def test_sleeps_until_the_first_is_due(bench: Bench) -> None:
    service = bench.store.services()["schedule_deliver"]
    bench.turn()
    assert service.idle_s() is None
    bench.store.put("t", b"x", level=3)
    bench.store.put("t", b"x", level=2)
    event = service_event(service)
    event.clear()
    bench.stepper.step("dispatch")
    assert event.is_set(), "woken by what came into its queue"
    bench.turn()
    assert service.idle_s() == 5.0
    bench.clock.advance(4999)
    service.step()
    assert service.idle_s() == 0.001


# --- what a stranger's client wrote ---------------------------------------------------------------


@pytest.mark.parametrize("number", ["+0", "-0", "0" * 11, "0" * 5000], ids=["+", "-", "11", "5000"])
def test_numbers_are_read_as_c_and_java_read_them(bench: Bench, number: str) -> None:
    """C asked for the queue that such a record names, and Python knew none: nothing opened."""
    raw_level_put(bench, 0, {**HERE, "REAL_QID": number, "DELAY": number.lstrip("-")[:-1] + "1"})
    assert [one.queue_id for one in bench.store.pending()] == [0]
    bench.reopen()
    bench.turn(3 * SECOND)
    assert bench.bodies() == [b"x"]


# --- what cannot be delivered ---------------------------------------------------------------------

HERE = {"REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "1", "UNIQ_KEY": "K"}


@pytest.mark.parametrize(
    "changes",
    [
        {"REAL_TOPIC": None},
        {"REAL_TOPIC": "a/b"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
        {"REAL_QID": None},
        {"REAL_QID": "-1"},
        {"REAL_QID": "x"},
        {"DELAY": None},
        {"DELAY": "0"},
        {"REAL_QID": "65536"},
        {"REAL_QID": "\u0660"},
        {"REAL_QID": "9" * 5000},
        {"DELAY": "\u0661"},
        {"DELAY": "9" * 5000},
    ],
)
def test_what_has_nowhere_to_go_holds_nobody_up(
    bench: Bench, changes: dict[str, str | None]
) -> None:
    properties = {name: value for name, value in {**HERE, **changes}.items() if value is not None}
    raw_level_put(bench, 0, {**properties, "KEYS": "k"})
    bench.store.put("t", b"y", level=1)
    assert bench.store.query("t", "k") == []
    bench.turn(3 * SECOND)
    assert bench.bodies() == [b"y"]
    assert levels(bench).copy() == {0: (2,)}
    assert bench.store.stats()["schedule_deliver_unusable_messages"] == 1
    assert list(bench.store.pending()) == []
    no_side_files(bench)
    bench.turn()
    assert bench.bodies() == [b"y"]


def test_a_queue_beyond_the_table_is_delivered_too(bench: Bench) -> None:
    raw_level_put(bench, 40, {**HERE, "DELAY": "41"})
    bench.turn(DEFAULT[-1] - 1)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"x"]


def test_a_damaged_message_stops_the_store_and_is_not_passed_over(bench: Bench) -> None:
    receipt = bench.store.put("t", b"body" * 10, level=1)
    bench.store.put("t", b"after", level=1)
    bench.turn()
    segment = bench.root / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(receipt.log_offset + 90)
        file.write(b"X")
    bench.clock.advance(SECOND)
    with pytest.raises(CorruptError, match="offset"):
        bench.stepper.settle()
    assert bench.out() == []
    inside(bench.store).log.fail(CorruptError("seen by the test"))
    bench.store.close()


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_each_once_over_many_openings(bench: Bench, lost: bool) -> None:
    receipts: list[PutReceipt] = []
    for k in range(30):
        receipts.append(bench.store.put("t", b"%d" % k, level=1 + k % 4))
        bench.turn(700)
        if k % 5 == 4:
            no_side_files(bench) if lost else bench.reopen()
        due = [r for r in receipts if r.due_ms <= bench.clock.now_ms]
        bench.turn()
        assert {m.message_id for m in bench.out()} == {r.message_id for r in due}
        assert len(bench.out()) == len(due)
    bench.turn(60 * SECOND)
    assert sorted(int(body) for body in bench.bodies()) == list(range(30))
    assert bench.store.stats()["level_pending_messages"] == 0


def test_close_says_where_a_broker_goes_on(bench: Bench) -> None:
    for level in (1, 1, 2, 18):
        bench.store.put("t", b"x", level=level)
    bench.turn(SECOND)
    bench.close()
    assert disk.read_level_offsets(bench.root) == {1: 2, 2: 0, 18: 0}
    bench.open()
    bench.turn(4 * SECOND)
    bench.close()
    assert disk.read_level_offsets(bench.root) == {1: 2, 2: 1, 18: 0}
    bench.open()


def test_a_broken_file_of_offsets_is_written_anew(bench: Bench) -> None:
    bench.store.put("t", b"x", level=2)
    bench.turn()
    (bench.root / "config" / "delayOffset.json").write_bytes(b"{")
    bench.close()
    assert disk.read_level_offsets(bench.root) == {2: 0}
    bench.open()


def test_without_levels_there_is_no_file_for_them(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.close()
    assert not (bench.root / "config" / "delayOffset.json").exists()
    bench.open()


def test_a_wrong_cursor_in_the_side_file_is_not_believed(bench: Bench) -> None:
    for _ in range(4):
        bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    bench.store.put("t", b"y", level=1)
    bench.close()
    counts = bench.root / "timerstore" / "counts"
    whole = json.loads(counts.read_text())
    for entry in whole["entries"]:
        entry["levels"] = {"0": [5]}
    counts.write_text(json.dumps(whole))
    bench.open()
    bench.turn(SECOND)
    assert bench.bodies() == [b"x"] * 4 + [b"y"]


def test_verify_names_a_level_that_is_ahead_of_its_log(bench: Bench) -> None:
    bench.store.put("t", b"x", level=3)
    bench.turn()
    levels(bench).begin_at(2, 1)
    (problem,) = bench.store.verify().problems
    assert problem.what == "delivered of level 3"
    forget_levels(levels(bench))


def test_verify_names_a_copy_beyond_its_source(bench: Bench) -> None:
    import numpy as np

    bench.store.put("t", b"x", level=1)
    bench.turn(SECOND)
    forget_levels(levels(bench))  # it goes out again
    forget_runs(inside(bench.store).schedule)
    bench.turn()
    assert len(bench.out()) == 2
    levels(bench).done(np.array([0 << OFFSET_BITS | 0]))
    problems = bench.store.verify().problems
    assert [problem.what for problem in problems] == [
        "a delivery beyond its source",
        "waiting on levels of topic t queue 0",
    ]
    inside(bench.store).log.fail(CorruptError("the test is over"))
    bench.store.close()


# --- the quick way, and threads -------------------------------------------------------------------


@pytest.mark.parametrize("queue_count", [1, 2])
def test_puts_quick_way_answers_the_same(tmp_path: Path, queue_count: int) -> None:
    """By the system's clock, asynchronously, a second put of a level is made in C."""
    config = small(topic_queue_count=queue_count)
    with timerstore.open(tmp_path, config, threads=False) as store:
        for level in (1, 2, 18, 19, 2**70):
            found = []
            for _ in range(2 * queue_count):
                before_ms = time.time_ns() // 1_000_000
                receipt = store.put("t", b"x", level=level)
                delay_ms = DEFAULT[min(level, 18) - 1]
                assert before_ms <= receipt.due_ms - delay_ms <= time.time_ns() // 1_000_000
                found.append((receipt.queue_offset, receipt.timer_id, receipt.handle))
            assert set(found) == {(None, -1, "")}
        for wrong in (0, -1, True, "1", None, 1.0):
            if wrong is None:
                assert store.put("t", b"x", level=wrong).queue_offset == 0
                continue
            with pytest.raises(MessageError, match="level: wanted"):
                store.put("t", b"x", level=wrong)
        with pytest.raises(MessageError, match="time: wanted one of"):
            store.put("t", b"x", level=1, delay=1.0)
        Stepper(store).settle()
        assert store.verify().clean
        waiting = store.pull(SCHEDULE_TOPIC, 17, 0).messages
        assert {m.properties["DELAY"] for m in waiting} == {"18"}
        assert {m.queue_id for m in waiting} == {17}
        assert len(waiting) == 3 * 2 * queue_count
        assert all(m.due_ms == m.store_ms + DEFAULT[17] for m in waiting)


@pytest.mark.more
def test_threads_deliver_on_the_millisecond(tmp_path: Path) -> None:
    config = small(level_delays="1s 2s")
    with timerstore.open(tmp_path, config) as store:
        receipts = [store.put("t", b"x", level=1 + k % 2) for k in range(400)]
        offset, late = 0, []
        while offset < len(receipts):
            result = store.pull("t", 0, offset, wait=5.0)
            assert result.messages, "nothing more came in 5 s"
            late += [m.delivered_ms - m.due_ms for m in result.messages]
            offset = result.next_offset
        assert min(late) >= 0
        assert sorted(late)[len(late) // 2] < 200
        assert store.stats()["level_pending_messages"] == 0
