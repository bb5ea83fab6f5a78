"""Numbers a second and lateness, of counters that were read at some moments."""

import pytest

from timerstore._engine.base.metrics import LATE_MS, Metrics
from timerstore.dashboard.rates import CounterReading, Rates, lateness_of, reading_of

NONE = (0,) * (len(LATE_MS) + 1)


def counts(**by_bound: int) -> tuple[int, ...]:
    found = list(NONE)
    for name, count in by_bound.items():
        found[LATE_MS.index(int(name[1:])) if name != "beyond" else -1] = count
    return tuple(found)


def reading(
    at_s: float, put: int = 0, delivered: int = 0, late: tuple[float, ...] = NONE
) -> CounterReading:
    return CounterReading(at_s, put, delivered, late)


def test_rates_are_zero_after_one_reading() -> None:
    rates = Rates()
    rates.add(reading(7.0, 100, 100))
    assert rates.per_second("put") == 0.0
    assert rates.history() == [0.0] * 60
    assert rates.lateness().number == 0


def test_rate_covers_the_last_seconds() -> None:
    rates = Rates()
    for second in range(30):
        rates.add(reading(second, put=second * 10, delivered=max(0, second - 27) * 50))
    assert rates.per_second("put") == 10
    assert rates.per_second("delivered") == pytest.approx(20)  # 100 in five seconds
    assert rates.per_second("delivered", 2.0) == 50


def test_rate_covers_the_pause_after_a_pause() -> None:
    rates = Rates()
    rates.add(reading(0, put=0))
    rates.add(reading(1, put=10))
    rates.add(reading(1001, put=1010))
    assert rates.per_second("put") == 1
    assert rates.history() == [0.0] * 59 + [0.0]


def test_history_has_one_entry_per_second() -> None:
    rates = Rates()
    for second in range(100):
        rates.add(reading(second, delivered=second))
    assert rates.history() == [1.0] * 60
    rates.add(reading(100, delivered=1099))
    assert rates.history()[-2:] == [1.0, 1000.0]


def test_lateness_covers_the_last_minute() -> None:
    rates = Rates()
    rates.add(reading(0, late=counts(_1000=50)))
    rates.add(reading(1, late=counts(_1=5, _1000=50)))
    assert rates.lateness() == lateness_of(counts(_1=5))
    rates.add(reading(61, late=counts(_1=6, _1000=50)))
    assert rates.lateness() == lateness_of(counts(_1=1))


@pytest.mark.parametrize(
    ("given", "p50", "p99", "worst"),
    [
        (counts(), None, None, None),
        (counts(_1=1), 1, 1, 1),
        (counts(_1=1, _5=1), 1, 5, 5),
        (counts(_2=99, _500=1), 2, 2, 500),
        (counts(_2=98, _500=2), 2, 500, 500),
        (counts(_1=1, beyond=9), None, None, None),
        (counts(_1=9, beyond=1), 1, None, None),
        (counts(_3600000=3), 3_600_000, 3_600_000, 3_600_000),
    ],
)
def test_lateness_percentiles(
    given: tuple[int, ...], p50: float | None, p99: float | None, worst: float | None
) -> None:
    found = lateness_of(given)
    assert (found.p50, found.p99, found.worst) == (p50, p99, worst)
    assert (found.number, found.counts) == (sum(given), given)


def test_reading_is_taken_from_stats() -> None:
    metrics = Metrics()
    metrics.add("dequeue_put_messages", 3)
    metrics.add("schedule_deliver_messages", 4)
    told = {**metrics.values(), **metrics.distributions(), "put_messages": 9}
    assert reading_of(told, 1.5) == (1.5, 9, 7, NONE)
