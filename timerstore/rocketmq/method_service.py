"""The methods of a server: each call is checked, run, counted, and answered.

    signature -> decode -> the method -> answer
    an error of the request -> the same answer, with its code
    the store closes, or is
    out of reach            -> UNAVAILABLE of gRPC: clients look for another server
    a bug                   -> 50001 with an id; the log has the traceback under this id
    the client is gone      -> nothing: the call is cancelled, and gives its leases back

Requests are decoded here and not by grpc, so that bytes that are no request are an ordinary error.

Thread safety: the server's loop only.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from timerstore.errors import (
    AccessError,
    ClosedError,
    ConnectionLostError,
    FailedError,
    ProtocolError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.server_counters import ServerCounters
from timerstore.rocketmq import client_settings
from timerstore.rocketmq.access_keys import AccessKeys
from timerstore.rocketmq.byte_budget import ByteBudget
from timerstore.rocketmq.call_counts import CANCELLED, UNAVAILABLE, CallCounts
from timerstore.rocketmq.codes import RejectedError, status, status_of
from timerstore.rocketmq.definitions import MESSAGING, Code, Method, messages, methods
from timerstore.rocketmq.group_policies import GroupPolicies
from timerstore.rocketmq.known_clients import Client, KnownClients
from timerstore.rocketmq.receiving import Receiving
from timerstore.rocketmq.rocketmq_limits import CLIENT_ID_CHARACTERS_MAX
from timerstore.rocketmq.sending import Sending
from timerstore.rocketmq.settling import Settling
from timerstore.rocketmq.topic_routes import TopicRoutes
from timerstore.rocketmq.transactions import Transactions

_log = logging.getLogger(__name__)
_DECODED_FACTOR = 32
"""The memory of many empty fields, by their encoded length; measured: 25 to 36."""
_READS = frozenset({"ReceiveMessage"})
_GOOD = frozenset({"OK", "MESSAGE_NOT_FOUND", CANCELLED})
_OUT_OF_REACH = (
    ClosedError, FailedError,
    # Of a connected store, whose owner is away, or was started again with another token or release.
    ConnectionLostError, UnavailableError, AccessError, ProtocolError,
)  # fmt: skip


class ClientCall(NamedTuple):
    """A call that is signed."""

    client: Client
    context: Any


class Parts(NamedTuple):
    """The objects that answer calls."""

    routes: TopicRoutes
    clients: KnownClients
    sending: Sending
    receiving: Receiving
    settling: Settling
    transactions: Transactions


class MethodService:
    """Answers the calls of all clients."""

    def __init__(
        self,
        parts: Parts,
        keys: AccessKeys,
        policies: GroupPolicies,
        requests: ByteBudget,
        counters: ServerCounters,
        body_bytes_max: int,
    ) -> None:
        self._parts = parts
        self._keys = keys
        self._policies = policies
        self._requests = requests
        self._counters = counters
        self._body_bytes_max = body_bytes_max
        self.counts = CallCounts()
        self.is_closing = False

    def handler(self) -> Any:
        """Return the handler of all methods, for a server of grpc.aio."""
        answers: dict[str, Callable[[ClientCall, Any], Awaitable[Any]]] = {
            "QueryRoute": lambda call, request: self._parts.routes.route(
                _headers(call.context), request
            ),
            "QueryAssignment": lambda call, request: self._parts.routes.assignment(
                _headers(call.context), request
            ),
            "Heartbeat": self._heartbeat,
            "NotifyClientTermination": self._goodbye,
            "SendMessage": lambda call, request: self._parts.sending.send(call.client.id, request),
            "RecallMessage": lambda _, request: self._parts.sending.recall(request),
            "EndTransaction": lambda call, request: self._parts.transactions.end(
                call.client.id, request
            ),
            "AckMessage": lambda _, request: self._parts.settling.ack(request),
            "ChangeInvisibleDuration": lambda _, request: self._parts.settling.change(request),
            "ForwardMessageToDeadLetterQueue": (
                lambda _, request: self._parts.settling.forward(request)
            ),
        }
        made = {}
        for method in methods(MESSAGING):
            if method.is_client_streaming:
                made[method.name] = grpc.stream_stream_rpc_method_handler(self._telemetry(method))
            elif method.is_server_streaming:
                made[method.name] = grpc.unary_stream_rpc_method_handler(self._receive(method))
            else:
                made[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(method, answers[method.name])
                )
        return grpc.method_handlers_generic_handler(MESSAGING, made)

    # --- the three kinds of methods ---

    def _unary(
        self, method: Method, answer: Callable[[ClientCall, Any], Awaitable[Any]]
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def call(raw: bytes, context: Any) -> bytes:
            found: list[Any] = []

            async def run(one: ClientCall, request: Any) -> int:
                found.append(await answer(one, request))
                return int(found[0].status.code)

            failed = await self._run(method, raw, context, run)
            response = found[0] if failed is None else method.response(status=failed)
            answered = bytes(response.SerializeToString())
            self._counters.net_sent_bytes += len(answered)
            return answered

        return call

    def _receive(self, method: Method) -> Callable[[bytes, Any], Awaitable[None]]:
        async def call(raw: bytes, context: Any) -> None:
            async def run(one: ClientCall, request: Any) -> int:
                receiving = self._parts.receiving
                terms = await receiving.checked(one.client, context.time_remaining(), request)
                del request  # a call that waits does not keep it
                return await receiving.receive(one.client, terms, partial(self._write, context))

            failed = await self._run(method, raw, context, run)
            if failed is not None:
                await self._write(context, method.response(status=failed))

        return call

    def _telemetry(self, method: Method) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        async def exchange(call: ClientCall, raws: AsyncIterator[bytes]) -> None:
            context, writing = call.context, asyncio.Lock()
            if self._parts.clients.has_left(call.client):
                return
            transactions = self._parts.transactions

            async def send(command: Any) -> None:
                async with writing:  # checks come between answers
                    await self._write(context, command)

            with (
                self._parts.clients.stream(call.client),
                transactions.stream(call.client.id, send) as producer,
            ):
                async for raw in raws:
                    self._parts.clients.seen(call.client.id)
                    with self._requests.hold(_memory_bytes(method, raw)):
                        command = _decoded(method, raw)
                        if reply := client_settings.answer(
                            command, self._policies, self._body_bytes_max
                        ):
                            await send(reply)
                        if command.settings.HasField("publishing"):
                            topics = command.settings.publishing.topics
                            await transactions.publish(producer, topics)

        async def call(raws: AsyncIterator[bytes], context: Any) -> None:
            async def run(one: ClientCall, _: Any) -> int:
                await exchange(one, raws)
                return int(Code.OK)

            failed = await self._run(method, b"", context, run)
            if failed is not None:
                await self._write(context, method.response(status=failed))

        return call

    # --- each call ---

    async def _run(
        self,
        method: Method,
        raw: bytes,
        context: Any,
        run: Callable[[ClientCall, Any], Awaitable[int]],
    ) -> Any | None:
        """Run a call and count it. Return the status of its error; None if it was answered.

        run: answers the call, and returns the code of the answer.
        """
        begin = time.monotonic()
        name, code, failed = CANCELLED, 0, None
        self._counters.net_running_requests += 1
        self._counters.net_received_bytes += len(raw)
        try:
            try:
                if self.is_closing:
                    raise ClosedError("the server is closing")
                call = self._call(context)
                self._parts.clients.seen(call.client.id)
                count = _memory_bytes(method, raw)
                self._requests.take(count)
                # Until the call has ended, as its answer may repeat texts of the request.
                context.add_done_callback(lambda _: self._requests.release(count))
                code = await run(call, _decoded(method, raw))
            except _OUT_OF_REACH:
                name = UNAVAILABLE
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the store closes, has failed or is out of reach"
                )
            except (TimerStoreError, RejectedError) as error:
                is_filter = method.name in _READS
                failed = status_of(error, is_filter=is_filter) or self._bug(method, error)
            except Exception as error:  # noqa: BLE001 - shown to the client by an id, and logged
                failed = self._bug(method, error)
            name = Code(code if failed is None else failed.code).name
        finally:
            self._counters.net_running_requests -= 1
            self._counters.net_requests += 1
            self._counters.net_failed_requests += name not in _GOOD
            self.counts.add(method.name, name, time.monotonic() - begin)
        return failed

    def _bug(self, method: Method, error: Exception) -> Any:
        found = secrets.token_hex(4)
        _log.error("error %s in %s", found, method.name, exc_info=error)
        return status(
            Code.INTERNAL_SERVER_ERROR,
            f"an error of the server; its log has the details under {found}",
        )

    def _call(self, context: Any) -> ClientCall:
        headers = _headers(context)
        client_id = headers.get("x-mq-client-id", "")
        if not 1 <= len(client_id) <= CLIENT_ID_CHARACTERS_MAX:
            raise RejectedError(
                Code.CLIENT_ID_REQUIRED,
                f"x-mq-client-id: wanted 1 to {CLIENT_ID_CHARACTERS_MAX} characters, got "
                f"{len(client_id)}",
            )
        self._keys.check(headers)
        return ClientCall(Client(client_id, context.peer()), context)

    async def _write(self, context: Any, response: Any) -> None:
        """Write an answer. Raise CancelledError if the client is gone, as grpc does a bit later."""
        raw = response.SerializeToString()
        self._counters.net_sent_bytes += len(raw)
        try:
            await context.write(raw)
        except grpc.aio.InternalError as error:  # its connection has broken
            raise asyncio.CancelledError from error

    # --- methods without a class of their own ---

    async def _heartbeat(self, _call: ClientCall, _request: Any) -> Any:
        return messages.HeartbeatResponse(status=status())

    async def _goodbye(self, call: ClientCall, _request: Any) -> Any:
        self._parts.clients.goodbye(call.client)
        return messages.NotifyClientTerminationResponse(status=status())


def _headers(context: Any) -> dict[str, str]:
    """Return the headers of a call. A call that waits keeps none."""
    found = context.invocation_metadata() or ()
    return {name: value for name, value in found if isinstance(value, str)}


def _memory_bytes(method: Method, raw: bytes) -> int:
    """Return about how many bytes a request takes at most. Most of a SendMessage is bodies."""
    return len(raw) if method.name == "SendMessage" else len(raw) * _DECODED_FACTOR


def _decoded(method: Method, raw: bytes) -> Any:
    try:
        return method.request.FromString(raw)
    except DecodeError as error:
        raise RejectedError(
            Code.BAD_REQUEST, f"wanted a {method.request.DESCRIPTOR.name}, got bytes that are none"
        ) from error
