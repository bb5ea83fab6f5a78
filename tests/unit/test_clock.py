"""The system clock and the manual clock."""

import time

import pytest

from timerstore.testing import ManualClock
from timerstore.types.clock import SystemClock


def test_system_clock_returns_machine_time():
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms <= time.time_ns() // 1_000_000
    assert clock.monotonic_ns <= clock.monotonic_ns
    assert not clock.by_hand
    clock.subscribe(lambda: None)()


def test_time_until_a_millisecond_has_fractions():
    clock = SystemClock()
    at_ms = clock.now_ms + 5000
    before_ns = time.time_ns()
    found = clock.seconds_until(at_ms)
    after_ns = time.time_ns()
    assert (at_ms * 1_000_000 - after_ns) / 1e9 <= found <= (at_ms * 1_000_000 - before_ns) / 1e9
    assert clock.seconds_until(at_ms - 60_000) < 0
    assert ManualClock(1000).seconds_until(1250) == 0.25
    assert ManualClock(1000).seconds_until(900) == -0.1


def test_time_until_counts_from_the_time_of_a_subclass():
    class Later(SystemClock):
        @property
        def now_ms(self) -> int:
            return super().now_ms + 60_000

    clock = Later()
    assert 4.9 < clock.seconds_until(clock.now_ms + 5000) <= 5


def test_manual_clock_keeps_monotonic_time_when_set_back():
    clock = ManualClock(1000)
    assert (clock.now_ms, clock.monotonic_ns, clock.by_hand) == (1000, 0, True)
    clock.advance(5)
    assert (clock.now_ms, clock.monotonic_ns) == (1005, 5_000_000)
    clock.set(900)
    assert (clock.now_ms, clock.monotonic_ns) == (900, 5_000_000)
    clock.set(902)
    assert (clock.now_ms, clock.monotonic_ns) == (902, 7_000_000)
    with pytest.raises(ValueError, match="at least 0"):
        clock.advance(-1)


def test_listeners_are_called_until_unsubscribed():
    clock = ManualClock(0)
    heard = []
    leave = clock.subscribe(lambda: heard.append(clock.now_ms))
    clock.advance(1)
    clock.set(0)
    leave()
    leave()
    clock.advance(1)
    assert heard == [1, 0]
