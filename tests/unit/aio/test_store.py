"""timerstore.aio: the same calls, awaited; pulls that wait have no thread."""

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import NOW, Bench, small
from tests.support.inside import aio_page_count, consumer_fetch, inside
from timerstore import (
    CancelResult,
    ClosedError,
    ConfigError,
    FailedError,
    ForkedError,
    LockedError,
    MessageError,
    PullResult,
    PullStatus,
    TimerStore,
)
from timerstore.aio import AsyncConsumer, AsyncTimerStore
from timerstore.testing import ManualClock, Stepper

NOT_AWAITED = {
    "services": "stepped by hand, through `blocking`",
    "begin_pull": "what an awaited pull is made of",
    "begin_pull_batch": "as begin_pull",
    "begin_poll": "what an awaited poll is made of",
    "begin_receive": "what an awaited receive is made of",
    "peek": "a part of it",
    "wake": "a part of it",
    "fetch": "a part of it",
    "hand_out": "a part of it",
    "take_buffered": "a part of it",
}


class Stepped:
    """An asyncio store on a clock turned by hand, its services stepped."""

    def __init__(self, store: AsyncTimerStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.stepper = Stepper(store.blocking)

    @property
    def holds(self) -> int:
        return inside(self.store.blocking).long_polls.count

    async def waiting(self, *args: Any, **given: Any) -> "asyncio.Task[Any]":
        """A pull that stands in the table."""
        before = self.holds
        task = asyncio.create_task(self.store.pull(*args, **given))
        await asyncio.sleep(0)  # it runs up to its wait
        assert self.holds == before + 1
        return task


Test = Callable[[Stepped], Awaitable[None]]


@pytest.fixture
def stepped(tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test on a store with an empty queue 0 of topic t."""

    async def run(test: Test) -> None:
        clock = ManualClock(NOW)
        async with timerstore.aio.open(tmp_path, small(), clock=clock, threads=False) as store:
            one = Stepped(store, clock)
            await store.put("t", b"makes the topic", queue_id=1)
            one.stepper.settle()
            await test(one)
            report = await store.verify()
            assert report.clean, report
            assert one.holds == 0, "a pull that nobody awaits is still held"

    return lambda test: asyncio.run(run(test))


def test_every_call_is_there_with_the_same_arguments() -> None:
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
    assert [*inspect.signature(timerstore.open).parameters, "workers"] == list(opened)


def test_calls(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        store = one.store
        first = await store.put("t", b"a", delay=10, queue_id=0)
        batch = await store.put_many("t", [b"b", b"c"], delay=20, queue_id=0)
        assert (await store.topics())["t"] == 2
        one.stepper.settle()
        assert [timer.due_ms - NOW async for timer in store.pending()] == [10_000, 20_000, 20_000]
        assert await store.cancel(batch[0]) is CancelResult.CANCELLED
        one.clock.advance(30_000)
        one.stepper.settle()
        page = await store.pull("t", 0, 0)
        assert [message.body for message in page.messages] == [b"a", b"c"]
        assert page.messages[0].message_id == first.message_id
        columns = await store.pull_batch("t", 0, 1)
        assert bytes(columns.bodies) == b"c"
        assert await store.offset_at("t", 0, NOW + 30_001) == 2
        assert await store.committed("t", "g") == {}
        await store.flush()
        assert (await store.stats())["pending_messages"] == 0
        assert store.config == store.blocking.config

    stepped(test)


def test_pending_comes_in_pages(stepped: Callable[[Test], None]) -> None:
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


# --- waiting --------------------------------------------------------------------------------------


def test_a_message_wakes_the_pulls_of_its_queue(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        mine = [await one.waiting("t", 0, 0, wait=60.0) for _ in range(3)]
        other = await one.waiting("t", 1, 1, wait=60.0)
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        for task in mine:
            assert [message.body for message in (await task).messages] == [b"x"]
        assert (one.holds, other.done()) == (1, False)
        assert (await one.store.stats())["pull_woken"] == 3
        one.clock.advance(60_000)
        assert (await other).status is PullStatus.OFFSET_OVERFLOW_ONE

    stepped(test)


def test_a_batch_waits_too(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        task = asyncio.create_task(one.store.pull_batch("t", 0, 0, wait=60.0, max_count=2))
        await asyncio.sleep(0)
        await one.store.put_many("t", [b"1", b"2", b"3"], queue_id=0)
        one.stepper.settle()
        assert bytes((await task).bodies) == b"12"

    stepped(test)


def test_what_is_there_or_wrong_is_answered_at_once(stepped: Callable[[Test], None]) -> None:
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


def test_time_is_over_by_the_machines_clock_too(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        result = await one.store.pull("t", 0, 0, wait=0.01)
        assert (result.status, result.next_offset) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0)

    stepped(test)


def test_cancelling_takes_the_hold_out(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        tasks = [await one.waiting("t", 0, 0, wait=60.0) for _ in range(3)]
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert one.holds == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.store.pull("t", 0, 0, wait=60.0), 0.01)
        assert one.holds == 2
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        for task in (tasks[0], tasks[2]):
            assert (await task).messages

    stepped(test)


def test_cancelled_after_it_was_woken_no_message_is_lost(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        task = await one.waiting("t", 0, 0, wait=60.0)
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()  # rung; the task has not run since
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [m.body for m in (await one.store.pull("t", 0, 0)).messages] == [b"x"]

    stepped(test)


def test_a_message_of_the_same_instant_is_not_slept_past(stepped: Callable[[Test], None]) -> None:
    """Whatever happens between the steps of the task and those of the store."""

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


# --- consumers ------------------------------------------------------------------------------------


def test_a_consumer_iterates_polls_commits_and_seeks(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        store = one.store
        for k in range(6):
            await store.put("t", b"%d" % k, queue_id=0)
        one.stepper.settle()
        async with store.consumer("t", "g", queues=[0], wait=0) as consumer:
            assert (consumer.topic, consumer.group, consumer.queues) == ("t", "g", (0,))
            assert "AsyncConsumer" in repr(consumer)
            seen = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 3:
                    assert await consumer.commit(message) == {0: 3}
            assert seen == [b"%d" % k for k in range(6)]
            assert await consumer.poll() == []
            assert await consumer.seek(4) == {0: 4}
            assert [m.body for m in await consumer.poll(1)] == [b"4"]
            assert [m.body for m in await consumer.poll(1)] == [b"5"]
            with pytest.raises(MessageError, match="max_count"):
                await consumer.poll(0)
            with pytest.raises(MessageError, match="wait"):
                await consumer.poll(1, True)
        with pytest.raises(ClosedError):
            await consumer.poll()
        assert [m async for m in consumer] == []
        await consumer.close()
        again = await store.consumer("t", "g", queues=[0])
        assert [m.body for m in await again.poll()] == [b"3", b"4", b"5"]
        assert await again.commit() == {0: 6}
        assert await store.committed("t", "g") == {0: 6}
        with pytest.raises(MessageError, match="group"):
            await store.consumer("t", "a@b")

    stepped(test)


def test_a_consumer_waits_without_a_thread(stepped: Callable[[Test], None]) -> None:
    async def test(one: Stepped) -> None:
        consumers = [await one.store.consumer("t", "h") for _ in range(2)]
        polls = {}
        for consumer in consumers:
            if 1 in consumer.queues:
                await consumer.poll()
            polls[consumer.queues] = asyncio.create_task(consumer.poll(wait=60.0))
        for _ in range(200):  # each has looked, in the pool, and sleeps
            if one.holds == 2:
                break
            await asyncio.sleep(0.005)
        assert one.holds == 2
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        assert [m.body for m in await polls[0,]] == [b"x"]
        assert (one.holds, polls[1,].done()) == (1, False)
        one.clock.advance(60_000)
        assert await polls[1,] == []
        waiting = asyncio.create_task(consumers[0].poll(wait=60.0))
        await asyncio.sleep(0)
        await consumers[0].close()
        assert await waiting == []

    stepped(test)


def test_a_poll_that_is_cancelled_takes_no_message(stepped: Callable[[Test], None]) -> None:
    """Wherever it is: asleep, rung, or while a thread fetches for it."""

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


def test_a_look_whose_poll_was_cancelled_hands_nothing_out(
    stepped: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: Stepped) -> None:
        await one.store.put("t", b"x", queue_id=0)
        one.stepper.settle()
        consumer = await one.store.consumer("t", "g", queues=[0])
        in_fetch, go = threading.Event(), threading.Event()
        fetching = consumer_fetch(consumer.blocking)
        fetch = fetching.value

        def slow(max_count: int) -> Any:
            in_fetch.set()
            got = fetch(max_count)
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


def test_close_answers_consumers_too(tmp_path: Path) -> None:
    async def main() -> None:
        store = await timerstore.aio.open(tmp_path, small())
        await store.put("t", b"x", flush="sync")
        consumers = [await store.consumer("t", f"g{k}") for k in range(5)]
        for consumer in consumers:
            assert len(await consumer.poll(wait=30.0)) == 1

        async def read(consumer: AsyncConsumer) -> list[bytes]:
            return [message.body async for message in consumer]

        tasks = [asyncio.create_task(read(consumer)) for consumer in consumers]
        polls = [asyncio.create_task(consumer.poll(wait=1e6)) for consumer in consumers]
        while inside(store.blocking).long_polls.count < len(consumers):
            await asyncio.sleep(0.001)
        await store.close()
        assert await asyncio.gather(*tasks, *polls) == [[]] * 10
        for consumer in consumers:
            await consumer.close()
            with pytest.raises(ClosedError):
                await consumer.poll()

    run(main())


# --- ends -----------------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_close_answers_those_who_wait_and_refuses_the_rest(tmp_path: Path) -> None:
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
        assert not [t for t in threading.enumerate() if t.name.startswith("timerstore")]

    run(main())


def test_close_ends_calls_that_have_all_threads_of_the_loop(tmp_path: Path) -> None:
    """It waited for one of those threads, and they for it."""

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

    run(main())


def test_a_close_that_was_given_up_is_through_when_the_loop_has_ended(
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

    run(main())
    monkeypatch.undo()
    timerstore.open(tmp_path, small()).close()


def test_a_store_that_fails_answers_those_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path, small()) as store:
            await store.put("t", b"x", flush="sync")
            assert (await store.pull("t", 0, 0, wait=30.0)).messages
            task = asyncio.create_task(store.pull("t", 0, 1, wait=1e6))
            await asyncio.sleep(0)
            inside(store.blocking).log.fail(FailedError("by a test"))
            with pytest.raises(FailedError):
                await task

    run(main())


def test_opening_fails_as_it_does_otherwise(tmp_path: Path) -> None:
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

    run(main())


def test_a_store_whose_opening_was_cancelled_is_closed(
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

    run(main())
    timerstore.open(tmp_path, small()).close()


def test_a_loop_that_ended_with_pulls_waiting_harms_nobody(tmp_path: Path) -> None:
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
