"""Calls that are interrupted or cancelled, and connections that end again and again."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from msgspec import Raw

import timerstore.aio
from tests.support.held_sync import PATIENCE_S
from tests.support.served_bench import ServedBench
from timerstore import ClosedError, ConnectionLostError, UnavailableError
from timerstore.net.async_channel import AsyncChannel
from timerstore.net.async_remote_store import AsyncRemoteStore
from timerstore.net.call_table import CONSUMER_CALLS, STORE_CALLS, CallSpec
from timerstore.net.channel import Channel
from timerstore.net.connector import Connector
from timerstore.net.giving_back import calls_that_give_back, has_to_be_given_back
from timerstore.net.remote_store import RemoteStore
from timerstore.net.wire_messages import Answer, encode


def _fill(served: ServedBench, count: int) -> None:
    for k in range(count):
        served.bench.store.put("t", b"%d" % k)
    served.bench.turn()


def test_interrupted_poll_loses_no_messages(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(served, 4)
    consumer = remote.consumer("t", "g")
    (first,) = consumer.poll(1)
    request = Channel.request

    def interrupted(self: Channel, *call: Any, **more: Any) -> Any:
        request(self, *call, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "request", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(2)
    assert consumer.commit(first) == {0: 1}, "a named message is committed"
    assert consumer.commit() == {}, "the interrupted poll is not committed"
    assert [one.body for one in consumer.poll()] == [b"1", b"2", b"3"]
    assert consumer.commit() == {0: 4}
    consumer.close()


def test_poll_without_an_answer_in_time_loses_no_messages(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has handed them out, and the connection goes on."""
    _fill(served, 4)
    late: list[ConnectionLostError] = []
    request, awaited = Channel.request, AsyncChannel.request

    def unanswered(self: Channel, spec: CallSpec, *call: Any, **more: Any) -> Any:
        found = request(self, spec, *call, **more)
        if spec.name == "poll" and late:
            raise late.pop()
        return found

    async def awaited_in_vain(self: AsyncChannel, spec: CallSpec, *call: Any, **more: Any) -> Any:
        found = await awaited(self, spec, *call, **more)
        if spec.name == "poll" and late:
            raise late.pop()
        return found

    async def main() -> None:
        async with timerstore.aio.connect(served.url) as store, store.consumer("t", "h") as one:
            late.append(ConnectionLostError("no answer"))
            assert [m.body for m in await one.poll(2)] == [b"0", b"1"]
            assert await one.commit() == {0: 2}

    monkeypatch.setattr(Channel, "request", unanswered)
    monkeypatch.setattr(AsyncChannel, "request", awaited_in_vain)
    late.append(ConnectionLostError("no answer"))
    with remote.consumer("t", "g") as consumer:
        assert [one.body for one in consumer.poll(2)] == [b"0", b"1"]
        assert consumer.commit() == {0: 2}
    asyncio.run(main())
    assert not late


