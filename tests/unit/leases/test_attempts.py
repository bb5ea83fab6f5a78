"""nack, back-off and the last attempt: a message is delivered again, or is a dead letter."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.bench import DAY, Bench
from tests.support.leasing import DEAD, put, take
from timerstore import AckResult, Backoff, MessageError
from timerstore._engine.format.lease import read_receipt


def test_dead_letters_after_the_last_attempt(bench: Bench) -> None:
    put(bench, b"a", tags="Aa")
    for attempt in (1, 2, 3):
        (one,) = take(bench, lease=1, max_attempts=3)
        assert (one.attempt, one.is_last_attempt) == (attempt, attempt == 3)
        bench.turn(1000)
    assert take(bench, max_attempts=3) == []
    (dead,) = bench.out(DEAD)
    assert (dead.body, dead.tags, dead.message_id) == (b"a", "Aa", one.message_id)
    assert dead.properties["RETRY_TOPIC"] == "t"
    assert bench.store.ack(one) is AckResult.EXPIRED
    bench.turn(DAY)
    assert take(bench, max_attempts=3) == []
    assert len(bench.out(DEAD)) == 1


def test_one_attempt_and_unlimited_attempts(bench: Bench) -> None:
    put(bench, b"a", b"b")
    (a,) = take(bench, 1, lease=1, max_attempts=1)
    (b,) = take(bench, 1, lease=1, max_attempts=None)
    assert (a.is_last_attempt, b.is_last_attempt) == (True, False)
    bench.turn(1000)
    assert [m.body for m in bench.out(DEAD)] == [b"a"]
    for attempt in range(2, 30):
        (b,) = take(bench, lease=1, max_attempts=None)
        assert b.attempt == attempt
        bench.turn(1000)


def test_max_attempts_below_the_attempts_already_made(bench: Bench) -> None:
    """A group whose limit was lowered: its next attempt is the last."""
    put(bench, b"a")
    for _ in range(4):
        take(bench, lease=1, max_attempts=None)
        bench.turn(1000)
    (one,) = take(bench, lease=1, max_attempts=2)
    assert (one.attempt, one.is_last_attempt) == (5, True)
    bench.turn(1000)
    assert [m.body for m in bench.out(DEAD)] == [b"a"]


def test_nacked_message_waits_for_its_backoff(bench: Bench) -> None:
    put(bench, b"a")
    backoff = [1, 5]
    for attempt, delay_ms in ((1, 1000), (2, 5000), (3, 5000)):
        (one,) = take(bench, lease=60, backoff=backoff)
        assert one.attempt == attempt
        assert bench.store.nack(one) is AckResult.NACKED
        assert bench.store.nack(one) is AckResult.SETTLED
        assert bench.store.ack(one) is AckResult.SETTLED
        bench.turn(delay_ms - 1)
        assert take(bench, backoff=backoff) == []
        bench.turn(1)
    (one,) = take(bench, lease=60)
    assert bench.store.nack(one, delay=0) is AckResult.NACKED
    bench.turn()
    (one,) = take(bench, lease=60)
    assert one.attempt == 5
    assert bench.store.nack(one.receipt, delay=timedelta(seconds=2)) is AckResult.NACKED
    bench.turn(2000)
    assert len(take(bench, lease=1)) == 1


def test_nack_of_the_last_attempt_is_a_dead_letter_at_once(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60, max_attempts=1)
    assert bench.store.nack(one, delay=30) is AckResult.NACKED
    bench.turn()
    assert [m.body for m in bench.out(DEAD)] == [b"a"]


def test_nack_after_the_lease(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=1)
    bench.turn(1000)
    assert bench.store.nack(one) is AckResult.EXPIRED
    (again,) = take(bench)
    assert again.attempt == 2


def test_default_backoff_is_exponential(bench: Bench) -> None:
    put(bench, b"a")
    for k in range(12):
        (one,) = take(bench, lease=60)
        wait_ms = read_receipt(one.receipt).backoff_ms
        full = min(1000 * 2**k, 600_000)
        assert full * 0.8 <= wait_ms <= full
        bench.store.nack(one)
        bench.turn(wait_ms)


class TestBackoff:
    def test_fixed(self) -> None:
        assert [Backoff.fixed(2.5).delay_ms(k, "x") for k in (1, 2, 1000)] == [2500] * 3

    def test_exponential(self) -> None:
        policy = Backoff.exponential(1, factor=3, longest=60, jitter=0)
        assert [policy.delay_ms(k, "x") for k in range(1, 7)] == [
            1000, 3000, 9000, 27_000, 60_000, 60_000,
        ]  # fmt: skip
        assert policy.delay_ms(1_000_000, "x") == 60_000
        assert Backoff.exponential(0, jitter=0).delay_ms(1_000_000, "x") == 0
        assert Backoff.exponential(1, factor=1, jitter=0).delay_ms(1_000_000, "x") == 1000

    def test_jitter(self) -> None:
        policy = Backoff.exponential(10, jitter=0.5)
        drawn = {policy.delay_ms(1, f"m{k}") for k in range(200)}
        assert len(drawn) > 100
        assert min(drawn) >= 5000
        assert max(drawn) <= 10_000
        assert max(drawn) - min(drawn) > 4000
        assert policy.delay_ms(3, "m") == policy.delay_ms(3, "m")

    @pytest.mark.parametrize(
        "make",
        [lambda: Backoff.fixed(-1), lambda: Backoff.fixed(float("inf")),
         lambda: Backoff.exponential(1, factor=0.5), lambda: Backoff.exponential(1, factor=101),
         lambda: Backoff.exponential(1, jitter=1.1), lambda: Backoff.exponential(1, jitter=-0.1),
         lambda: Backoff.exponential(1, jitter=True), lambda: Backoff.steps([]),
         lambda: Backoff.steps([1, -1]), lambda: Backoff.steps(5)],  # type: ignore[arg-type]
    )  # fmt: skip
    def test_refused(self, make: Any) -> None:
        with pytest.raises(MessageError, match="backoff"):
            make()
