"""Waiting calls of an event loop that is closed."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.inside import bells_of, consumer_fetch, inside
from timerstore.aio import AsyncConsumer, AsyncTimerStore
from timerstore.aio.loop_turns import LoopTurns

Begin = Callable[[AsyncTimerStore, AsyncConsumer], Coroutine[Any, Any, Any]]


def poll(_store: AsyncTimerStore, consumer: AsyncConsumer) -> Coroutine[Any, Any, Any]:
    return consumer.poll(wait=1e6)


def pull(store: AsyncTimerStore, _consumer: AsyncConsumer) -> Coroutine[Any, Any, Any]:
    return store.pull("t", 0, 0, wait=1e6)


def receive(store: AsyncTimerStore, _consumer: AsyncConsumer) -> Coroutine[Any, Any, Any]:
    return store.receive("t", "leased", wait=1e6)


class Loops:
    """A store without services, with a consumer of an empty queue, and loops that the test runs."""

    def __init__(self, bench: Bench, pool: ThreadPoolExecutor) -> None:
        """`pool` has one thread."""
        self.bench = bench
        self._pool = pool
        self.store = AsyncTimerStore(bench.store, pool)
        self.consumer = AsyncConsumer(bench.store.consumer("t", "g", queues=[0]), self.store)
        self._left: list[asyncio.Task[Any]] = []

    def begin(self, loop: asyncio.AbstractEventLoop, begin: Begin) -> "asyncio.Task[Any]":
        """Begin a call, and let it run until it waits."""
        task = loop.create_task(begin(self.store, self.consumer))
        for _ in range(8):  # what it does in the pool is through when the pool is idle
            self.turn(loop)
        assert not task.done()
        return task

    def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the pending work of the pool, and the ready callbacks of the loop."""
        loop.run_until_complete(asyncio.sleep(0))
        self._pool.submit(int).result(10)
        loop.run_until_complete(asyncio.sleep(0))

    def leave(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]") -> None:
        """Close the loop without ending its tasks."""
        self._left.append(task)
        loop.close()

    def put(self, body: bytes) -> None:
        self.bench.store.put("t", body, queue_id=0)
        self.bench.stepper.settle()

    @property
    def waiting_count(self) -> int:
        return inside(self.bench.store).long_polls.count

    def drop(self) -> None:
        """Close coroutines that can no longer end, as the garbage collector would."""
        for task in self._left:
            task.get_loop().set_exception_handler(lambda _loop, _context: None)  # it is pending
            task.get_coro().close()


@pytest.fixture
def loops(bench: Bench) -> Iterator[Loops]:
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    bench.store.ack_many(bench.store.receive("t", "leased"))
    with ThreadPoolExecutor(1) as pool:
        one = Loops(bench, pool)
        yield one
        one.drop()
        assert one.waiting_count == 0, "a wait of a closed loop is still in the table"


@contextmanager
def new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def end(loop: asyncio.AbstractEventLoop, loops: Loops, task: "asyncio.Task[Any]") -> list[bytes]:
    for _ in range(4):
        loops.turn(loop)
    assert task.done(), "it waits behind somebody whose loop was closed"
    found = task.result()
    return [message.body for message in getattr(found, "messages", found)]


@pytest.mark.parametrize("begin", [poll, pull, receive])
def test_waiter_of_closed_loop_blocks_no_other_waiter(loops: Loops, begin: Begin) -> None:
    with new_loop() as first:
        loops.leave(first, loops.begin(first, begin))
    assert loops.waiting_count == 0
    with new_loop() as second:
        task = loops.begin(second, begin)
        loops.put(b"x")
        assert end(second, loops, task) == [b"x"]


@pytest.mark.parametrize("begin", [poll, receive])
def test_next_waiter_is_first_when_loop_of_first_is_closed(loops: Loops, begin: Begin) -> None:
    with new_loop() as first, new_loop() as second:
        left = loops.begin(first, begin)
        task = loops.begin(second, begin)
        loops.leave(first, left)
        loops.put(b"x")
        assert end(second, loops, task) == [b"x"]


def test_message_goes_to_next_waiter_when_loop_of_woken_one_is_closed(
    loops: Loops,
) -> None:
    with new_loop() as first, new_loop() as second:
        left = loops.begin(first, poll)
        task = loops.begin(second, poll)
        loops.put(b"x")  # rings the first, which does not turn any more
        loops.leave(first, left)
        assert end(second, loops, task) == [b"x"]


def test_message_goes_to_next_waiter_when_loop_is_closed_during_fetch(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_fetch, go = threading.Event(), threading.Event()
    fetching = consumer_fetch(loops.consumer.blocking)
    fetch = fetching.value

    def slow(*given: Any) -> Any:
        in_fetch.set()
        assert go.wait(10)
        return fetch(*given)

    with new_loop() as first, new_loop() as second:
        left = loops.begin(first, poll)
        task = loops.begin(second, poll)
        with monkeypatch.context() as patched:
            patched.setattr(*fetching, slow)
            loops.put(b"x")
            first.run_until_complete(asyncio.sleep(0))
            first.run_until_complete(asyncio.sleep(0))
            assert in_fetch.wait(10)
            loops.leave(first, left)
            go.set()
        assert end(second, loops, task) == [b"x"]


def test_waiting_thread_wakes_when_loop_of_first_waiter_is_closed(
    loops: Loops, tmp_path: Path
) -> None:
    consumer = loops.consumer.blocking
    rung = threading.Event()
    with new_loop() as first:
        left = loops.begin(first, poll)
        behind = consumer.begin_poll(1, None)
        assert behind.enter(rung.set)
        loops.leave(first, left)
    loops.put(b"x")
    assert rung.is_set()
    behind.leave()
    behind.end()


def test_running_loop_keeps_no_reference_to_ended_waits(loops: Loops) -> None:
    with new_loop() as loop:
        task = loops.begin(loop, poll)
        loops.put(b"x")
        assert end(loop, loops, task) == [b"x"]
        assert not bells_of(loops.store)


def test_turn_of_a_closed_loop_is_forgotten() -> None:
    """No task awaits there any more, and the loop must not stay in memory."""
    ended: list[list[int]] = []
    turns: LoopTurns[int] = LoopTurns(lambda _loop, values: ended.append(values))

    async def add(value: int) -> None:
        turns.add(value)
        await asyncio.sleep(0)

    def closed() -> "weakref.ref[asyncio.AbstractEventLoop]":
        loop = asyncio.new_event_loop()
        loop.call_soon(turns.add, 1)
        loop.call_soon(loop.stop)  # before the turn ends
        loop.run_forever()
        loop.close()
        return weakref.ref(loop)

    found = closed()
    asyncio.run(add(2))
    gc.collect()
    assert (ended, found()) == ([[2]], None)
