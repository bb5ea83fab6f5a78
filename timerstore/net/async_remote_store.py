"""A store in another process, with the calls of TimerStore as coroutines: `timerstore.aio.connect`.

Thread safety: any loop may await; each loop has a connection of its own.
Invariants: those of remote_store.py.
Raises: as RemoteStore.
See also: docs/guide.md, docs/protocol.md.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from timerstore._engine.base.owner import AsyncClosing, Making
from timerstore._engine.leases import DeadLetter, LeasedMessage
from timerstore._engine.leases.receive_request import lease_s
from timerstore.aio import AsyncHeartbeat, AsyncLeaseConsumer
from timerstore.api import SingleStoreApi
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    ForkedError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.async_channel import AsyncChannel, connected_channel
from timerstore.net.async_remote_consumer import AsyncRemoteConsumer
from timerstore.net.attempt_limits import (
    LONGEST_PAUSE_S,
    ClientTimes,
    ConnectLimit,
    RetryLimit,
    check_without_tls,
)
from timerstore.net.call_table import GIVE_BACK, LIST_CALLS, STORE_CALLS
from timerstore.net.channel_parts import NotSentError, without_ack
from timerstore.net.client_options import checked_options
from timerstore.net.endpoints import Endpoint
from timerstore.net.not_remote import missing_name
from timerstore.net.recorded_calls import RecordedCalls
from timerstore.net.remote_consumer import wait_seconds
from timerstore.net.repeating import CallAttempt, ClientIds
from timerstore.net.wire_messages import Hello
from timerstore.types.reports import PendingTimer

_OWN_FORM = frozenset({"consumer", "dead_letters", "pending"})


class _Recorder(RecordedCalls):
    """Returns each call as a value."""

    def _perform(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        return name, args, options


_recorder = _Recorder()


class AsyncRemoteStore(AsyncClosing):
    """A connected store; `timerstore.aio.connect` returns it. Close it, or use `async with`.

    It has the calls of AsyncTimerStore, except those that `timerstore.net.not_remote` lists.
    """

    def __init__(
        self, endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext | None, times: ClientTimes
    ) -> None:
        self._endpoint = endpoint
        self._hello = hello
        self._tls = tls
        self._times = times
        self._ids = ClientIds()
        self._pid = os.getpid()
        self._channels: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncChannel] = (
            WeakKeyDictionary()
        )
        self._connecting: WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Task[AsyncChannel]
        ] = WeakKeyDictionary()
        self._is_closed = False

    @property
    def url(self) -> str:
        """The address of the server."""
        return str(self._endpoint)

    # --- the connection ---

    async def _first_channel(self) -> AsyncChannel:
        """Make the first connection, within `connect_timeout`; close the client if that fails."""
        try:
            return await self._channel(time.monotonic() + self._times.connect_timeout_s)
        except BaseException:  # cancelled: the connection may have been made
            await self.close()
            raise

    async def _channel(self, deadline_s: float | None = None) -> AsyncChannel:
        """Return the connection of this loop, after making one if it is lost or not made yet.

        `deadline_s`: the end of the attempts on the monotonic clock; None: `retry_for` from now.
        """
        if os.getpid() != self._pid:
            self._ids.renew()
            self._channels.clear()
            self._connecting.clear()
            self._pid = os.getpid()
        if self._is_closed:
            raise self._closed_error()
        loop = asyncio.get_running_loop()
        found = self._channels.get(loop)
        if found is not None and not found.is_lost:
            return found
        task = self._connecting.get(loop)
        if task is None:
            if deadline_s is None:
                deadline_s = time.monotonic() + self._times.retry_for_s
            task = self._connecting[loop] = loop.create_task(self._connect(deadline_s))
            task.add_done_callback(lambda _: self._connecting.pop(loop, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise self._closed_error() from None
            raise

    def _closed_error(self) -> ClosedError:
        return ClosedError("the store is closed", where=self._endpoint)

    async def _connect(self, deadline_s: float) -> AsyncChannel:
        """Connect, and keep the connection, also if no caller waits for it any longer."""
        found = await self._connected(deadline_s)
        if self._is_closed:
            await found.close()
            raise self._closed_error()
        self._channels[asyncio.get_running_loop()] = found
        return found

    async def _connected(self, deadline_s: float) -> AsyncChannel:
        call_s = self._times.call_timeout_s
        limit = ConnectLimit(deadline_s, LONGEST_PAUSE_S, call_s, self._endpoint)
        while True:
            if self._is_closed:
                raise self._closed_error()
            try:
                return await connected_channel(
                    self._endpoint, self._hello, self._tls, limit.attempt_s, call_s
                )
            except (OSError, UnavailableError) as error:
                if limit.may_need_tls(error):
                    await asyncio.to_thread(check_without_tls, self._endpoint, limit.attempt_s)
                pause_s = limit.pause_s(error)
            await asyncio.sleep(pause_s)

    # --- calls ---

    async def _made(
        self, name: str, args: list[Any], options: dict[str, Any]
    ) -> tuple[Any, AsyncChannel]:
        """Make a call; return its result and the connection that it was made on."""
        spec = GIVE_BACK if name == GIVE_BACK.name else STORE_CALLS[name]
        limit = self._limit(options.get("wait") if spec.waits else 0)
        attempt = CallAttempt(spec, args, options, None if limit.is_none else self._ids)
        while True:
            try:
                channel = await self._channel(limit.deadline_s)
            except UnavailableError as error:
                raise attempt.given_up(error) from error
            options = attempt.options_for(channel.welcome.dedupe_window_ms)
            try:
                options, acked = without_ack(channel.welcome, options)
                if acked:
                    await channel.request(STORE_CALLS["ack_many"], [acked], {})
                found = await channel.request(spec, args, options, is_late=attempt.is_late)
                return attempt.result(found), channel
            except (NotSentError, TimerStoreError) as error:
                if (pause_s := attempt.pause_s(error, limit)) is None:
                    raise
            await asyncio.sleep(pause_s)

    def _limit(self, wait: object = 0) -> RetryLimit:
        times = self._times
        return RetryLimit(times.retry_for_s, LONGEST_PAUSE_S, self._endpoint, wait_seconds(wait))

    def heartbeat(self, receipt: str | LeasedMessage, *, lease: Any = 30.0) -> AsyncHeartbeat:
        """Renew a lease while an `async with` block runs, as TimerStore.heartbeat."""
        calls: Any = self
        return AsyncHeartbeat(partial(calls.renew, receipt, lease=lease), lease_s(lease))

    def lease_consumer(
        self, topic: str, group: str, *, wait: float | None = None, **options: Any
    ) -> AsyncLeaseConsumer:
        """Return an iterator over leased messages, as TimerStore.lease_consumer."""
        calls: Any = self
        return AsyncLeaseConsumer(calls.receive, calls.ack, calls.nack, topic, group, wait, options)

    @wraps(SingleStoreApi.consumer)
    def consumer(self, *given: Any, **named: Any) -> Making[AsyncRemoteConsumer]:
        """Read a topic for a group, as TimerStore.consumer: `await` it, or use `async with`."""
        _, args, options = SingleStoreApi.consumer(_recorder, *given, **named)

        async def join() -> tuple[int, AsyncChannel]:
            return await self._made("consumer", args, options)

        async def make() -> AsyncRemoteConsumer:
            number, channel = await join()
            return AsyncRemoteConsumer(
                join, self._limit, number, channel, args[0], args[1], options.get("wait")
            )

        return Making(make)

    @wraps(SingleStoreApi.pending)
    def pending(self, **named: Any) -> AsyncIterator[PendingTimer]:
        """Yield pending messages, as TimerStore.pending. They are sent 256 at a time."""
        return self._listed(SingleStoreApi.pending(_recorder, **named))

    @wraps(SingleStoreApi.dead_letters)
    def dead_letters(self, group: str, **named: Any) -> AsyncIterator[DeadLetter]:
        """Yield dead letters, as TimerStore.dead_letters. They are sent 256 at a time."""
        return self._listed(SingleStoreApi.dead_letters(_recorder, group, **named))

    async def _listed(self, recorded: Any) -> AsyncIterator[Any]:
        name, args, options = recorded
        number, channel = await self._made(name, args, options)
        try:
            while page := await _on_list(name, channel, "next", number):
                for one in page:
                    yield one
        finally:
            if not channel.is_lost:  # else the list has ended with its connection
                await _on_list(name, channel, "close", number)

    async def close(self) -> None:
        """End the connection of this loop. Running calls raise ClosedError; the server goes on."""
        if os.getpid() != self._pid:
            raise ForkedError("a connection belongs to the process that made it")
        self._is_closed = True
        loop = asyncio.get_running_loop()
        if (task := self._connecting.get(loop)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if (found := self._channels.pop(loop, None)) is not None:
            await found.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing_name(type(self).__name__, name), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<AsyncRemoteStore {self.url}>"


async def _on_list(of: str, channel: AsyncChannel, name: str, number: int) -> Any:
    try:
        return await channel.request(LIST_CALLS[of][name], [], {}, number)
    except NotSentError as error:
        raise ConnectionLostError(
            f"the connection was lost during `{of}`; call it again"
        ) from error


def _coroutine(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    method = getattr(SingleStoreApi, name)

    @wraps(method)
    async def call(self: AsyncRemoteStore, *given: Any, **named: Any) -> Any:
        _, args, options = method(_recorder, *given, **named)
        found, _ = await self._made(name, args, options)
        return found

    return call


for _name in STORE_CALLS:
    if _name not in _OWN_FORM:
        setattr(AsyncRemoteStore, _name, _coroutine(_name))


def connect_async_store(url: str, **options: Any) -> Making[AsyncRemoteStore]:
    """Implement timerstore.aio.connect."""
    found = checked_options(url, **options)

    async def make() -> AsyncRemoteStore:
        store = AsyncRemoteStore(*found)
        await store._first_channel()
        return store

    return Making(make)
