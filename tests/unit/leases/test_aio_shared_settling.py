"""Awaited ack, nack and extend: the calls of one turn of the loop share one sync."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import small
from tests.support.inside import inside
from tests.support.stepped_aio import stepped_store
from timerstore import AckResult, FailedError, LeasedMessage, LeaseLostError, MessageError
from timerstore._engine.leases.leases import Leases
from timerstore.aio import AsyncTimerStore
from timerstore.errors import ClosedError
from timerstore.testing import ManualClock, Stepper

COUNT = 30


def with_leases(
    tmp_path: Path,
    test: Callable[[AsyncTimerStore, list[LeasedMessage], ManualClock], Awaitable[None]],
    flush: str = "sync",
) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path / "store", flush=flush) as one:
            await one.put(*(b"%d" % k for k in range(COUNT)))
            leased = await one.store.receive("t", "g", max_count=COUNT, lease=10)
            assert len(leased) == COUNT
            await test(one.store, leased, one.clock)

    asyncio.run(run())


def count_syncs(store: AsyncTimerStore) -> list[int]:
    found: list[int] = []
    inside(store.blocking).signals.synced.subscribe(found.append)
    return found


@pytest.mark.parametrize("kind", ["ack", "nack", "bury", "extend", "renew"])
def test_calls_of_a_turn_are_durable_when_the_first_was_synced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Another thread may sync between two calls of a turn."""
    real = Leases._answer

    def answer(self: Leases, *given: Any) -> Any:
        found = real(self, *given)
        if self._log.durable == durable:
            self._log.sync_through(self._log.end)
        return found

    async def test(store: AsyncTimerStore, leased: list[LeasedMessage], clock: ManualClock) -> None:
        nonlocal durable
        log = inside(store.blocking).log
        durable = log.durable
        monkeypatch.setattr(Leases, "_answer", answer)
        await asyncio.gather(*(getattr(store, kind)(one) for one in leased[:2]))
        assert log.durable == log.end

    durable = 0
    with_leases(tmp_path, test)


def test_calls_of_one_turn_share_one_sync_and_get_their_own_answers(tmp_path: Path) -> None:
    async def test(store: AsyncTimerStore, leased: list[LeasedMessage], clock: ManualClock) -> None:
        syncs = count_syncs(store)
        calls: list[Awaitable[Any]] = [store.ack(one) for one in leased[:10]]
        calls += [store.nack(one, delay=5) for one in leased[10:20]]
        calls += [store.extend(one.receipt, lease=60) for one in leased[20:]]
        calls += [store.ack(leased[0]), store.nack(leased[1]), store.extend(leased[2])]
        calls += [store.ack("no receipt"), store.nack(leased[0], delay="soon")]  # type: ignore[arg-type]
        calls += [store.extend(leased[0], lease=-1)]
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert len(syncs) == 1
        log = inside(store.blocking).log
        assert log.durable == log.end
        assert told[:10] == [AckResult.ACKED] * 10
        assert told[10:20] == [AckResult.NACKED] * 10
        longer, others = told[20:COUNT], told[COUNT:]
        assert all(type(one) is str for one in longer)
        assert others[:2] == [AckResult.SETTLED] * 2
        assert isinstance(others[2], LeaseLostError)
        assert [type(one) for one in others[3:]] == [MessageError] * 3
        assert "delay" in str(others[4])
        assert "lease" in str(others[5])
        clock.advance(20_000)
        Stepper(store.blocking).settle()
        again = await store.receive("t", "g", max_count=COUNT)
        assert sorted(int(one.body) for one in again) == list(range(10, 20))
        assert await store.ack_many(longer) == [AckResult.ACKED] * 10

    with_leases(tmp_path, test)


def test_calls_of_one_turn_are_made_in_their_order(tmp_path: Path) -> None:
    async def test(
        store: AsyncTimerStore, leased: list[LeasedMessage], _clock: ManualClock
    ) -> None:
        one = leased[0]
        first, second, third = await asyncio.gather(
            store.nack(one, delay=0), store.ack(one), store.ack(leased[1])
        )
        assert (first, second, third) == (AckResult.NACKED, AckResult.SETTLED, AckResult.ACKED)

    with_leases(tmp_path, test)


def test_acks_need_no_sync_when_flush_is_async(tmp_path: Path) -> None:
    async def test(
        store: AsyncTimerStore, leased: list[LeasedMessage], _clock: ManualClock
    ) -> None:
        syncs = count_syncs(store)
        acks = asyncio.gather(*map(store.ack, leased[:10]))
        assert set(await acks) == {AckResult.ACKED}
        assert not syncs
        told = await asyncio.gather(store.ack(leased[10]), *map(store.nack, leased[11:20]))
        assert set(told) == {AckResult.ACKED, AckResult.NACKED}
        assert len(syncs) == 1, "a nack is durable in any case"

    with_leases(tmp_path, test, flush="async")


def test_failed_sync_raises_in_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(
        store: AsyncTimerStore, leased: list[LeasedMessage], _clock: ManualClock
    ) -> None:
        segments = inside(store.blocking).log.segments

        def fail() -> None:
            raise FailedError("no such luck", where=segments.directory)

        monkeypatch.setattr(segments, "sync", fail)
        calls = [store.ack(leased[0]), store.nack(leased[1]), store.extend(leased[2])]
        for told in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(told, FailedError)
            assert "no such luck" in str(told)
        with pytest.raises(FailedError):
            await store.ack(leased[3])

    with_leases(tmp_path, test)


@pytest.mark.parametrize("is_shut", [False, True], ids=["closed", "closed and shut"])
def test_call_raises_when_the_store_closes_in_the_same_turn(
    tmp_path: Path, *, is_shut: bool
) -> None:
    async def test(
        store: AsyncTimerStore, leased: list[LeasedMessage], _clock: ManualClock
    ) -> None:
        tasks = [asyncio.create_task(store.ack(one)) for one in leased[:3]]
        close = store._close if is_shut else store.blocking.close
        asyncio.get_running_loop().call_soon(close)  # before the turn's calls
        for told in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(told, ClosedError)
        with pytest.raises(ClosedError):
            await store.ack(leased[0])

    with_leases(tmp_path, test)


def test_two_loops_settle_their_own_messages(tmp_path: Path) -> None:
    async def begin() -> tuple[AsyncTimerStore, list[LeasedMessage]]:
        store = await timerstore.aio.open(tmp_path / "store", small(flush="sync"), threads=False)
        await store.put_many("t", [b"a", b"b"])
        Stepper(store.blocking).settle()
        return store, await store.receive("t", "g", max_count=2)

    async def settle(store: AsyncTimerStore, message: LeasedMessage) -> AckResult:
        return await store.ack(message)

    store, (a, b) = asyncio.run(begin())
    dropped = asyncio.new_event_loop()
    coroutine = store.ack(a)
    dropped.call_soon(lambda: None)
    task = dropped.create_task(coroutine)
    dropped.call_soon(dropped.stop)
    dropped.run_forever()  # the call is gathered, and its loop ends before the turn does
    task.cancel()
    dropped.run_until_complete(asyncio.gather(task, return_exceptions=True))
    dropped.run_until_complete(dropped.shutdown_default_executor())
    dropped.close()
    wait(list(store._lease_calls.running))  # the first call; otherwise the third may overtake it
    assert asyncio.run(settle(store, b)) is AckResult.ACKED
    assert asyncio.run(settle(store, a)) is AckResult.SETTLED
    asyncio.run(store.close())
