"""cancel_many: the results of single cancels, with one call and one sync."""

import base64
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import Bench, small
from tests.support.inside import (
    CANCEL_CHUNK,
    CANCEL_GAP_UNITS,
    CANCEL_HOLD,
    CANCEL_TEXTS_BYTES,
    inside,
    placing_of_cancels,
)
from timerstore import CancelResult, FullError, MessageError, PutReceipt
from timerstore._engine.base.native import ffi, lib

CANCELLED, AGAIN = CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED
DELIVERED, UNKNOWN = CancelResult.ALREADY_DELIVERED, CancelResult.UNKNOWN


def changed(handle: str, **fields: str) -> str:
    parts = base64.urlsafe_b64decode(handle).decode().split(" ")
    for name, value in fields.items():
        parts[["v1", "topic", "broker", "stamp", "id", "hint"].index(name)] = value
    return base64.urlsafe_b64encode(" ".join(filter(None, parts)).encode()).decode()


def waiting(bench: Bench, count: int, topic: str = "t") -> list[PutReceipt]:
    """Put messages due in ten seconds, after those that are on the wheel."""
    receipts = [bench.store.put(topic, b"%d" % k, delay=10) for k in range(count)]
    bench.turn()
    return receipts


@pytest.fixture(params=["receipts", "handles", "batch"])
def given(request: pytest.FixtureRequest, bench: Bench) -> Any:
    batch = bench.store.put_many("t", [b"%d" % k for k in range(9)], delay=10)
    return {"receipts": list(batch), "handles": batch.handles, "batch": batch}[request.param]


def test_cancel_many_cancels_all_pending_messages_durably(bench: Bench, given: Any) -> None:
    assert bench.store.cancel_many(given) == [CANCELLED] * 9
    assert list(bench.store.pending()) == []
    assert bench.store.stats()["pending_messages"] == 0
    bench.reopen()
    assert bench.store.cancel_many(given) == [AGAIN] * 9
    bench.turn(20_000)
    assert bench.bodies() == []


def test_cancel_many_returns_the_results_of_single_cancels_in_order(bench: Bench) -> None:
    first = waiting(bench, 6)
    due = bench.store.put("t", b"due")
    bench.store.cancel(first[1])
    gone = bench.store.put("t", b"gone", delay=1)
    bench.turn(2000)
    moved = bench.store.reschedule(first[2], delay=15)
    stranger = changed(first[0].handle, topic="other")
    asked: list[PutReceipt | str] = [
        first[0], first[1].handle, due, gone, stranger, first[2], moved, first[0].handle,
        changed(first[3].handle, hint=""), changed(first[4].handle, hint="999999"), moved.handle,
    ]  # fmt: skip
    assert bench.store.cancel_many(asked) == [
        CANCELLED, AGAIN, DELIVERED, DELIVERED, UNKNOWN, AGAIN, CANCELLED, AGAIN,
        CANCELLED, CANCELLED, AGAIN,
    ]  # fmt: skip
    bench.turn(30_000)
    assert sorted(bench.bodies()) == [b"5", b"due", b"gone"]


def test_rolled_and_undispatched_messages_are_found(bench: Bench) -> None:
    far = [bench.store.put("t", b"far %d" % k, delay=600) for k in range(5)]
    for _ in range(3):
        bench.turn(40_000)
    new = [bench.store.put("t", b"new %d" % k, delay=10) for k in range(5)]  # nothing was stepped
    assert bench.store.cancel_many(chain(far, new)) == [CANCELLED] * 10
    bench.turn(700_000)
    assert bench.bodies() == []


def test_more_messages_than_fit_a_chunk_are_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*CANCEL_CHUNK, 16)
    monkeypatch.setattr(*CANCEL_HOLD, 3)
    monkeypatch.setattr(*CANCEL_GAP_UNITS, 2)
    monkeypatch.setattr(*CANCEL_TEXTS_BYTES, 1000)
    batch = bench.store.put_many("t", [b"%d" % k for k in range(200)], delay=10)
    which = np.random.default_rng(7).permutation(200)[:120].tolist()
    asked = [batch[k] if k % 3 else changed(batch[k].handle, hint="") for k in which]
    assert bench.store.cancel_many(asked) == [CANCELLED] * 120
    bench.turn(20_000)
    assert sorted(map(int, bench.bodies())) == sorted(set(range(200)) - set(which))


def test_message_with_too_long_a_text_is_cancelled_singly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*CANCEL_TEXTS_BYTES, 64)
    assert bench.store.cancel_many(waiting(bench, 3)) == [CANCELLED] * 3


def test_cancel_many_takes_several_topics_and_queues(bench: Bench) -> None:
    put = bench.store.put
    receipts = [put("q", b"%d" % k, delay=10, queue_id=k % 3) for k in range(6)]
    receipts += [put("other", b"o", delay=10)]
    assert bench.store.cancel_many(receipts[::2]) == [CANCELLED] * 4
    assert bench.store.stats()["pending_messages"] == 3
    assert {one.topic for one in bench.store.pending()} == {"q"}


