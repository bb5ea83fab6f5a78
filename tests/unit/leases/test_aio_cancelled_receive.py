"""An awaited receive that is cancelled while it leases: the next receive gets the message."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import NOW, small
from timerstore import AckResult, MessageError
from timerstore._engine.base import failpoints
from timerstore.aio import AsyncTimerStore
from timerstore.net.fair_pool import FairPool, PoolClient, pool_client
from timerstore.testing import ManualClock, Stepper

LEASED = "receive_answered"
"""Reached in the pool when the leases are durable, before the caller gets them."""


@asynccontextmanager
async def opened(
    path: Path, clock: ManualClock | None = None
) -> AsyncIterator[tuple[AsyncTimerStore, Stepper]]:
    clock = ManualClock(NOW) if clock is None else clock
    # One thread: a later call begins when the cancelled look has ended.
    async with timerstore.aio.open(path, small(), clock=clock, threads=False, workers=1) as store:
        yield store, Stepper(store.blocking)


async def cancelled_as_it_leases(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], Awaitable[Any]]
) -> None:
    """Cancel a task when it has leased in the pool and its event loop has not been notified."""
    loop, is_cancelled = asyncio.get_running_loop(), threading.Event()
    task: asyncio.Task[Any] = asyncio.ensure_future(begin())  # type: ignore[arg-type]

    def cancel() -> None:
        task.cancel()
        loop.call_soon(is_cancelled.set)  # behind what the cancelled task does

    def hook(name: str) -> None:
        if name == LEASED and not is_cancelled.is_set():
            loop.call_soon_threadsafe(cancel)
            assert is_cancelled.wait(30)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert is_cancelled.is_set(), "it was cancelled before it leased"


@pytest.mark.parametrize("attempts", [1, 16])
def test_message_of_a_cancelled_receive_is_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            await store.put_many("t", [b"a", b"b", b"c"])
            stepper.settle()

            def receive(**asked: Any) -> Awaitable[list[timerstore.LeasedMessage]]:
                return store.receive("t", "g", max_attempts=attempts, **asked)

            await cancelled_as_it_leases(monkeypatch, lambda: receive(lease=600, max_count=2))
            assert await store.receive("t", "other") != []
            found = await receive(max_count=9, lease=5)
            assert [one.body for one in found] == [b"a", b"b", b"c"]
            assert {one.attempt for one in found} == {1}
            assert {one.lease_until_ms for one in found} == {NOW + 5000}
            assert {one.is_last_attempt for one in found} == {attempts == 1}
            assert await receive() == []
            assert await store.ack_many(found) == [AckResult.ACKED] * 3
            assert (await store.stats())["pending_messages"] == 1  # of the other group

    asyncio.run(run())


def test_message_of_a_cancelled_receive_wakes_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            waiting: list[asyncio.Task[list[timerstore.LeasedMessage]]] = []

            async def first() -> None:
                first = asyncio.ensure_future(store.receive("t", "g", wait=1000))
                await store.put("t", b"a")
                for _ in range(3):  # until both wait
                    waiting.append(asyncio.ensure_future(store.receive("t", "g", wait=1000)))
                    await store.stats()
                stepper.settle()
                try:
                    await first
                except asyncio.CancelledError:
                    first.cancel()
                    raise

            await cancelled_as_it_leases(monkeypatch, first)
            await store.stats()  # after the message was given back: the pool has one thread
            stepper.settle()
            done, left = await asyncio.wait(waiting, timeout=30, return_when="FIRST_COMPLETED")
            [message] = [message for one in done for message in one.result()]
            assert (message.body, message.attempt) == (b"a", 1)
            for one in left:
                one.cancel()

    asyncio.run(run())


def test_message_of_a_cancelled_loop_is_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            await store.put("t", b"a")
            stepper.settle()
            consumer = store.lease_consumer("t", "g", lease=600, wait=0)
            await cancelled_as_it_leases(monkeypatch, lambda: anext(consumer))
            assert [one.body async for one in consumer] == [b"a"]

    asyncio.run(run())


def test_message_of_a_receive_that_timed_out_is_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            await store.put("t", b"a")
            stepper.settle()
            await cancelled_as_it_leases(
                monkeypatch, lambda: asyncio.wait_for(store.receive("t", "g", lease=600), 3600)
            )
            assert [one.body for one in await store.receive("t", "g")] == [b"a"]

    asyncio.run(run())


@pytest.mark.parametrize("attempts", [1, 16])
def test_message_of_a_cancelled_receive_outlives_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        async with opened(tmp_path, clock) as (store, stepper):
            await store.put("t", b"a")
            stepper.settle()
            terms: dict[str, Any] = {"lease": 5, "max_attempts": attempts}
            await cancelled_as_it_leases(monkeypatch, lambda: store.receive("t", "g", **terms))
            await store.stats()  # after the message was given back: the pool has one thread
            clock.set(NOW + 6000)
            stepper.settle()
            [message] = await store.receive("t", "g", **terms)
            assert (message.body, message.attempt) == (b"a", 1)
            assert await store.receive("t", "g") == []

    asyncio.run(run())


@pytest.mark.parametrize("attempts", [1, 16])
def test_message_of_a_cancelled_receive_is_given_back_at_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    async def run() -> None:
        terms: dict[str, Any] = {"lease": 600, "max_attempts": attempts}
        async with opened(tmp_path) as (store, stepper):
            await store.put("t", b"a")
            stepper.settle()
            await cancelled_as_it_leases(monkeypatch, lambda: store.receive("t", "g", **terms))
        async with opened(tmp_path) as (store, stepper):
            stepper.settle()
            [message] = await store.receive("t", "g", **terms)
            assert (message.body, message.attempt) == (b"a", 1)
            assert [one async for one in store.dead_letters("g")] == []

    asyncio.run(run())


def test_store_that_is_closed_gives_back_what_no_task_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is closed after the pool has leased a message, before its task runs again."""

    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            await store.put("t", b"a")
            stepper.settle()
            leased = asyncio.Event()
            loop = asyncio.get_running_loop()

            def close_in_this_turn() -> None:
                store.blocking.close()
                leased.set()

            def hook(name: str) -> None:
                if name == LEASED:  # before the loop hears of the message
                    loop.call_soon_threadsafe(close_in_this_turn)

            with monkeypatch.context() as patched:
                patched.setattr(failpoints, "hook", hook)
                assert await store.receive("t", "g", max_attempts=1) == []
            await leased.wait()
        async with opened(tmp_path) as (store, stepper):
            stepper.settle()
            [message] = await store.receive("t", "g", max_attempts=1)
            assert (message.body, message.attempt) == (b"a", 1)

    asyncio.run(run())


