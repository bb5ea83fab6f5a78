"""put_every: each run is one message, once, whatever dies; missed runs as it was told."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.driver import abandon
from tests.support.elsewhere import elsewhere
from tests.support.inside import inside, planner_is_started, putting_of
from timerstore import ConfigError, CorruptError, MessageError, Recurring, StoreConfig
from timerstore._engine.base import failpoints
from timerstore._engine.format import recurring_json
from timerstore._engine.format.json_text import loads, one_line, with_checksum, without_checksum
from timerstore.errors import FullError

MINUTE = 60_000
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that is what is wrong with it
FILE = "config/timerstoreRecurring.json"


def every(bench: Bench, **more: Any) -> Recurring:
    given = {"every": 60, "name": "beat", **more}
    return bench.store.put_every("t", b"tick", **given)


def runs(bench: Bench, topic: str = "t") -> list[int]:
    """When each run was due, in minutes after the start."""
    times = [int(m.properties["TS_EVERY"].rpartition(" ")[2]) for m in bench.out(topic)]
    assert len({m.message_id for m in bench.out(topic)}) == len(times), "a run twice"
    return [(ms - NOW) // MINUTE for ms in times]


def test_every_minute(bench: Bench) -> None:
    made = every(bench, tags="Aa", keys=["k"], properties={"p": "v"})
    assert (made.name, made.topic, made.every_ms, made.cron) == ("beat", "t", MINUTE, None)
    assert (made.run_count, made.next_ms, made.missed) == (1, NOW + MINUTE, "one")
    assert len(list(bench.store.pending())) == 1
    bench.turn(MINUTE - 1)
    assert bench.bodies() == []
    for k in range(1, 6):
        bench.turn(1 if k == 1 else MINUTE)
        assert runs(bench) == list(range(1, k + 1))
    message = bench.out()[0]
    assert (message.body, message.tags, message.keys) == (b"tick", "Aa", ("k",))
    assert message.properties["p"] == "v"
    assert [m.due_ms for m in bench.out()] == [NOW + k * MINUTE for k in range(1, 6)]
    assert [m.delivered_ms for m in bench.out()] == [m.due_ms for m in bench.out()]


def test_start(bench: Bench) -> None:
    start = datetime.fromtimestamp(NOW / 1000 + 90, UTC)
    assert every(bench, start=start).next_ms == NOW + 90_000
    bench.turn(90_000)
    bench.turn(MINUTE)
    assert [m.due_ms - NOW for m in bench.out()] == [90_000, 150_000]


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_start_that_has_passed_begins_with_the_next_step(bench: Bench, missed: str) -> None:
    for ms, name in ((-150_000, "a"), (-1, "b"), (0, "c"), (-400 * DAY + 7, "d")):
        start = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=NOW + ms)
        every(bench, start=start, missed=missed, name=name)
    bench.turn()
    assert runs(bench) == [0]  # of the one that begins now
    nexts = {one.name: (one.next_ms or 0) - NOW for one in bench.store.recurring()}
    assert nexts == {"a": 30_000, "b": MINUTE - 1, "c": MINUTE, "d": 7}
    bench.turn(30_000)
    assert [m.due_ms - NOW for m in bench.out()] == [0, 7, 30_000]
    reopen_after(bench, 2 * MINUTE + 1000)  # from when it was made on, runs are missed
    bench.turn()
    came = [m for m in bench.out() if m.properties["TS_EVERY"].startswith("a ")]
    assert len(came) == {"skip": 1, "one": 2, "all": 3}[missed]


def test_start_that_has_passed_begins_cron_with_its_next_time(bench: Bench) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    made = every(bench, every=None, cron="0 * * * *", start=start, missed="all")
    bench.turn()
    assert bench.out() == []
    assert made.next_ms == NOW - NOW % 3_600_000 + 3_600_000


@pytest.mark.parametrize("year", [1, 1900, 1969])
def test_start_before_1970_sets_the_times_of_the_steps(bench: Bench, year: int) -> None:
    start = datetime(year, 12, 31, 23, 0, 7, tzinfo=UTC)
    made = every(bench, every=3600, start=start)
    assert made.next_ms is not None
    assert NOW < made.next_ms <= NOW + 3_600_000
    assert made.next_ms % 3_600_000 == 7000
    assert every(bench, every=3600, start=start) == made  # as it was: nothing changes
    hourly = every(bench, every=None, cron="5 * * * *", start=start, name="cron")
    assert hourly.next_ms is not None
    assert hourly.next_ms % 3_600_000 == 300_000
    bench.turn()
    assert bench.out() == []


def reopen_after(bench: Bench, ms: int) -> None:
    bench.close()
    bench.clock.set(bench.clock.now_ms + ms)
    bench.open()


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [1]), ("one", [1, 2]),
                                                ("all", [1, 2, 3, 4, 5, 6])])  # fmt: skip
@pytest.mark.parametrize("how", ["close", "kill"])
def test_missed_while_closed(
    bench: Bench, tmp_path: Path, missed: str, wanted: list[int], how: str
) -> None:
    """Run 1 came, run 2 waits, then nobody has the store open until run 6 is over."""
    every(bench, missed=missed)
    bench.turn(MINUTE)
    if how == "close":
        reopen_after(bench, 5 * MINUTE + 5)
    else:
        shutil.copytree(bench.root, tmp_path / "k")
        abandon(bench.store)
        bench.root = tmp_path / "k"
        bench.clock.set(bench.clock.now_ms + 5 * MINUTE + 5)
        bench.open()
    bench.turn()
    assert runs(bench) == wanted
    reopen_after(bench, 0)
    bench.turn()
    assert runs(bench) == wanted
    (one,) = bench.store.recurring()
    assert one.next_ms == NOW + 7 * MINUTE
    bench.turn(MINUTE)
    assert runs(bench) == [*wanted, 7]


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [1, 2]), ("one", [1, 2, 6]),
                                                ("all", [1, 2, 3, 4, 5, 6])])  # fmt: skip
def test_missed_in_a_process_that_runs(bench: Bench, missed: str, wanted: list[int]) -> None:
    """What was planned comes in any case; of those behind it what the policy says."""
    every(bench, missed=missed)
    bench.turn(MINUTE)
    bench.turn(5 * MINUTE + 5)
    assert sorted(runs(bench)) == wanted
    bench.turn(MINUTE)
    assert sorted(runs(bench)) == [*wanted, 7]


def test_what_was_missed_and_waits_goes_with_its_end(bench: Bench) -> None:
    """It is the one that comes; the runs behind it are left out, and the end finds it still."""
    every(bench)
    reopen_after(bench, 5 * MINUTE + 5)
    assert [one.due_ms for one in bench.store.pending()] == [NOW + MINUTE]
    assert bench.store.cancel_every("beat")
    assert list(bench.store.pending()) == []
    bench.turn(9 * MINUTE)
    assert runs(bench) == []


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [8]), ("one", [1, 8])])
def test_missed_and_closed_again_before_it_came(
    bench: Bench, missed: str, wanted: list[int]
) -> None:
    every(bench, missed=missed)
    reopen_after(bench, 5 * MINUTE + 5)
    reopen_after(bench, 2 * MINUTE)
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == wanted


def test_an_end_takes_all_runs_that_wait(bench: Bench) -> None:
    """The clock jumped: the next run is planned, and the one before was not handed out yet."""
    every(bench)
    bench.clock.set(NOW + 5 * MINUTE)
    bench.stepper.step("recurring")
    assert len(list(bench.store.pending())) == 2
    bench.store.put("t", b"other", deliver_ms=NOW + 6 * MINUTE)
    assert bench.store.cancel_every("beat")
    assert len(list(bench.store.pending())) == 1
    bench.turn(9 * MINUTE)
    assert runs_of_beat(bench) == [5]  # it was put at once, when it was planned


@pytest.mark.parametrize("delay", [7200, 30])
def test_an_end_takes_a_run_that_was_rescheduled(bench: Bench, delay: int) -> None:
    every(bench, every=3600)
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=delay)
    assert bench.store.cancel_every("beat")
    assert not list(bench.store.pending())
    bench.turn(DAY)
    assert not bench.out()


def test_a_rescheduled_run_that_was_due_while_nobody_had_it_open_is_skipped(bench: Bench) -> None:
    every(bench, every=3600, missed="skip")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=7200)
    bench.close()
    bench.clock.advance(DAY)
    bench.open()
    bench.turn()
    assert not bench.out()
    assert [one.due_ms - NOW - DAY for one in bench.store.pending()] == [3600_000]


def test_of_two_runs_that_wait_the_rescheduled_one_is_skipped_too(bench: Bench) -> None:
    every(bench, every=3600, missed="skip")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=7200)
    bench.turn(3601 * 1000)
    assert len(list(bench.store.pending())) == 2
    bench.close()
    bench.clock.advance(DAY)
    bench.open()
    bench.turn()
    assert not bench.out()
    assert len(list(bench.store.pending())) == 1


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_rescheduled_run_that_was_due_while_nobody_had_it_open_is_the_one(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    """It waits under another handle: beside it the last one that was missed came, too."""
    every(bench, missed="one")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=150)
    bench.turn()
    if how == "close":
        reopen_after(bench, 5 * MINUTE + 5)
    else:
        shutil.copytree(bench.root, tmp_path / "k")
        abandon(bench.store)
        bench.root = tmp_path / "k"
        bench.clock.set(bench.clock.now_ms + 5 * MINUTE + 5)
        bench.open()
    bench.turn()
    assert runs(bench) == [1]
    reopen_after(bench, 0)
    bench.turn(MINUTE)
    assert runs(bench) == [1, 6]


def test_a_run_that_was_rescheduled_to_later_is_not_the_one(bench: Bench) -> None:
    every(bench, missed="one")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=450)
    reopen_after(bench, 5 * MINUTE + 5)
    bench.turn()
    assert runs(bench) == [5]
    bench.turn(3 * MINUTE)
    assert sorted(runs(bench)) == [1, 5, 6, 8]


def test_a_run_that_somebody_cancelled_is_not_the_one(bench: Bench) -> None:
    every(bench, missed="one")
    bench.turn()
    bench.store.cancel(next(bench.store.pending()).handle)
    reopen_after(bench, 5 * MINUTE + 5)
    bench.turn()
    assert runs(bench) == [5]


@pytest.mark.parametrize("times", [1, 3])
def test_an_end_takes_a_run_that_is_rescheduled_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Between being found and being cancelled: it came though what recurs had ended."""
    every(bench)
    bench.clock.set(NOW + 5 * MINUTE)
    bench.stepper.step("recurring")
    assert len(list(bench.store.pending())) == 2
    left = times

    def move_all() -> None:
        for run in list(bench.store.pending()):
            bench.store.reschedule(run.handle, delay=90 + left)

    def hook(point: str) -> None:
        nonlocal left
        if point == "recurring_run_cancelled" and left:
            left -= 1
            elsewhere(move_all)

    monkeypatch.setattr(failpoints, "hook", hook)
    assert bench.store.cancel_every("beat")
    monkeypatch.setattr(failpoints, "hook", None)
    assert list(bench.store.pending()) == []
    bench.turn(9 * MINUTE)
    assert runs_of_beat(bench) == [5]  # it was put at once, when it was planned


