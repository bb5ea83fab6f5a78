"""The arguments of `receive`, valid and invalid."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.leasing import bodies, put, take
from timerstore import AckResult, Backoff, MessageError


@pytest.mark.parametrize(
    ("lease", "said"),
    [(0, "more than 0"), (0.0, "more than 0"), (timedelta(0), "more than 0"), (-1, "0 or more"),
     (-0.001, "0 or more"), (float("nan"), "finite"), (float("inf"), "finite"), ("30", "seconds"),
     (None, "seconds"), (True, "seconds")],
)  # fmt: skip
def test_invalid_lease_is_rejected(bench: Bench, lease: Any, said: str) -> None:
    put(bench, b"a")
    with bench.refused(MessageError, said):
        take(bench, lease=lease)
    (one,) = take(bench)
    with pytest.raises(MessageError, match=said):
        bench.store.extend(one, lease=lease)
    assert bench.store.ack(one) is AckResult.ACKED


def test_bounds_of_a_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(delay_ms_max=60_000))
    put(bench, b"a", b"b")
    for wrong in (60.001, 61, timedelta(days=1)):
        with pytest.raises(MessageError, match="at most 60000 ms"):
            take(bench, lease=wrong)
    (one,) = take(bench, 1, lease=60)
    assert one.lease_until_ms == NOW + 60_000
    with pytest.raises(MessageError, match="at most 60000 ms"):
        bench.store.nack(one, delay=60.001)
    (two,) = take(bench, 1, lease=0.001)
    assert two.lease_until_ms == NOW + 1
    bench.close()


@pytest.mark.parametrize(
    "wrong",
    [{"max_count": 0}, {"max_count": 10_001}, {"max_count": True}, {"wait": -1}, {"wait": "1"},
     {"max_attempts": 0}, {"max_attempts": 1_000_001}, {"max_attempts": 2.0},
     {"max_attempts": True}, {"backoff": -1}, {"backoff": []}, {"backoff": "fast"},
     {"backoff": [1] * 101}, {"tags": 5}],
)  # fmt: skip
def test_invalid_arguments_lease_nothing(bench: Bench, wrong: dict[str, Any]) -> None:
    put(bench, b"a")
    name = next(iter(wrong))
    with bench.refused(MessageError, name):
        bench.store.receive("t", "g", **wrong)
    assert bodies(take(bench)) == [b"a"]


def test_receive_reports_every_problem(bench: Bench) -> None:
    with pytest.raises(MessageError) as caught:
        bench.store.receive("t", "g", lease=0, max_count=0, max_attempts=0, backoff=-1, wait=-1)
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("topic", "group"), [("t", ""), ("t", "a b"), ("t", "a|b"), ("", "g"), ("t", "g" * 119),
                         ("t", 5), ("ä", "g")]
)  # fmt: skip
def test_names(bench: Bench, topic: Any, group: Any) -> None:
    with bench.refused(MessageError):
        bench.store.receive(topic, group)


def test_the_longest_names(bench: Bench) -> None:
    group = "g" * 118
    bench.store.put("t", b"a")
    bench.turn()
    (one,) = bench.store.receive("t", group, lease=1)
    bench.turn(1000)
    (again,) = bench.store.receive("t", group)
    assert (again.body, again.attempt) == (b"a", 2)
    assert bench.store.ack(one) is AckResult.EXPIRED


@pytest.mark.parametrize(
    "made", [(), 10**30, (-1,), (10**30,), (float("nan"),), (10**5000,), ("fast",)]
)
def test_backoff_rejects_invalid_steps(made: Any) -> None:
    with pytest.raises(MessageError, match="backoff: wanted delays of 0 to"):
        Backoff(made)
