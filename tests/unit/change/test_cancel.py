"""cancel, pending and stats: exact results by receipt and by handle, also after reopening."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, YEAR, Bench, small
from timerstore import CancelResult, MessageError


@pytest.mark.parametrize("how", ["receipt", "handle", "json"])
def test_cancel_returns_the_state_of_the_message(bench: Bench, how: str) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=k) for k in (1, 2, 500)]
    keys: list[Any] = [*receipts]
    if how != "receipt":
        keys = [receipt.handle for receipt in receipts]
    if how == "json":
        keys = json.loads(json.dumps(keys))
    assert bench.store.cancel(keys[1]) is CancelResult.CANCELLED
    assert bench.store.cancel(keys[1]) is CancelResult.ALREADY_CANCELLED
    bench.turn(5000)
    assert bench.store.cancel(keys[0]) is CancelResult.ALREADY_DELIVERED
    assert bench.store.cancel(keys[1]) is CancelResult.ALREADY_CANCELLED
    bench.reopen()
    assert bench.store.cancel(keys[0]) is CancelResult.ALREADY_DELIVERED
    assert bench.store.cancel(keys[1]) is CancelResult.ALREADY_CANCELLED
    for _ in range(6):
        bench.turn(40_000)  # it rolls
    assert bench.store.cancel(keys[2]) is CancelResult.CANCELLED
    bench.reopen()
    assert bench.store.cancel(keys[2]) is CancelResult.ALREADY_CANCELLED
    bench.turn(600_000)
    assert bench.bodies() == [b"1"]


def test_cancel_of_an_immediate_message_returns_already_delivered(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x")
    assert bench.store.cancel(receipt) is CancelResult.ALREADY_DELIVERED


def test_handle_of_another_store_is_unknown(bench: Bench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    stranger = other.store.put("t", b"x", delay=10)
    mine = bench.store.put("t", b"y", delay=10)
    assert mine.timer_id == stranger.timer_id
    assert bench.store.cancel(stranger) is CancelResult.UNKNOWN
    assert bench.store.cancel(stranger.handle) is CancelResult.UNKNOWN
    bench.turn(10_000)
    assert bench.bodies() == [b"y"]
    other.close()


def test_handle_of_another_topic_is_unknown(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=10)
    fields = base64.urlsafe_b64decode(receipt.handle).decode().split(" ")
    fields[1] = "other"
    forged = base64.urlsafe_b64encode(" ".join(fields).encode()).decode()
    assert bench.store.cancel(forged) is CancelResult.UNKNOWN
    assert bench.store.stats()["pending_messages"] == 1


def test_handle_with_a_wrong_hint_is_found(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=10) for k in range(3)]
    fields = base64.urlsafe_b64decode(receipts[0].handle).decode().split(" ")
    for hint in ("2", "999999", "9223372036854775807"):
        fields[5] = hint
        handle = base64.urlsafe_b64encode(" ".join(fields).encode()).decode()
        wanted = CancelResult.CANCELLED if hint == "2" else CancelResult.ALREADY_CANCELLED
        assert bench.store.cancel(handle) is wanted
    bench.turn(10_000)
    assert bench.bodies() == [b"1", b"2"]


@pytest.mark.parametrize(
    "handle",
    [None, 5, b"djEg", "", "not base64!", "é", "AAAA", "djEgYQ==", "djE" * 3000,
     base64.urlsafe_b64encode(b"v1 t b x id").decode(),
     base64.urlsafe_b64encode(b"v1 t b -5 id").decode(),
     base64.urlsafe_b64encode(b"v1 t b 5 id seven").decode(),
     base64.urlsafe_b64encode(b"v2 t b 5 id 7").decode(),
     base64.urlsafe_b64encode(b"v1 t b 5 \xff 7").decode()],
)  # fmt: skip
def test_cancel_rejects_malformed_handles(bench: Bench, handle: Any) -> None:
    with bench.refused(MessageError, "handle"):
        bench.store.cancel(handle)


@pytest.mark.parametrize("topic", ["../x", "a" * 300, "größe", "rmq_sys_wheel_timer", "unknown"])
def test_handle_of_an_impossible_topic_is_unknown(bench: Bench, topic: str) -> None:
    bench.store.put("t", b"x", delay=10)
    before = bench.shown()
    handle = base64.urlsafe_b64encode(f"v1 {topic} b 5 {'A' * 32} 0".encode()).decode()
    assert bench.store.cancel(handle) is CancelResult.UNKNOWN
    assert bench.shown() == before


def test_message_can_be_put_again_after_a_cancel(bench: Bench) -> None:
    for _ in range(5):
        assert bench.store.cancel(bench.store.put("t", b"x", delay=3)) == "CANCELLED"
    bench.store.put("t", b"last", delay=3)
    bench.turn(3000)
    assert bench.bodies() == [b"last"]


# --- pending --------------------------------------------------------------------------------------


def test_pending_filters_by_time_and_topic(bench: Bench) -> None:
    for k in (30, 10, 20, 10):
        bench.store.put(f"t{k}", b"x", delay=k, queue_id=1)
    bench.store.put("t10", b"now")
    for settled in (False, True):
        if settled:
            bench.turn()

        def dues(**given: Any) -> list[int]:
            return [(one.due_ms - NOW) // 1000 for one in bench.store.pending(**given)]

        assert dues() == [10, 10, 20, 30]
        assert dues(begin_ms=NOW + 10_000) == [10, 10, 20, 30]
        assert dues(begin_ms=NOW + 10_001) == [20, 30]
        assert dues(end_ms=NOW + 20_000) == [10, 10]
        assert dues(end_ms=NOW + 20_001) == [10, 10, 20]
        assert dues(begin_ms=np.int64(NOW + 20_000), end_ms=NOW + 20_001) == [20]
        assert dues(topic="t10") == [10, 10]
        assert dues(topic="t10", begin_ms=NOW + 10_001) == []
        assert dues(topic="unknown") == []
        assert {one.queue_id for one in bench.store.pending()} == {1}
    assert bench.store.cancel(next(iter(bench.store.pending())).handle) == "CANCELLED"
    assert [one.topic for one in bench.store.pending()] == ["t10", "t20", "t30"]


@pytest.mark.parametrize(
    "given", [{"begin_ms": "x"}, {"end_ms": 1.5}, {"begin_ms": None, "end_ms": []}]
)
def test_pending_rejects_invalid_times(bench: Bench, given: dict[str, Any]) -> None:
    with bench.refused(MessageError, "_ms"):
        bench.store.pending(**given)


def test_pending_agrees_with_receipts_over_years_and_reopening(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"x", delay=3.7 * 4**k) for k in range(15)]
    for _ in range(3):
        bench.turn(1000)
        found = list(bench.store.pending())
        assert [one.message_id for one in found] == [r.message_id for r in receipts]
        assert [one.handle for one in found] == [r.handle for r in receipts]
        assert [one.due_ms for one in found] == [r.due_ms for r in receipts]
        bench.reopen()
    assert receipts[-1].due_ms - NOW > 30 * YEAR // 2


# --- stats and topics -----------------------------------------------------------------------------


def test_stats_count_pending_messages(bench: Bench) -> None:
    bench.store.put_many("a", [b"x"] * 3, delay=[1, 2, 0])
    one = bench.store.put("b", b"x", delay=3)
    stats = bench.store.stats()
    assert stats["pending_messages"] == 3
    assert stats["pending_by_topic"] == {"a": 2, "b": 1}
    assert stats["dispatch_lag_bytes"] > 0
    assert stats["enqueue_lag_messages"] == 3
    bench.turn(1000)
    bench.store.cancel(one)
    bench.turn()
    stats = bench.store.stats()
    assert stats["pending_by_topic"] == {"a": 1}
    assert stats["dispatch_lag_bytes"] == stats["enqueue_lag_messages"] == 0
    bench.reopen()
    assert bench.store.stats()["pending_by_topic"] == {"a": 1}
    assert bench.store.topics() == {"a": 1, "b": 1, "rmq_sys_wheel_timer": 1}


def test_copy_of_a_directory_is_independent(bench: Bench, tmp_path: Path) -> None:
    receipt = bench.store.put("t", b"x", delay=5)
    bench.close()
    shutil.copytree(bench.root, tmp_path / "copy")
    bench.open()
    with timerstore.open(tmp_path / "copy", small(), clock=bench.clock, threads=False) as copy:
        assert copy.cancel(receipt) is CancelResult.CANCELLED
    bench.turn(5000)
    assert bench.bodies() == [b"x"]