def test_a_definition_beside_others_plans_none_of_theirs(bench: Bench) -> None:
    """As where it is put by who opens a store that another one delivers."""
    every(bench, missed="one")
    for n in range(5):
        bench.close()
        bench.clock.advance(5 * MINUTE)
        bench.config = replace(bench.config, stop_dequeue=True)
        bench.open()
        bench.store.put_every("other", b"x", every=86_400, name=f"other-{n}")
    assert len(list(bench.store.pending(topic="t"))) == 1


@pytest.mark.parametrize(("missed", "wanted"), [("skip", []), ("one", [23]), ("all", [23, 24, 25])])
def test_missed_until_the_hour_that_comes_twice(
    tmp_path: Path, missed: str, wanted: list[int]
) -> None:
    """Closed from 22 October 2026 on, opened on the 25th at 02:15, for the second time."""
    zone = ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 10, 22, 12, tzinfo=zone)
    bench = Bench(tmp_path, now_ms=int(begin.timestamp()) * 1000)
    given = {"every": None, "cron": "30 2 * * *", "timezone": "Europe/Berlin", "missed": missed}
    every(bench, **given)
    bench.close()
    bench.clock.set(int(datetime(2026, 10, 25, 2, 15, tzinfo=zone, fold=1).timestamp()) * 1000)
    bench.open()
    bench.turn()
    times = [int(m.properties["TS_EVERY"].rpartition(" ")[2]) / 1000 for m in bench.out()]
    found = [datetime.fromtimestamp(time, zone) for time in times]
    assert [(one.day, one.hour, one.minute, one.fold) for one in found] == [
        (day, 2, 30, 0) for day in wanted
    ]
    (one,) = bench.store.recurring()
    assert one.next_ms == int(datetime(2026, 10, 26, 2, 30, tzinfo=zone).timestamp()) * 1000
    bench.close()