def test_message_of_a_cancelled_receive_is_for_any_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as (store, stepper):
            await store.put("t", b"a", tags="x")
            stepper.settle()
            await cancelled_as_it_leases(
                monkeypatch, lambda: store.receive("t", "g", tags="x", lease=600)
            )
            assert [one.body for one in await store.receive("t", "g", tags="y")] == [b"a"]
            with pytest.raises(MessageError):
                await store.receive("t", "g", lease=0)

    asyncio.run(run())


class _RecordedPool(FairPool):
    """Keeps the futures of its jobs."""

    def __init__(self, workers: int, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(workers, name, loop)
        self.jobs: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        self.jobs.append(super().submit(call, *args, **named))
        return self.jobs[-1]


def test_message_is_given_back_although_its_client_may_begin_no_job(tmp_path: Path) -> None:
    """A client of a server that takes no answers must not keep messages from others."""

    async def run() -> None:
        pool, client = _RecordedPool(1, "pool", asyncio.get_running_loop()), PoolClient(None)
        store = AsyncTimerStore(blocking, pool)

        async def receive() -> list[timerstore.LeasedMessage]:
            pool_client.set(client)
            return await store.receive("t", "g")

        task = asyncio.create_task(receive())
        while not pool.jobs:
            await asyncio.sleep(0)
        pool.jobs[0].result(30)  # it has leased, and the loop has made no turn since
        pool.pause(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [one.body for one in await store.receive("t", "g")] == [b"a"]
        store.detach()

    clock = ManualClock(NOW)
    with timerstore.open(tmp_path, small(), clock=clock, threads=False) as blocking:
        blocking.put("t", b"a")
        Stepper(blocking).settle()
        asyncio.run(run())
