"""Dispatch by append hints equals dispatch by reading the log; a missing hint changes nothing."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import (
    DISPATCH_READ,
    NOTE_COUNT,
    batch_columns,
    batch_end,
    batch_requests,
    inside,
    log_of,
    timer_records_read,
)
from timerstore import CancelResult, FullError
from timerstore._engine.base import failpoints
from timerstore._engine.base.native import ffi
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.timer.timer_arrays import REQUEST

HORIZON_MS = 20 * SECOND
CHANGES: list[dict[str, Any]] = [
    {},
    {"property_crc": False},
    {"index_enabled": False},
    {"index_tags": True},
]


class Checked:
    """Compares each batch with the log, and counts records."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        read = DISPATCH_READ.value

        def checked(dispatch: Dispatch, end: int) -> int:
            log = log_of(dispatch)
            begin, passed = dispatch.dispatched, log.append_hints.head
            count = read(dispatch, end)
            following = batch_end(dispatch)
            got = Found(dispatch, count)
            log.append_hints, notes = ffi.NULL, log.append_hints
            wanted = Found(dispatch, 0)
            while dispatch.dispatched < following:
                wanted.add(Found(dispatch, read(dispatch, following)))
                dispatch.dispatched = batch_end(dispatch)
            log.append_hints, dispatch.dispatched = notes, begin
            assert got == wanted
            assert batch_end(dispatch) == following
            got.put_back(dispatch)
            self.seen["all"] += count
            self.seen["noted"] += notes.head - passed
            self.seen["batches"] += 1
            return count

        patch.setattr(*DISPATCH_READ, checked)


class Found:
    """Results of dispatch for some records: units, their queues, keys and requests."""

    def __init__(self, dispatch: Dispatch, count: int) -> None:
        keys = ffi.NULL if dispatch.index is None else dispatch.index.keys
        key_count = keys.count if keys and count else 0
        requests = batch_requests(dispatch)
        self.columns: list[list[Any]] = [
            *(column.tolist() for column in batch_columns(dispatch, count)),
            [
                (keys.at[k].log_offset, keys.at[k].store_ms, keys.at[k].hash)
                for k in range(key_count)
            ],
            np.frombuffer(
                bytes(ffi.buffer(requests.at, 56 * (requests.count if count else 0))), REQUEST
            ).tolist(),
        ]

    def add(self, other: "Found") -> None:
        for mine, more in zip(self.columns, other.columns, strict=True):
            mine.extend(more)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Found)
        return self.columns == other.columns

    __hash__ = None  # type: ignore[assignment]

    def put_back(self, dispatch: Dispatch) -> None:
        """Restore these results, which the second read has overwritten."""
        units, indexes, offsets, keys, requests = self.columns
        columns, batch = batch_columns(dispatch, len(units)), batch_requests(dispatch)
        columns.units[:] = np.array(units, np.uint8).reshape(-1, 20)
        columns.indexes[:], columns.offsets[:] = indexes, offsets
        if dispatch.index is not None:
            for k, (log_offset, store_ms, hashed) in enumerate(keys):
                one = dispatch.index.keys.at[k]
                one.log_offset, one.store_ms, one.hash = log_offset, store_ms, hashed
            dispatch.index.keys.count = len(keys)
        ffi.memmove(batch.at, np.array(requests, REQUEST).tobytes(), 56 * len(requests))
        batch.count = len(requests)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Compare the batches of every store."""
    return Checked(monkeypatch)


def work(bench: Bench, seed: int) -> int:
    """Put random messages, and advance the clock; return how many will be delivered."""
    draw, count = random.Random(seed), 0
    for _ in range(60):
        size = draw.choice([1, 3, 4, 17, 90])
        bodies = [draw.randbytes(draw.randrange(300)) for _ in range(size)]
        given: dict[str, Any] = {}
        if draw.random() < 0.7:
            given["deliver_ms"] = [
                bench.clock.now_ms + draw.randrange(-1000, HORIZON_MS) for _ in bodies
            ]
        elif draw.random() < 0.3:
            given = {"level": draw.choice([1, 2])}
        if draw.random() < 0.3:
            given["tags"] = draw.choice(["a", "é", "f5a5a608"])  # the last has hash 0
        if draw.random() < 0.2:
            given["keys"] = [draw.choice(["k", "k l"]).split() for _ in bodies]
        topic = draw.choice(["t", "u", "a-longer-topic"])
        if draw.random() < 0.2:
            for body in bodies:
                properties = {"p": "TAGS" * draw.randrange(1, 3), "q": "é"}
                bench.store.put(topic, body, delay=draw.randrange(20), properties=properties)
        else:
            receipts = bench.store.put_many(topic, bodies, **given)
            if "deliver_ms" in given and draw.random() < 0.2:
                handle = next((one.handle for one in receipts if one.handle), None)
                if handle is not None:
                    count -= bench.store.cancel(handle) is CancelResult.CANCELLED
        count += size
        if draw.random() < 0.5:
            bench.turn(draw.choice([0, 1, 700, 3000]))
    return count


@pytest.mark.parametrize("seed", sample(range(20), "schedules of append hints"))
def test_dispatch_by_hints_equals_dispatch_by_reading(
    checked: Checked, bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = CHANGES[seed % len(CHANGES)]
    if (seed + seed // 5) % 4 == 3:
        monkeypatch.setattr(*NOTE_COUNT, 8)
    bench.close()
    bench.config = small(**changes, commit_log_segment_bytes=1 << 16)
    bench.open()
    count = work(bench, seed)
    for _ in range(4):
        bench.turn(HORIZON_MS)
    topics = {t: n for t, n in bench.store.topics().items() if not t.startswith(("rmq", "SCHED"))}
    out = sum(len(bench.out(topic, k)) for topic, queues in topics.items() for k in range(queues))
    assert out == count
    few = (seed + seed // 5) % 4 == 3
    assert (50 if few else 500) < checked.seen["noted"] < checked.seen["all"]


def test_failed_step_reads_the_records_of_its_hints(
    checked: Checked, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(20)], deliver_ms=[NOW + 500] * 20)

    def full(name: str) -> None:
        if name == "dispatch_queues_written":
            raise FullError("no space left", where="here")

    monkeypatch.setattr(failpoints, "hook", full)
    with pytest.raises(FullError):
        inside(bench.store).dispatch.step()
    monkeypatch.setattr(failpoints, "hook", None)
    bench.turn(SECOND)
    assert [one.body for one in bench.out()] == [b"%d" % k for k in range(20)]
    assert [one.body for one in bench.store.query("t", bench.out()[7].message_id)] == [b"7"]


def test_records_with_and_without_hints_are_one_batch(checked: Checked, bench: Bench) -> None:
    for k in range(200):
        bench.store.put("t", b"noted")
        bench.store.put("t", b"read", keys=f"k{k}")
    bench.turn()
    assert checked.seen["noted"] == 200
    assert checked.seen["batches"] <= 3


def test_requests_of_all_timers_reach_enqueue_get(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(8):
        bench.store.put("t", b"noted", delay=5)
        receipt = bench.store.put("t", b"read", delay=5, keys="k")
        if k % 5 == 0:
            bench.store.cancel(receipt)
    get = bench.store.services()["enqueue_get"]
    monkeypatch.setattr(*timer_records_read(get), lambda: None)
    bench.turn(5 * SECOND)
    assert len(bench.out()) == 14