def runs_of_beat(bench: Bench) -> list[int]:
    times = [m.properties.get("TS_EVERY", "").rpartition(" ")[2] for m in bench.out()]
    return [(int(ms) - NOW) // MINUTE for ms in times if ms]


def test_the_file_of_before_is_read(bench: Bench) -> None:
    """Definitions without the time of the run that was put last."""
    every(bench)
    bench.close()
    path = bench.root / FILE
    definitions = recurring_json.read(path.read_bytes())
    assert definitions[0].run_ms == NOW + MINUTE
    table = loads(without_checksum(path.read_bytes()))
    (row,) = table["recurring"]
    del row["run_ms"]
    path.write_bytes(with_checksum(one_line(table)))
    bench.open()
    assert bench.store.cancel_every("beat")
    assert list(bench.store.pending()) == []


def test_very_many_missed(bench: Bench) -> None:
    every(bench, every=1, missed="all")
    bench.turn(1000)
    bench.turn(1_000_000)
    assert len(bench.out()) == 1001
    every(bench, every=1, missed="all", name="b", start=datetime(1990, 1, 1, tzinfo=UTC))
    bench.turn()
    assert len(bench.out()) == 1002  # of a billion before it was made none, and one of now


def test_the_clock_is_set_back(bench: Bench) -> None:
    every(bench)
    bench.turn(3 * MINUTE)
    seen = runs(bench)
    bench.clock.set(NOW)
    bench.turn()
    assert runs(bench) == seen
    bench.turn(4 * MINUTE)
    assert runs(bench) == [*seen, 4]


def killed_at(bench: Bench, tmp_path: Path, point: str, nth: int, call: Any) -> bool:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == nth:
            shutil.copytree(bench.root, tmp_path / "k")

    failpoints.hook = hook
    try:
        call()
    finally:
        failpoints.hook = None
    if passed < nth:
        return False
    abandon(bench.store)
    bench.root = tmp_path / "k"
    bench.open()
    return True


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "point",
    ["recurring_run_put", "recurring_saved", "checkpoint_taken", "checkpoint_log_synced",
     "checkpoint_watermark_written", "deliver_placed", "log_synced"],
)  # fmt: skip
def test_killed_while_it_runs(bench: Bench, tmp_path: Path, point: str, nth: int) -> None:
    every(bench, missed="all")

    def run() -> None:
        for _ in range(4):
            bench.turn(MINUTE)
            bench.store.flush()

    assert killed_at(bench, tmp_path, point, nth, run)
    bench.turn(DAY // 24)
    assert runs(bench) == list(range(1, len(runs(bench)) + 1))
    assert len(runs(bench)) >= 60


@pytest.mark.parametrize("point", ["recurring_saved", "recurring_defined", "recurring_run_put"])
def test_killed_while_it_is_defined(bench: Bench, tmp_path: Path, point: str) -> None:
    assert killed_at(bench, tmp_path, point, 1, lambda: every(bench))
    assert [one.name for one in bench.store.recurring()] == ["beat"]
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == [1]


@pytest.mark.parametrize("point", ["recurring_saved", "recurring_ended"])
def test_killed_while_it_is_cancelled(bench: Bench, tmp_path: Path, point: str) -> None:
    every(bench)
    bench.store.flush()
    assert killed_at(bench, tmp_path, point, 1, lambda: bench.store.cancel_every("beat"))
    assert bench.store.recurring() == []
    bench.turn(DAY)
    assert bench.bodies() == []
    assert bench.store.cancel_every("beat") is False


def test_all_side_files_lost(bench: Bench) -> None:
    every(bench, missed="all")
    bench.turn(MINUTE)
    before = (bench.root / FILE).read_bytes()
    for _ in range(3):
        bench.turn(MINUTE)
    bench.close()
    shutil.rmtree(bench.root / "timerstore")
    (bench.root / FILE).write_bytes(before)  # as a backup has it: older than the log
    bench.open()
    bench.turn(MINUTE)
    assert runs(bench) == [1, 2, 3, 4, 5]


def test_cancel_every(bench: Bench) -> None:
    every(bench)
    bench.turn(MINUTE)
    assert bench.store.cancel_every("beat") is True
    assert bench.store.cancel_every("beat") is False
    assert bench.store.cancel_every("nobody") is False
    assert list(bench.store.pending()) == []
    assert bench.store.recurring() == []
    bench.turn(DAY)
    assert runs(bench) == [1]
    every(bench)  # the same name again: runs of its own
    bench.turn(MINUTE)
    assert len(bench.bodies()) == 2
    with pytest.raises(MessageError, match="name"):
        bench.store.cancel_every(5)  # type: ignore[arg-type]


def test_the_same_again_changes_nothing(bench: Bench) -> None:
    first = every(bench)
    bench.turn(MINUTE // 2)
    assert every(bench) == first
    assert len(list(bench.store.pending())) == 1
    for changed in ({"every": 61}, {"missed": "skip"}, {"tags": "x"}, {"queue_id": 1}):
        with bench.refused(MessageError, "recurs already"):
            every(bench, **changed)
    with bench.refused(MessageError, "recurs already"):
        bench.store.put_every("t", b"other", every=60, name="beat")
    made = {bench.store.put_every("t", b"", every=60).name for _ in range(3)}
    assert len(made) == 3  # names of their own


def test_many_definitions_survive(bench: Bench) -> None:
    for k in range(30):
        every(bench, name=f"n{k}", every=60 + k)
    bench.reopen()
    assert len(bench.store.recurring()) == 30
    for _ in range(89):
        bench.turn(1000)
    assert len(bench.bodies()) == 30
    assert len(list(bench.store.pending())) == 30


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": None}, "one of them, got none"), ({"cron": "* * * * *"}, "got both"),
        ({"every": 0}, "at least 1000"), ({"every": 0.999}, "at least 1000"),
        ({"every": -1}, "every"), ({"every": "1m"}, "every"), ({"every": float("inf")}, "every"),
        ({"every": True}, "every"), ({"every": timedelta(days=366 * 41)}, "every"),
        ({"missed": "some"}, "missed"), ({"missed": None}, "missed"), ({"name": ""}, "name"),
        ({"name": "a b"}, "name"), ({"name": "x" * 65}, "name"), ({"name": 5}, "name"),
        ({"timezone": "Europe/Berlin"}, "timezone"), ({"start": NAIVE}, "start"),
        ({"start": 5}, "start"), ({"queue_id": -1}, "queue_id"), ({"tags": ""}, "TAGS"),
        ({"every": None, "cron": "x"}, "cron"), ({"every": None, "cron": "* * * *"}, "cron"),
        ({"every": None, "cron": "61 * * * *"}, "cron"), ({"every": None, "cron": 5}, "cron"),
        ({"every": None, "cron": "0 0 30 2 *"}, "cron"),
        ({"every": None, "cron": "*" * 300}, "cron"),
        ({"every": None, "cron": "* * * * *", "timezone": "Nowhere/Land"}, "timezone"),
        ({"every": None, "cron": "* * * * *", "timezone": "../etc/passwd"}, "timezone"),
        ({"every": None, "cron": "* * * * *", "timezone": None}, "timezone"),
    ],
)  # fmt: skip
def test_bad_arguments(bench: Bench, given: dict[str, Any], said: str) -> None:
    with bench.refused(MessageError, said):
        every(bench, **given)
    assert bench.store.recurring() == []


