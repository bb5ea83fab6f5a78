"""Awaited puts: a plain put needs no pool thread, and one sync serves all waiting puts."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import small
from tests.support.inside import IDS_CAPACITY_MIN
from tests.unit.fastpath.aio_puts import (
    HOUR_S,
    SINGLE,
    Put,
    every,
    held_sync,
    on_loop,
    plain,
    with_store,
    without_pool,
)
from timerstore import PutReceipt, StoreConfig, TimerStore
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ClosedError, ConflictError


@every
def test_awaited_put_is_durable_when_it_returns(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        await put(store)
        log = store.blocking._log
        assert log.durable == log.end

    with_store(tmp_path, test)


@on_loop
def test_put_needs_no_thread_pool(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        await store.put("t", b"makes a table of ids", message_id="first")
        without_pool(store, monkeypatch)
        before = store.blocking._log.end
        await put(store)
        assert before < store.blocking._log.end == store.blocking._log.durable

    with_store(tmp_path, test)


@plain
def test_plain_put_needs_no_sync_when_flush_is_async(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        without_pool(store, monkeypatch)
        held = held_sync(store)
        await put(store)
        assert held.count == 0
        assert store.blocking._log.durable < store.blocking._log.end
        held.is_released.set()

    with_store(tmp_path, test, flush="async")


def test_put_needs_no_sync_when_it_has_flush_async(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        held = held_sync(store)
        await store.put("t", b"body", delay=HOUR_S, flush="async")
        assert held.count == 0
        held.is_released.set()

    with_store(tmp_path, test)


@pytest.mark.parametrize(
    "named",
    [
        lambda _: {},
        lambda _: {"tags": "paid"},
        lambda k: {"message_id": f"m{k}"},
        lambda k: {"key": f"k{k}", "replace": True},
        lambda k: {"level": 1, "message_id": f"m{k}"},
    ],
    ids=["plain", "tags", "message_id", "key", "level"],
)
def test_waiting_puts_share_one_sync(
    tmp_path: Path, named: Callable[[int], dict[str, Any]]
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        held = held_sync(store)
        first = asyncio.create_task(store.put("t", b"it syncs", tags="first"))
        await held.reached()
        end = store.blocking._log.end
        tasks = [asyncio.create_task(store.put("t", b"%d" % k, **named(k))) for k in range(100)]
        shared = store._puts.shared
        while sum(one.loop is not None for one in shared._waiting) < 100:
            await asyncio.sleep(0)
        assert held.count == 1
        assert not any(task.done() for task in (first, *tasks))
        held.is_released.set()
        await first
        receipts = await asyncio.gather(*tasks)
        assert held.count == 2
        assert len({one.log_offset for one in receipts}) == 100
        assert min(one.log_offset for one in receipts) >= end
        assert store.blocking._log.durable == store.blocking._log.end

    with_store(tmp_path, test)


def test_waiters_of_one_turn_share_the_first_sync(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        shared, log = store._puts.shared, store.blocking._log
        while shared._is_running:  # the first put's sync
            await asyncio.sleep(0)
        held = held_sync(store)
        held.is_released.set()
        ends = []
        while len(ends) < 100:
            if (begun := store.blocking._begin_put("t", b"body")) is not None:  # the lock was free
                ends.append(begun.log_offset + 1)
        waiters = [asyncio.ensure_future(shared.through(end)) for end in ends]
        await asyncio.sleep(0)
        assert not shared._is_running, "the thread would begin with the first of them"
        await asyncio.gather(*waiters)
        assert held.count == 1
        assert log.durable == log.end

    with_store(tmp_path, test)


@pytest.mark.parametrize("put", list(SINGLE.values()), ids=list(SINGLE))
def test_put_goes_to_the_pool_when_the_append_lock_is_taken(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        end = store.blocking._log.end
        with store.blocking._log.lock:  # the loop would raise ReentrantCallError if it waited
            putting = asyncio.ensure_future(put(store))
            await asyncio.sleep(0.01)
            assert not putting.done()
        assert (await putting).log_offset == end
        assert store.blocking._log.durable > end

    with_store(tmp_path, test)


def test_put_goes_to_the_pool_when_the_staging_is_full(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        receipts = [
            await store.put("t", bytes(1500), delay=HOUR_S, message_id=f"m{k}") for k in range(40)
        ]
        assert len({one.log_offset for one in receipts}) == 40
        assert not any(one.duplicate for one in receipts)

    with_store(tmp_path, test)


def test_put_goes_to_the_pool_when_more_ids_need_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*IDS_CAPACITY_MIN, 4)

    async def test(store: AsyncTimerStore) -> None:
        for k in range(20):
            assert not (await store.put("t", b"body", message_id=f"m{k}")).duplicate

    with_store(tmp_path, test)


# --- ids that were put before ---


async def make_table_of_ids(store: AsyncTimerStore) -> None:
    """Put the first id. It goes to the pool, so later puts of the same turn may overtake it."""
    await store.put("t", b"body", delay=HOUR_S, message_id="first")


def test_repeated_id_of_one_turn_waits_for_the_first_message(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        await make_table_of_ids(store)
        held = held_sync(store)
        tasks = [
            asyncio.create_task(store.put("t", b"body", delay=HOUR_S, message_id="7"))
            for _ in range(20)
        ]
        await held.reached()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        held.is_released.set()
        receipts = await asyncio.gather(*tasks)
        assert [one.duplicate for one in receipts] == [False] + [True] * 19
        assert len({one.handle for one in receipts}) == 1
        assert held.count <= 2

    with_store(tmp_path, test)


def test_repeated_id_is_durable_on_return_when_flush_is_async(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        first = await store.put("t", b"body", delay=HOUR_S, message_id="7")
        assert store.blocking._log.durable <= first.log_offset
        again = await store.put("t", b"body", delay=HOUR_S, message_id="7")
        assert (again.duplicate, again.handle) == (True, first.handle)
        assert store.blocking._log.durable > first.log_offset

    with_store(tmp_path, test, flush="async")


def test_repeated_id_with_other_contents_raises_in_its_own_task(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        await make_table_of_ids(store)
        tasks = [store.put("t", b"%d" % (k % 3), message_id="7") for k in range(9)]
        told = await asyncio.gather(*tasks, return_exceptions=True)
        for k, one in enumerate(told):
            if k % 3:
                assert isinstance(one, ConflictError)
            else:
                assert one.duplicate == (k > 0)

    with_store(tmp_path, test)


def test_put_of_a_subclass_is_called(tmp_path: Path) -> None:
    class Counting(TimerStore):
        count = 0

        def put(self, *given: Any, **named: Any) -> PutReceipt:
            self.count += 1
            return super().put(*given, **named)

    async def run() -> None:
        pool = ThreadPoolExecutor(1)
        blocking = Counting(tmp_path / "store", small(flush="sync"), threads=False)
        async with AsyncTimerStore(blocking, pool) as store:
            await store.put("t", b"body")
            await store.put("t", b"body", tags="paid")
        assert blocking.count == 2

    asyncio.run(run())


def test_put_does_not_wait_for_long_calls(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        until = threading.Event()
        long = [asyncio.create_task(store._run(until.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        await store.put("t", b"body", delay=HOUR_S)
        until.set()
        assert all(await asyncio.gather(*long))

    with_store(tmp_path, test)


@every
def test_close_waits_for_put(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        held = held_sync(store)
        putting = asyncio.ensure_future(put(store))
        await held.reached()
        closing = asyncio.create_task(store.close())
        while not store.blocking._blocked:
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await put(store)
        assert not putting.done()
        held.is_released.set()
        assert await putting
        await closing

    with_store(tmp_path, test)


@every
def test_put_that_is_cancelled_after_its_append_is_synced(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        log, held = store.blocking._log, held_sync(store)
        end = log.end
        putting = asyncio.ensure_future(put(store))
        await asyncio.sleep(0)
        while log.end == end:  # the loop has no turn, so that no answer of a thread comes first
            pass
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        held.is_released.set()
        await held.reached()

    with_store(tmp_path, test)


@plain
@pytest.mark.parametrize("is_shut", [False, True], ids=["closed", "closed and shut"])
def test_put_is_stored_when_closed_between_append_and_sync(
    tmp_path: Path, put: Put, *, is_shut: bool
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        shared = store._puts.shared
        begin = shared.through

        async def through(end: int) -> None:
            store.blocking.close()
            if is_shut:
                shared.shut()
            await begin(end)

        shared.through = through  # type: ignore[method-assign]
        assert await put(store)
        assert store.blocking._log.durable == store.blocking._log.end

    with_store(tmp_path, test)


def test_coroutine_of_puts_lets_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: AsyncTimerStore) -> None:
        without_pool(store, monkeypatch)
        turns, is_over = 0, False

        async def other() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(640):
            await store.put("t", b"body", delay=HOUR_S)
        is_over = True
        await task
        assert turns >= 10

    with_store(tmp_path, test, flush="async", make=StoreConfig)


@pytest.mark.parametrize("count", [1, 1024, 1025])
def test_lists_above_the_plain_limit_use_the_pool(tmp_path: Path, count: int) -> None:
    async def test(store: AsyncTimerStore) -> None:
        calls: list[object] = []
        run = store._puts._run

        async def counted(call: Callable[[], Any]) -> Any:
            calls.append(call)
            return await run(call)

        store._puts._run = counted
        batch = await store.put_many("t", [b"%d" % k for k in range(count)], delay=HOUR_S)
        assert len(batch) == count
        assert len(calls) == (count > 1024)
        assert store.blocking._log.durable == store.blocking._log.end

    with_store(tmp_path, test, make=StoreConfig)
