"""pull and pull_batch: statuses, next offsets, visibility and waiting."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.inside import inside
from timerstore import ClosedError, MessageError, PullStatus, TimerStore


@pytest.fixture
def five(bench: Bench) -> Bench:
    bench.store.put_many("t", [b"%d" % k for k in range(5)])
    bench.store.put("t", b"of another queue", queue_id=1)
    bench.store.put("t", b"waits", delay=10, queue_id=2)
    bench.turn()
    return bench


TABLE = [
    # queue, offset, status, messages, next offset, max offset
    (0, 0, PullStatus.FOUND, 5, 5, 5),
    (0, 3, PullStatus.FOUND, 2, 5, 5),
    (0, 4, PullStatus.FOUND, 1, 5, 5),
    (0, 5, PullStatus.OFFSET_OVERFLOW_ONE, 0, 5, 5),
    (0, 6, PullStatus.OFFSET_OVERFLOW_BADLY, 0, 5, 5),
    (0, 2**62, PullStatus.OFFSET_OVERFLOW_BADLY, 0, 5, 5),
    (2, 0, PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0),
    (2, 9, PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0),
]


@pytest.mark.parametrize("row", TABLE)
def test_statuses_and_next_offsets(five: Bench, row: tuple[Any, ...]) -> None:
    queue_id, offset, status, count, following, highest = row
    for _ in range(2):
        result = five.store.pull("t", queue_id, offset)
        batch = five.store.pull_batch("t", queue_id, offset)
        for got in (result, batch):
            assert (got.status, got.next_offset) == (status, following)
            assert (got.min_offset, got.max_offset) == (0, highest)
        assert len(result.messages) == len(batch) == count
        assert list(batch) == list(result.messages)
        five.reopen()
        five.turn()


def test_pull_continues_at_the_next_offset(five: Bench) -> None:
    offset, sizes = 0, []
    while (result := five.store.pull("t", 0, offset, max_count=2)).status is PullStatus.FOUND:
        sizes.append(len(result.messages))
        offset = result.next_offset
    assert (sizes, offset) == ([2, 2, 1], 5)
    batch = five.store.pull_batch("t", 0, 1, max_count=10**9)
    assert [bytes(m.body) for m in batch] == [b"1", b"2", b"3", b"4"]
    assert five.store.pull("t", np.int64(0), batch.queue_offset[-1]).messages[0].body == b"4"


@pytest.mark.parametrize(
    ("args", "given", "match"),
    [
        (("unknown", 0, 0), {}, "has 0 queues"),
        (("t", 3, 0), {}, "has 3 queues"),
        (("t", -1, 0), {}, "queue"),
        (("t", "0", 0), {}, "queue"),
        (("t", [], 0), {}, "queue"),
        (("t", True, 0), {}, "queue"),
        (("t", None, 0), {}, "queue"),
        ((["t"], 0, 0), {}, "queue"),
        ((None, 0, 0), {}, "queue"),
        (("../t", 0, 0), {}, "queue"),
        (("t", 0, -1), {}, "offset"),
        (("t", 0, 1.0), {}, "offset"),
        (("t", 0, None), {}, "offset"),
        (("t", 0, 0), {"max_count": 0}, "max_count"),
        (("t", 0, 0), {"max_count": 1.5}, "max_count"),
        (("t", 0, 0), {"wait": -1}, "wait"),
        (("t", 0, 0), {"wait": float("nan")}, "wait"),
        (("t", 0, 0), {"wait": float("inf")}, "wait"),
        (("t", 0, 0), {"wait": "1"}, "wait"),
    ],
)
def test_invalid_arguments_are_rejected(
    five: Bench, args: tuple[Any, ...], given: dict[str, Any], match: str
) -> None:
    with five.refused(MessageError, match):
        five.store.pull(*args, **given)
    with five.refused(MessageError, match):
        five.store.pull_batch(*args, **given)


@pytest.mark.parametrize("visibility", ["durable", "written"])
def test_visibility(tmp_path: Path, visibility: str) -> None:
    bench = Bench(tmp_path, small(visibility=visibility))
    bench.store.put("t", b"x")
    bench.stepper.step("dispatch")
    assert bench.bodies() == ([b"x"] if visibility == "written" else [])
    bench.store.flush()
    assert bench.bodies() == [b"x"]
    bench.close()


def test_columns_of_a_batch(five: Bench) -> None:
    batch = five.store.pull_batch("t", 0, 0)
    assert batch.queue_offset.tolist() == [0, 1, 2, 3, 4]
    assert np.diff(batch.log_offset).min() > 0
    assert batch.body_offsets.tolist() == [0, 1, 2, 3, 4, 5]
    assert bytes(batch.bodies) == b"01234"
    assert batch.store_ms.dtype == np.int64
    assert [m.body for m in batch[1:3]] == [b"1", b"2"]
    assert batch[-1].body == b"4"
    with pytest.raises(IndexError):
        batch[5]


def test_large_bodies_are_pulled_in_parts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=8 << 20))
    bench.store.put_many("t", [bytes([k]) * (3 << 20) for k in range(30)])
    bench.turn()
    offset, found = 0, 0
    while len(batch := bench.store.pull_batch("t", 0, offset)):
        for message in batch:
            assert message.body == bytes([found]) * (3 << 20)
            found += 1
        offset = batch.next_offset
    assert found == 30
    bench.close()


# --- waiting: real threads and real time ----------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[TimerStore]:
    store = timerstore.open(tmp_path / "live", small(flush="sync"))
    store.put("t", b"first")
    yield store
    store.close()


class Waiting:
    """A waiting pull in its own thread."""

    def __init__(self, store: TimerStore, offset: int, wait: float) -> None:
        self.result: Any = None
        self._call = (store, offset, wait)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        store, offset, wait = self._call
        try:
            self.result = store.pull("t", 0, offset, wait=wait)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.result = error

    def answer(self, within: float = 10.0) -> Any:
        self._thread.join(within)
        assert not self._thread.is_alive(), "the pull still waits"
        return self.result


@pytest.mark.parametrize("delay", [None, 0.2])
def test_waiting_pull_returns_with_the_message(live: TimerStore, delay: float | None) -> None:
    waiting = Waiting(live, 1, 30.0)
    live.put("t", b"second", delay=delay)
    result = waiting.answer()
    assert [m.body for m in result.messages] == [b"second"]
    assert result.messages[0].delivered_ms >= result.messages[0].due_ms


def test_waiting_pull_returns_at_its_timeout(live: TimerStore) -> None:
    live.pull("t", 0, 0, wait=5)
    began = time.monotonic()
    result = live.pull("t", 0, 1, wait=0.1)
    assert (result.status, result.next_offset) == (PullStatus.OFFSET_OVERFLOW_ONE, 1)
    assert 0.09 < time.monotonic() - began < 5


def test_pull_far_past_the_end_does_not_wait(live: TimerStore) -> None:
    live.pull("t", 0, 0, wait=5)
    began = time.monotonic()
    assert live.pull("t", 0, 7, wait=20).status is PullStatus.OFFSET_OVERFLOW_BADLY
    assert time.monotonic() - began < 5


def test_close_answers_a_waiting_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = timerstore.open(tmp_path, small())
    store.put("t", b"x", flush="sync")
    store.pull("t", 0, 0, wait=5)
    table, entered = inside(store).long_polls, threading.Event()
    enter = table.enter

    def told(*given: Any) -> Any:
        hold = enter(*given)
        entered.set()
        return hold

    monkeypatch.setattr(table, "enter", told)
    waiting = Waiting(store, 1, 60.0)
    assert entered.wait(60)
    store.close()
    result = waiting.answer()
    assert isinstance(result, ClosedError) or result.status is PullStatus.OFFSET_OVERFLOW_ONE
