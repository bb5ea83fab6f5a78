"""The client for asyncio: results, cancelled calls, lost connections, loops."""

import asyncio
import contextlib
import inspect
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import Bench
from tests.support.served_bench import ServedBench
from timerstore import (
    CancelResult,
    ClosedError,
    ConnectionLostError,
    MessageError,
    TimerStore,
    UnavailableError,
)
from timerstore.aio import AsyncTimerStore
from timerstore.net.async_channel import AsyncChannel
from timerstore.net.async_remote_store import AsyncRemoteStore
from timerstore.net.call_table import _REQUESTS, SIGNATURES, STORE_CALLS, Signature
from timerstore.net.client_options import checked_options
from timerstore.net.not_remote import NOT_REMOTE
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits

Body = Callable[[AsyncRemoteStore], Awaitable[None]]


def _run(served: ServedBench, body: Body, **options: Any) -> None:
    async def main() -> None:
        async with timerstore.aio.connect(served.url, **options) as store:
            await asyncio.wait_for(body(store), 60)

    asyncio.run(main())


def test_many_tasks_share_one_connection(served: ServedBench) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        receipts = await asyncio.gather(*[store.put(f"t{k}", b"x") for k in range(300)])
        assert [one.topic for one in receipts] == [f"t{k}" for k in range(300)]

    _run(served, body)
    assert served.server.stats()["net_accepted_connections"] == 1


@pytest.mark.parametrize("is_cancelled_first", [True, False])
def test_messages_of_a_call_that_is_cancelled_as_its_answer_comes_are_given_back(
    served: ServedBench, is_cancelled_first: bool
) -> None:
    """The task does not run between the two."""

    async def body(store: AsyncRemoteStore) -> None:
        await store.put("t", b"x")
        served.bench.turn()
        channel = await store._channel()
        data_received = channel.data_received
        call = asyncio.ensure_future(store.receive("t", "g", lease=3600))

        def receive_and_cancel(data: bytes) -> None:
            if is_cancelled_first:
                call.cancel()
            data_received(data)
            call.cancel()

        channel.data_received = receive_and_cancel  # type: ignore[method-assign]
        await asyncio.wait([call])
        assert call.cancelled()
        channel.data_received = data_received  # type: ignore[method-assign]
        while channel._releases:
            await asyncio.wait(channel._releases)
        served.bench.turn()
        (again,) = await store.receive("t", "g")
        assert (again.body, again.attempt) == (b"x", 1)

    _run(served, body)


def test_lost_connection_is_replaced(served: ServedBench) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        receipt = await store.put("t", b"x", delay=5)
        channel = await store._channel()
        channel._transport.abort()
        assert await store.cancel(receipt) is CancelResult.CANCELLED
        assert await store._channel() is not channel
        for _ in range(20):  # cut during the call
            call = asyncio.ensure_future(store.put("t", b"x", delay=5))
            await asyncio.sleep(0)
            (await store._channel())._transport.abort()
            assert not (await call).duplicate
        assert len([one async for one in store.pending()]) == 20

    _run(served, body)


def test_consumer_that_tasks_share_joins_again_once(served: ServedBench) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        await store.put("t", b"x")
        served.bench.turn()
        consumer = await store.consumer("t", "g")
        (await store._channel())._transport.abort()
        polls = await asyncio.gather(*(consumer.poll(1) for _ in range(3)))
        assert [one.body for found in polls for one in found] == [b"x"]
        assert await consumer.queues() == (0,), "no other consumer of the server has them"

    _run(served, body)


def test_consumer_that_is_closed_while_it_joins_again_keeps_no_queues(served: ServedBench) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        await store.put("t", b"x")
        served.bench.turn()
        consumer = await store.consumer("t", "g")
        join = consumer._join

        async def join_slowly() -> tuple[int, AsyncChannel]:
            await consumer.close()  # of another task
            return await join()

        consumer._join = join_slowly
        (await store._channel())._transport.abort()
        with pytest.raises(ClosedError):
            await consumer.poll()
        assert await (await store.consumer("t", "g")).queues() == (0,)

    _run(served, body)


def test_without_retry_a_lost_connection_is_an_error(served: ServedBench) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        call = asyncio.ensure_future(store.receive("t", "g", wait=60))
        while not served.server.stats()["net_waiting_requests"]:
            await asyncio.sleep(0.01)
        (await store._channel())._transport.abort()
        with pytest.raises(ConnectionLostError):
            await call
        await store.put("t", b"x")

    _run(served, body, retry_for=0)


def test_no_server_is_unavailable(served: ServedBench) -> None:
    async def main() -> None:
        with pytest.raises(UnavailableError, match="no server was found in 0 s"):
            await timerstore.aio.connect(f"{served.url}.none", retry_for=0)

    asyncio.run(main())


def test_each_loop_has_its_connection(served: ServedBench) -> None:
    async def connected() -> AsyncRemoteStore:
        store = await _connected(served.url)
        await (await store._channel()).close()
        return store

    async def main(store: AsyncRemoteStore) -> None:
        await store.put("t", b"x")
        await (await store._channel()).close()  # as the loop ends before the store

    store = asyncio.run(connected())
    for _ in range(3):
        asyncio.run(main(store))
    served.bench.turn()
    assert len(served.bench.out("t")) == 3
    asyncio.run(store.close())


def test_ids_of_a_forked_child_are_its_own(served: ServedBench) -> None:
    async def put(store: AsyncRemoteStore, body: bytes) -> None:
        await store.put("t", body)
        await (await store._channel()).close()  # as the loop ends before the store

    async def connected() -> AsyncRemoteStore:
        store = await _connected(served.url)
        await put(store, b"1")
        return store

    store = asyncio.run(connected())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(put(store, b"child"))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    asyncio.run(put(store, b"2"))
    served.bench.turn()
    assert sorted(one.body for one in served.bench.out("t")) == [b"1", b"2", b"child"]
    asyncio.run(store.close())


