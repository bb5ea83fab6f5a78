"""One connection of a client for asyncio: many calls at a time, matched by id.

Thread safety: runs on the loop that connected.
Invariants:
    1. An answer goes to the one call that has its id, or to none.
    2. A call that is cancelled is abandoned in the server, too. Messages that it leased all the
       same are given back.
    3. Once the connection is lost, every call has got the error, and each later one gets it at
       once.
Raises: ConnectionLostError if the connection is lost during a call, NotSentError before it.
"""

import asyncio
import math
import os
import ssl
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    ProtocolError,
    TimerStoreError,
)
from timerstore.net.call_table import CallSpec
from timerstore.net.channel_parts import (
    RECEIVED_BYTES_MAX,
    NotSentError,
    call_payload,
    check_welcome,
    error_of_connection,
    no_answer,
    not_a_server,
    wait_of,
    window_ended,
)
from timerstore.net.endpoints import (
    Endpoint,
    close_copies,
    keep_alive,
    silent_server,
    unix_address,
)
from timerstore.net.frames import FrameSplitter, frame
from timerstore.net.giving_back import GivingBack, calls_that_give_back
from timerstore.net.wire_errors import error_of
from timerstore.net.wire_messages import (
    NO_CALL,
    Abandon,
    Answer,
    Call,
    Failure,
    Hello,
    Welcome,
    decode_from_server,
    decode_value,
    encode,
)

_UNSENT_BYTES = 1 << 20
_RELEASE_S = 2.0  # how long `close` waits for answers with leased messages
_CLOSED = "the connection to the server is closed"


class _Running(NamedTuple):
    """A call that waits for its answer."""

    spec: CallSpec
    answer: "asyncio.Future[Answer | Failure]"
    begin_s: float
    limit_s: float

    @property
    def deadline_s(self) -> float:
        """The end of its time, on the clock of the loop."""
        return self.begin_s + self.limit_s


