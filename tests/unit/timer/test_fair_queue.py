"""Rate limits and fairness: no message is early, order is kept, and bursts delay no other topic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.inside import DEQUEUE_PUT_BATCH, DEQUEUE_PUT_SORTED, inside, make_topic_queue
from timerstore import ConfigError, MessageError, StoreConfig
from timerstore._engine.timer import fair_queue
from timerstore._engine.timer.timer_arrays import DUE
from timerstore.errors import FullError


def burst(bench: Bench, count: int, topic: str = "a", due_ms: int = NOW + 5000) -> None:
    bodies = [b"%06d" % k for k in range(count)]
    bench.store.put_many(topic, bodies, deliver_ms=due_ms)
    bench.turn()


def numbers(bench: Bench, topic: str = "a") -> list[int]:
    return [int(body) for body in bench.bodies(topic)]


def test_rate_limits_topic_and_keeps_order(bench: Bench) -> None:
    bench.store.pace("a", 10)
    burst(bench, 100)
    burst(bench, 3, "b")
    bench.turn(5000)
    assert numbers(bench, "b") == [0, 1, 2]  # another topic does not wait
    seen = len(numbers(bench))
    assert seen == 1  # a tenth of a second's worth, one at least
    assert bench.store.stats()["paced_messages"] == 99
    for second in range(1, 10):
        for _ in range(10):
            bench.turn(100)
        assert len(numbers(bench)) == 10 * second + 1
    bench.turn(10_000)
    bench.turn(0)
    assert len(numbers(bench)) == 92  # tokens do not accumulate between steps
    for _ in range(9):
        bench.turn(100)
    assert numbers(bench) == list(range(100))
    assert bench.store.stats()["paced_messages"] == 0


def test_rate_of_half_a_message_a_second(bench: Bench) -> None:
    bench.store.pace("a", 0.5)
    burst(bench, 3)
    times = []
    for _ in range(70):
        bench.turn(100)
        times.append(len(numbers(bench)))
    assert [times.index(n) for n in (1, 2)] == [49, 69]


def test_idle_time_follows_rate(bench: Bench) -> None:
    bench.store.pace("a", 4)
    burst(bench, 3)
    bench.turn(5000)
    service = bench.store.services()["dequeue_put"]
    assert service.idle_s() == pytest.approx(0.25)
    bench.clock.advance(100)
    assert service.idle_s() == pytest.approx(0.15)
    bench.store.pace("a", None)
    assert service.idle_s() == 0
    bench.turn()
    assert len(numbers(bench)) == 3
    assert service.idle_s() is None


def test_cancelled_messages_take_no_token(bench: Bench) -> None:
    receipts = [bench.store.put("a", b"%06d" % k, deliver_ms=NOW + 5000) for k in range(20)]
    bench.store.pace("a", 10)
    bench.turn(5000)
    for receipt in receipts[1:15]:
        bench.store.cancel(receipt)
    bench.turn(100)
    assert numbers(bench) == [0, 15]
    bench.turn(100)
    assert numbers(bench) == [0, 15, 16]


def test_late_message_is_ordered_by_due_time(bench: Bench) -> None:
    bench.store.pace("a", 10)
    burst(bench, 5, due_ms=NOW + 5000)
    burst(bench, 5, due_ms=NOW + 6000)
    bench.turn(6000)
    bench.store.put("a", b"999", deliver_ms=NOW + 6001)
    for _ in range(30):
        bench.turn(100)
    assert numbers(bench) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 999]


def test_rate_limited_message_is_not_early_when_clock_is_set_back(bench: Bench) -> None:
    bench.store.pace("a", 10)
    burst(bench, 5)
    bench.turn(5000)
    assert len(numbers(bench)) == 1
    bench.turn(-2000)
    bench.clock.advance(1000)
    bench.stepper.settle()
    assert len(numbers(bench)) == 1
    service = bench.store.services()["dequeue_put"]
    assert service.idle_s() == pytest.approx(1.0)
    for _ in range(20):
        bench.turn(100)
    assert numbers(bench) == [0, 1, 2, 3, 4]
    assert all(one.delivered_ms >= one.due_ms for one in bench.out("a"))


def test_rate_limited_messages_are_pending_after_reopening(bench: Bench) -> None:
    bench.store.pace("a", 1)
    burst(bench, 10)
    bench.turn(5000)
    assert len(list(bench.store.pending(topic="a"))) == 9
    assert bench.store.histogram(NOW, NOW + 10_000, "second", "a").counts.sum() == 9
    bench.reopen()
    assert bench.store.stats()["pending_messages"] == 9
    bench.turn()
    assert numbers(bench) == list(range(10))


def test_explain_reports_rate_limit(bench: Bench) -> None:
    receipts = [bench.store.put("a", b"%06d" % k, deliver_ms=NOW + 5000) for k in range(4)]
    bench.store.pace("a", 0.5)
    bench.turn(5000)
    told = bench.store.explain(receipts[3])
    assert (told.state, told.where) == ("pending", "open slot")
    assert told.why.endswith("; its topic has 0.5 a second, 2 go before it")
    bench.store.pace("a", None)
    assert bench.store.explain(receipts[3]).why.endswith("turns, 2 of its own go before it")


def test_config_rates_apply_from_opening(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", replace(small(), topic_rates="a=10 b=0.5"))
    burst(bench, 30)
    bench.turn(5000)
    bench.turn(1000)
    assert len(numbers(bench)) == 2
    bench.store.pace("a", None)
    bench.turn()
    assert len(numbers(bench)) == 30
    bench.close()


def test_burst_does_not_delay_another_topic(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fair queue, a message that is due 1 ms later follows the whole burst."""
    monkeypatch.setattr(*DEQUEUE_PUT_BATCH, 10)
    monkeypatch.setattr(*DEQUEUE_PUT_SORTED, 400)
    batches = {}
    for has_turns, limit in ((True, 100), (False, 1_000_000)):
        monkeypatch.setattr(fair_queue, "BURST_MESSAGES", limit)
        begin_ms = bench.clock.now_ms
        topic = f"burst-{limit}"
        burst(bench, 300, topic, begin_ms + 5000)
        bench.store.put(f"b-{limit}", b"x", deliver_ms=begin_ms + 5001)
        bench.turn()
        bench.clock.advance(6000)
        services = bench.store.services()
        while services["dequeue_get"].step() or services["dequeue_get_message"].step():
            pass
        count = 0
        while not bench.bodies(f"b-{limit}"):
            services["dequeue_put"].step()
            services["dispatch"].step()
            services["flush"].step()
            count += 1
        batches[has_turns] = count
        bench.turn()
        assert numbers(bench, topic) == list(range(300))
    assert batches[True] == 1
    assert batches[False] == 31