def test_the_least_step_and_the_largest_name(bench: Bench) -> None:
    assert every(bench, every=1, name="x" * 64).next_ms == NOW + 1000
    bench.turn(1000)
    assert bench.bodies() == [b"tick"]


def test_bodies_and_topics(bench: Bench) -> None:
    for topic, body in (("ä", b""), ("t", "text"), ("t", b"x" * (4 * 1024 * 1024 + 1))):
        with bench.refused(MessageError):
            bench.store.put_every(topic, body, every=60)  # type: ignore[arg-type]


def test_timers_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_enabled=False))
    with bench.refused(MessageError, "timers are off"):
        every(bench)
    bench.close()


def test_steps_beyond_what_a_timer_may_wait(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(delay_ms_max=10 * MINUTE))
    start = datetime.fromtimestamp(NOW / 1000 + 3600, UTC)
    assert every(bench, start=start).next_ms is None
    assert list(bench.store.pending()) == []
    bench.turn(49 * MINUTE)
    assert list(bench.store.pending()) == []
    bench.turn(MINUTE)
    assert len(list(bench.store.pending())) == 1
    bench.turn(10 * MINUTE)
    assert runs(bench) == [60]
    bench.close()


def test_a_damaged_file(bench: Bench) -> None:
    every(bench)
    bench.close()
    path = bench.root / FILE
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"{}", b"[]", b"\xff", whole.replace(b'"one"', b'"two"')):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="timerstoreRecurring"):
            timerstore.open(bench.root, bench.config, clock=bench.clock, threads=False)
    path.write_bytes(whole)
    bench.open()
    assert len(bench.store.recurring()) == 1