_all: "weakref.WeakSet[AsyncChannel]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """Otherwise a server would not notice the end of the parent while the child lives."""
    if found := list(_all):
        close_copies([one.fileno() for one in found])


os.register_at_fork(after_in_child=_forget_in_child)


class AsyncChannel(NotCopyable, asyncio.Protocol):
    """A connection; `connected_channel` makes it."""

    def __init__(self, endpoint: Endpoint, call_timeout_s: float) -> None:
        self.endpoint = endpoint
        self._call_timeout_s = call_timeout_s
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(RECEIVED_BYTES_MAX)
        self._greeting: asyncio.Future[Welcome] = self._loop.create_future()
        self._calls: dict[int, _Running] = {}
        self._abandoned: dict[int, tuple[CallSpec, asyncio.Future[None]]] = {}
        self._unsent: list[bytes] = []  # of this turn of the loop
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._last_id = NO_CALL
        self._lost: TimerStoreError | None = None
        self._received_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None  # for the calls that run out of time
        self._releases: set[asyncio.Future[None]] = set()  # done when nothing is left to give back

    async def greet(self, hello: Hello) -> None:
        """Exchange the first messages."""
        self._transport.write(frame(encode(hello)))
        self.welcome = await self._greeting

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._lost is not None

    # --- the transport calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        _all.add(self)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if (one := transport.get_extra_info("socket")) is not None:
            keep_alive(one)

    def data_received(self, data: bytes) -> None:
        """Give each answer to its call."""
        self._received_s = self._loop.time()
        try:
            for payload in self._splitter.feed(data):
                self._deliver(decode_from_server(payload))
        except ProtocolError as error:
            self._lose(error if self._greeting.done() else not_a_server(data[:4]))

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""
        one = self._transport.get_extra_info("socket")
        return -1 if one is None else int(one.fileno())

    def pause_writing(self) -> None:
        """Let later calls wait until the server reads."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """End every call with ConnectionLostError."""
        why = f" ({error})" if error is not None else ""
        self._lose(ConnectionLostError(f"the connection was lost{why}"))
        self._closed.set()

    def _deliver(self, reply: Welcome | Answer | Failure) -> None:
        if isinstance(reply, Welcome):
            if self._greeting.done():
                raise ProtocolError("the server sent a second welcome")
            self._greeting.set_result(check_welcome(reply))
            return
        if reply.id == NO_CALL:
            self._lose(error_of_connection(reply))
            return
        running = self._calls.pop(reply.id, None)
        if running is None:
            if (abandoned := self._abandoned.pop(reply.id, None)) is not None:
                spec, answered = abandoned
                self._release(spec, reply)
                answered.set_result(None)
        elif running.answer.done():  # it was cancelled in this turn
            self._release(running.spec, reply)
        else:
            running.answer.set_result(reply)

    def _release(self, spec: CallSpec, reply: Answer | Failure) -> None:
        """Give back the result of a call that had just been cancelled."""
        for call in calls_that_give_back(spec, reply):
            self._add_release(self._loop.create_task(self._released(call)))

    def _add_release(self, one: "asyncio.Future[None]") -> "asyncio.Future[None]":
        self._releases.add(one)
        one.add_done_callback(self._releases.discard)
        return one

    async def _released(self, call: GivingBack) -> None:
        try:
            await self.request(*call)
        except (TimerStoreError, NotSentError):
            return  # a lease ends later, and a target with its connection

    # --- calls ---

    async def request(
        self,
        spec: CallSpec,
        args: list[Any],
        options: Mapping[str, Any],
        target: int = 0,
        is_late: Callable[[], bool] | None = None,
    ) -> Any:
        """Make a call and return its result, as Channel.request."""
        begin_s, limit_s = self._loop.time(), self._call_timeout_s
        if spec.waits:
            limit_s += wait_of(options)
        elif spec.takes_long:
            limit_s = math.inf
        self._last_id += 1
        call_id = self._last_id
        payload = call_payload(
            Call(call_id, spec.name, args, dict(options), target), self.welcome.frame_bytes_max
        )
        if not self._writable.is_set():
            await self._wait_until_writable(limit_s, begin_s)
        if self._lost is not None:
            raise NotSentError(str(self._lost)) from self._lost
        if is_late is not None and is_late():
            raise window_ended(self.endpoint)
        call: asyncio.Future[Answer | Failure] = self._loop.create_future()
        self._calls[call_id] = _Running(spec, call, begin_s, limit_s)
        if self._timer is None:
            self._timer = self._loop.call_later(self._call_timeout_s, self._end_late_calls)
        self._send(payload)
        try:
            reply = await call
        except asyncio.CancelledError:
            self._abandon(call_id, spec, call)
            raise
        if isinstance(reply, Failure):
            raise error_of(reply)
        value: Any = decode_value(spec.decoder, reply.value)
        return value if spec.from_wire is None else spec.from_wire(value)

    async def _wait_until_writable(self, limit_s: float, begin_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._writable.wait()
        except TimeoutError as error:
            if self._received_s < begin_s:
                self._lose(ConnectionLostError("the server reads no calls", where=self.endpoint))
            raise NotSentError(f"the server read no calls for {limit_s:g} s") from error

    def _end_late_calls(self) -> None:
        """End the calls that were not answered in time. The connection ends if the server has sent
        nothing since one of them began: then it is stopped, or out of reach.
        """
        now = self._loop.time()
        for call_id, one in list(self._calls.items()):
            if one.deadline_s > now or one.answer.done():
                continue
            error = no_answer(one.spec, one.limit_s, self.endpoint)
            if self._received_s < one.begin_s:
                self._lose(error)
                return
            self._abandon(call_id, one.spec, one.answer)
            one.answer.set_exception(error)
        self._timer = None
        if self._calls:  # a later call ends later than this
            next_s = min(one.deadline_s for one in self._calls.values())
            self._timer = self._loop.call_at(
                min(next_s, now + self._call_timeout_s), self._end_late_calls
            )

    def _abandon(
        self, call_id: int, spec: CallSpec, call: "asyncio.Future[Answer | Failure]"
    ) -> None:
        if self._lost is not None:
            return
        if self._calls.pop(call_id, None) is not None:
            self._abandoned[call_id] = spec, self._add_release(self._loop.create_future())
            if spec.waits:
                self._send(encode(Abandon(call_id)))
        elif call.done() and not call.cancelled() and call.exception() is None:
            self._release(spec, call.result())  # it came in the same turn

    def _send(self, payload: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(frame(payload))

    def _flush(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        if not self._transport.is_closing():
            self._transport.write(data)

    # --- the end ---

    def _lose(self, error: TimerStoreError) -> None:
        if self._lost is None:
            self._lost = error
        lost = self._lost
        self._writable.set()
        if not self._greeting.done():
            self._greeting.set_exception(lost)
        calls = list(self._calls.values())
        self._calls.clear()
        for _, answered in self._abandoned.values():
            answered.set_result(None)
        self._abandoned.clear()
        if self._timer is not None:
            self._timer.cancel()
        for one in calls:
            if not one.answer.done():
                one.answer.set_exception(type(lost)(lost.what, where=lost.where))
        if isinstance(lost, ClosedError):
            self._transport.close()
        else:
            self._transport.abort()  # a server that is stopped takes nothing more

    async def close(self) -> None:
        """Send all calls that were made, and end. Running calls get ClosedError.

        First give back the messages in answers of `receive` that are still on their way.
        """
        for call_id, one in list(self._calls.items()):
            if one.spec.name == "receive" and not one.answer.done():
                self._abandon(call_id, one.spec, one.answer)
                one.answer.set_exception(ClosedError(_CLOSED, where=self.endpoint))
        self._flush()
        end_s = self._loop.time() + _RELEASE_S
        while self._releases and (left_s := end_s - self._loop.time()) > 0:
            await asyncio.wait(self._releases, timeout=left_s)
        self._lose(ClosedError(_CLOSED, where=self.endpoint))
        while self._releases:
            await asyncio.wait(self._releases)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._closed.wait()
        except TimeoutError:  # the server does not read the last calls
            self._transport.abort()
            await self._closed.wait()


async def connected_channel(
    endpoint: Endpoint,
    hello: Hello,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    call_timeout_s: float,
) -> AsyncChannel:
    """Connect and exchange the first messages, in `timeout_s`. OSError if no server listens."""
    loop = asyncio.get_running_loop()
    channel: AsyncChannel | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if endpoint.path is not None:
                with unix_address(endpoint.path) as address:
                    _, channel = await loop.create_unix_connection(
                        lambda: AsyncChannel(endpoint, call_timeout_s), address
                    )
            else:
                context = (tls or ssl.create_default_context()) if endpoint.is_tls else None
                _, channel = await loop.create_connection(
                    lambda: AsyncChannel(endpoint, call_timeout_s),
                    endpoint.host,
                    endpoint.port,
                    ssl=context,
                )
            await channel.greet(hello)
            return channel
    except BaseException as error:
        if channel is not None:
            channel._lose(ConnectionLostError("the connection was not made"))
        if isinstance(error, ConnectionLostError):
            raise ConnectionResetError("the server closed the connection") from error
        if isinstance(error, TimeoutError):
            one = None if channel is None else channel._transport.get_extra_info("socket")
            raise TimeoutError(silent_server(endpoint, one)) from error
        raise
