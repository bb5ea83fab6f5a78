"""Which work the loop of a server does itself."""

import pytest

from timerstore.aio import quick_work
from timerstore.aio.quick_work import QuickWork


class Clock:
    """A clock that is turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(quick_work, "perf_counter", lambda: self.now_s)

    def turn(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_loop_of_a_program_does_no_work(clock: Clock) -> None:
    work = QuickWork(may_block=False)
    work.timed(lambda: clock.turn(0))
    assert not work.is_for_loop


def test_quick_work_is_for_the_loop(clock: Clock) -> None:
    work = QuickWork(may_block=True)
    assert work.is_for_loop
    assert work.timed(lambda: clock.turn(0.009)) is None
    assert work.is_for_loop


def test_slow_work_is_for_threads_for_ten_times_as_long(clock: Clock) -> None:
    work = QuickWork(may_block=True)
    work.timed(lambda: clock.turn(0.02))
    assert not work.is_for_loop
    work.timed(lambda: clock.turn(0.0))  # such as a receive that found nothing
    assert not work.is_for_loop
    clock.turn(0.19)
    assert not work.is_for_loop
    clock.turn(0.02)
    assert work.is_for_loop


def test_work_that_fails_is_timed(clock: Clock) -> None:
    work = QuickWork(may_block=True)

    def fail() -> None:
        clock.turn(1)
        raise ValueError("no such luck")

    with pytest.raises(ValueError, match="luck"):
        work.timed(fail)
    assert not work.is_for_loop
