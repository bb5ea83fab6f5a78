"""Awaited puts whose sync fails, or that are cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import small
from tests.support.held_sync import PATIENCE_S
from tests.unit.fastpath.aio_puts import (
    Put,
    held_sync,
    plain,
    with_store,
)
from timerstore.aio import AsyncTimerStore
from timerstore.errors import FailedError


@plain
def test_failed_sync_raises_in_each_waiting_put(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        held = held_sync(store)
        held.error = FailedError("no such luck", where=store.blocking._log.segments.directory)
        tasks = [asyncio.ensure_future(put(store)) for _ in range(5)]
        held.is_released.set()
        for told in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(told, FailedError)
            assert "no such luck" in str(told)
        with pytest.raises(FailedError, match="no such luck"):
            await put(store)

    with_store(tmp_path, test)


def test_durable_put_does_not_raise_when_a_later_sync_fails(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        shared, log = store._puts.shared, store.blocking._log
        end = log.durable

        def sync(_offset: int) -> None:
            log.durable = end + 1
            raise FailedError("no such luck", where=log.segments.directory)

        store.blocking._sync_begun = sync  # type: ignore[method-assign]
        ends = (end + 1, end + 2)
        served, other = await asyncio.gather(*map(shared.through, ends), return_exceptions=True)
        assert served is None
        assert isinstance(other, FailedError)
        log.durable = end

    with_store(tmp_path, test)


def _raiser(error: BaseException) -> Callable[[Any], None]:
    def sync(_given: object) -> None:
        raise error

    return sync


def test_put_raises_error_of_the_store_when_closed_by_it(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        shared, log = store._puts.shared, store.blocking._log
        begin = shared.through

        async def through(end: int) -> None:
            log.fail(FailedError("no such luck", where=log.segments.directory))
            store.blocking.close()
            await begin(end)

        shared.through = through  # type: ignore[method-assign]
        with pytest.raises(FailedError, match="no such luck"):
            await store.put("t", b"body")

    with_store(tmp_path, test)


@pytest.mark.parametrize("named", [{}, {"tags": "paid"}], ids=["plain", "tags"])
def test_cancelled_put_is_made_durable(tmp_path: Path, named: dict[str, Any]) -> None:
    async def test(store: AsyncTimerStore) -> None:
        log = store.blocking._log
        end, synced = log.end, asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = store.blocking._engine.signals
        signals.durable.subscribe(lambda: loop.call_soon_threadsafe(synced.set))
        task = asyncio.create_task(store.put("t", b"not awaited", **named))
        while log.end == end:  # it is begun
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(synced.wait(), PATIENCE_S)
        assert log.durable == log.end

    with_store(tmp_path, test)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_next_put_retries_when_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        shared = store._puts.shared
        while shared._is_running:  # the first put's sync
            await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(shared._thread, "submit", _raiser(error()))
            try:
                await store.put("t", b"told")
            except error:
                pass
            else:
                pytest.fail("nobody was told")
        assert (await store.put("t", b"durable")).queue_offset == 2
        assert store.blocking._log.durable == store.blocking._log.end

    with_store(tmp_path, test)


def test_unexpected_sync_error_raises_in_all_waiting_puts_and_the_next_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: AsyncTimerStore) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(store._puts.shared, "_sync", _raiser(MemoryError()))
            puts = [store.put("t", b"%d" % k) for k in range(3)]
            for told in await asyncio.gather(*puts, return_exceptions=True):
                assert isinstance(told, MemoryError)
        assert (await store.put("t", b"durable")).queue_offset == 4

    with_store(tmp_path, test)


def test_store_stays_usable_when_event_loop_ends_during_put(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(
        _opened(timerstore.aio.open(tmp_path, small(flush="sync"), threads=False))
    )
    loop.run_until_complete(store.put("t", b"first"))
    held = held_sync(store)
    putting = loop.create_task(store.put("t", b"not awaited"))
    loop.run_until_complete(held.reached())
    putting.cancel()
    loop.run_until_complete(asyncio.gather(putting, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    held.is_released.set()

    async def goes_on() -> None:
        receipt = await store.put("t", b"another loop")
        assert receipt.queue_offset == 2
        await store.close()

    asyncio.run(goes_on())


def test_put_of_a_loop_that_is_closed_in_the_same_turn_blocks_no_other(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(
        _opened(timerstore.aio.open(tmp_path, small(flush="sync"), threads=False))
    )
    loop.run_until_complete(store.put("t", b"first"))
    end = store.blocking._log.end
    putting = loop.create_task(store.put("t", b"not awaited"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert store.blocking._log.end > end, "it is appended, and its turn has not ended"
    loop.close()
    del putting

    async def goes_on() -> None:
        receipt = await asyncio.wait_for(store.put("t", b"another loop"), PATIENCE_S)
        assert receipt.queue_offset == 2
        assert loop not in store._puts.shared._turns._turns
        await store.close()

    asyncio.run(goes_on())


async def _opened(opening: Awaitable[AsyncTimerStore]) -> AsyncTimerStore:
    return await opening
