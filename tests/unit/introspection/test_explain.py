"""explain: where a message is, why it is not delivered yet, and its history."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bench import DAY, NOW, Bench, small
from timerstore import Explanation, MessageError, StoreConfig


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def bench_config(request: pytest.FixtureRequest) -> StoreConfig:
    return replace(small(), index_enabled=request.param)


def what(told: Explanation) -> list[str]:
    return [entry.what for entry in told.history]


def test_explain_follows_a_message_from_put_to_delivery(bench: Bench) -> None:
    receipt = bench.store.put("a", b"x", deliver_ms=NOW + 5500)
    told = bench.store.explain(receipt)
    assert (told.state, told.where, told.slot) == ("pending", "timer topic", None)
    assert (told.due_ms, told.timer_id, told.log_offset) == (NOW + 5500, 0, receipt.log_offset)
    assert told.why == (
        "it is due at 2023-11-14 22:13:25.500 UTC, in 5.500 s; it is not on the wheel yet, 0 are "
        "before it"
    )
    bench.turn()
    told = bench.store.explain(receipt)
    assert (told.state, told.where) == ("pending", "wheel")
    assert (told.slot, told.slot_ms) == (NOW // 1000 + 5, NOW + 5000)
    assert told.why.endswith("in 5.500 s; its slot is read at 2023-11-14 22:13:25.000 UTC")
    bench.turn(5100)
    told = bench.store.explain(receipt)
    assert (told.state, told.where, told.slot_ms) == ("pending", "open slot", NOW + 5000)
    assert "its slot is read, it waits to be handed over" in told.why
    bench.turn(600)
    told = bench.store.explain(receipt)
    assert (told.state, told.where) == ("delivered", "queue")
    assert (told.queue_id, told.queue_offset, told.topic) == (0, 0, "a")
    assert told.why.startswith("it came into its topic at 2023-11-14 22:13:25.700 UTC")
    assert [(one.what, one.at_ms, one.due_ms) for one in told.history] == [
        ("put", NOW, NOW + 5500),
        ("delivered", NOW + 5700, 0),
    ]


def test_chain_place_counts_from_the_newest_unit(bench: Bench) -> None:
    receipts = [bench.store.put("a", b"x", deliver_ms=NOW + 9000 + k) for k in range(1, 6)]
    bench.turn()
    told = [bench.store.explain(receipt) for receipt in receipts]
    assert [one.chain_place for one in told] == [5, 4, 3, 2, 1]
    assert {one.chain_length for one in told} == {5}


def test_explain_accepts_receipts_handles_messages_and_ids(bench: Bench) -> None:
    receipt = bench.store.put("a", b"x", delay=60)
    bench.turn()
    told = bench.store.explain(receipt)
    pending = next(bench.store.pending())
    assert bench.store.explain(receipt.handle) == told
    assert bench.store.explain(pending) == told
    assert bench.store.explain(receipt.message_id, topic="a") == told
    bench.turn(60_000)
    message = bench.out("a")[0]
    assert bench.store.explain(message).state == "delivered"


def test_explain_of_a_cancelled_and_of_a_rescheduled_message(bench: Bench) -> None:
    receipt = bench.store.put("a", b"x", delay=60)
    bench.turn(10)
    moved = bench.store.reschedule(receipt, delay=90)
    for name in (receipt, moved):
        told = bench.store.explain(name)
        assert (told.state, told.due_ms, told.timer_id) == ("pending", NOW + 90_010, 2)
        assert what(told) == ["put", "rescheduled"]
    bench.turn(10)
    bench.store.cancel(moved)
    told = bench.store.explain(receipt.message_id, topic="a")
    assert (told.state, told.where) == ("cancelled", "nowhere")
    assert told.why == "cancelled at 2023-11-14 22:13:20.020 UTC"
    assert what(told) == ["put", "rescheduled", "cancelled"]
    now = bench.store.put("a", b"x", delay=60)
    bench.store.reschedule(now, delay=0)
    told = bench.store.explain(now)
    assert (told.state, what(told)) == ("delivered", ["put", "rescheduled"])


def test_explain_of_an_immediate_message_after_reopening(bench: Bench) -> None:
    receipt = bench.store.put("a", b"x")
    told = bench.store.explain(receipt)
    assert (told.state, told.queue_offset, what(told)) == ("delivered", 0, ["put"])
    later = bench.store.put("a", b"x", delay=3600)
    bench.turn()
    before = bench.store.explain(later)
    bench.reopen()
    assert bench.store.explain(later) == before


def test_explain_of_a_message_on_a_level(bench: Bench) -> None:
    bench.store.put("a", b"x", level=4)
    receipt = bench.store.put("a", b"x", level=4)
    told = bench.store.explain(receipt)
    assert (told.state, told.where, told.level) == ("pending", "level", 4)
    assert (told.due_ms, told.timer_id, told.queue_offset) == (NOW + 30_000, -1, 1)
    assert told.why.endswith("in 30.000 s; 1 of its level's queue are before it")
    bench.turn(30_000)
    told = bench.store.explain(receipt)
    assert (told.state, what(told), told.queue_id) == ("delivered", ["put", "delivered"], 0)


def test_explain_of_a_message_on_the_far_wheel(bench: Bench) -> None:
    receipt = bench.store.put("a", b"x", delay=DAY / 1000)
    for _ in range(3):
        bench.turn(1000)
        told = bench.store.explain(receipt)
        assert (told.state, told.where, told.due_ms) == ("pending", "wheel", NOW + DAY)
        assert told.history[0].what == "put"


def test_explain_names_a_stopped_service(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", replace(small(), stop_enqueue=True))
    receipt = bench.store.put("a", b"x", delay=60)
    assert bench.store.explain(receipt).why.endswith("(stop_enqueue is on)")
    bench.close()
    bench = Bench(tmp_path / "store", replace(small(), stop_dequeue=True), NOW + 100_000)
    bench.turn()
    told = bench.store.explain(receipt)
    assert told.why.endswith("(stop_dequeue is on: nothing is delivered)")
    assert "it has been due for 40.000 s" in told.why
    bench.close()


def test_explain_of_an_unknown_message(bench: Bench) -> None:
    told = bench.store.explain("nobody", topic="a")
    assert (told.state, told.where, told.history) == ("unknown", "nowhere", ())
    for wrong in ("nobody", "", 5, None, b"x"):
        with pytest.raises(MessageError, match="message:"):
            bench.store.explain(wrong)  # type: ignore[arg-type]
    for wrong in ("", "a b", "\ud800", 5, b"a", ["a"]):
        with pytest.raises(MessageError, match="topic: wanted"):
            bench.store.explain("nobody", topic=wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="message: half a surrogate pair"):
        bench.store.explain("\ud800", topic="a")
