"""Awaited puts: a plain put needs no pool thread, and one sync serves all waiting puts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import timerstore.aio
from tests.support.bench import NOW, small
from timerstore import StoreConfig
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ClosedError, FailedError, MessageError
from timerstore.testing import ManualClock, Stepper

PATIENCE_S = 30.0
HOUR_S = 3600
Put = Callable[[AsyncTimerStore], Awaitable[Any]]
PLAIN: dict[str, Put] = {
    "put": lambda store: store.put("t", b"body", delay=HOUR_S),
    "put now": lambda store: store.put("t", b"body"),
    "put_many": lambda store: store.put_many("t", [b"one", b"two"], delay=HOUR_S),
}
OTHER: dict[str, Put] = {
    "tags": lambda store: store.put("t", b"body", delay=HOUR_S, tags="paid"),
    "flush": lambda store: store.put("t", b"body", delay=HOUR_S, flush="sync"),
    "message_id": lambda store: store.put("t", b"body", delay=HOUR_S, message_id="7"),
    "key": lambda store: store.put("t", b"body", delay=HOUR_S, key="k", replace=True),
    "tuple": lambda store: store.put_many("t", (b"one", b"two"), delay=HOUR_S),
}
plain = pytest.mark.parametrize("put", list(PLAIN.values()), ids=list(PLAIN))
other = pytest.mark.parametrize("put", list(OTHER.values()), ids=list(OTHER))
every = pytest.mark.parametrize("put", [*PLAIN.values(), *OTHER.values()], ids=[*PLAIN, *OTHER])


class Gate:
    """A replacement of the segments' sync that waits, counts, or fails."""

    def __init__(self, store: AsyncTimerStore) -> None:
        self._segments = store.blocking._log.segments
        self._sync = self._segments.sync
        self.count = 0
        self.reached, self.opened = threading.Event(), threading.Event()
        self.error: FailedError | None = None
        self._segments.sync = self.sync  # type: ignore[method-assign]

    def sync(self) -> None:
        self.count += 1
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self._sync()

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE_S)


def with_store(
    tmp_path: Path,
    test: Callable[[AsyncTimerStore], Awaitable[None]],
    flush: str = "sync",
    make: Callable[..., StoreConfig] = small,
) -> None:
    async def run() -> None:
        config = make(flush=flush, dedupe_window_ms=60_000)
        async with timerstore.aio.open(tmp_path / "store", config, threads=False) as store:
            await store.put("t", b"first")
            await test(store)

    asyncio.run(run())


def without_pool(store: AsyncTimerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_call: object) -> NoReturn:
        raise AssertionError("it went to the pool")

    monkeypatch.setattr(store._puts, "_run", never)