def test_interrupted_receive_ends_in_the_server(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, wait_for_answer = remote._connector.channel(), Channel._await

    def interrupted(self: Channel, slot: Any, deadline_s: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            wait_for_answer(self, slot, deadline_s)  # of the thread that ends the call
            return
        while not served.server.stats()["net_waiting_requests"]:
            pass
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "_await", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remote.receive("t", "g", wait=3600)
        for one in threading.enumerate():
            if one.name == "timerstore-abandon":
                one.join(PATIENCE_S)
    assert served.server.stats()["net_waiting_requests"] == 0
    assert not channel.is_lost, "the end of the connection would end the call, too"


@pytest.mark.parametrize("turns", range(8))
def test_cancelled_poll_loses_no_messages(served: ServedBench, turns: int) -> None:
    _fill(served, 6)

    async def main() -> None:
        async with timerstore.aio.connect(served.url) as store, store.consumer("t", "g") as one:
            call = asyncio.ensure_future(one.poll(3))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert [m.body for m in await call] == [b"0", b"1", b"2"]
            rest = await one.poll(32)
            expected = range(6) if call.cancelled() else range(3, 6)
            assert [m.body for m in rest] == [b"%d" % k for k in expected]
            assert await one.commit() == {0: 6}

    asyncio.run(asyncio.wait_for(main(), 60))


def test_named_message_is_committed_after_a_cancelled_poll(served: ServedBench) -> None:
    _fill(served, 4)

    async def main() -> None:
        async with timerstore.aio.connect(served.url) as store, store.consumer("t", "g") as one:
            (first,) = await one.poll(1)
            call = asyncio.ensure_future(one.poll(2))
            await asyncio.sleep(0)  # it waits for its answer
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert one._interrupted is not None
            assert await one.commit(first) == {0: 1}
            assert await one.commit() == {}, "the cancelled poll is not committed"
            assert [m.body for m in await one.poll()] == [b"1", b"2", b"3"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_lists_that_are_not_read_take_no_space(remote: RemoteStore) -> None:
    for _ in range(300):  # a connection has at most 256
        remote.pending()
    assert list(remote.pending()) == []


def test_calls_end_when_every_connection_is_lost(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = served.connect(retry_for=0.3)
    consumer = remote.consumer("t", "g")
    single = served.connect(retry_for=0).consumer("t", "single")
    made = 0
    connect, request = Connector._attempt, Channel.request

    def counted(self: Connector, timeout_s: float) -> Channel:
        nonlocal made
        made += 1
        return connect(self, timeout_s)

    def lost(self: Channel, spec: Any, *rest: Any, **more: Any) -> Any:
        if spec.name in ("topics", "poll"):
            self._lose(ConnectionLostError("lost"))
            raise ConnectionLostError("lost")
        return request(self, spec, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Connector, "_attempt", counted)
        patch.setattr(Channel, "request", lost)
        with pytest.raises(ConnectionLostError, match="further attempts did not succeed"):
            remote.topics()
        with pytest.raises(UnavailableError):
            consumer.poll()
        with pytest.raises(ConnectionLostError):
            single.poll()
    assert 2 <= made < 40


def test_async_calls_end_when_every_connection_is_lost(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_count = 0
    request = AsyncChannel.request

    async def lost(self: AsyncChannel, spec: Any, *rest: Any, **more: Any) -> Any:
        nonlocal lost_count
        if spec.name in ("topics", "poll"):
            lost_count += 1
            self._lose(ConnectionLostError("lost"))
            raise ConnectionLostError("lost")
        return await request(self, spec, *rest, **more)

    async def main() -> None:
        async with (
            timerstore.aio.connect(served.url, retry_for=0.3) as store,
            store.consumer("t", "g") as consumer,
        ):
            with pytest.raises(ConnectionLostError, match="further attempts did not succeed"):
                await store.topics()  # type: ignore[attr-defined]
            with pytest.raises(UnavailableError):
                await consumer.poll()

    monkeypatch.setattr(AsyncChannel, "request", lost)
    asyncio.run(asyncio.wait_for(main(), 60))
    assert 2 <= lost_count < 40


def test_cancelled_caller_leaks_no_connection(served: ServedBench) -> None:
    async def main() -> None:
        store = await timerstore.aio.connect(served.url)
        (old,) = store._channels.values()
        old._lose(ConnectionLostError("lost"))
        call = asyncio.ensure_future(store.put("t", b"x"))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        (connecting,) = store._connecting.values()
        call.cancel()
        found = await connecting
        assert list(store._channels.values()) == [found]
        found._lose(ConnectionLostError("lost"))
        call = asyncio.ensure_future(store.put("t", b"x"))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(ClosedError):
            await call
        assert not store._channels
        assert not store._connecting

    asyncio.run(asyncio.wait_for(main(), 60))


def test_connection_that_is_made_while_the_client_closes_is_closed(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, made = Connector._attempt, []

    def attempt_then_close(self: Connector, timeout_s: float) -> Channel:
        made.append(attempt(self, timeout_s))
        remote.close()  # of another thread
        return made[0]

    monkeypatch.setattr(Connector, "_attempt", attempt_then_close)
    remote._connector.channel()._lose(ConnectionLostError("lost"))
    with pytest.raises(ClosedError):
        remote.topics()
    assert made[0].fileno() == -1


def test_async_connection_that_is_made_while_the_client_closes_is_closed(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, made = AsyncRemoteStore._connected, []

    async def connect_then_close(self: AsyncRemoteStore, deadline_s: float) -> AsyncChannel:
        made.append(await connected(self, deadline_s))
        await asyncio.to_thread(asyncio.run, self.close())  # of another loop
        return made[0]

    async def main() -> None:
        with pytest.raises(ClosedError):
            await timerstore.aio.connect(served.url)
        assert made[0].is_lost

    monkeypatch.setattr(AsyncRemoteStore, "_connected", connect_then_close)
    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("name", ["consumer", "pending", "dead_letters"])
def test_target_of_a_call_without_a_caller_is_closed(name: str) -> None:
    spec, reply = STORE_CALLS[name], Answer(1, Raw(encode(7)))
    assert has_to_be_given_back(spec)
    assert calls_that_give_back(spec, reply) == [(CONSUMER_CALLS["close"], [], {}, 7)]
