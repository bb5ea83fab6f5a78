"""stats() and related calls: names, lags, and the distribution of pending messages."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.bench import DAY, NOW, Bench, small
from tests.support.inside import PENDING_DUE
from timerstore._engine.base.metrics import (
    COUNTERS,
    DISTRIBUTIONS,
    GAUGES,
    GROUP_GAUGES,
    SERVER_CALL_COUNTERS,
    SERVER_COUNTERS,
    SERVER_GAUGES,
    SINCE_OPENING,
    Metrics,
)
from timerstore._engine.timer.pending import BOUNDS_S, PendingReader
from timerstore._engine.timer.timer_arrays import Records

BEHIND = (
    "enqueue_lag_messages",
    "enqueue_lag_ms",
    "delivery_lag_messages",
    "delivery_lag_ms",
)


def behind(bench: Bench) -> tuple[int, ...]:
    stats = bench.store.stats()
    return tuple(stats[name] for name in BEHIND)


def test_statistics_have_the_names_of_the_tables(bench: Bench) -> None:
    names = [
        *COUNTERS, *GAUGES, *DISTRIBUTIONS, *SERVER_COUNTERS, *SERVER_GAUGES, *GROUP_GAUGES,
        *SERVER_CALL_COUNTERS,
    ]  # fmt: skip
    assert set(bench.store.stats()) == {"version", *names}
    assert len(set(names)) == len(names)
    assert GAUGES.keys() > SINCE_OPENING


def test_concurrent_puts_count_in_all_statistics_or_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Metrics.values

    def putting(metrics: Metrics) -> dict[str, int]:
        bench.store.put("t", b"x", delay=1)
        bench.turn()
        return values(metrics)

    monkeypatch.setattr(Metrics, "values", putting)
    stats = bench.store.stats()
    assert stats["pending_messages"] == sum(stats["pending_by_topic"].values())
    assert stats["dispatch_lag_bytes"] >= 0
    assert stats["log_durable_bytes"] <= stats["log_end_bytes"]


def test_lag_is_zero_when_store_is_idle(bench: Bench) -> None:
    assert behind(bench) == (0, 0, 0, 0)
    bench.store.put("t", b"now")
    bench.store.put("t", b"later", delay=60)
    bench.turn()
    bench.turn(5000)
    assert behind(bench) == (0, 0, 0, 0)


@pytest.mark.parametrize("services", [[], ["dispatch"], ["dispatch", "enqueue_get"]], ids=str)
def test_enqueue_lag_is_the_age_of_the_oldest_message(bench: Bench, services: list[str]) -> None:
    bench.store.put("t", b"x", delay=60)
    bench.clock.advance(500)
    bench.store.put("t", b"x", delay=60)
    bench.clock.advance(200)
    for service in services:
        bench.stepper.step(service)
    assert behind(bench) == (2, 700, 0, 0)
    bench.turn()
    assert behind(bench) == (0, 0, 0, 0)
    bench.store.put("t", b"x", delay=60)
    bench.clock.advance(30)
    assert behind(bench) == (1, 30, 0, 0)


def test_enqueue_lag_counts_timers_only(bench: Bench) -> None:
    bench.store.put("t", b"now")
    bench.clock.advance(300)
    assert behind(bench) == (0, 0, 0, 0)
    bench.stepper.settle()
    bench.store.put("t", b"later", delay=60)
    bench.clock.advance(40)
    bench.store.put("t", b"now")
    assert behind(bench) == (1, 40, 0, 0)


def test_enqueue_lag_grows_when_enqueue_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(stop_enqueue=True))
    bench.store.put_many("t", [b"x"] * 5, delay=60)
    bench.turn(3000)
    assert behind(bench) == (5, 3000, 0, 0)
    bench.config = small()
    bench.reopen()
    bench.turn()
    assert behind(bench) == (0, 0, 0, 0)
    bench.close()


def test_delivery_lag_counts_due_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(stop_dequeue=True))
    gone = bench.store.put("t", b"x", deliver_ms=NOW + 1000)
    for due_ms in (1500, 1501, 2000, 9000):
        bench.store.put("t", b"x", deliver_ms=NOW + due_ms)
    bench.store.put("t", b"x", deliver_ms=NOW + 30 * DAY)  # it rolls
    bench.store.cancel(gone)
    bench.turn()
    found = []
    for now_ms in (1499, 1500, 1501, 4000, 8999, 9000):
        bench.turn(NOW + now_ms - bench.clock.now_ms)
        found.append(behind(bench)[2:])
    assert found == [(0, 0), (1, 0), (2, 1), (3, 2500), (3, 7499), (4, 7500)]
    bench.config = small()
    bench.reopen()
    bench.turn()
    assert behind(bench) == (0, 0, 0, 0)
    assert len(bench.bodies()) == 4
    bench.close()


def test_delivery_lag_counts_a_message_until_it_is_in_the_log(bench: Bench) -> None:
    bench.store.put_many("t", [b"x"] * 3, deliver_ms=NOW + 2500)
    bench.turn()
    bench.clock.set(NOW + 2600)
    for service in ("dequeue_get", "dequeue_get_message"):
        assert behind(bench) == (0, 0, 3, 100)
        assert bench.stepper.step(service)
    assert behind(bench) == (0, 0, 3, 100)
    assert bench.stepper.step("dequeue_put")
    assert behind(bench) == (0, 0, 0, 0)


def test_lag_is_reported_without_reading_loaded_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million messages due in one second, each call once read all of them, 0.1 us each."""
    bench.store.put_many("t", [b"x"] * 1000, deliver_ms=np.arange(1000) + NOW + 2001)
    bench.turn(2000)  # now their slot is loaded, and none is due
    read: list[int] = []
    original = PENDING_DUE.value

    def reading(reader: PendingReader, chained: Records) -> Records:
        read.append(len(chained))
        return original(reader, chained)

    monkeypatch.setattr(*PENDING_DUE, reading)
    assert behind(bench) == (0, 0, 0, 0)
    bench.clock.advance(300)
    assert behind(bench) == (0, 0, 300, 299)
    assert sum(read) == 0


