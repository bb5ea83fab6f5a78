"""Calls that wait, in each way: what wakes them, when they end, and what a cancelled one leaves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.consuming import Running, until
from tests.support.inside import inside
from tests.support.ways import run
from timerstore import ClosedError, LeasedMessage, Message


def _bodies(messages: Any) -> list[bytes]:
    return [one.body for one in messages]


def _polled(store: Any, wait: float) -> list[bytes]:
    with store.consumer("t", "reader") as consumer:
        return _bodies(consumer.poll(9, wait))


def _iterated(store: Any, wait: float) -> list[bytes]:
    with store.consumer("t", "reader", wait=wait) as consumer:
        return [one.body for one in [next(consumer, None)] if one is not None]


def _looped(store: Any, wait: float) -> list[bytes]:
    found = next(store.lease_consumer("t", "g", wait=wait), None)
    return [] if found is None else [found.body]


WAITS: dict[str, Callable[[Any, float], list[bytes]]] = {
    "receive": lambda store, wait: _bodies(store.receive("t", "g", wait=wait)),
    "receive of topics": lambda store, wait: _bodies(store.receive(["u", "t"], "g", wait=wait)),
    "pull": lambda store, wait: _bodies(store.pull("t", 0, 1, wait=wait).messages),
    "pull_batch": lambda store, wait: store.pull_batch("t", 0, 1, wait=wait).body_list(),
    "poll": _polled,
    "loop": _iterated,
    "loop over leases": _looped,
}
"""They wait for the second message of queue 0 of topic t."""


@pytest.fixture
def read(bench: Bench) -> Bench:
    """A bench with one message, which both groups have."""
    bench.store.put("t", b"first", queue_id=0)
    bench.turn()
    (one,) = bench.store.receive("t", "g")
    bench.store.ack(one)
    with bench.store.consumer("t", "reader") as consumer:
        consumer.poll()
        consumer.commit()
    bench.turn()
    return bench


def waiting_count(bench: Bench) -> int:
    """Return how many queues are waited for."""
    return int(inside(bench.local).long_polls.count)


@pytest.fixture(params=WAITS)
def call(request: pytest.FixtureRequest) -> Callable[[Any, float], list[bytes]]:
    return WAITS[request.param]


def _started(bench: Bench, call: Callable[[Any, float], list[bytes]], wait: float) -> Running:
    before = waiting_count(bench)
    one = Running(lambda: call(bench.store, wait))
    until(lambda: waiting_count(bench) > before or one.is_done(0))
    return one


def test_message_wakes_a_call_that_waits(
    read: Bench, call: Callable[[Any, float], list[bytes]]
) -> None:
    one = _started(read, call, 60)
    read.store.put("t", b"other", queue_id=1, tags="no", delay=1000)
    read.turn()
    assert not one.is_done(0.01)
    read.store.put("t", b"new", queue_id=0)
    read.turn()
    assert one.answer() == [b"new"]
    until(lambda: waiting_count(read) == 0)


def test_message_that_comes_due_wakes_a_call_that_waits(
    read: Bench, call: Callable[[Any, float], list[bytes]]
) -> None:
    read.store.put("t", b"new", queue_id=0, delay=2)
    read.turn()
    one = _started(read, call, 60)
    read.turn(1999)
    assert not one.is_done(0.01)
    read.turn(1)
    assert one.answer() == [b"new"]


def test_wait_ends_when_its_whole_time_is_over(
    read: Bench, call: Callable[[Any, float], list[bytes]]
) -> None:
    """Also of parts of a millisecond, which the wait of no way drops."""
    one = _started(read, call, 60.0005)
    read.clock.advance(60_000)
    assert not one.is_done(0.02)
    read.clock.advance(1)
    assert one.answer() == []
    until(lambda: waiting_count(read) == 0)


def test_call_without_a_wait_ends_at_once(
    read: Bench, call: Callable[[Any, float], list[bytes]]
) -> None:
    assert call(read.store, 0.0) == []
    assert waiting_count(read) == 0


def test_close_ends_a_call_that_waits(
    read: Bench, call: Callable[[Any, float], list[bytes]]
) -> None:
    """A client has no answer to give; a loop ends in each way."""
    one = _started(read, call, 60)
    read.store.close()
    found = one.answer()
    if read.is_connected and call in {WAITS[name] for name in WAITS if "loop" not in name}:
        assert isinstance(found, ClosedError)
    else:
        assert found == []
    with pytest.raises(ClosedError):
        read.store.put("t", b"x")


def test_each_message_wakes_one_receive(read: Bench) -> None:
    """More of them wait than there are threads in a pool."""
    calls = [Running(lambda: WAITS["receive"](read.store, 60)) for _ in range(9)]
    until(lambda: waiting_count(read) > 0)
    for k in range(9):
        read.store.put("t", b"%d" % k, queue_id=0)
        read.turn()
    assert sorted(one.answer()[0] for one in calls) == [b"%d" % k for k in range(9)]
    assert read.store.receive("t", "g") == []


# --- cancelled tasks ---


async def _task(bench: Bench, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Start a task, and return it when it waits."""
    before = waiting_count(bench)
    task = asyncio.ensure_future(work)
    while waiting_count(bench) == before:
        await asyncio.sleep(0.0005)
    return task


