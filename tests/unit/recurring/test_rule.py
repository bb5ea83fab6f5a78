"""Rules: the times of runs, across changes of clocks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tests.support.amounts import sample
from timerstore._engine.recurring.definition import CronRule, EveryRule, expand_macro
from timerstore._engine.recurring.planner import runs_of

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


def following(cron: str, begin: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    rule, at, found = CronRule(expand_macro(cron), zone), ms(begin, ZoneInfo(zone)), []
    for _ in range(count):
        at = rule.after(at) or 0
        moment = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        found.append(f"{moment:%m-%d %H:%M%z}")
    return found


ZONES = ("Europe/Berlin", "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu",
         "Pacific/Apia")  # fmt: skip


@pytest.mark.parametrize(
    ("cron", "begin", "wanted"),
    [
        # The clocks go forward on 29 March 2026 from 02:00 to 03:00: 02:30 does not exist.
        ("30 2 * * *", "2026-03-27 12:00",
         ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0 3 * * *", "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 03:00+0200"]),
        ("*/30 * * * *", "2026-03-29 01:15",
         ["03-29 01:30+0100", "03-29 03:00+0200", "03-29 03:30+0200"]),
        # They go back on 25 October 2026 from 03:00 to 02:00: 02:30 comes twice.
        ("30 2 * * *", "2026-10-23 12:00",
         ["10-24 02:30+0200", "10-25 02:30+0200", "10-26 02:30+0100"]),
        ("*/30 * * * *", "2026-10-25 01:45",
         ["10-25 02:00+0200", "10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100",
          "10-25 03:00+0100"]),
        ("0 * * * *", "2026-10-25 01:30",
         ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]),
        ("0 0 29 2 *", "2026-01-01 00:00", ["02-29 00:00+0100"]),
    ],
)  # fmt: skip
def test_runs_across_changes_of_clocks(cron: str, begin: str, wanted: list[str]) -> None:
    assert following(cron, begin, len(wanted)) == wanted


@pytest.mark.parametrize(
    ("macro", "begin", "wanted"),
    [
        # Chile: midnight of 6 September 2026 does not exist; 23:00 of 4 April comes twice.
        ("@daily", "2026-09-04 12:00",
         ["09-05 00:00-0400", "09-06 01:00-0300", "09-07 00:00-0300"]),
        ("@midnight", "2026-04-03 12:00", ["04-04 00:00-0300", "04-05 00:00-0400"]),
        ("@hourly", "2026-04-04 22:30",
         ["04-04 23:00-0300", "04-04 23:00-0400", "04-05 00:00-0400"]),
        ("@hourly", "2026-09-05 23:30", ["09-06 01:00-0300", "09-06 02:00-0300"]),
        ("@weekly", "2026-09-01 12:00", ["09-06 01:00-0300", "09-13 00:00-0300"]),  # Sundays
        ("@monthly", "2026-09-01 12:00", ["10-01 00:00-0300", "11-01 00:00-0300"]),
        ("@yearly", "2026-09-01 12:00", ["01-01 00:00-0300", "01-01 00:00-0300"]),
        ("@annually", "2026-09-01 12:00", ["01-01 00:00-0300"]),
    ],
)  # fmt: skip
def test_macros_of_crontab_across_changes_of_clocks(
    macro: str, begin: str, wanted: list[str]
) -> None:
    assert following(macro, begin, len(wanted), "America/Santiago") == wanted


@pytest.mark.parametrize("zone", sample(ZONES, "time zones"))
@pytest.mark.parametrize(
    "cron", sample(["30 2 * * *", "0 */5 * * *", "15 1,2,3 * * *", "*/7 * * * *"], "cron rules")
)
def test_runs_ascend_and_last_until_returns_the_last(cron: str, zone: str) -> None:
    rule = CronRule(cron, zone)
    for day in ("2026-03-07", "2026-03-28", "2026-10-03", "2026-10-24", "2026-10-31"):
        begin = ms(day, ZoneInfo(zone))
        runs, at = [], begin
        while (at := rule.after(at) or 0) < begin + 3 * 86_400_000:
            runs.append(at)
        assert all(a < b for a, b in pairwise(runs))
        for a, b in pairwise(runs):
            for between in (a, a + 1, b - 1):
                assert rule.last_until(between, begin) == a
                assert rule.after(between) == b
        assert rule.last_until(runs[0] - 1, begin) is None
        assert rule.last_until(runs[-1], runs[-1]) is None


CHANGES = [
    ("Europe/Berlin", "2026-10-25"),
    ("Europe/Berlin", "2026-03-29"),
    ("America/New_York", "2026-11-01"),
    ("America/New_York", "2026-03-08"),
    ("Australia/Lord_Howe", "2026-04-05"),  # back by half an hour
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Santiago", "2026-04-05"),  # at midnight, to the day before
    ("America/Santiago", "2026-09-06"),  # midnight does not exist
    ("Antarctica/Troll", "2026-10-25"),  # by two hours
    ("UTC", "2026-10-25"),
]
DAYTIMES: dict[str, tuple[range, range]] = {  # minutes and hours
    "30 2 * * *": (range(30, 31), range(2, 3)),
    "15 1 * * *": (range(15, 16), range(1, 2)),
    "30 1-3 * * *": (range(30, 31), range(1, 4)),
    "0 0,23 * * *": (range(1), range(0, 24, 23)),
    "20,50 0-3 * * *": (range(20, 60, 30), range(4)),
    "*/30 * * * *": (range(0, 60, 30), range(24)),
    "40 * * * *": (range(40, 41), range(24)),
    "10 */2 * * *": (range(10, 11), range(0, 24, 2)),
    "5 */3 * * *": (range(5, 6), range(0, 24, 3)),
    "* 2 * * *": (range(60), range(2, 3)),
    "*/7 0 * * *": (range(0, 60, 7), range(1)),
}


def minute_by_minute(cron: str, zone: str, begin: int, end: int) -> list[int]:
    """The runs of a span, found by looking at the clock on the wall each minute.

    By elapsed time: at each minute that fits. Else as a minute is reached for the first time, or
    jumped over.
    """
    minutes, hours = DAYTIMES[cron]
    starred = cron.startswith("*") or cron.split()[1].startswith("*")
    found = []
    highest = datetime.fromtimestamp(begin / 1000 - 60, ZoneInfo(zone)).replace(tzinfo=None)
    for at in range(begin, end, 60_000):
        wall = datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).replace(tzinfo=None)
        passed = [wall]
        if not starred:
            count = max(0, (wall - highest) // timedelta(minutes=1))
            passed = [highest + timedelta(minutes=k + 1) for k in range(count)]
            highest = max(highest, wall)
        if any(one.minute in minutes and one.hour in hours for one in passed):
            found.append(at)
    return found


@pytest.mark.parametrize(("zone", "day"), sample(CHANGES, "changes of a clock"))
@pytest.mark.parametrize("cron", DAYTIMES)
def test_runs_do_not_depend_on_where_the_search_begins(cron: str, zone: str, day: str) -> None:
    rule, midnight = CronRule(cron, zone), ms(day, ZoneInfo(zone))
    begin, end = midnight - 30 * 3_600_000, midnight + 30 * 3_600_000
    runs = minute_by_minute(cron, zone, begin, end)
    near = range(midnight - 3 * 3_600_000, midnight + 6 * 3_600_000, 7 * 60_000)
    around = [at for at in runs if near[0] <= at < near[-1]]
    for at in {*near, *around, *(at + 1 for at in around), *(at - 1 for at in around)}:
        assert rule.after(at) == next(run for run in runs if run > at), at
        assert rule.last_until(at, begin - 1) == max(run for run in runs if run <= at), at
        assert rule.last_until(at, at) is None


def test_rare_runs_across_changes_of_clocks() -> None:
    """By elapsed time, a year between two runs, and changes of clocks between them."""
    zone = ZoneInfo("Australia/Lord_Howe")
    rule, at, found = CronRule("*/30 1 5 4 *", zone.key), ms("2025-05-01", zone), []
    for _ in range(5):
        at = rule.after(at) or 0
        found.append(f"{datetime.fromtimestamp(at / 1000, zone):%Y-%m-%d %H:%M%z}")
    assert found == [
        "2026-04-05 01:00+1100",
        "2026-04-05 01:30+1100",
        "2026-04-05 01:30+1030",
        "2027-04-05 01:00+1030",
        "2027-04-05 01:30+1030",
    ]


def test_runs_end_in_the_year_9999() -> None:
    late = int(datetime(9999, 12, 31, 23, 30, tzinfo=UTC).timestamp()) * 1000
    for cron in ("*/20 * * * *", "20,40 1-23 * * *"):
        for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
            rule, at, last = CronRule(cron, zone), late, None
            while (following := rule.after(at)) is not None:
                at = last = following
            assert rule.last_until(late + 1_800_000, late) == last


def test_last_until_finds_a_rare_run() -> None:
    rule = CronRule("0 0 29 2 *", "UTC")
    leap = ms("2024-02-29 00:00", ZoneInfo("UTC"))
    now = int(datetime(2027, 6, 1, tzinfo=UTC).timestamp() * 1000)
    assert rule.last_until(now, 0) == leap
    assert rule.after(now) == ms("2028-02-29 00:00", ZoneInfo("UTC"))


def test_cron_with_seconds() -> None:
    rule = CronRule("*/10 * * * * *", "UTC")
    assert rule.after(0) == 10_000
    assert rule.after(9_999) == 10_000
    assert rule.after(10_000) == 20_000
    assert rule.last_until(25_000, 0) == 20_000


def test_runs_at_a_fixed_interval() -> None:
    rule = EveryRule(1000, 300)
    assert [rule.after(ms) for ms in (0, 999, 1000, 1299, 1300)] == [1000, 1000, 1300, 1300, 1600]
    assert [rule.last_until(ms, 0) for ms in (999, 1000, 1299, 1300)] == [None, 1000, 1000, 1300]
    assert rule.last_until(1299, 1000) is None
    assert rule.after(10**15) == 10**15 + 300 - (10**15 - 1000) % 300


@pytest.mark.parametrize(
    ("missed", "wanted"), [("skip", [60]), ("one", [50, 60]), ("all", [20, 30, 40, 50, 60])]
)
def test_runs_of_follows_the_policy_for_missed_runs(missed: str, wanted: list[int]) -> None:
    rule = EveryRule(10, 10)
    assert runs_of(rule, missed, 10, 59) == wanted
    assert runs_of(rule, missed, 10, 19) == [20]
    assert runs_of(rule, missed, 50, 55) == [60]
    assert runs_of(EveryRule(0, timedelta(days=1) // timedelta(milliseconds=1)), missed, 0, 5) == [
        86_400_000
    ]


def test_many_missed_runs_are_put_in_parts() -> None:
    runs = runs_of(EveryRule(10, 10), "all", 10, 10_000)
    assert runs == list(range(20, 1020, 10))
