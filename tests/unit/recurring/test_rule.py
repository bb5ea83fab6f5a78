"""Rules: when the next run is, across changes of clocks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from timerstore.recurring.planner import runs_of
from timerstore.recurring.rule import CronRule, EveryRule

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


def following(cron: str, begin: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    rule, at, found = CronRule(cron, zone), ms(begin, ZoneInfo(zone)), []
    for _ in range(count):
        at = rule.after(at) or 0
        moment = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        found.append(f"{moment:%m-%d %H:%M%z}")
    return found


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
def test_changes_of_clocks(cron: str, begin: str, wanted: list[str]) -> None:
    assert following(cron, begin, len(wanted)) == wanted


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
                                  "Asia/Kathmandu", "Pacific/Apia"])  # fmt: skip
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/7 * * * *", "0 */5 * * *", "15 1,2,3 * * *"])
def test_runs_ascend_and_the_last_is_the_last(cron: str, zone: str) -> None:
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


def test_rare_ones_have_a_last() -> None:
    rule = CronRule("0 0 29 2 *", "UTC")
    leap = ms("2024-02-29 00:00", ZoneInfo("UTC"))
    now = int(datetime(2027, 6, 1, tzinfo=UTC).timestamp() * 1000)
    assert rule.last_until(now, 0) == leap
    assert rule.after(now) == ms("2028-02-29 00:00", ZoneInfo("UTC"))


def test_seconds() -> None:
    rule = CronRule("*/10 * * * * *", "UTC")
    assert rule.after(0) == 10_000
    assert rule.after(9_999) == 10_000
    assert rule.after(10_000) == 20_000
    assert rule.last_until(25_000, 0) == 20_000


def test_every() -> None:
    rule = EveryRule(1000, 300)
    assert [rule.after(ms) for ms in (0, 999, 1000, 1299, 1300)] == [1000, 1000, 1300, 1300, 1600]
    assert [rule.last_until(ms, 0) for ms in (999, 1000, 1299, 1300)] == [None, 1000, 1000, 1300]
    assert rule.last_until(1299, 1000) is None
    assert rule.after(10**15) == 10**15 + 300 - (10**15 - 1000) % 300


@pytest.mark.parametrize(
    ("missed", "wanted"), [("skip", [60]), ("one", [50, 60]), ("all", [20, 30, 40, 50, 60])]
)
def test_what_of_the_missed_comes(missed: str, wanted: list[int]) -> None:
    rule = EveryRule(10, 10)
    assert runs_of(rule, missed, 10, 59) == wanted
    assert runs_of(rule, missed, 10, 19) == [20]
    assert runs_of(rule, missed, 50, 55) == [60]
    assert runs_of(EveryRule(0, timedelta(days=1) // timedelta(milliseconds=1)), missed, 0, 5) == [
        86_400_000
    ]


def test_many_missed_come_in_parts() -> None:
    runs = runs_of(EveryRule(10, 10), "all", 10, 10_000)
    assert runs == list(range(20, 1020, 10))