def test_nothing_is_cancelled_when_a_handle_is_malformed(bench: Bench) -> None:
    receipts = waiting(bench, 2)
    level = bench.store.put("t", b"level", level=3)
    for wrong in ("no handle", "", 7, None, level):
        with pytest.raises(MessageError, match=r"receipts_or_handles\[1\]: "):
            bench.store.cancel_many([receipts[0], wrong, receipts[1]])  # type: ignore[list-item]
    assert bench.store.cancel_many(receipts) == [CANCELLED, CANCELLED]


@pytest.mark.parametrize("wrong", ["text", b"bytes", None, 7, np.array(5)])
def test_single_receipt_is_rejected(bench: Bench, wrong: Any) -> None:
    with pytest.raises(MessageError, match="receipts_or_handles: wanted several, got"):
        bench.store.cancel_many(wrong)
    with pytest.raises(MessageError, match="got PutReceipt"):
        bench.store.cancel_many(waiting(bench, 1)[0])  # type: ignore[arg-type]


def test_empty_list_cancels_nothing(bench: Bench) -> None:
    assert bench.store.cancel_many([]) == []


def test_results_are_exact_after_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*CANCEL_HOLD, 2)
    receipts = waiting(bench, 6)
    placing = placing_of_cancels(inside(bench.store).many_canceller)
    place, log = placing.value, inside(bench.store).log
    provide = log.provide

    def full(*_arguments: object) -> None:
        raise FullError("no room")

    def cut(drafts: Any, texts: Any) -> int:
        place(drafts[:2], texts)
        log.native.append_limit, kept = 0, log.native.append_limit
        try:
            return place(drafts[2:], texts)
        finally:
            log.native.append_limit = kept

    monkeypatch.setattr(log, "provide", full)
    monkeypatch.setattr(*placing, cut)
    with pytest.raises(FullError):
        bench.store.cancel_many(receipts)
    monkeypatch.setattr(log, "provide", provide)
    monkeypatch.setattr(*placing, place)
    assert bench.store.cancel_many(receipts) == [AGAIN] * 2 + [CANCELLED] * 4


def test_earlier_readers_still_see_cancelled_messages(bench: Bench) -> None:
    receipts = waiting(bench, 5)
    reading = iter(bench.store.pending())
    first = next(reading)
    bench.store.cancel_many(receipts)
    assert [first.timer_id, *(one.timer_id for one in reading)] == [
        one.timer_id for one in receipts
    ]


@pytest.mark.parametrize(("topic", "key"), [(b"t", b"k"), (b"t" * 127, b"k" * 300)])
def test_delete_text_fits_or_is_rejected(topic: bytes, key: bytes) -> None:
    need = 2 * (len(topic) + len(key)) + 192
    arguments = (topic, len(topic), key, len(key), 2**31 - 1, 2**63 - 2)
    out = ffi.new("uint8_t[]", need)
    assert lib.ts_delete_text(out, need - 1, *arguments) == lib.TS_NEED_SPACE
    size = lib.ts_delete_text(out, need, *arguments)
    assert need - 60 < size <= need
    pairs = dict(pair.split(b"\x01") for pair in bytes(ffi.buffer(out, size)).split(b"\x02")[:-1])
    assert pairs == {
        b"TAGS": b"_RECALL_TAG_",
        b"UNIQ_KEY": key,
        b"TIMER_DELIVER_MS": b"%d" % (2**63 - 1),
        b"TIMER_OUT_MS": b"%d" % (2**63 - 2),
        b"REAL_TOPIC": topic,
        b"REAL_QID": b"%d" % (2**31 - 1),
        b"TIMER_DEL_UNIQKEY": topic + b"+" + key,
    }


def test_cancel_many_releases_places_of_flow_control(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "limited", small(slot_messages_max=3))
    receipts: Sequence[PutReceipt] = waiting(bench, 3)
    assert bench.store.cancel_many(receipts) == [CANCELLED] * 3
    waiting(bench, 3)
    bench.close()


def test_receipt_with_a_wrong_log_offset_has_the_result_of_a_single_cancel(bench: Bench) -> None:
    """Its log offset is only a hint: the record there must be the source of its timer id."""
    one, two, three, four = waiting(bench, 4)
    due = bench.store.put("t", b"due")
    wrong = [
        one._replace(log_offset=two.log_offset),
        two._replace(log_offset=due.log_offset),
        three._replace(log_offset=10**15),
        four._replace(log_offset=four.log_offset + 1),
    ]
    assert bench.store.cancel_many(wrong) == [CANCELLED] * 4
    assert bench.store.cancel_many([one, two, three, four]) == [AGAIN] * 4


def test_receipt_with_the_id_of_another_message_does_not_cancel_it(bench: Bench) -> None:
    one, two = waiting(bench, 2)
    mixed = one._replace(timer_id=two.timer_id)
    assert bench.store.cancel_many([mixed]) == [CANCELLED]
    assert bench.store.cancel_many([one, two]) == [AGAIN, CANCELLED]
