import time

import pytest

from timerstore.clock import SystemClock
from timerstore.testing import ManualClock


def test_system_clock_returns_the_time():
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms <= time.time_ns() // 1_000_000
    assert clock.monotonic_ns <= clock.monotonic_ns
    assert not clock.by_hand
    clock.subscribe(lambda: None)()


def test_manual_clock_can_be_set_back_and_monotonic_time_cannot():
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


def test_listeners_are_called_until_they_unsubscribe():
    clock = ManualClock(0)
    heard = []
    leave = clock.subscribe(lambda: heard.append(clock.now_ms))
    clock.advance(1)
    clock.set(0)
    leave()
    leave()
    clock.advance(1)
    assert heard == [1, 0]
