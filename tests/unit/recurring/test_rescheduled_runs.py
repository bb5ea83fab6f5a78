"""Runs of recurring messages that were rescheduled or cancelled by hand."""

from pathlib import Path

import pytest

from tests.support.bench import DAY, NOW, Bench
from tests.support.elsewhere import elsewhere
from tests.support.recurring import (
    MINUTE,
    every,
    reopen_after,
    reopen_killed_after,
    runs,
    runs_of_beat,
)
from timerstore._engine.base import failpoints


@pytest.mark.parametrize("delay", [7200, 30])
def test_cancel_every_cancels_a_rescheduled_run(bench: Bench, delay: int) -> None:
    every(bench, every=3600)
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=delay)
    assert bench.store.cancel_every("beat")
    assert not list(bench.store.pending())
    bench.turn(DAY)
    assert not bench.out()


def test_rescheduled_run_is_skipped_when_due_while_closed(bench: Bench) -> None:
    every(bench, every=3600, missed="skip")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=7200)
    bench.close()
    bench.clock.advance(DAY)
    bench.open()
    bench.turn()
    assert not bench.out()
    assert [one.due_ms - NOW - DAY for one in bench.store.pending()] == [3600_000]


def test_rescheduled_run_is_skipped_with_the_other_pending_run(bench: Bench) -> None:
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
def test_rescheduled_run_is_the_one_delivered_when_due_while_closed(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    """It has another handle. Once the last missed run was delivered as well."""
    every(bench, missed="one")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=150)
    bench.turn()
    if how == "close":
        reopen_after(bench, 5 * MINUTE + 5)
    else:
        reopen_killed_after(bench, tmp_path / "k", 5 * MINUTE + 5)
    bench.turn()
    assert runs(bench) == [1]
    reopen_after(bench, 0)
    bench.turn(MINUTE)
    assert runs(bench) == [1, 6]


def test_last_missed_run_is_delivered_when_another_was_rescheduled_to_later(bench: Bench) -> None:
    every(bench, missed="one")
    bench.turn()
    bench.store.reschedule(next(bench.store.pending()).handle, delay=450)
    reopen_after(bench, 5 * MINUTE + 5)
    bench.turn()
    assert runs(bench) == [5]
    bench.turn(3 * MINUTE)
    assert sorted(runs(bench)) == [1, 5, 6, 8]


def test_last_missed_run_is_delivered_when_the_pending_one_was_cancelled(bench: Bench) -> None:
    every(bench, missed="one")
    bench.turn()
    bench.store.cancel(next(bench.store.pending()).handle)
    reopen_after(bench, 5 * MINUTE + 5)
    bench.turn()
    assert runs(bench) == [5]


@pytest.mark.parametrize("times", [1, 3])
def test_cancel_every_cancels_a_run_that_is_rescheduled_during_the_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Between its search and its cancel. Once it was delivered after the end."""
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
    assert runs_of_beat(bench) == [5]  # its time had passed when it was planned
