"""put_every and cancel_every: each run is one message, delivered once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.inside import inside, planner_is_started
from tests.support.recurring import MINUTE, RECURRING_FILE, every, reopen_after, runs, runs_of_beat
from timerstore import ConfigError, MessageError, StoreConfig
from timerstore._engine.format import recurring_json

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - a naive time is the invalid argument


def test_put_every_delivers_one_message_a_minute(bench: Bench) -> None:
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


def test_first_run_is_due_at_start(bench: Bench) -> None:
    start = datetime.fromtimestamp(NOW / 1000 + 90, UTC)
    assert every(bench, start=start).next_ms == NOW + 90_000
    bench.turn(90_000)
    bench.turn(MINUTE)
    assert [m.due_ms - NOW for m in bench.out()] == [90_000, 150_000]


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_first_run_is_the_next_step_when_start_has_passed(bench: Bench, missed: str) -> None:
    for ms, name in ((-150_000, "a"), (-1, "b"), (0, "c"), (-400 * DAY + 7, "d")):
        start = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=NOW + ms)
        every(bench, start=start, missed=missed, name=name)
    bench.turn()
    assert runs(bench) == [0]  # of the definition that begins now
    nexts = {one.name: (one.next_ms or 0) - NOW for one in bench.store.recurring()}
    assert nexts == {"a": 30_000, "b": MINUTE - 1, "c": MINUTE, "d": 7}
    bench.turn(30_000)
    assert [m.due_ms - NOW for m in bench.out()] == [0, 7, 30_000]
    reopen_after(bench, 2 * MINUTE + 1000)  # runs after the definition are missed
    bench.turn()
    came = [m for m in bench.out() if m.properties["TS_EVERY"].startswith("a ")]
    assert len(came) == {"skip": 1, "one": 2, "all": 3}[missed]


def test_first_cron_run_is_the_next_time_when_start_has_passed(bench: Bench) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    made = every(bench, every=None, cron="0 * * * *", start=start, missed="all")
    bench.turn()
    assert bench.out() == []
    assert made.next_ms == NOW - NOW % 3_600_000 + 3_600_000


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @hourly ", "0 * * * *"),
    ],
)
def test_macro_of_crontab_is_stored_as_its_five_fields(
    bench: Bench, macro: str, fields: str
) -> None:
    """A definition by the five fields is the same one, also in a program of before."""
    zone = "America/Santiago"  # its clocks change at midnight
    made = every(bench, every=None, cron=macro, timezone=zone)
    bench.close()
    (stored,) = recurring_json.read((bench.root / RECURRING_FILE).read_bytes())
    assert (made.cron, stored.cron, stored.timezone) == (fields, fields, zone)
    bench.open()
    assert every(bench, every=None, cron=fields, timezone=zone) == made
    assert every(bench, every=None, cron=macro, timezone=zone) == made
    assert [one.cron for one in bench.store.recurring()] == [fields]


@pytest.mark.parametrize("year", [1, 1900, 1969])
def test_start_before_1970_sets_the_times_of_the_steps(bench: Bench, year: int) -> None:
    start = datetime(year, 12, 31, 23, 0, 7, tzinfo=UTC)
    made = every(bench, every=3600, start=start)
    assert made.next_ms is not None
    assert NOW < made.next_ms <= NOW + 3_600_000
    assert made.next_ms % 3_600_000 == 7000
    assert every(bench, every=3600, start=start) == made  # the same definition: nothing changes
    hourly = every(bench, every=None, cron="5 * * * *", start=start, name="cron")
    assert hourly.next_ms is not None
    assert hourly.next_ms % 3_600_000 == 300_000
    bench.turn()
    assert bench.out() == []


def test_cancel_every_cancels_all_pending_runs(bench: Bench) -> None:
    """The clock jumped: the next run is planned before the last one is delivered."""
    every(bench)
    bench.clock.set(NOW + 5 * MINUTE)
    bench.stepper.step("recurring")
    assert len(list(bench.store.pending())) == 2
    bench.store.put("t", b"other", deliver_ms=NOW + 6 * MINUTE)
    assert bench.store.cancel_every("beat")
    assert len(list(bench.store.pending())) == 1
    bench.turn(9 * MINUTE)
    assert runs_of_beat(bench) == [5]  # its time had passed when it was planned


def test_put_every_plans_no_run_of_other_definitions(bench: Bench) -> None:
    """A process that only puts must not plan runs for the process that delivers."""
    every(bench, missed="one")
    for n in range(5):
        bench.close()
        bench.clock.advance(5 * MINUTE)
        bench.config = replace(bench.config, stop_dequeue=True)
        bench.open()
        bench.store.put_every("other", b"x", every=86_400, name=f"other-{n}")
    assert len(list(bench.store.pending(topic="t"))) == 1


def test_no_run_is_repeated_when_the_clock_is_set_back(bench: Bench) -> None:
    every(bench)
    bench.turn(3 * MINUTE)
    seen = runs(bench)
    bench.clock.set(NOW)
    bench.turn()
    assert runs(bench) == seen
    bench.turn(4 * MINUTE)
    assert runs(bench) == [*seen, 4]


def test_cancel_every_ends_a_definition(bench: Bench) -> None:
    every(bench)
    bench.turn(MINUTE)
    assert bench.store.cancel_every("beat") is True
    assert bench.store.cancel_every("beat") is False
    assert bench.store.cancel_every("unknown") is False
    assert list(bench.store.pending()) == []
    assert bench.store.recurring() == []
    bench.turn(DAY)
    assert runs(bench) == [1]
    every(bench)  # the same name again is a new definition
    bench.turn(MINUTE)
    assert len(bench.bodies()) == 2
    with pytest.raises(MessageError, match="name"):
        bench.store.cancel_every(5)  # type: ignore[arg-type]


def test_put_every_changes_nothing_when_repeated(bench: Bench) -> None:
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
    assert len(made) == 3  # generated names differ


def test_many_definitions_survive_reopening(bench: Bench) -> None:
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
        ({"every": None, "cron": "@reboot"}, "'@reboot'; for a fixed interval use every="),
        ({"every": None, "cron": "@every 5m"}, "'@every 5m'; for a fixed interval use every="),
        ({"every": None, "cron": "@Daily"}, "@hourly in lower case, got '@Daily'"),
        ({"every": None, "cron": "@daily 1"}, "@daily"), ({"every": None, "cron": "@"}, "cron"),
        ({"every": None, "cron": "61 * * * *"}, "cron"), ({"every": None, "cron": 5}, "cron"),
        ({"every": None, "cron": "0 0 30 2 *"}, "cron"),
        ({"every": None, "cron": "*" * 300}, "cron"),
        ({"every": None, "cron": "* * * * *", "timezone": "Nowhere/Land"}, "timezone"),
        ({"every": None, "cron": "* * * * *", "timezone": "../etc/passwd"}, "timezone"),
        ({"every": None, "cron": "* * * * *", "timezone": None}, "timezone"),
    ],
)  # fmt: skip
def test_put_every_rejects_invalid_arguments(
    bench: Bench, given: dict[str, Any], said: str
) -> None:
    with bench.refused(MessageError, said):
        every(bench, **given)
    assert bench.store.recurring() == []


def test_put_every_accepts_the_shortest_interval_and_the_longest_name(bench: Bench) -> None:
    assert every(bench, every=1, name="x" * 64).next_ms == NOW + 1000
    bench.turn(1000)
    assert bench.bodies() == [b"tick"]


def test_put_every_rejects_invalid_bodies_and_topics(bench: Bench) -> None:
    for topic, body in (("ä", b""), ("t", "text"), ("t", b"x" * (4 * 1024 * 1024 + 1))):
        with bench.refused(MessageError):
            bench.store.put_every(topic, body, every=60)  # type: ignore[arg-type]


def test_put_every_is_rejected_when_timers_are_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_enabled=False))
    with bench.refused(MessageError, "timers are off"):
        every(bench)
    bench.close()


def test_run_is_planned_once_it_is_within_delay_ms_max(tmp_path: Path) -> None:
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


@pytest.mark.more
def test_planner_thread_starts_with_the_first_definition(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", StoreConfig()) as store:
        assert not planner_is_started(inside(store).recurring)  # no thread without a definition
        store.put_every("t", b"x", every=1, name="a")
        with store.consumer("t", "g", wait=30) as consumer:
            assert [next(consumer).body for _ in range(2)] == [b"x", b"x"]
    with timerstore.open(tmp_path / "s") as store:
        assert planner_is_started(inside(store).recurring)
        with store.consumer("t", "h", wait=30) as consumer:
            assert [next(consumer).body for _ in range(3)] == [b"x"] * 3


def test_backup_contains_definitions(bench: Bench, tmp_path: Path) -> None:
    every(bench)
    bench.turn(MINUTE)
    bench.store.backup(tmp_path / "b")
    timerstore.restore(tmp_path / "b", tmp_path / "again")
    other = Bench(tmp_path / "again", now_ms=NOW + MINUTE)
    assert [one.name for one in other.store.recurring()] == ["beat"]
    other.turn(MINUTE)
    assert runs(other) == [1, 2]
    other.close()


def test_cron_is_a_config_error_without_cronsim(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cronsim", None)
    with bench.refused(ConfigError, "cronsim"):
        bench.store.put_every("t", b"", cron="* * * * *")
