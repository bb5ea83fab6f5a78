"""Consumers for asyncio."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.inside import consumer_fetch
from tests.support.stepped_aio import Stepped, Test, stepped_store


def test_consumer_waits_without_thread(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        consumers = [await one.store.consumer("t", "h") for _ in range(2)]
        polls = {}
        for consumer in consumers:
            if 1 in consumer.queues:
                await consumer.poll()
            polls[consumer.queues] = asyncio.create_task(consumer.poll(wait=60.0))
        for _ in range(200):  # each has looked, in the pool, and sleeps
            if one.waiting_count == 2:
                break
            await asyncio.sleep(0.005)
        assert one.waiting_count == 2
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        assert [m.body for m in await polls[0,]] == [b"x"]
        assert (one.waiting_count, polls[1,].done()) == (1, False)
        one.clock.advance(60_000)
        assert await polls[1,] == []
        waiting = asyncio.create_task(consumers[0].poll(wait=60.0))
        await asyncio.sleep(0)
        await consumers[0].close()
        assert await waiting == []

    stepped(test)


def test_cancelled_poll_loses_no_message(stepped: Callable[[Test], None]) -> None:
    """At any step: asleep, woken, or while a thread fetches for it."""

    async def test(one: Stepped) -> None:
        consumer = await one.store.consumer("t", "g", queues=[0])
        for moment in range(12):
            task = asyncio.create_task(consumer.poll(wait=60.0))
            for _ in range(moment % 4):
                await asyncio.sleep(0)
            await one.store.put("t", b"%d" % moment, queue_id=0)
            one.stepper.settle()
            for _ in range(moment % 3):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            found = [] if task.cancelled() else task.result()
            if not found:
                found = await consumer.poll(wait=60.0)
            assert [m.body for m in found] == [b"%d" % moment]
            assert await consumer.commit() == {0: moment + 1}

    stepped(test)


def test_fetch_of_cancelled_poll_returns_no_message(
    stepped: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: Stepped) -> None:
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        consumer = await one.store.consumer("t", "g", queues=[0])
        in_fetch, go = threading.Event(), threading.Event()
        fetching = consumer_fetch(consumer.blocking)
        fetch = fetching.value

        def slow(*given: Any) -> Any:
            in_fetch.set()
            got = fetch(*given)
            assert go.wait(10)
            return got

        with monkeypatch.context() as patched:
            patched.setattr(*fetching, slow)
            task = asyncio.create_task(consumer.poll(wait=60.0))
            await asyncio.to_thread(in_fetch.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go.set()
        assert await consumer.commit() == {}
        assert [m.body for m in await consumer.poll()] == [b"x"]

    stepped(test)


def test_consumer_of_a_cancelled_caller_leaves_its_group(
    stepped: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it keeps its queues until it is collected, and nothing wakes the others then."""

    async def test(one: Stepped) -> None:
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        make, go = one.store.blocking.consumer, threading.Event()
        made: list[Any] = []

        def make_slowly(*given: Any, **named: Any) -> Any:
            made.append(make(*given, **named))
            go.wait(20)
            return made[0]

        with monkeypatch.context() as patched:
            patched.setattr(one.store.blocking, "consumer", make_slowly)
            making = asyncio.create_task(one.store.consumer("t", "g"))
            while not made:
                await asyncio.sleep(0.0005)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
        other = await one.store.consumer("t", "g")
        assert len(await other.poll()) == 1, "the first consumer has the other queue"
        waiting = asyncio.create_task(other.poll(wait=60.0))
        await asyncio.sleep(0.01)
        go.set()
        assert len(await asyncio.wait_for(waiting, 20)) == 1

    stepped(test)


def test_cancelled_close_of_a_consumer_is_completed(tmp_path: Path) -> None:
    """Also if its thread was busy; the other consumer of the group gets the queues."""

    async def run() -> None:
        async with stepped_store(tmp_path / "store", workers=1) as one:
            store = one.store
            await one.put(b"a")
            first, second = [await store.consumer("t", "g") for _ in range(2)]
            every = {*first.queues, *second.queues}
            is_released = threading.Event()
            store._pool.submit(is_released.wait, 30)
            closing = asyncio.create_task(first.close())
            for _ in range(3):
                await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            is_released.set()
            await store.topics()  # the thread makes calls in their order
            assert (set(first.queues), set(second.queues)) == (set(), every)

    asyncio.run(run())