def test_messages_are_kept_when_sorting_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.pace("a", 100)
    burst(bench, 50)
    bench.clock.advance(5000)
    real = fair_queue.real_routes
    calls = []

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise FullError("planted")
        return real(*given, **named)

    monkeypatch.setattr(fair_queue, "real_routes", failing)
    service = bench.store.services()["dequeue_put"]
    for name in ("dequeue_get", "dequeue_get_message"):
        while bench.store.services()[name].step():
            pass
    with pytest.raises(FullError):
        service.step()
    bench.turn()
    for _ in range(10):
        bench.turn(100)
    assert numbers(bench) == list(range(50))


HUGE = pytest.param(10**400, id="huge")  # larger than any float


@pytest.mark.parametrize(
    "rate", [0, -1, 0.0009, 1_000_001, True, "5", float("nan"), float("inf"), HUGE]
)
def test_rates_out_of_range_are_rejected(bench: Bench, rate: Any) -> None:
    with bench.refused(MessageError, "per_second: wanted 0.001 to 1000000, or None"):
        bench.store.pace("a", rate)


def test_lowest_rate_delivers_one_message_in_a_thousand_seconds(bench: Bench) -> None:
    bench.store.pace("a", 0.001)
    burst(bench, 3)
    bench.clock.advance(5000)
    counts = []
    for advance_ms in (0, 999_000, 1_001_000, 1_000_000):
        bench.turn(advance_ms)
        counts.append(len(numbers(bench)))
    assert counts == [1, 1, 2, 3]


@pytest.mark.parametrize("rate", [1_000_000, None])
def test_highest_rate_and_no_rate_deliver_a_burst_within_a_millisecond(
    bench: Bench, rate: Any
) -> None:
    bench.store.pace("a", 0.001)
    bench.store.pace("a", rate)
    burst(bench, 300)
    bench.turn(5000)
    bench.turn(1)
    assert numbers(bench) == list(range(300))


def test_rate_for_invalid_topic_is_rejected(bench: Bench) -> None:
    with bench.refused(MessageError, "topic: wanted ASCII letters"):
        bench.store.pace("a b", 5)


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ("a", "topic=messages a second"),
        ("a=5  b=5", "topic=messages a second"),
        ("a=x", "topic=messages a second"),
        ("a=1.0001", "topic=messages a second"),
        ("a=5 a=6", "wanted each topic once"),
        ("a=0", "wanted 0.001 to 1000000, got a=0.0"),
        ("a=1000001", "wanted 0.001 to 1000000"),
    ],
)
def test_invalid_config_rates_are_reported(rates: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        StoreConfig(topic_rates=rates)


def test_config_rates_accept_extreme_values(tmp_path: Path) -> None:
    for rates, wanted in (("", {}), ("a=0.001 b=1000000", {"a": 0.001, "b": 1_000_000.0})):
        bench = Bench(tmp_path / f"{len(wanted)}", small(topic_rates=rates))
        assert inside(bench.store).pipeline.dequeue_put.fair_queue.rates == wanted
        bench.close()


def test_topic_queue_keeps_order_when_added_in_parts(bench: Bench) -> None:
    queue = make_topic_queue(0)
    made = np.zeros(60, DUE)
    made["due_ms"], made["id"] = np.arange(60) // 3, np.arange(60)
    for part in (made[20:40], made[40:60], made[0:10], made[10:20]):
        queue.add(part)
    taken = np.concatenate(queue.take(25) + queue.take(100))
    assert taken["id"].tolist() == list(range(60))
    assert (queue.count, len(queue.parts)) == (0, 0)
