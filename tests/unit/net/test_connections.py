"""The limits on the number of connections: descriptors, greetings, times and buffers."""

import asyncio
import errno
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.held_sync import PATIENCE_S
from tests.support.served_bench import ServedBench
from timerstore.errors import UnavailableError
from timerstore.net import acceptor
from timerstore.net import connections as connections_module
from timerstore.net.access import ServerAccess
from timerstore.net.connections import Connections
from timerstore.net.fair_pool import FairPool
from timerstore.net.server_connection import ServerConnection
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits


class Dropped:
    """A connection that notes whether it was dropped."""

    def __init__(self) -> None:
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process have 200 descriptors."""
    monkeypatch.setattr(connections_module.resource, "getrlimit", lambda _: (200, 400))


def _made(**limits: int) -> Connections:
    return Connections(ServerLimits(**limits), ServerCounters())


@pytest.mark.usefixtures("limited")
def test_last_quarter_of_the_descriptors_is_kept_back() -> None:
    made = _made()
    assert made.rejection(149) is None
    error = made.rejection(150)
    assert isinstance(error, UnavailableError)
    assert "wanted descriptors below 150" in str(error)


@pytest.mark.usefixtures("limited")
def test_rejected_connections_take_half_of_that_quarter() -> None:
    made = _made()
    assert made.has_room_for_rejected(174)
    assert not made.has_room_for_rejected(175)


def test_descriptors_without_a_limit_are_not_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(connections_module.resource, "getrlimit", lambda _: unlimited)
    assert _made().rejection(1_000_000) is None


def test_server_accepts_again_after_an_error_of_the_system(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, accept = [OSError(errno.EMFILE, "no descriptors")], socket.socket.accept

    def accept_later(one: socket.socket) -> Any:
        if errors:
            raise errors.pop()
        return accept(one)

    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.0)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    assert served.raw().hello()[0] == 4
    assert not errors


def test_oldest_greeting_connection_is_dropped_for_a_new_one() -> None:
    made = _made(greeting_max=2)
    all_of_them = [Dropped() for _ in range(5)]
    first, greeted, third, fourth, fifth = all_of_them
    for one in (first, greeted):
        made.add(cast("Any", one), is_counted=True)
    made.greeted(cast("Any", greeted))
    made.add(cast("Any", third), is_counted=True)
    assert not any(one.is_dropped for one in all_of_them)
    made.add(cast("Any", fourth), is_counted=True)
    assert [one.is_dropped for one in all_of_them] == [True, False, False, False, False]
    made.end(cast("Any", third))  # it is gone by itself
    made.add(cast("Any", fifth), is_counted=True)
    assert [one.is_dropped for one in all_of_them] == [True, False, False, False, False]


def test_connection_is_counted_until_it_ends() -> None:
    counters = ServerCounters()
    made = Connections(ServerLimits(connections_max=1), counters)
    one, rejected = Dropped(), Dropped()
    made.add(cast("Any", one), is_counted=True)
    made.add(cast("Any", rejected), is_counted=False)
    assert counters.net_connections == 1
    assert made.rejection(5) is not None
    for _ in range(2):
        made.end(cast("Any", one))
        made.end(cast("Any", rejected))
    assert counters.net_connections == 0
    assert made.rejection(5) is None
    assert len(list(made)) == 2, "their calls may still run"
    made.remove(cast("Any", one))
    assert len(list(made)) == 1


class Transport:
    """A transport that notes its limits and whether it reads."""

    def __init__(self) -> None:
        self.high: int | None = None
        self.is_reading = True

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0


class Runner:
    """Notes the receipts of the messages that it has to give back."""

    def __init__(self) -> None:
        self.given_back: list[str] = []

    async def give_back(self, receipts: Sequence[str]) -> None:
        self.given_back += receipts

    async def end(self, *, returns_leases: bool) -> None:
        assert returns_leases


@contextmanager
def _connection() -> Iterator[ServerConnection]:
    """Return a connection on the running loop, whose client is gone."""
    limits, counters = ServerLimits(), ServerCounters()
    pool = FairPool(1, "one", asyncio.get_running_loop())
    here, there = socket.socketpair()
    one = ServerConnection(
        cast("Any", None), limits, counters, ServerAccess(None, None), pool,
        Connections(limits, counters), here, None,
    )  # fmt: skip
    one.connection_made(cast("Any", Transport()))
    try:
        yield one
    finally:
        pool.shutdown()
        here.close()
        there.close()


@pytest.mark.parametrize("amount", [1, 7])
def test_connection_has_the_time_and_the_buffer_of_the_limits(amount: int) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        limits = ServerLimits(hello_s=amount, unsent_bytes=1000 * amount)
        counters, pool = ServerCounters(), FairPool(1, "one", loop)
        here, there = socket.socketpair()
        before = loop.time()
        one = ServerConnection(
            cast("Any", None), limits, counters, ServerAccess(None, None), pool,
            Connections(limits, counters), here, None,
        )  # fmt: skip
        after = loop.time()
        assert before + amount <= one._hello_timer.when() <= after + amount
        transport = Transport()
        one.connection_made(cast("Any", transport))
        assert transport.high == 1000 * amount
        one.forget()
        pool.shutdown()
        here.close()
        there.close()

    asyncio.run(test())


def test_connection_that_takes_no_answers_is_not_read_when_a_call_ends() -> None:
    async def test() -> None:
        with _connection() as one:
            transport = cast("Transport", one._transport)
            one.pause_writing()
            call = asyncio.ensure_future(asyncio.sleep(0))
            await call
            one._call_ended(1, call)
            await asyncio.sleep(0)
            assert not transport.is_reading
            one.resume_writing()
            await asyncio.sleep(0)
            assert transport.is_reading
            one.connection_lost(None)
            await asyncio.wait_for(one.ended(), PATIENCE_S)

    asyncio.run(test())


def test_work_of_a_connection_that_takes_no_answers_begins_when_it_is_lost() -> None:
    """Else the connection, and the server's close, would wait for it for ever."""

    async def test() -> None:
        with _connection() as one:
            one.pause_writing()
            work = one._context.run(one._pool.submit, int, "1")
            one.connection_lost(None)
            assert await asyncio.wait_for(asyncio.wrap_future(work), PATIENCE_S) == 1
            await asyncio.wait_for(one.ended(), PATIENCE_S)

    asyncio.run(test())


def test_leased_messages_in_answers_that_were_lost_are_given_back() -> None:
    async def test() -> None:
        runner = Runner()
        with _connection() as one:
            one._runner = cast("Any", runner)
            one._answers.add(b"answer", ["a receipt"])
            one.connection_lost(None)
            await asyncio.wait_for(one.ended(), PATIENCE_S)
            assert runner.given_back == ["a receipt"]

    asyncio.run(test())
