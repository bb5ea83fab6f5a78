"""spread: due times lie in the window, evenly, and are the same for the same seed."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench, small
from timerstore import MessageError


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store", replace(small(), spread_seed=7))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("time", "begin_ms"),
    [
        ({}, NOW),
        ({"delay": 60}, NOW + 60_000),
        ({"deliver_ms": NOW + 5000}, NOW + 5000),
        ({"deliver_ms": NOW - 5000}, NOW),
        ({"deliver_at": datetime.fromtimestamp(NOW / 1000 + 9, UTC)}, NOW + 9000),
    ],
    ids=["now", "delay", "ms", "past", "at"],
)
@pytest.mark.parametrize("window", [10, timedelta(seconds=10), 10.0])
def test_message_is_due_within_its_window(
    bench: Bench, time: dict[str, Any], begin_ms: int, window: Any
) -> None:
    due = [bench.store.put("a", b"x", spread=window, **time).due_ms for _ in range(200)]
    assert begin_ms <= min(due) < begin_ms + 500
    assert begin_ms + 9500 < max(due) < begin_ms + 10_000


def test_batch_is_due_evenly_and_in_order(bench: Bench) -> None:
    batch = bench.store.put_many("a", [b"%03d" % k for k in range(100)], delay=60, spread=10)
    due = np.array([receipt.due_ms for receipt in batch])
    assert set(np.diff(due).tolist()) <= {100, 99, 101}
    assert NOW + 60_000 <= due[0] < NOW + 60_100
    assert due[-1] < NOW + 70_000
    for _ in range(70):
        bench.turn(1000)
    assert bench.bodies("a") == [b"%03d" % k for k in range(100)]


def test_each_due_time_has_its_own_window(bench: Bench) -> None:
    times = NOW + np.array([0, 100_000, 200_000])
    batch = bench.store.put_many("a", [b"x"] * 3, deliver_ms=times, spread=30)
    assert all(0 <= one.due_ms - at < 30_000 for one, at in zip(batch, times, strict=True))
    assert len(bench.store.put_many("a", [], spread=30)) == 0


def test_same_seed_draws_the_same_times(tmp_path: Path) -> None:
    drawn = []
    for seed in (7, 7, 8, 0):
        bench = Bench(tmp_path / f"store-{len(drawn)}", replace(small(), spread_seed=seed))
        drawn.append(
            [
                *(bench.store.put("a", b"x", spread=100).due_ms for _ in range(5)),
                *bench.store.put_many("a", [b"x"] * 5, spread=100).due_ms.tolist(),
            ]
        )
        bench.close()
    assert drawn[0] == drawn[1]
    assert len({tuple(one) for one in drawn}) == 3
    assert drawn[0][5:] != drawn[2][5:]  # of many, the first is drawn, too


def test_empty_window_changes_nothing(bench: Bench) -> None:
    assert bench.store.put("a", b"x", delay=5, spread=0).due_ms == NOW + 5000
    assert bench.store.put("a", b"x", spread=0).queue_offset == 0


@pytest.mark.parametrize("put", ["put", "put_many"])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"spread": -1}, "spread: wanted 0 or more"),
        ({"spread": "5"}, "spread: wanted seconds or a timedelta"),
        ({"spread": float("nan")}, "spread: wanted a finite number"),
        ({"spread": 5, "level": 3}, "spread: a fixed level has its own time"),
        ({"spread": 5.001, "delay": 95}, "spread: wanted an end at most 100000 ms from now"),
        ({"spread": 1, "delay": 101}, "delay"),
    ],
)
def test_invalid_windows_are_rejected(
    tmp_path: Path, put: str, given: dict[str, Any], problem: str
) -> None:
    bench = Bench(tmp_path / "store", replace(small(), delay_ms_max=100_000))
    body: Any = b"x" if put == "put" else [b"x"]
    with bench.refused(MessageError, problem):
        getattr(bench.store, put)("a", body, **given)
    assert bench.store.put("a", b"x", spread=5, delay=95).due_ms < NOW + 100_000
    bench.close()


def test_spread_is_rejected_when_timers_are_off(tmp_path: Path) -> None:
    """A draw of 0 ms would be a put for now."""
    bench = Bench(tmp_path / "store", small(timer_enabled=False))
    for window in (0.001, 1):
        with bench.refused(MessageError, "timer_enabled"):
            bench.store.put("a", b"x", spread=window)
        with bench.refused(MessageError, "timer_enabled"):
            bench.store.put_many("a", [b"x"], spread=window)
    bench.store.put("a", b"now", spread=0)
    bench.turn()
    assert bench.bodies("a") == [b"now"]
    bench.close()
