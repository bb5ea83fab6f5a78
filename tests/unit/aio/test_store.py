"""The calls of a store as coroutines; waiting pulls use no thread."""

import asyncio
import inspect
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import NOW, Bench, small
from tests.support.inside import aio_page_count
from tests.support.stepped_aio import Stepped, Test
from timerstore import (
    ForkedError,
    MessageError,
    PullStatus,
    TimerStore,
)
from timerstore.aio import AsyncConsumer, AsyncTimerStore
from timerstore.aio.loop_waiters import LoopWaiters

NOT_AWAITED = {
    "services": "stepped by hand, through `blocking`",
    "begin_pull": "what an awaited pull is made of",
    "begin_pull_batch": "as begin_pull",
    "begin_poll": "what an awaited poll is made of",
    "begin_receive": "what an awaited receive is made of",
    "peek": "a part of it",
    "wake": "a part of it",
    "hand_out": "a part of it",
    "fetch_next": "a part of it",
    "take_buffered": "a part of it",
    "queues_in_turn": "of an ordered receive",
    "position": "of an ordered receive",
    "take_dropped": "a part of it",
    "block": "of an ordered receive",
    "is_at_end": "of an ordered receive",
    "unblock": "of an ordered receive",
}


def test_every_call_has_the_same_arguments() -> None:
    for name, method in inspect.getmembers(TimerStore, callable):
        if name.startswith("_") or name in NOT_AWAITED:
            continue
        awaited = getattr(AsyncTimerStore, name, None)
        assert awaited is not None, f"timerstore.aio has no {name}: one line gives it (aio.py)"
        parameters = inspect.signature(method).parameters.values()
        assert list(inspect.signature(awaited).parameters.values()) == list(parameters), name
    for name, method in inspect.getmembers(timerstore.Consumer, callable):
        if name.startswith("_") or name in NOT_AWAITED:
            continue
        parameters = inspect.signature(method).parameters.values()
        mine = inspect.signature(getattr(AsyncConsumer, name)).parameters.values()
        assert list(mine) == list(parameters), name
    opened = inspect.signature(timerstore.aio.open).parameters
    of_shared = {"shared", "return_leases"}
    stated = [one for one in inspect.signature(timerstore.open).parameters if one not in of_shared]
    assert [*stated, "workers"] == list(opened)


def test_pending_is_read_in_pages(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        count = 2 * aio_page_count()
        await one.store.put_many("t", [b"x"] * count, delay=range(1, count + 1))
        one.stepper.settle()
        dues = [timer.due_ms async for timer in one.store.pending()]
        assert dues == [NOW + 1000 * k for k in range(1, count + 1)]
        async for _timer in one.store.pending():
            break  # no more than that is asked for
        with pytest.raises(MessageError, match="begin_ms"):
            one.store.pending(begin_ms="now")  # type: ignore[arg-type]

    stepped(test)


def test_message_wakes_pulls_of_its_queue(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        mine = [await one.waiting("t", 0, 0, wait=60.0) for _ in range(3)]
        other = await one.waiting("t", 1, 1, wait=60.0)
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        for task in mine:
            assert [message.body for message in (await task).messages] == [b"x"]
        assert (one.waiting_count, other.done()) == (1, False)
        assert (await one.store.stats())["pull_woken"] == 3
        one.clock.advance(60_000)
        assert (await other).status is PullStatus.OFFSET_OVERFLOW_ONE

    stepped(test)


def test_wake_up_at_the_end_of_other_wake_ups_is_not_lost() -> None:
    """A thread wakes a task just after the loop saw that it has woken all others."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first, late = loop.create_future(), loop.create_future()
        waiters = LoopWaiters(loop, {}, lambda: None)

        class Raced(deque[Any]):
            def __len__(self) -> int:
                count = super().__len__()
                if not count and first.done() and not is_raced:
                    is_raced.append(True)
                    waiters.wake(late)
                return count

        is_raced: list[bool] = []
        waiters._woken = Raced()
        waiters.wake(first)
        await asyncio.wait_for(late, 10)
        assert is_raced

    asyncio.run(main())


def test_pull_returns_at_once_when_message_exists(
    stepped: Callable[[Test], None],
) -> None:
    async def test(one: Stepped) -> None:
        result = await one.store.pull("t", 1, 0, wait=60.0)
        assert [message.body for message in result.messages] == [b"makes the topic"]
        badly = await one.store.pull("t", 1, 9, wait=60.0)
        assert (badly.status, badly.next_offset) == (PullStatus.OFFSET_OVERFLOW_BADLY, 1)
        assert (await one.store.pull("t", 1, 1)).status is PullStatus.OFFSET_OVERFLOW_ONE
        with pytest.raises(MessageError, match="has 2 queues"):
            await one.store.pull("t", 2, 0, wait=60.0)
        with pytest.raises(MessageError, match="wait"):
            await one.store.pull("t", 0, 0, wait=-1)

    stepped(test)


def test_pull_times_out_when_clock_is_set_by_hand(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        result = await one.store.pull("t", 0, 0, wait=0.01)
        assert (result.status, result.next_offset) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0)

    stepped(test)


def test_pull_finds_message_that_arrives_before_it_sleeps(
    stepped: Callable[[Test], None],
) -> None:
    """For every order of the steps of the task and those of the store."""

    async def test(one: Stepped) -> None:
        for offset, order in enumerate(
            [("put", "dispatch", "flush", "pull"), ("put", "dispatch", "pull", "flush"),
             ("put", "flush", "pull", "dispatch"), ("put", "pull", "flush", "dispatch"),
             ("pull", "put", "flush", "dispatch"), ("pull", "put", "dispatch", "flush")]
        ):  # fmt: skip
            tasks = []
            for name in order:
                if name == "put":
                    one.store.blocking.put("t", b"now", queue_id=0)
                elif name == "pull":
                    pull = one.store.pull("t", 0, offset, wait=1e6)
                    tasks.append(asyncio.create_task(pull))
                    await asyncio.sleep(0)
                else:
                    one.stepper.step(name)
            result = await asyncio.wait_for(tasks[0], 30)
            assert [m.body for m in result.messages] == [b"now"], order
            one.stepper.settle()

    stepped(test)


async def _open(path: Path) -> AsyncTimerStore:
    store = await timerstore.aio.open(path, small())
    await store.put("t", b"x", flush="sync")
    assert (await store.pull("t", 0, 0, wait=30.0)).messages
    return store


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_hang(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.turn()

    async def main() -> None:
        store = AsyncTimerStore(bench.store, None)  # type: ignore[arg-type]
        for call in (store.put("t", b"y"), store.pull("t", 0, 1, wait=1.0)):
            with pytest.raises(ForkedError):
                await call

    child = os.fork()
    if child == 0:
        try:
            asyncio.run(main())
        except BaseException:  # noqa: BLE001 - the parent says so
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
