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
import ssl
from collections.abc import Mapping
from typing import Any, cast

from timerstore._engine.base.owner import Owner
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    ProtocolError,
    TimerStoreError,
)
from timerstore.net.call_table import (
    CONSUMER_CALLS,
    GIVE_BACK,
    LIST_CALLS,
    CallSpec,
    receipts_in,
)
from timerstore.net.channel import RECEIVED_BYTES_MAX, NotSentError, call_payload, check_welcome
from timerstore.net.endpoints import Endpoint, keep_alive, unix_address
from timerstore.net.frames import FrameSplitter, frame
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
_TARGETS = {"consumer", *LIST_CALLS}


class AsyncChannel(Owner, asyncio.Protocol):
    """A connection; `connected_channel` makes it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(RECEIVED_BYTES_MAX)
        self._greeting: asyncio.Future[Welcome] = self._loop.create_future()
        self._calls: dict[int, tuple[asyncio.Future[Answer | Failure], CallSpec]] = {}
        self._abandoned: dict[int, tuple[CallSpec, asyncio.Future[None]]] = {}
        self._unsent: list[bytes] = []  # of this turn of the loop
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._last_id = NO_CALL
        self._lost: TimerStoreError | None = None
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
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if (one := transport.get_extra_info("socket")) is not None:
            keep_alive(one)

    def data_received(self, data: bytes) -> None:
        """Give each answer to its call."""
        try:
            for payload in self._splitter.feed(data):
                self._deliver(decode_from_server(payload))
        except ProtocolError as error:
            self._lose(error)

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
            assert isinstance(reply, Failure), "checked by the reader of messages"
            self._lose(error_of(reply))
            return
        call, spec = self._calls.pop(reply.id, (None, None))
        if call is not None and not call.done():
            call.set_result(reply)
        elif spec is not None:
            self._release(spec, reply)  # a call that is done was cancelled in this turn
        elif (abandoned := self._abandoned.pop(reply.id, None)) is not None:
            spec, answered = abandoned
            self._release(spec, reply)
            answered.set_result(None)

    def _release(self, spec: CallSpec, reply: Answer | Failure) -> None:
        """Give back messages that were leased for a call that had just been cancelled, or close
        the target that it made.
        """
        if not isinstance(reply, Answer):
            return
        if spec.name == "receive":
            if receipts := receipts_in(decode_value(spec.decoder, reply.value)):
                self._begin_release(GIVE_BACK, [receipts], {})
        elif spec.name in _TARGETS:
            number = decode_value(spec.decoder, reply.value)
            self._begin_release(CONSUMER_CALLS["close"], [], {}, number)

    def _begin_release(self, *call: Any) -> None:
        self._add_release(self._loop.create_task(self._released(*call)))

    def _add_release(self, one: "asyncio.Future[None]") -> "asyncio.Future[None]":
        self._releases.add(one)
        one.add_done_callback(self._releases.discard)
        return one

    async def _released(self, *call: Any) -> None:
        try:
            await self.request(*call)
        except (TimerStoreError, NotSentError):
            return  # a lease ends later, and a target with its connection

    # --- calls ---

    async def request(
        self, spec: CallSpec, args: list[Any], options: Mapping[str, Any], target: int = 0
    ) -> Any:
        """Make a call and return its result, as Channel.request."""
        self._last_id += 1
        call_id = self._last_id
        payload = call_payload(
            Call(call_id, spec.name, args, dict(options), target), self.welcome.frame_bytes_max
        )
        if not self._writable.is_set():
            await self._writable.wait()
        if self._lost is not None:
            raise NotSentError(str(self._lost)) from self._lost
        call: asyncio.Future[Answer | Failure] = self._loop.create_future()
        self._calls[call_id] = call, spec
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
        for call, _ in calls:
            if not call.done():
                call.set_exception(type(lost)(lost.what, where=lost.where))
        self._transport.close()

    async def close(self) -> None:
        """Send all calls that were made, and end. Running calls get ClosedError.

        First give back the messages in answers of `receive` that are still on their way.
        """
        for call_id, (call, spec) in list(self._calls.items()):
            if spec.name == "receive" and not call.done():
                self._abandon(call_id, spec, call)
                call.set_exception(ClosedError(_CLOSED, where=self.endpoint))
        self._flush()
        end_s = self._loop.time() + _RELEASE_S
        while self._releases and (left_s := end_s - self._loop.time()) > 0:
            await asyncio.wait(self._releases, timeout=left_s)
        self._lose(ClosedError(_CLOSED, where=self.endpoint))
        while self._releases:
            await asyncio.wait(self._releases)
        await self._closed.wait()


async def connected_channel(
    endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext | None, timeout_s: float
) -> AsyncChannel:
    """Connect and exchange the first messages. OSError if no server listens."""
    loop = asyncio.get_running_loop()
    channel: AsyncChannel | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if endpoint.path is not None:
                with unix_address(endpoint.path) as address:
                    _, channel = await loop.create_unix_connection(
                        lambda: AsyncChannel(endpoint), address
                    )
            else:
                context = (tls or ssl.create_default_context()) if endpoint.is_tls else None
                _, channel = await loop.create_connection(
                    lambda: AsyncChannel(endpoint), endpoint.host, endpoint.port, ssl=context
                )
            await channel.greet(hello)
            return channel
    except BaseException as error:
        if channel is not None:
            channel._lose(ClosedError("the connection was not made"))
        if isinstance(error, ConnectionLostError):
            raise ConnectionResetError("the server closed the connection") from error
        raise
