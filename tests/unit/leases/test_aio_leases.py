"""Leases with asyncio."""

import asyncio
from pathlib import Path

import pytest

import timerstore.aio
from tests.support.bench import small
from tests.support.stepped_aio import stepped_store
from timerstore import AckResult, FullError, LeaseLostError, MessageError
from timerstore._engine.leases import Leases


def test_receive_ack_nack_extend(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path) as opened:
            store, stepper = opened.store, opened.stepper
            await opened.put(b"a", b"b", b"c")
            a, b, c = await store.receive("t", "g", max_count=5, lease=10)
            assert await store.ack(a) is AckResult.ACKED
            assert await store.nack(b, delay=0) is AckResult.NACKED
            longer = await store.extend(c, lease=20)
            stepper.settle()
            (again,) = await store.receive("t", "g", max_count=5)
            assert (again.body, again.attempt) == (b"b", 2)
            assert await store.ack_many([again, longer]) == [AckResult.ACKED] * 2
            with pytest.raises(LeaseLostError):
                await store.extend(longer)
            with pytest.raises(MessageError, match="lease"):
                await store.receive("t", "g", lease=0)
            with pytest.raises(MessageError, match=r"receive: wanted some of .*, got colour"):
                await store.receive("t", "g", colour=1)  # type: ignore[call-arg]
            assert await store.receive("t", "g") == []
            assert (await store.verify()).clean

    asyncio.run(run())


def test_receive_waits_without_a_thread(tmp_path: Path) -> None:
    """More calls wait than there are threads; each message wakes one of them."""

    async def run() -> None:
        async with stepped_store(tmp_path, workers=1) as opened:
            store, stepper = opened.store, opened.stepper
            waiting = [
                asyncio.create_task(store.receive("t", "g", wait=1000, lease=50)) for _ in range(5)
            ]
            for _ in range(3):
                await store.stats()  # one pool thread: earlier calls have ended
            await store.put_many("t", [b"%d" % k for k in range(4)])
            stepper.settle()
            done, left = await asyncio.wait(waiting, timeout=30, return_when="FIRST_COMPLETED")
            while len(done) < 4:
                more, left = await asyncio.wait(left, timeout=30, return_when="FIRST_COMPLETED")
                assert more
                done |= more
            assert sorted(one.result()[0].body for one in done) == [b"0", b"1", b"2", b"3"]
            (last,) = left
            last.cancel()
            await asyncio.wait([last])
            await store.put("t", b"4")
            stepper.settle()
            (message,) = await store.receive("t", "g", wait=1000)
            assert message.body == b"4"

    asyncio.run(run())


def test_loop_leases_only_the_message_it_hands_out(tmp_path: Path) -> None:
    """A loop that leased a batch lost its other messages; they became dead letters."""

    async def run() -> None:
        async with stepped_store(tmp_path) as opened:
            store = opened.store
            await opened.put(b"a", b"b")
            with pytest.raises(MessageError, match=r"max_count: wanted none, .* got 5"):
                store.lease_consumer("t", "g", max_count=5)
            with pytest.raises(MessageError, match=r"lease_consumer: wanted some of .* got wiat"):
                store.lease_consumer("t", "g", wiat=1.0)
            seen = []
            async for message in store.lease_consumer("t", "g", wait=0):
                seen.append(message.body)
                assert (await store.stats())["pending_messages"] == len(seen)
            assert seen == [b"a", b"b"]

    asyncio.run(run())


def test_handling_raises_the_error_of_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FullError("no space")

    async def run() -> None:
        async with timerstore.aio.open(tmp_path, small()) as store:
            await store.put("t", b"a")
            consumer = store.lease_consumer("t", "g", wait=30)
            async for message in consumer:
                with pytest.raises(ValueError, match="why") as caught:
                    async with consumer.handling(message):
                        raise ValueError("why")
                assert caught.value.__notes__ == ["and then the nack failed: FullError('no space')"]
                assert await store.ack(message) is AckResult.ACKED
                break

    monkeypatch.setattr(Leases, "nack", full)
    asyncio.run(run())


def test_handling_that_is_cancelled_gives_its_message_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path) as opened:
            store = opened.store
            await opened.put(b"a")
            (message,) = await store.receive("t", "g", backoff=0)
            is_handled = asyncio.Event()

            async def handle() -> None:
                async with store.lease_consumer("t", "g").handling(message):
                    is_handled.set()
                    await asyncio.Event().wait()

            handling = asyncio.create_task(handle())
            await is_handled.wait()
            handling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handling
            opened.stepper.settle()
            (again,) = await store.receive("t", "g")
            assert (again.body, again.attempt) == (b"a", 2)

    asyncio.run(run())


def test_lease_consumer(tmp_path: Path) -> None:
    async def run() -> list[tuple[bytes, int]]:
        seen = []
        async with timerstore.aio.open(tmp_path, small()) as store:
            await store.put_many("t", [b"a", b"b"])
            consumer = store.lease_consumer("t", "g", lease=30, backoff=0)
            async for message in consumer:
                seen.append((message.body, message.attempt))
                try:
                    async with consumer.handling(message):
                        if message.attempt == 1:
                            raise ValueError
                except ValueError:
                    continue
                if len(seen) == 4:
                    break
            assert (await store.stats())["pending_messages"] == 0
            async for _ in store.lease_consumer("t", "g", wait=0.01):
                raise AssertionError
        return seen

    assert sorted(asyncio.run(run())) == [(b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2)]


def test_bury_dead_letters_and_requeue(tmp_path: Path) -> None:
    async def run() -> None:
        async with stepped_store(tmp_path) as opened:
            store, stepper = opened.store, opened.stepper
            await opened.put(b"a", b"b", b"c")
            for one in await store.receive("t", "g", max_count=5, lease=10):
                assert await store.bury(one) is AckResult.BURIED
            stepper.settle()
            a, b, c = [one async for one in store.dead_letters("g", topic="t")]
            assert [one.body for one in (a, b, c)] == [b"a", b"b", b"c"]
            assert await store.requeue("g", b) == 1
            assert [one.body async for one in store.dead_letters("g")] == [b"a", b"c"]
            assert await store.requeue("g") == 2
            stepper.settle()
            again = await store.receive("t", "g", max_count=5)
            assert [(one.body, one.attempt) for one in again] == [(b"b", 1), (b"a", 1), (b"c", 1)]
            with pytest.raises(MessageError, match="group"):
                store.dead_letters("a b")

    asyncio.run(run())
