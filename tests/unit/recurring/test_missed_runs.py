"""Missed runs of recurring messages: the policies skip, one and all."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.support.bench import NOW, Bench
from tests.support.recurring import (
    MINUTE,
    every,
    reopen_after,
    reopen_killed_after,
    runs,
)


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [1]), ("one", [1, 2]),
                                                ("all", [1, 2, 3, 4, 5, 6])])  # fmt: skip
@pytest.mark.parametrize("how", ["close", "kill"])
def test_missed_runs_follow_the_policy_when_the_store_was_closed(
    bench: Bench, tmp_path: Path, missed: str, wanted: list[int], how: str
) -> None:
    """Run 1 is delivered and run 2 pending when the store closes; it opens after run 6."""
    every(bench, missed=missed)
    bench.turn(MINUTE)
    if how == "close":
        reopen_after(bench, 5 * MINUTE + 5)
    else:
        reopen_killed_after(bench, tmp_path / "k", 5 * MINUTE + 5)
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
def test_missed_runs_follow_the_policy_when_the_clock_jumps(
    bench: Bench, missed: str, wanted: list[int]
) -> None:
    """A planned run is delivered in any case; the policy applies to the runs after it."""
    every(bench, missed=missed)
    bench.turn(MINUTE)
    bench.turn(5 * MINUTE + 5)
    assert sorted(runs(bench)) == wanted
    bench.turn(MINUTE)
    assert sorted(runs(bench)) == [*wanted, 7]


def test_cancel_every_cancels_a_missed_run_that_is_pending(bench: Bench) -> None:
    """The pending run is the one to deliver; the runs after it are skipped."""
    every(bench)
    reopen_after(bench, 5 * MINUTE + 5)
    assert [one.due_ms for one in bench.store.pending()] == [NOW + MINUTE]
    assert bench.store.cancel_every("beat")
    assert list(bench.store.pending()) == []
    bench.turn(9 * MINUTE)
    assert runs(bench) == []


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [8]), ("one", [1, 8])])
def test_missed_run_follows_the_policy_when_closed_twice(
    bench: Bench, missed: str, wanted: list[int]
) -> None:
    every(bench, missed=missed)
    reopen_after(bench, 5 * MINUTE + 5)
    reopen_after(bench, 2 * MINUTE)
    bench.turn()
    bench.turn(MINUTE)
    assert runs(bench) == wanted


@pytest.mark.parametrize(("missed", "wanted"), [("skip", []), ("one", [23]), ("all", [23, 24, 25])])
def test_missed_cron_runs_when_opened_in_the_repeated_hour(
    tmp_path: Path, missed: str, wanted: list[int]
) -> None:
    """Closed on 22 October 2026, opened on the 25th at 02:15 of the repeated hour."""
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


def test_a_thousand_missed_runs_are_delivered(bench: Bench) -> None:
    every(bench, every=1, missed="all")
    bench.turn(1000)
    bench.turn(1_000_000)
    assert len(bench.out()) == 1001
    every(bench, every=1, missed="all", name="b", start=datetime(1990, 1, 1, tzinfo=UTC))
    bench.turn()
    assert len(bench.out()) == 1002  # none of the billion before the definition, and one now
