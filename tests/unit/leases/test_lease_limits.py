"""Each limit of leases at its edge, and one step beyond."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.bench import Bench
from timerstore import AckResult, Backoff, LeasedMessage, MessageError
from timerstore._engine.leases import lease_reader
from timerstore._engine.leases.backoff import STEPS_MAX
from timerstore._engine.leases.receive_request import (
    ATTEMPTS_MAX,
    COUNT_MAX,
    TOPICS_MAX,
    ReceiveRequest,
)

BACKOFF_S = 40 * 366 * 86_400  # the longest delay of a back-off

ARGUMENTS: dict[str, tuple[list[Any], list[Any]]] = {
    "max_count": ([1, COUNT_MAX], [0, COUNT_MAX + 1]),
    "max_attempts": ([1, ATTEMPTS_MAX, None], [0, ATTEMPTS_MAX + 1]),
    "wait": ([0, 0.0], [-0.001, -1, float("inf"), float("nan")]),
    "lease": ([0.001, timedelta(milliseconds=1)], [0, -0.001, timedelta(0)]),
    "backoff": (
        [0, BACKOFF_S, [0], [1] * STEPS_MAX, Backoff.exponential(1, factor=100, jitter=1)],
        [-0.001, BACKOFF_S + 0.001, [], [1] * (STEPS_MAX + 1)],
    ),
}


def receive(bench: Bench, **more: Any) -> list[LeasedMessage]:
    bench.turn()
    return bench.store.receive("t", "g", **more)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument_of_receive_is_taken_at_its_edge_and_not_beyond(bench: Bench, name: str) -> None:
    taken, rejected = ARGUMENTS[name]
    bench.store.put_many("t", [b"a"] * len(taken))
    for value in rejected:
        with pytest.raises(MessageError) as error:
            receive(bench, **{name: value})
        assert error.value.arguments == (name,), value
    for value in taken:
        assert receive(bench, **{name: value}) != [], value


def test_lease_and_delay_are_at_most_the_longest_delay(bench: Bench) -> None:
    longest_s = bench.config.delay_ms_max / 1000
    beyond_s = longest_s + 0.001
    bench.store.put_many("t", [b"a", b"b"])
    with pytest.raises(MessageError, match="lease"):
        receive(bench, lease=beyond_s)
    (one,) = receive(bench, lease=longest_s)
    assert one.lease_until_ms == bench.clock.now_ms + bench.config.delay_ms_max
    for call in (bench.store.extend, bench.store.renew):
        with pytest.raises(MessageError, match="lease"):
            call(one, lease=beyond_s)
    assert bench.store.renew(one, lease=longest_s) == one.lease_until_ms
    longer = bench.store.extend(one, lease=longest_s)
    for wrong in (beyond_s, -0.001):
        with pytest.raises(MessageError, match="delay"):
            bench.store.nack(longer, delay=wrong)
    assert bench.store.nack(longer, delay=longest_s) is AckResult.NACKED


@pytest.mark.parametrize("beyond_ms", [-1, 0, 1])
def test_backoff_ends_with_the_longest_delay(bench: Bench, beyond_ms: int) -> None:
    longest_ms = bench.config.delay_ms_max
    bench.store.put("t", b"a")
    (one,) = receive(bench, backoff=timedelta(milliseconds=longest_ms + beyond_ms))
    assert bench.store.nack(one) is AckResult.NACKED
    (again,) = bench.store.pending()
    assert again.due_ms == bench.clock.now_ms + longest_ms + min(beyond_ms, 0)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_last_attempt_is_the_one_of_max_attempts(bench: Bench, attempts: int) -> None:
    bench.store.put("t", b"a")
    for attempt in range(1, attempts + 1):
        (one,) = receive(bench, max_attempts=attempts)
        assert (one.attempt, one.is_last_attempt) == (attempt, attempt == attempts)
        assert list(bench.store.dead_letters("g")) == []
        bench.store.nack(one, delay=0)
    assert receive(bench, max_attempts=attempts) == []
    assert [one.attempt for one in bench.store.dead_letters("g")] == [attempts]


@pytest.mark.parametrize(("early_ms", "attempts"), [(1, []), (0, [2])])
def test_lease_ends_at_its_millisecond(bench: Bench, early_ms: int, attempts: list[int]) -> None:
    bench.store.put("t", b"a")
    receive(bench, lease=5)
    bench.turn(5000 - early_ms)
    assert [one.attempt for one in receive(bench)] == attempts


def test_number_of_topics(bench: Bench) -> None:
    names = [f"t{k}" for k in range(TOPICS_MAX + 1)]
    for wrong in ([], names):
        with pytest.raises(MessageError, match=f"topics: wanted 1 to {TOPICS_MAX}, got"):
            bench.store.receive(wrong, "g")


@pytest.mark.parametrize(("less", "count"), [(0, 3), (1, 2)])
def test_answer_of_a_server_has_the_messages_that_fit(bench: Bench, less: int, count: int) -> None:
    """At least one is leased. The others are left for the next caller, as attempt 1."""
    bench.store.put_many("t", [bytes(500)] * 6)
    bench.turn()
    if not hasattr(bench.store, "_make_each"):
        pytest.skip("the limit is one of the server")
    (first,) = bench.store.receive("t", "probe")
    each = first.store_bytes + lease_reader._NAMES_BYTES

    def leased(bytes_max: int) -> list[LeasedMessage]:
        request = ReceiveRequest("t", "g", max_count=6, bytes_max=bytes_max)
        (begun,) = bench.store._make_each([request])
        return bench.store._claim(begun.found)  # type: ignore[union-attr]

    assert len(leased(3 * each - less)) == count
    assert len(leased(1)) == 1
    rest = receive(bench, max_count=10)
    assert len(rest) == 6 - count - 1
    assert {one.attempt for one in rest} == {1}