def _began(
    store: Any, name: str, offset: int = 1
) -> Coroutine[Any, Any, list[Message | LeasedMessage]]:
    async def pull() -> list[Any]:
        return list((await store.pull("t", 0, offset, wait=60)).messages)

    async def poll() -> list[Any]:
        async with store.consumer("t", "reader") as consumer:
            return list(await consumer.poll(9, 60))

    async def loop() -> list[Any]:
        return [await anext(store.lease_consumer("t", "g", wait=60))]

    return {
        "receive": lambda: store.receive("t", "g", wait=60),
        "receive of topics": lambda: store.receive(["u", "t"], "g", wait=60),
        "pull": pull,
        "poll": poll,
        "loop over leases": loop,
    }[name]()  # type: ignore[no-any-return]


CANCELLED = ("receive", "receive of topics", "pull", "poll", "loop over leases")


@pytest.mark.parametrize("name", CANCELLED)
def test_cancelled_wait_ends_and_the_next_call_gets_the_message(read: Bench, name: str) -> None:
    async def body(store: Any) -> None:
        first = await _task(read, _began(store, name))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        while waiting_count(read):
            await asyncio.sleep(0.0005)
        second = await _task(read, _began(store, name))
        await store.put("t", b"new", queue_id=0)
        read.turn()
        (message,) = await asyncio.wait_for(second, 20)
        assert (message.body, getattr(message, "attempt", 1)) == (b"new", 1)
        until(lambda: waiting_count(read) == 0)

    run(body(read.store.one))


@pytest.mark.parametrize("has_waited", [True, False])
@pytest.mark.parametrize("name", CANCELLED)
def test_message_of_a_call_that_is_cancelled_as_it_gets_it_goes_to_the_next(
    read: Bench, name: str, has_waited: bool
) -> None:
    """At any turn of the loop. No attempt is used: no consumer saw it."""

    async def cancelled_after(turns: int, store: Any) -> list[Any]:
        if has_waited:
            first = await _task(read, _began(store, name, turns + 1))
        await store.put("t", b"%d" % turns, queue_id=0)
        read.turn()
        if not has_waited:
            first = asyncio.ensure_future(_began(store, name, turns + 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        if not first.cancelled():
            return list(first.result())
        second = asyncio.ensure_future(_began(store, name, turns + 1))
        while not second.done():
            read.turn()
            await asyncio.sleep(0.0005)
        return list(second.result())

    async def body(store: Any) -> None:
        for turns in range(8):
            (found,) = await cancelled_after(turns, store)
            assert (found.body, getattr(found, "attempt", 1)) == (b"%d" % turns, 1)
            if isinstance(found, LeasedMessage):
                await store.ack(found)
            while (await store.committed("t", "reader")) != {0: turns + 2}:
                async with store.consumer("t", "reader") as consumer:
                    await consumer.poll(99)
                    await consumer.commit()

    run(body(read.store.one))
