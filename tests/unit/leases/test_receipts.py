"""Texts that are not receipts, and receipts of other stores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import DAY, Bench
from tests.support.leasing import put, take
from timerstore import AckResult, LeaseLostError, MessageError
from timerstore._engine.format.lease import read_receipt, write_receipt


@pytest.mark.parametrize("wrong", ["", "x", "!!!!", "bDEg", 5, None, b"bDEg", "A" * 2000, "ä"])
def test_text_that_is_not_a_receipt_is_rejected(bench: Bench, wrong: Any) -> None:
    for call in (bench.store.ack, bench.store.nack, bench.store.extend):
        with bench.refused(MessageError, "receipt"):
            call(wrong)


def test_a_damaged_receipt(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench)
    whole = read_receipt(one.receipt)
    for changed in ({"timer_id": -1}, {"until_ms": 2**63}, {"attempt": -5}):
        with pytest.raises(MessageError, match="range"):
            bench.store.ack(write_receipt(whole._replace(**changed)))
    for k in range(len(one.receipt)):
        cut = one.receipt[:k]
        with pytest.raises(MessageError):
            bench.store.ack(cut)
    assert bench.store.ack(one) is AckResult.ACKED


def test_receipts_without_a_lease_in_this_store(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a")
    (one,) = take(bench)
    whole = read_receipt(one.receipt)
    strangers = [
        whole._replace(store_id=whole.store_id ^ 1),
        whole._replace(group="other"),
        whole._replace(topic="other"),
        whole._replace(opening=whole.opening ^ 1, message_id="x"),
        whole._replace(opening=whole.opening ^ 1, until_ms=whole.until_ms + DAY),
        whole._replace(opening=whole.opening ^ 1, timer_id=10_000, message_id="y"),
        whole._replace(opening=whole.opening ^ 1, group="other"),
    ]
    for stranger in map(write_receipt, strangers):
        assert bench.store.ack(stranger) is AckResult.UNKNOWN
        assert bench.store.nack(stranger) is AckResult.UNKNOWN
        with pytest.raises(LeaseLostError) as caught:
            bench.store.extend(stranger)
        assert caught.value.result is AckResult.UNKNOWN
    assert bench.store.ack(one) is AckResult.ACKED


def test_a_receipt_of_another_store(bench: Bench, tmp_path: Path) -> None:
    put(bench, b"a")
    other = Bench(tmp_path / "other")
    put(other, b"b")
    (theirs,) = take(other)
    (mine,) = take(bench)
    assert bench.store.ack(theirs) is AckResult.UNKNOWN
    assert bench.store.ack_many([theirs, mine, theirs]) == ["UNKNOWN", "ACKED", "UNKNOWN"]
    assert other.store.ack(theirs) is AckResult.ACKED
    other.close()


def test_ack_many_settles_nothing_when_one_receipt_is_invalid(bench: Bench) -> None:
    put(bench, b"a", b"b")
    a, b = take(bench)
    with pytest.raises(MessageError):
        bench.store.ack_many([a, "x", b])
    assert bench.store.ack_many([a.receipt, b, a]) == ["ACKED", "ACKED", "SETTLED"]
    assert bench.store.ack_many([]) == []


@pytest.mark.parametrize("wrong", [None, 7, "text", np.array(5)])
def test_ack_many_of_one_alone(bench: Bench, wrong: Any) -> None:
    with bench.refused(MessageError, "receipts: wanted several, got"):
        bench.store.ack_many(wrong)