def test_late_message_counts_in_enqueue_lag_then_in_delivery_lag(bench: Bench) -> None:
    bench.turn(5000)
    bench.store.put("t", b"x", delay=1)
    bench.turn(0)
    bench.store.put("t", b"late", delay=0.5)
    bench.clock.advance(5000)
    bench.stepper.step("dequeue_get")  # reads up to now, before the late one is on the wheel
    assert behind(bench) == (1, 5000, 1, 4000)
    for service in ("dispatch", "enqueue_get", "enqueue_put"):
        bench.stepper.step(service)
    assert behind(bench) == (0, 0, 2, 4500)
    bench.turn()
    assert behind(bench) == (0, 0, 0, 0)


def test_delivery_lag_counts_due_messages_when_clock_was_set_back(bench: Bench) -> None:
    """Its slot was read when the clock was ahead, so it enters the open slot at once."""
    bench.turn(100_000)
    bench.turn(-100_000)
    bench.store.put("t", b"x", delay=2)
    bench.turn()
    bench.clock.advance(2005)
    assert behind(bench) == (0, 0, 1, 5)
    bench.turn()
    assert behind(bench) == (0, 0, 0, 0)


def test_lag_is_not_negative_when_clock_is_set_back(bench: Bench) -> None:
    bench.store.put("t", b"x", delay=1)
    bench.clock.set(NOW - 10_000)
    assert behind(bench) == (1, 0, 0, 0)


# --- messages put, and their outcomes ---


def waiting(bench: Bench, at_once: int) -> int:
    """Return how many messages must be pending; `at_once` of them were put without a delay."""
    stats = bench.store.stats()
    handed = stats["dequeue_put_messages"] + stats["schedule_deliver_messages"]
    assert sum(n for bound, n in stats["lateness_ms"].items() if bound != "sum") == handed
    found: int = stats["pending_messages"]
    assert found == sum(stats["pending_by_topic"].values()) == len(list(bench.store.pending()))
    assert found == stats["put_messages"] - at_once - handed - stats["cancelled_messages"]
    return found


