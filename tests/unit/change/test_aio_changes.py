"""Awaited cancel, reschedule and bury: the calls of one turn of the loop are made together."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.inside import inside
from tests.support.stepped_aio import Stepped, Test, stepped_store
from timerstore import (
    AckResult,
    CancelResult,
    FailedError,
    MessageError,
    NotPendingError,
    PutReceipt,
)
from timerstore.errors import ClosedError


def run(tmp_path: Path, test: Test) -> None:
    async def opened() -> None:
        async with stepped_store(tmp_path / "store", flush="sync") as one:
            await test(one)

    asyncio.run(opened())


async def bodies(one: Stepped, count: int) -> list[bytes]:
    one.stepper.settle()
    found = await one.store.receive("t", "g", max_count=count, lease=600)
    return [each.body for each in found]


def test_each_call_of_a_turn_gets_its_own_answer_or_error(tmp_path: Path) -> None:
    async def test(one: Stepped) -> None:
        store = one.store
        a, b, c, _d = list(await store.put_many("t", [b"a", b"b", b"c", b"d"], delay=60))
        now = await store.put("t", b"now")
        told: list[Any] = await asyncio.gather(
            store.cancel(a),
            store.cancel("no handle"),
            store.cancel(a.handle),
            store.reschedule(b, delay=0),
            store.reschedule(a, delay=5),
            store.reschedule(c),
            store.reschedule(c, delay=600),
            store.cancel(c),
            store.cancel(now),
            store.reschedule(now, delay=5),
            return_exceptions=True,
        )
        assert told[0] is CancelResult.CANCELLED
        assert isinstance(told[1], MessageError)
        assert told[2] is CancelResult.ALREADY_CANCELLED
        assert isinstance(told[3], PutReceipt)
        assert isinstance(told[4], NotPendingError)
        assert told[4].result is CancelResult.ALREADY_CANCELLED
        assert isinstance(told[5], MessageError)
        assert "time" in str(told[5])
        assert told[6].due_ms == one.clock.now_ms + 600_000
        assert told[7] is CancelResult.ALREADY_CANCELLED, "its receipt names the time before"
        assert told[8] is CancelResult.ALREADY_DELIVERED
        assert isinstance(told[9], NotPendingError)
        assert sorted(await bodies(one, 9)) == [b"b", b"now"]
        one.clock.advance(60_000)
        assert await bodies(one, 9) == [b"d"]
        assert await store.cancel(told[6]) is CancelResult.CANCELLED

    run(tmp_path, test)


def test_reschedule_to_now_wakes_a_receive_that_waits(tmp_path: Path) -> None:
    async def test(one: Stepped) -> None:
        receipt = await one.store.put("t", b"soon", delay=60)
        waiting = asyncio.create_task(one.store.receive("t", "g", wait=30))
        while not one.waiting_count:
            await asyncio.sleep(0)
        await one.store.reschedule(receipt, delay=0)
        one.stepper.settle()
        assert [each.body for each in await waiting] == [b"soon"]

    run(tmp_path, test)


def test_failed_sync_raises_in_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(one: Stepped) -> None:
        store, segments = one.store, inside(one.store.blocking).log.segments
        a, b = list(await store.put_many("t", [b"a", b"b"], delay=60))

        def fail() -> None:
            raise FailedError("no such luck", where=segments.directory)

        monkeypatch.setattr(segments, "sync", fail)
        calls = [store.cancel(a), store.reschedule(b, delay=5)]
        for told in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(told, FailedError)
        with pytest.raises(FailedError):
            await store.cancel(b)

    run(tmp_path, test)


def test_call_raises_when_the_store_closes_in_the_same_turn(tmp_path: Path) -> None:
    async def test(one: Stepped) -> None:
        receipt = await one.store.put("t", b"a", delay=60)
        calls = [one.store.cancel(receipt), one.store.reschedule(receipt, delay=5)]
        tasks = [asyncio.ensure_future(each) for each in calls]
        asyncio.get_running_loop().call_soon(one.store.blocking.close)
        for told in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(told, ClosedError)

    run(tmp_path, test)


def test_bury_keeps_its_place_among_the_other_calls_of_a_turn(tmp_path: Path) -> None:
    async def test(one: Stepped) -> None:
        await one.put(b"a", b"b", b"c")
        a, b, c = await one.store.receive("t", "g", max_count=3)
        told: list[Any] = await asyncio.gather(
            one.store.bury(a, error="broken"),
            one.store.ack(a),
            one.store.ack(b),
            one.store.bury(b),
            one.store.bury("no receipt"),
            one.store.bury(c, error=5),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        acked, settled = AckResult.ACKED, AckResult.SETTLED
        assert told[:4] == [AckResult.BURIED, settled, acked, settled]
        assert [type(each) for each in told[4:]] == [MessageError] * 2
        one.stepper.settle()
        letters = [each async for each in one.store.dead_letters("g")]
        assert [(each.body, each.error) for each in letters] == [(b"a", "broken")]

    run(tmp_path, test)