@every
def test_awaited_put_is_durable_when_it_returns(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        await put(store)
        log = store.blocking._log
        assert log.durable == log.end

    with_store(tmp_path, test)


@plain
def test_plain_put_needs_no_thread_pool(
    tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: AsyncTimerStore) -> None:
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
        gate = Gate(store)
        await put(store)
        assert gate.count == 0
        assert store.blocking._log.durable < store.blocking._log.end
        gate.opened.set()

    with_store(tmp_path, test, flush="async")


def test_put_needs_no_sync_when_it_has_flush_async(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        gate = Gate(store)
        await store.put("t", b"body", delay=HOUR_S, flush="async")
        assert gate.count == 0
        gate.opened.set()

    with_store(tmp_path, test)


@pytest.mark.parametrize("named", [{}, {"tags": "paid"}], ids=["plain", "tags"])
def test_waiting_puts_share_one_sync(tmp_path: Path, named: dict[str, Any]) -> None:
    async def test(store: AsyncTimerStore) -> None:
        gate = Gate(store)
        first = asyncio.create_task(store.put("t", b"it syncs", delay=HOUR_S, **named))
        await gate.is_reached()
        end = store.blocking._log.end
        tasks = [
            asyncio.create_task(store.put("t", b"%d" % k, delay=HOUR_S, **named))
            for k in range(100)
        ]
        shared = store._puts.shared
        while sum(one.future is not None for one in shared._waiting) < 100:
            await asyncio.sleep(0)
        assert gate.count == 1
        assert not any(task.done() for task in (first, *tasks))
        gate.opened.set()
        await first
        receipts = await asyncio.gather(*tasks)
        assert gate.count == 2
        assert len({one.log_offset for one in receipts}) == 100
        assert min(one.log_offset for one in receipts) >= end
        assert store.blocking._log.durable == store.blocking._log.end

    with_store(tmp_path, test)


def test_put_does_not_wait_for_long_calls(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        until = threading.Event()
        long = [asyncio.create_task(store._run(until.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        await store.put("t", b"body", delay=HOUR_S)
        until.set()
        assert all(await asyncio.gather(*long))

    with_store(tmp_path, test)


@plain
def test_failed_sync_raises_in_each_waiting_put(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        gate = Gate(store)
        gate.error = FailedError("no such luck", where=store.blocking._log.segments.directory)
        tasks = [asyncio.ensure_future(put(store)) for _ in range(5)]
        gate.opened.set()
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


@every
def test_close_waits_for_put(tmp_path: Path, put: Put) -> None:
    async def test(store: AsyncTimerStore) -> None:
        gate = Gate(store)
        putting = asyncio.ensure_future(put(store))
        await gate.is_reached()
        closing = asyncio.create_task(store.close())
        while not store.blocking._blocked:
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await put(store)
        assert not putting.done()
        gate.opened.set()
        assert await putting
        await closing

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


def test_cancelled_task_does_not_cancel_other_puts(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        gate = Gate(store)
        tasks = [asyncio.create_task(store.put("t", b"%d" % k)) for k in range(3)]
        await gate.is_reached()
        tasks[1].cancel()
        gate.opened.set()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(told[1], asyncio.CancelledError)
        assert told[0].queue_offset == 1
        assert told[2].queue_offset == 3, "one that was begun is carried out all the same"

    with_store(tmp_path, test)


@pytest.mark.parametrize("named", [{}, {"tags": "paid"}], ids=["plain", "tags"])
def test_cancelled_put_is_made_durable(tmp_path: Path, named: dict[str, Any]) -> None:
    async def test(store: AsyncTimerStore) -> None:
        log = store.blocking._log
        end, synced = log.end, asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = store.blocking._engine.signals
        signals.durable.subscribe(lambda: loop.call_soon_threadsafe(synced.set))
        task = asyncio.create_task(store.put("t", b"nobody awaits it", **named))
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
    gate = Gate(store)
    putting = loop.create_task(store.put("t", b"nobody awaits it"))
    loop.run_until_complete(gate.is_reached())
    putting.cancel()
    loop.run_until_complete(asyncio.gather(putting, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.opened.set()

    async def goes_on() -> None:
        receipt = await store.put("t", b"another loop")
        assert receipt.queue_offset == 2
        await store.close()

    asyncio.run(goes_on())


async def _opened(opening: Awaitable[AsyncTimerStore]) -> AsyncTimerStore:
    return await opening


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


def test_invalid_arguments_raise_the_usual_errors(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore) -> None:
        end = store.blocking._log.end
        with pytest.raises(MessageError, match="flush: wanted 'sync' or 'async', got 'never'"):
            await store.put("t", b"body", flush="never")
        with pytest.raises(MessageError, match="body"):
            await store.put("t", "text")  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="deliver_ms"):
            await store.put("t", b"body", deliver_ms="soon")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await store.put("t")  # type: ignore[call-arg]
        with pytest.raises(MessageError, match="bodies"):
            await store.put_many("t", [b"one", 2])
        assert store.blocking._log.end == end

    with_store(tmp_path, test)


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


def test_put_works_on_a_manual_clock(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock(NOW)
        opening = timerstore.aio.open(tmp_path, small(flush="sync"), clock=clock, threads=False)
        async with opening as store:
            assert (await store.put("t", b"body", delay=1)).due_ms == NOW + 1000
            clock.advance(1000)
            Stepper(store.blocking).settle()
            assert (await store.pull("t", 0, 0)).messages[0].body == b"body"

    asyncio.run(run())
