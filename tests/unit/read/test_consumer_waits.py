"""Consumers that wait, with real threads and real time."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from tests.support.consuming import Running, read
from timerstore import (
    Consumer,
    TimerStore,
)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[TimerStore]:
    store = timerstore.open(tmp_path / "live", small(flush="sync"))
    yield store
    store.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("delay", [None, 0.2])
def test_waiting_consumer_gets_a_message_of_any_queue(
    live: TimerStore, delay: float | None, flush: str
) -> None:
    live.put("t", b"first")
    consumer = live.consumer("t", "g")
    assert next(consumer).body == b"first"
    waiting = Running(lambda: next(consumer))
    assert not waiting.is_done(within=0.05)
    live.put("t", b"second", delay=delay, queue_id=3, flush=flush)
    message = waiting.answer()
    assert message.body == b"second"
    assert message.delivered_ms >= message.due_ms


def test_consumer_waits_for_a_topic_that_does_not_exist(live: TimerStore) -> None:
    consumer = live.consumer("new", "g")
    waiting = Running(lambda: consumer.poll(10, wait=60))
    assert not waiting.is_done(within=0.05)
    live.put("other", b"no")
    assert not waiting.is_done(within=0.05)
    live.put("new", b"yes")
    assert [m.body for m in waiting.answer()] == [b"yes"]


def test_wait_ends_at_its_time(live: TimerStore) -> None:
    live.put("t", b"x")
    consumer = live.consumer("t", "g", wait=0.1)
    assert Running(lambda: read(consumer)).answer() == [b"x"]
    assert Running(lambda: consumer.poll(1, 0.01)).answer() == []


def test_waiting_consumer_gets_the_queues_of_a_closed_one(live: TimerStore) -> None:
    live.put("t", b"0")
    live.put("t", b"1", queue_id=1)
    a, b = live.consumer("t", "g"), live.consumer("t", "g")
    assert len(a.poll(9, wait=30)) == len(b.poll(9, wait=30)) == 1
    waiting = Running(lambda: b.poll(9, wait=60))
    assert not waiting.is_done(within=0.05)
    a.close()
    assert [m.body for m in waiting.answer()] == [b"0"]


class Coming:
    """Joins a group, reads some messages, commits and leaves, repeatedly."""

    def __init__(self, store: TimerStore, stride: int) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        self.is_over = threading.Event()
        self._store = store
        self._stride = stride
        self.running = Running(self._run)

    def _run(self) -> None:
        while not self.is_over.is_set():
            before = self._store.committed("t", "g")
            with self._store.consumer("t", "g", wait=0.005) as consumer:
                self._read(consumer, before)
                consumer.commit()

    def _read(self, consumer: Consumer, before: dict[int, int]) -> None:
        last: dict[int, int] = {}
        for k, message in enumerate(consumer):
            queue_id, at = message.queue_id, message.queue_offset
            if at < before.get(queue_id, 0):
                self.wrong.append(f"committed, but it came again: {queue_id} {at}")
            if at > last.get(queue_id, at - 1) + 1:
                self.wrong.append(f"a gap: {queue_id} {at} after {last[queue_id]}")
            last[queue_id] = at
            self.seen.add((queue_id, at))
            if k % 3 == 0:
                before = {**before, **consumer.commit()}
            if k > 5 * self._stride:
                return


def test_consumers_join_and_leave_while_messages_arrive(live: TimerStore) -> None:
    comers = [Coming(live, stride) for stride in range(4)]
    for k in range(400):
        live.put("t", b"%d" % k, queue_id=k % 4, flush="async")
    for _ in range(6000):
        if live.committed("t", "g") == dict.fromkeys(range(4), 100):
            break
        threading.Event().wait(0.01)
    for one in comers:
        one.is_over.set()
    assert [one.running.answer() for one in comers] == [None] * 4
    assert [one.wrong for one in comers] == [[]] * 4
    assert set().union(*(one.seen for one in comers)) == {
        (q, at) for q in range(4) for at in range(100)
    }
    assert live.committed("t", "g") == dict.fromkeys(range(4), 100)