def test_counters_add_up_to_pending_messages(bench: Bench) -> None:
    """metrics.py defines each of these names. Leases and runs count as well."""
    store = bench.store
    assert not any(store.stats()[name] for name in (*COUNTERS, *SINCE_OPENING))
    store.put_many("t", [b"x"] * 3, delay=[1, 2, 1000])
    store.put("t", b"x", level=1)
    store.put("t", b"x", message_id="i", delay=60)
    store.put("t", b"x", message_id="i", delay=60)  # stored once
    assert waiting(bench, 0) == 5
    for _ in range(3):
        store.put("t", b"x", key="k", replace=True, delay=90)
    assert (waiting(bench, 0), store.stats()["rescheduled_messages"]) == (6, 2)
    store.cancel(store.reschedule(store.put("t", b"x", delay=5), delay=50))
    assert (waiting(bench, 0), store.stats()["rescheduled_messages"]) == (6, 3)
    store.put_every("t", b"x", every=100, name="n")
    assert waiting(bench, 0) == 7
    store.put_many("work", [b"x"] * 3)
    bench.turn()
    acked, given_back, held = store.receive("work", "g", max_count=3, lease=30)
    assert waiting(bench, 3) == 10
    store.ack(acked)
    store.nack(given_back, delay=5)
    store.extend(held, lease=60)
    assert (waiting(bench, 3), store.stats()["rescheduled_messages"]) == (9, 5)
    for _ in range(20):
        bench.turn(
            10_000
        )  # one run was delivered, the next is pending, and the leased message returns
        waiting(bench, 3)
    assert store.cancel_every("n")
    assert waiting(bench, 3) == 1
    bench.turn(1_000_000)
    assert waiting(bench, 3) == 0


# --- distribution, congestion ---------------------------------------------------------------------


def test_timing_distribution_has_rocketmq_bounds_and_counts_all(bench: Bench) -> None:
    assert bench.store.timing_distribution() == dict.fromkeys((*BOUNDS_S, None), 0)
    for bound in BOUNDS_S:
        bench.store.put("t", b"x", delay=float(bound))  # at the bound: in it
        bench.store.put("t", b"x", deliver_ms=NOW + 1000 * bound + 1)  # behind it: in the next
    first, *rest = BOUNDS_S
    wanted = {first: 1, **dict.fromkeys(rest, 2), None: 1}
    assert bench.store.timing_distribution() == wanted
    bench.turn()
    assert bench.store.timing_distribution() == wanted
    bench.turn(4_999)
    assert sum(bench.store.timing_distribution().values()) == 2 * len(BOUNDS_S)


def test_timing_distribution_counts_late_messages_in_the_first_bound(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(stop_dequeue=True))
    bench.store.put("t", b"x", delay=10)
    bench.turn(DAY)
    assert bench.store.timing_distribution()[5] == 1
    bench.close()


def test_timing_distribution_counts_level_messages(bench: Bench) -> None:
    bench.store.put("t", b"timer", delay=2)
    bench.store.put("t", b"level", level=1)  # 1 s
    bench.store.put_many("t", [b"level"] * 3, level=18)  # 2 h
    there = dict.fromkeys((*BOUNDS_S, None), 0)
    assert bench.store.timing_distribution() == {**there, 5: 2, 14_400: 3}
    assert sum(bench.store.congestion().values()) == 1  # level messages are in no slot
    bench.turn()
    bench.turn(1000)
    assert bench.store.timing_distribution() == {**there, 5: 1, 14_400: 3}


def test_congestion_is_by_due_slot_and_independent_of_the_wheel(bench: Bench) -> None:
    assert bench.store.congestion() == {}
    far = NOW + 30 * DAY
    due = [NOW + 1000, NOW + 1001, NOW + 2000, NOW + 2001, far, far, far + 1]
    bench.store.put_many("t", [b"x"] * len(due), deliver_ms=due)
    cancelled = bench.store.put("t", b"x", deliver_ms=far)
    bench.store.cancel(cancelled)
    wanted = {NOW: 1, NOW + 1000: 2, NOW + 2000: 1, far - 1000: 2, far: 1}
    assert bench.store.congestion() == wanted
    bench.turn()
    assert bench.store.congestion() == wanted
    bench.turn(2000)
    del wanted[NOW], wanted[NOW + 1000]
    bench.turn(300_000)  # they roll
    del wanted[NOW + 2000]
    assert bench.store.congestion() == wanted