def test_forked_child_has_no_copy_of_the_socket(served: ServedBench) -> None:
    """Otherwise the server would not notice the end of the parent while the child lives."""

    async def body() -> None:
        store = await _connected(served.url)
        channel = await store._channel()
        number = channel._transport.get_extra_info("socket").fileno()
        pid = os.fork()
        if pid == 0:
            os._exit(int(stat.S_ISSOCK(os.fstat(number).st_mode)))
        assert os.waitpid(pid, 0)[1] == 0
        await store.put("t", b"x")
        await store.close()

    asyncio.run(body())


async def _connected(url: str) -> AsyncRemoteStore:
    store: AsyncRemoteStore = await timerstore.aio.connect(url)
    return store


# --- the table of calls ---


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_name_of_a_store_travels_or_has_a_reason() -> None:
    assert _public(TimerStore) - _public(RemoteStore) <= NOT_REMOTE.keys()
    assert _public(AsyncTimerStore) - _public(AsyncRemoteStore) <= NOT_REMOTE.keys() | {
        "blocking",
        "detach",
    }
    here = {name for name in NOT_REMOTE if not name.startswith("begin_")}
    assert not here & _public(RemoteStore), "a reason for a name that is there"
    assert not NOT_REMOTE.keys() & _public(AsyncRemoteStore)
    assert NOT_REMOTE.keys() <= _public(TimerStore) | {"config"}


@pytest.mark.parametrize("name", STORE_CALLS)
def test_signatures_are_those_of_the_store(name: str) -> None:
    stated = inspect.signature(getattr(TimerStore, name))
    for kind in (RemoteStore, AsyncRemoteStore):
        assert str(inspect.signature(getattr(kind, name))) == str(stated)


def test_requests_have_the_order_of_the_signatures() -> None:
    """`pack_call` takes the values of a request by position."""
    calls = {"put": 0, "put_many": 1, "pull": 2, "receive": 3, "put_every": 4}
    kinds = list(_REQUESTS.values())
    for name, at in calls.items():
        assert (*SIGNATURES[name].required, *SIGNATURES[name].defaults) == kinds[at]
    assert SIGNATURES["pull_batch"].required == SIGNATURES["pull"].required
    assert Signature.of(TimerStore.pull_batch).defaults.keys() == SIGNATURES["pull"].defaults.keys()


@pytest.mark.parametrize("kind", [RemoteStore, AsyncRemoteStore])
def test_missing_name_tells_the_alternative(kind: type) -> None:
    one: Any = object.__new__(kind)
    with pytest.raises(AttributeError, match="no 'ingest': it reads rows"):
        _ = one.ingest
    with pytest.raises(AttributeError, match=r"no 'nonsense'$"):
        _ = one.nonsense


def test_calls_that_cannot_travel_are_message_errors(
    served: ServedBench, remote: RemoteStore
) -> None:
    with pytest.raises(MessageError, match="done by the server"):
        remote.begin_pull_batch("t", 0, 0)


class _HeldAnswers:
    """Holds what a server sends to a channel, as a slow network does."""

    def __init__(self, channel: AsyncChannel) -> None:
        self._data_received = channel.data_received
        self._held: list[bytes] = []
        self.has_come = asyncio.Event()
        channel.data_received = self._hold  # type: ignore[method-assign]

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self.has_come.set()

    async def deliver_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while self._held:
            self._data_received(self._held.pop(0))


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("return_leases", [False, True])
def test_close_gives_back_messages_that_are_on_their_way(
    served: ServedBench, is_cancelled: bool, return_leases: bool
) -> None:
    async def body(store: AsyncRemoteStore) -> None:
        await store.put("t", b"x")
        served.bench.turn()
        channel = await store._channel()
        held = _HeldAnswers(channel)
        call = asyncio.ensure_future(store.receive("t", "g", lease=3600, max_attempts=1))
        await held.has_come.wait()
        if is_cancelled:
            call.cancel()
            await asyncio.wait([call])
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        while not closing.done():
            await held.deliver_in(0.001)
        await asyncio.wait([call])
        assert call.cancelled() or isinstance(call.exception(), ClosedError)
        served.bench.turn()
        (again,) = served.bench.store.receive("t", "g", max_attempts=1)
        assert (again.body, again.attempt) == (b"x", 1)

    _run(served, body, return_leases=return_leases)


@pytest.mark.parametrize("is_read", [True, False])
def test_list_that_ended_leaves_its_place(bench: Bench, tmp_path: Path, is_read: bool) -> None:
    """Also one that is not read to its end."""
    served = ServedBench(bench, tmp_path / "x.sock", limits=ServerLimits(targets_max=1))
    bench.store.put("t", b"a", delay=60)

    async def test() -> None:
        async with timerstore.aio.connect(served.url) as store:
            for _ in range(2):
                async with contextlib.aclosing(store.pending()) as found:
                    assert (await anext(found)).topic == "t"
                    assert not is_read or [one async for one in found] == []

    asyncio.run(test())
    served.server.close()


@pytest.mark.parametrize(("given", "first_s"), [(None, 7.0), (0, 0.0), (3, 3.0)])
def test_time_for_the_first_connection_is_that_of_later_ones_or_its_own(
    given: float | None, first_s: float
) -> None:
    found = checked_options(
        "unix:///x", token=None, tls=None, retry_for=7, connect_timeout=given, call_timeout=1,
        return_leases=False,
    )  # fmt: skip
    assert found.times == (7.0, first_s, 1.0)
