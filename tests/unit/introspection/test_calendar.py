"""The histogram is exact while messages come, go and move, and while its counters grow."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import DAY, NOW, Bench, small
from tests.support.inside import calendar_grow_lock, inside
from timerstore import CancelResult, CorruptError, MessageError, PutReceipt
from timerstore._engine.base.native import lib

HOUR = 3_600_000
UNITS = {"second": 1000, "minute": 60_000, "hour": HOUR, "day": DAY}


def compare(bench: Bench, end_ms: int = 2 * DAY) -> None:
    """What `histogram` says is what `pending` lists."""
    found = list(bench.store.pending())
    begin_ms = min([NOW, *(one.due_ms for one in found)]) // DAY * DAY
    for by, unit_ms in UNITS.items():
        for topic in (None, "a", "b", "nobody"):
            got = bench.store.histogram(begin_ms, NOW + end_ms, by, topic)
            wanted = Counter(
                one.due_ms // unit_ms * unit_ms
                for one in found
                if topic in (None, one.topic) and one.due_ms < got.edges[-1]
            )
            counted = zip(got.edges.tolist(), got.counts.tolist(), strict=False)
            assert {edge: n for edge, n in counted if n} == wanted
            assert (np.diff(got.edges) == unit_ms).all()


def put_some(bench: Bench) -> list[PutReceipt]:
    dues = [NOW + ms for ms in (1, 999, 1000, 1001, 59_999, 60_000, HOUR - 1, HOUR, DAY, DAY + 1)]
    return [bench.store.put(topic, b"x", deliver_ms=due) for due in dues for topic in ("a", "b")]


def test_message_counts_in_the_bucket_of_its_due_time(bench: Bench) -> None:
    put_some(bench)
    compare(bench)
    hour = bench.store.histogram(NOW, NOW + HOUR, "second", "a")
    assert int(hour.counts.sum()) == 7
    assert hour.counts.dtype == hour.edges.dtype == np.int64


@pytest.mark.parametrize("is_counted", [False, True], ids=["read first", "counted"])
def test_histogram_follows_puts_cancels_and_deliveries(bench: Bench, is_counted: bool) -> None:
    if is_counted:
        compare(bench)
    receipts = put_some(bench)
    assert bench.store.cancel(receipts[0]) is CancelResult.CANCELLED
    assert bench.store.cancel(receipts[0]) is CancelResult.ALREADY_CANCELLED
    bench.store.reschedule(receipts[3], delay=7200)
    bench.store.reschedule(receipts[5], delay=0)
    bench.store.put("a", b"level", level=3)
    bench.store.put_many("b", [b"level"] * 5, level=5)
    bench.store.put_many("b", [b"level"] * 5, level=5, atomic=True)
    bench.store.put_many("a", [b"x"] * 50, deliver_ms=np.arange(50) * 60_000 + NOW + 5)
    bench.store.put_many("a", [b"x"] * 9, deliver_ms=np.arange(9) * 600_000 + NOW, atomic=True)
    bench.store.put_many("b", [b"x"] * 2, delay=[10, 20], message_ids=["1", "2"])
    bench.store.put_many("b", [b"x"] * 2, delay=[10, 20], message_ids=["2", "3"])
    compare(bench)
    for ms in (1000, 5000, 60_000, HOUR):
        bench.turn(ms)
        compare(bench)
    bench.turn(2 * DAY)
    compare(bench)
    assert not bench.store.histogram(NOW, NOW + 3 * DAY, "day").counts.any()


def test_message_past_the_roll_window_counts_at_its_due_time(bench: Bench) -> None:
    bench.store.put("a", b"x", delay=90 * 86_400)
    bench.turn()
    for _ in range(4):
        counts = bench.store.histogram(NOW + 89 * DAY, NOW + 92 * DAY, "day", "a").counts
        assert counts.tolist() == [0, 1, 0, 0]
        bench.turn(DAY)


def test_histogram_is_exact_after_opening(bench: Bench) -> None:
    put_some(bench)
    bench.store.put("a", b"level", level=18)
    compare(bench)
    bench.turn(1500)
    bench.reopen()
    compare(bench)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda bench, receipts: bench.store.cancel(receipts[4]),
        lambda bench, receipts: bench.turn(70_000),
        lambda bench, receipts: bench.store.reschedule(receipts[4], delay=9000),
        lambda bench, receipts: put_some(bench),
        lambda bench, receipts: bench.store.put("a", b"x", level=2),
    ],
    ids=["cancel", "deliver", "reschedule", "put", "level"],
)
@pytest.mark.parametrize("after", [False, True], ids=["before it is read", "after"])
def test_changes_during_the_filling_count_once(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Bench, list[PutReceipt]], Any],
    after: bool,
) -> None:
    receipts = put_some(bench)
    bench.store.put("a", b"x", level=1)
    bench.turn()
    pending = inside(bench.store).pending
    real = type(pending).parts
    calls: list[int] = []

    def parts(self: Any) -> Iterator[Any]:
        if not after and not calls:
            calls.append(1)
            meanwhile(bench, receipts)
        yield from real(self)
        if after and not calls:
            calls.append(1)
            meanwhile(bench, receipts)

    monkeypatch.setattr(type(pending), "parts", parts)
    bench.store.histogram()
    monkeypatch.undo()
    assert calls
    compare(bench)


def test_counters_grow_and_forget_the_past(bench: Bench) -> None:
    bench.store.histogram()
    calendar = inside(bench.store).calendar
    began = calendar.bytes
    hours = 40_000
    bench.store.put_many("a", [b"x"] * hours, deliver_ms=NOW + 1 + HOUR * np.arange(hours))
    grown = calendar.bytes
    assert grown > began
    days = bench.store.histogram(NOW, NOW + hours * HOUR, "day", "a").counts
    assert days.sum() == hours
    assert set(days[1:-1].tolist()) == {24}


@pytest.mark.parametrize("limit", [0, (1 << 20) - 1, 1 << 20])
def test_pending_messages_are_read_when_memory_is_short(tmp_path: Path, limit: int) -> None:
    bench = Bench(tmp_path / "store", replace(small(), histogram_bytes_max=limit))
    bench.store.histogram()
    assert inside(bench.store).calendar.bytes == (1 << 20 if limit == 1 << 20 else 0)
    put_some(bench)
    bench.store.put("a", b"level", level=3)
    compare(bench)
    hours = 11_000
    bench.store.put_many("b", [b"x"] * hours, deliver_ms=NOW + 1 + HOUR * np.arange(hours))
    days = bench.store.histogram(NOW, NOW + hours * HOUR, "day", "b").counts
    assert set(days[2:-1].tolist()) == {24}
    assert days.sum() == hours + 10
    assert inside(bench.store).calendar.bytes == 0
    bench.close()


def test_warning_is_logged_outside_all_locks(tmp_path: Path) -> None:
    """A handler of logging that puts may need more room for ids, and with it that lock."""
    bench = Bench(tmp_path / "store", replace(small(), histogram_bytes_max=1 << 20))
    bench.store.histogram()
    told: list[bool] = []

    class Looking(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            told.append(calendar_grow_lock(inside(bench.store).calendar).locked())

    handler, logger = Looking(), logging.getLogger("timerstore.introspection")
    logger.addHandler(handler)
    hours = 11_000
    bench.store.put_many("b", [b"x"] * hours, deliver_ms=NOW + 1 + HOUR * np.arange(hours))
    logger.removeHandler(handler)
    assert told == [False]
    bench.close()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"by": "week"}, "by: wanted one of second, minute, hour, day, got 'week'"),
        ({"by": 60}, "by: wanted one of"),
        ({"begin": -1}, "begin: wanted ms since 1970"),
        ({"begin": 1.5}, "begin: wanted ms since 1970"),
        ({"end": True}, "end: wanted ms since 1970"),
        ({"begin": 10, "end": 9}, "end: wanted a time not before begin"),
        ({"begin": 0, "end": 1_000_000_001, "by": "second"}, "at most 1000000 buckets"),
        ({"end": 253_402_300_800_001}, "end: wanted"),
        ({"topic": []}, r"topic: wanted 1 to 255 of .*, got \[\]"),
        ({"topic": 5}, "topic: wanted"),
        ({"topic": "\ud800"}, "topic: wanted"),
    ],
)
def test_histogram_rejects_invalid_arguments(
    bench: Bench, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(MessageError, match=problem):
        bench.store.histogram(**given)


def test_pending_message_without_a_record_is_a_corrupt_error(bench: Bench) -> None:
    bench.store.put("t", b"x", delay=5)
    bench.turn()
    states = inside(bench.store).states.native
    lib.ts_state_set(states, 77, lib.TS_PENDING)
    for _ in range(2):
        with pytest.raises(CorruptError, match="no record is found"):
            bench.store.histogram()
    lib.ts_state_set(states, 77, lib.TS_NONE)
    assert bench.store.histogram().counts.sum() == 1


def test_range_limits_of_the_histogram(bench: Bench) -> None:
    assert len(bench.store.histogram(5000, 5000, "second").counts) == 0
    assert bench.store.histogram(5000, 5001, "second").edges.tolist() == [5000, 6000]
    assert bench.store.histogram(4999, 5000, "second").edges.tolist() == [4000, 5000]
    assert len(bench.store.histogram(0, 1_000_000_000, "second").counts) == 1_000_000
    assert len(bench.store.histogram(253_402_214_400_000, 253_402_300_800_000).counts) == 24
