"""Opening and closing a store for asyncio, and the end of its loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import small
from tests.support.inside import inside
from timerstore import (
    ClosedError,
    ConfigError,
    FailedError,
    LockedError,
    PullResult,
    PullStatus,
    TimerStore,
)
from timerstore.aio import AsyncTimerStore


def test_close_wakes_waiters_and_rejects_calls(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # of clients of earlier tests that give something back

    async def main() -> None:
        store = await timerstore.aio.open(tmp_path, small())
        await store.put("t", b"x", flush="sync")
        assert (await store.pull("t", 0, 0, wait=30.0)).messages
        tasks = [asyncio.create_task(store.pull("t", 0, 1, wait=1e6)) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.gather(store.close(), store.close())
        for task in tasks:
            result = await task
            assert (result.status, result.next_offset) == (PullStatus.OFFSET_OVERFLOW_ONE, 1)
        for call in (store.put("t", b"y"), store.pull("t", 0, 0), store.pull("t", 0, 1, wait=1.0)):
            with pytest.raises(ClosedError):
                await call
        for begin in (store.pending, partial(store.lease_consumer, "t", "g")):
            with pytest.raises(ClosedError):
                begin()
        await store.close()
        assert "closed" in repr(store)
        left = set(threading.enumerate()) - others
        assert not [one for one in left if one.name.startswith("timerstore")]

    asyncio.run(main())


def test_close_ends_calls_when_they_use_all_threads(tmp_path: Path) -> None:
    """The close used to wait for one of these threads, and they for the close."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        store = await timerstore.aio.open(tmp_path, small())
        await store.put("t", b"x", flush="sync")
        pull = partial(store.blocking.pull, "t", 0, 1, wait=30.0)
        tasks = [asyncio.create_task(asyncio.to_thread(pull)) for _ in range(4)]
        while inside(store.blocking).long_polls.count < 2:
            await asyncio.sleep(0.001)
        await asyncio.wait_for(store.close(), 10)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in answers] == [*[PullResult] * 2, *[ClosedError] * 2]

    asyncio.run(main())


def test_cancelled_close_is_completed_when_loop_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, began, given_up = TimerStore.close, threading.Event(), threading.Event()

    def slow(self: TimerStore) -> None:
        began.set()
        assert given_up.wait(10)
        real(self)

    async def main() -> None:
        store = await timerstore.aio.open(tmp_path, small())
        monkeypatch.setattr(TimerStore, "close", slow)
        closing = asyncio.create_task(store.close())
        await asyncio.to_thread(began.wait, 10)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        given_up.set()

    asyncio.run(main())
    monkeypatch.undo()
    timerstore.open(tmp_path, small()).close()


def test_waiters_get_error_when_store_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path, small()) as store:
            await store.put("t", b"x", flush="sync")
            assert (await store.pull("t", 0, 0, wait=30.0)).messages
            task = asyncio.create_task(store.pull("t", 0, 1, wait=1e6))
            await asyncio.sleep(0)
            inside(store.blocking).log.fail(FailedError("by a test"))
            with pytest.raises(FailedError):
                await task

    asyncio.run(main())


def test_open_raises_errors_of_blocking_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path, small()):
            with pytest.raises(LockedError):
                await timerstore.aio.open(tmp_path, small())
        for workers in (0, 65, True, None, 1.5):
            with pytest.raises(ConfigError, match="workers"):
                timerstore.aio.open(tmp_path, small(), workers=workers)  # type: ignore[arg-type]
        for workers in (1, 64):
            async with timerstore.aio.open(tmp_path, small(), workers=workers) as store:
                await store.put("t", b"x")

    asyncio.run(main())


def test_store_is_closed_when_opening_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    real_open, real_close = timerstore.open, TimerStore.close

    def slow_open(*args: Any, **given: Any) -> TimerStore:
        began.set()
        assert go_on.wait(10)
        return real_open(*args, **given)

    def noted_close(self: TimerStore) -> None:
        real_close(self)
        closed.set()

    monkeypatch.setattr("timerstore.aio.blocking_store.open", slow_open)
    monkeypatch.setattr(TimerStore, "close", noted_close)

    async def opened() -> AsyncTimerStore:
        return await timerstore.aio.open(tmp_path, small())

    async def main() -> None:
        task = asyncio.create_task(opened())
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 10)

    asyncio.run(main())
    timerstore.open(tmp_path, small()).close()


async def _open(path: Path) -> AsyncTimerStore:
    store = await timerstore.aio.open(path, small())
    await store.put("t", b"x", flush="sync")
    assert (await store.pull("t", 0, 0, wait=30.0)).messages
    return store


def test_store_works_after_loop_ended_with_waiting_pulls(tmp_path: Path) -> None:
    store = asyncio.run(_open(tmp_path))
    loop = asyncio.new_event_loop()
    left = loop.create_task(store.pull("t", 0, 1, wait=1e6))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def main() -> None:
        await store.put("t", b"y")
        result = await store.pull("t", 0, 1, wait=30.0)
        assert [message.body for message in result.messages] == [b"y"]
        await store.close()

    asyncio.run(main())
    loop.set_exception_handler(lambda _loop, _context: None)  # it cannot end any more
    left.get_coro().close()  # type: ignore[union-attr]