def test_a_full_disk_when_it_is_defined(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise FullError("disk")

    disk = inside(bench.store).disk
    monkeypatch.setattr(disk, "write_small", full)
    with pytest.raises(FullError):
        every(bench)
    monkeypatch.undo()
    assert bench.store.recurring() == []
    every(bench)
    bench.turn(MINUTE)
    assert runs(bench) == [1]


def test_a_full_disk_when_its_first_run_is_put(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made: the caller, who would try again without a name, must not hear an error."""

    def full(*_: Any) -> None:
        raise FullError("disk")

    monkeypatch.setattr(putting_of(inside(bench.store).recurring), "append_rows", full)
    made = every(bench, name=None)
    assert (made.run_count, made.next_ms) == (0, None)
    monkeypatch.undo()
    assert [one.name for one in bench.store.recurring()] == [made.name]
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == [1]


@pytest.mark.parametrize("what", ["the file", "the run", "runs before it"])
def test_a_full_disk_when_it_is_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It recurs as before, and may be ended again."""

    def full(*_: Any) -> None:
        raise FullError("disk")

    every(bench)
    bench.turn(MINUTE)
    parts = inside(bench.store)
    room, name = {
        "the file": (parts.disk, "write_small"),
        "the run": (parts.canceller, "cancel"),
        "runs before it": (parts.pending, "read"),
    }[what]
    with monkeypatch.context() as patched:
        patched.setattr(room, name, full)
        with pytest.raises(FullError):
            bench.store.cancel_every("beat")
    assert [one.name for one in bench.store.recurring()] == ["beat"]
    shutil.copytree(bench.root, bench.root.parent / "killed")
    killed = Bench(bench.root.parent / "killed", bench.config, bench.clock.now_ms)
    assert [one.name for one in killed.store.recurring()] == ["beat"]
    killed.close()
    bench.turn(MINUTE)
    bench.turn(MINUTE)
    assert runs(bench) == [1, 2, 3]
    assert bench.store.cancel_every("beat")
    assert bench.store.recurring() == []
    assert list(bench.store.pending()) == []
    assert not bench.store.cancel_every("beat")
    bench.reopen()
    assert bench.store.recurring() == []


def test_a_full_disk_when_it_was_cancelled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it ends is in the file: no error where that it is gone can be written later."""
    every(bench)
    disk = inside(bench.store).disk
    write_small, written = disk.write_small, []

    def full(path: Path, data: bytes) -> None:
        if written:
            raise FullError("disk")
        written.append(path)
        write_small(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_small", full)
        assert bench.store.cancel_every("beat")
    assert bench.store.recurring() == []
    assert list(bench.store.pending()) == []
    bench.reopen()
    assert bench.store.recurring() == []
    assert recurring_json.read((bench.root / FILE).read_bytes()) == []


@pytest.mark.more
def test_in_threads(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", StoreConfig()) as store:
        assert not planner_is_started(inside(store).recurring)  # no thread for who does not use it
        store.put_every("t", b"x", every=1, name="a")
        with store.consumer("t", "g", wait=30) as consumer:
            assert [next(consumer).body for _ in range(2)] == [b"x", b"x"]
    with timerstore.open(tmp_path / "s") as store:
        assert planner_is_started(inside(store).recurring)
        with store.consumer("t", "h", wait=30) as consumer:
            assert [next(consumer).body for _ in range(3)] == [b"x"] * 3


def test_backup_has_it(bench: Bench, tmp_path: Path) -> None:
    every(bench)
    bench.turn(MINUTE)
    bench.store.backup(tmp_path / "b")
    timerstore.restore(tmp_path / "b", tmp_path / "again")
    other = Bench(tmp_path / "again", now_ms=NOW + MINUTE)
    assert [one.name for one in other.store.recurring()] == ["beat"]
    other.turn(MINUTE)
    assert runs(other) == [1, 2]
    other.close()


def test_without_cronsim(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cronsim", None)
    with bench.refused(ConfigError, "cronsim"):
        bench.store.put_every("t", b"", cron="* * * * *")
