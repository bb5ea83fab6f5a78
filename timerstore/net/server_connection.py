"""One connection of a server: read calls, run them, write each answer when it is there.

Thread safety: runs on the server's loop.
Invariants:
    1. Each call that was read gets exactly one answer, unless the connection ends before. So does a
       call whose result cannot be encoded: ServerError.
    2. A connection that takes no answers, or has too many running calls, is not read, and none of
       its calls begins in the pool.
    3. Messages that were leased for an answer which could not be written are given back: no
       consumer saw them, so their attempts do not count.
    4. In one turn of the loop a connection starts at most `_TURN_CALLS` calls.
See also: docs/protocol.md, docs/decisions/0018-server-and-client.md.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from timerstore._engine.leases.shared_receive import BegunReceive
from timerstore.aio import AsyncTimerStore
from timerstore.errors import (
    AccessError,
    ConnectionLostError,
    FailedError,
    MessageError,
    ProtocolError,
    ServerError,
    TimerStoreError,
    UnavailableError,
    quoted,
)
from timerstore.net.access import ServerAccess, uid_of
from timerstore.net.answer_queue import AnswerQueue
from timerstore.net.call_runner import CallRunner, is_wait
from timerstore.net.call_table import CallSpec, receipts_in
from timerstore.net.connections import Connections
from timerstore.net.endpoints import keep_alive
from timerstore.net.fair_pool import FairPool, PoolClient, pool_client
from timerstore.net.frames import FrameSplitter
from timerstore.net.running_calls import RunningCalls
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_errors import failure_of
from timerstore.net.wire_messages import (
    ACK_FEATURE,
    CONFIG_FEATURE,
    NO_CALL,
    PROTOCOL_VERSION,
    Abandon,
    Answer,
    Call,
    Failure,
    Hello,
    Welcome,
    decode_from_client,
    decode_head,
    decode_hello,
    described_memory,
    encode,
    memory_of,
)
from timerstore.types.receipts import PutReceipt

_log = logging.getLogger(__name__)
_LINGER_S = 1.0
_HELLO_BYTES_MAX = 20 << 10  # a token of 4,096 characters fits
_FAILURE_BYTES_MAX = 1 << 20
_TURN_CALLS = 128
"""Calls that a connection starts in one turn of the loop; then other connections start theirs."""
_TURN_BYTES = 1 << 20
"""The memory of the arguments of these calls, if it is more than one."""
ABANDONED = "AbandonedCall"
"""The kind of the failure that answers an abandoned call."""


class ServerConnection(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        store: AsyncTimerStore,
        limits: ServerLimits,
        counters: ServerCounters,
        access: ServerAccess,
        pool: FairPool,
        connections: Connections,
        one: socket.socket,
        rejected: TimerStoreError | None,
    ) -> None:
        """`rejected`: why the server cannot take this connection, which gets the error."""
        self._store = store
        self._limits = limits
        self._counters = counters
        self._access = access
        self._connections = connections
        self._socket = one
        self._rejected = rejected
        self._pool = pool
        self._pool_client = PoolClient(limits.calls_in_threads_max)
        self._context = copy_context()
        self._context.run(pool_client.set, self._pool_client)
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(_HELLO_BYTES_MAX)
        self._payloads: deque[bytes] = deque()  # received, not started yet
        self._memory_bytes: int | None = None  # of the first of them, if it is known
        self._is_scheduled = False  # a later turn starts more calls
        self._running = RunningCalls(limits, counters)
        self._runner: CallRunner | None = None
        self._is_full = False  # the transport has too many bytes that were not sent
        self._is_ending = False
        self._is_finishing = False
        self._has_ended = asyncio.Event()
        self._end_task: asyncio.Task[None] | None = None
        self._is_made = False  # whether there is a transport
        self._hello_timer = self._loop.call_later(limits.hello_s, self._hello_missing)
        connections.add(self, is_counted=rejected is None)

    def forget(self) -> None:
        """Count no more a connection that ended before `connection_made`."""
        self._hello_timer.cancel()
        self._connections.end(self)
        self._connections.remove(self)
        self._has_ended.set()

    # --- the transport calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the limit and the user of a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._is_made = True
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        self._answers = AnswerQueue(self._transport, self._limits, self._counters, self._overflow)
        if self._rejected is not None:
            self._reject(self._rejected)
            return
        keep_alive(self._socket)
        uid = uid_of(self._socket)
        if uid is not None and not self._access.accepts_user(uid):
            self._reject(AccessError("the server does not accept this user", got=f"user {uid}"))

    def data_received(self, data: bytes) -> None:
        """Start the calls in received bytes, as far as the limits permit."""
        if self._is_ending:
            return
        self._counters.net_received_bytes += len(data)
        try:
            for payload in self._splitter.feed(data):
                self._payloads.append(payload)
                if self._runner is None:
                    self._start_calls()  # a hello raises the limit of the next frame
        except ProtocolError as error:
            if not self._is_ending:
                self._break(error)
            return
        if not self._is_scheduled:
            self._start_calls()

    def pause_writing(self) -> None:
        """Read and start nothing until the client takes its answers."""
        self._is_full = True
        self._pool.pause(self._pool_client)
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue."""
        self._is_full = False
        self._pool.resume(self._pool_client)
        self._schedule_calls()

    def eof_received(self) -> bool:
        """Close: a client that sends no more wants no more answers."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """End everything that belongs to the connection."""
        self._is_ending = True
        self._hello_timer.cancel()
        self._payloads.clear()
        self._connections.end(self)
        self._pool.end(self._pool_client)
        self._running.cancel_waits()
        self._end_task = self._loop.create_task(self._end())

    async def _end(self) -> None:
        await self._running.ended()
        if self._runner is not None:
            await self._runner.give_back(self._answers.unsent)
            await self._runner.end(returns_leases=not self._is_finishing)
        self._connections.remove(self)
        self._has_ended.set()

    # --- the first message ---

    def _hello_missing(self) -> None:
        if not self._is_made:
            self._shut_socket()
        elif self._runner is None and not self._is_ending:
            self._break(
                ProtocolError("no hello came in time", wanted=f"one in {self._limits.hello_s} s")
            )

    def drop(self) -> None:
        """Close the connection, which has not greeted, because many others want to."""
        self._counters.net_rejected_connections += 1
        if not self._is_made:
            self._shut_socket()
        elif not self._is_ending:
            error = UnavailableError(
                "too many clients connect and send no first message",
                wanted=f"at most {self._limits.greeting_max}",
            )
            self._write(failure_of(NO_CALL, error))
            self._close()

    def _shut_socket(self) -> None:
        """End a handshake of TLS: it sees the end of the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _greet(self, hello: Hello) -> None:
        self._access.check_hello(hello)
        self._hello_timer.cancel()
        self._connections.greeted(self)
        self._splitter.frame_bytes_max = self._limits.frame_bytes_max
        self._runner = CallRunner(
            self._store, self._limits, self._counters, return_leases=hello.return_leases
        )
        window_ms, path = self._store.config.dedupe_window_ms, str(self._store.blocking.path)
        sizes = self._limits.frame_bytes_max, self._limits.in_flight_max
        has_config = CONFIG_FEATURE in hello.features
        config = asdict(self._store.config) if has_config else {}
        features = [ACK_FEATURE, *([CONFIG_FEATURE] if has_config else [])]
        self._write(Welcome(PROTOCOL_VERSION, features, *sizes, window_ms, path, config))

    # --- calls ---

    def _schedule_calls(self) -> None:
        """Start more calls in the next turn, if there are any."""
        if not self._is_scheduled and not self._is_ending:
            self._is_scheduled = True
            self._loop.call_soon(self._start_calls)

    def _start_calls(self) -> None:
        """Start calls that were received, as far as the limits and the turn permit."""
        self._is_scheduled = False
        left_bytes = _TURN_BYTES
        for _ in range(_TURN_CALLS):
            if not self._payloads or self._is_finishing or self._is_ending:
                break
            try:
                if self._memory_bytes is None:
                    self._memory_bytes = memory_of(self._payloads[0])
                memory_bytes = self._memory_bytes
                if self._is_full or not self._running.has_room(memory_bytes):
                    self._transport.pause_reading()
                    return
                self._memory_bytes = None
                self._handle(self._payloads.popleft(), memory_bytes)
            except ProtocolError as error:
                self._break(error)
                return
            except AccessError as error:
                self._reject(error)
                return
            except Exception as error:  # noqa: BLE001 - the client gets it
                _log.error("a message of a client could not be read", exc_info=error)
                self._break(ServerError(_described(error)))
                return
            left_bytes -= memory_bytes
            if left_bytes < 0:
                break
        if self._is_ending:
            return
        if self._payloads and not self._is_finishing:
            self._transport.pause_reading()
            self._schedule_calls()
        elif not self._is_full:
            self._transport.resume_reading()

    def _handle(self, payload: bytes, memory_bytes: int) -> None:
        runner = self._runner
        if runner is None:
            self._greet(decode_hello(payload))
            return
        if memory_bytes > self._limits.running_bytes_max:
            self._refuse_large(payload, memory_bytes)
            return
        message = decode_from_client(payload)
        if isinstance(message, Hello):
            raise ProtocolError("a second hello came")
        if isinstance(message, Abandon):
            self._running.cancel_wait(message.id)
        else:
            self._start(runner, message, memory_bytes)

    def _refuse_large(self, payload: bytes, memory_bytes: int) -> None:
        """Answer a call whose arguments would take too much memory. They are not decoded."""
        head = decode_head(payload)
        self._running.check_id(head.id)
        self._counters.net_requests += 1
        limit = self._limits.running_bytes_max
        error = MessageError(
            f"{quoted(head.name)}: wanted arguments that take at most {limit} bytes of memory "
            f"(ServerLimits.running_bytes_max), got {described_memory(memory_bytes)}; send them "
            "in several calls, or as arrays"
        )
        self._fail(head.id, error)

    def _start(self, runner: CallRunner, call: Call, memory_bytes: int) -> None:
        self._running.check_id(call.id)
        self._counters.net_requests += 1
        try:
            spec = runner.spec_of(call)
            if spec.waits and is_wait(call.options.get("wait")):
                self._running.add_wait(call.id, memory_bytes)
            end = self._without_task(runner, call, spec)
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._running.end_wait(call.id)
            self._fail_with(call, error)
            return
        if end is None:
            end = self._task_of(runner, call, spec)
        self._running.add(call.id, memory_bytes, end)

    def _task_of(
        self, runner: CallRunner, call: Call, spec: CallSpec, begun: Any = None
    ) -> "asyncio.Task[None]":
        run = self._run(runner, call, spec, begun)
        task = self._loop.create_task(run, context=self._context)
        task.add_done_callback(partial(self._call_ended, call.id))
        return task

    def _without_task(
        self, runner: CallRunner, call: Call, spec: CallSpec
    ) -> "asyncio.Future[None] | None":
        """Begin a call without a task, which would take longer than some calls. Return None if it
        needs one.
        """
        end: asyncio.Future[None] = self._loop.create_future()
        if spec.name == "put":
            done = partial(self._put_ended, call, spec, end)
            return end if runner.put_without_task(call, done) else None
        if (one := runner.lease_call(call)) is None:
            return None
        self._store._begin_lease_call(one, partial(self._lease_ended, runner, call, spec, end))
        return end

    def _lease_ended(
        self,
        runner: CallRunner,
        call: Call,
        spec: CallSpec,
        end: "asyncio.Future[None]",
        found: Any,
    ) -> None:
        """Answer a call that leases or settles, if that needs no task."""
        if end.cancelled():
            self._store._drop_begun(found)
            self._call_ended(call.id, end)
            return
        try:
            if isinstance(found, BaseException):
                self._fail_with(call, found)
            elif not self._is_answered(runner, call, found):
                task = self._task_of(runner, call, spec, found)
                self._running.replace(call.id, task)
                # The end of the connection may wait for `end` already.
                task.add_done_callback(partial(_set_ended, end))
                return
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._store._drop_begun(found)
            self._fail_to_answer(call, error)
        self._end_without_task(call.id, end)

    def _is_answered(self, runner: CallRunner, call: Call, found: Any) -> bool:
        """Send the usual result. Return False, and change nothing, if it has to wait, is too long
        or cannot be sent any more.
        """
        begun = found if isinstance(found, BegunReceive) else None
        if begun is not None and (begun.waiting is not None or self._is_ending):
            return False
        value: Any = found if begun is None else begun.found
        payload = encode(Answer(call.id, value))
        if len(payload) > self._limits.frame_bytes_max:
            return False
        if begun is not None:
            claimed: Any = self._store.blocking._claim(value)
            if len(claimed) < len(value):  # the store is being closed
                value, payload = claimed, encode(Answer(call.id, claimed))
        runner.follow_leases(call, value)
        self._send(payload, receipts_in(value))
        return True

    def _end_without_task(self, call_id: int, end: "asyncio.Future[None]") -> None:
        self._running.remove(call_id)
        end.set_result(None)
        self._schedule_calls()  # those that waited for the end of another

    def _put_ended(
        self,
        call: Call,
        spec: CallSpec,
        end: "asyncio.Future[None]",
        found: PutReceipt | BaseException,
    ) -> None:
        try:
            if isinstance(found, BaseException):
                self._fail_with(call, found)
            else:
                self._send_receipt(call, spec, found)
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._fail_to_answer(call, error)
        finally:
            self._end_without_task(call.id, end)

    def _send_receipt(self, call: Call, spec: CallSpec, receipt: PutReceipt) -> None:
        assert spec.to_wire is not None, "a receipt has a form of its own on the wire"
        payload = encode(Answer(call.id, spec.to_wire(receipt)))
        limit = self._limits.frame_bytes_max
        if len(payload) <= limit:
            self._send(payload)
            return
        what = "the message is stored, but its receipt is longer than a frame, which has at most"
        self._fail(call.id, MessageError(f"put: {what} {limit} bytes"))

    async def _run(self, runner: CallRunner, call: Call, spec: CallSpec, begun: Any) -> None:
        """Make a call, or complete one that was begun without a task, and answer it."""
        found: Any = None
        try:
            found = await (runner.run(call) if begun is None else runner.completed(call, begun))
            encoded = await self._encoded(runner, call, spec, found)
            if encoded is not None:
                self._send(*encoded)
                if not self._is_ending:
                    found = None
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._fail_with(call, error)
        finally:
            self._running.end_wait(call.id)
            if receipts := receipts_in(found):  # the answer was not sent
                await runner.give_back(receipts)
            self._running.remove(call.id)

    def _call_ended(self, call_id: int, task: "asyncio.Future[None]") -> None:
        """Account for a call, also for one that was cancelled before its first step."""
        if self._running.has(call_id, task):
            self._running.remove(call_id)
        if task.cancelled():
            if not self._is_finishing:  # else the client asks the next server
                self._write(Failure(call_id, ABANDONED))
        elif (error := task.exception()) is not None:
            _log.error("the end of a call failed", exc_info=error)
            if not self._is_ending:  # its answer may be missing
                self._break(ServerError(_described(error)))
        self._schedule_calls()  # those that waited for the end of another

    def _fail_with(self, call: Call, error: BaseException) -> None:
        """Answer a call that raised an exception."""
        if isinstance(error, FailedError) and self._store.blocking._log.failed is not None:
            self.fail(error)
        elif isinstance(error, TimerStoreError):
            self._fail(call.id, error)
        elif isinstance(error, RuntimeError) and self._store._is_shut():
            self._close()  # the interpreter ends: the client looks for another server
        elif isinstance(error, TypeError):  # an argument of a type that no check expected
            self._fail(call.id, MessageError(f"{call.name}: {_described(error)}"))
        else:
            _log.error("the call %s failed", call.name, exc_info=error)
            self._fail(call.id, ServerError(_described(error)))

    # --- answers ---

    async def _encoded(
        self, runner: CallRunner, call: Call, spec: CallSpec, found: Any
    ) -> tuple[bytes, list[str]] | None:
        """Return the answer with a result, and the receipts of the leased messages in it.

        If there is no such answer, answer with the error and return None.
        """
        try:
            value = found if spec.to_wire is None else spec.to_wire(found)
            payload = encode(Answer(call.id, value))
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._fail_to_answer(call, error)
            return None
        if len(payload) > self._limits.frame_bytes_max:
            found = await runner.shortened(call, found)
            payload = encode(Answer(call.id, found))
        return payload, receipts_in(found)

    def _fail_to_answer(self, call: Call, error: Exception) -> None:
        """Answer a call that was made, but whose result cannot be sent."""
        _log.error("the result of the call %s cannot be sent", call.name, exc_info=error)
        what = "the call was made, but its result cannot be sent"
        self._fail(call.id, ServerError(f"{call.name}: {what} ({_described(error)})"))

    def _fail(self, call_id: int, error: TimerStoreError) -> None:
        self._counters.net_failed_requests += 1
        try:
            payload = encode(failure_of(call_id, error))
            if len(payload) > _FAILURE_BYTES_MAX:
                raise ValueError(f"an error of {len(payload)} bytes is too long")
        except Exception as failure:  # noqa: BLE001 - the client gets another text
            _log.error("an error cannot be sent", exc_info=failure)
            what = f"{type(error).__name__}, whose text cannot be sent; the server's log has it"
            payload = encode(Failure(call_id, ServerError.__name__, what))
        self._send(payload)

    def _write(self, message: Welcome | Failure) -> None:
        self._send(encode(message))

    def _send(self, payload: bytes, receipts: Sequence[str] = ()) -> None:
        if not self._is_ending:
            self._answers.add(payload, receipts)

    def _overflow(self) -> None:
        self._counters.net_broken_connections += 1
        self._is_ending = True
        self._transport.abort()

    # --- the end ---

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""
        return self._socket.fileno()

    def _break(self, error: TimerStoreError) -> None:
        self._counters.net_broken_connections += 1
        self._write(failure_of(NO_CALL, error))
        self._linger()

    def _reject(self, error: TimerStoreError) -> None:
        self._counters.net_rejected_connections += 1
        self._write(failure_of(NO_CALL, error))
        self._linger()

    def _linger(self) -> None:
        """Send the error, and close when the client has: a close with unread bytes loses it."""
        self._answers.flush()
        self._is_ending = True
        self._payloads.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._loop.call_later(_LINGER_S, self._transport.close)
        else:
            self._transport.close()

    def _close(self) -> None:
        self._answers.flush()
        self._is_ending = True
        self._transport.close()

    def fail(self, error: FailedError) -> None:
        """Have the client look for another server: the store has failed."""
        if self._runner is not None and not self._is_ending:
            self._write(failure_of(NO_CALL, ConnectionLostError(f"the server ends: {error.what}")))
        self._close()

    def abort(self) -> None:
        """End the connection at once. Answers that were not sent yet are lost."""
        self._is_ending = True
        self._transport.abort()

    async def finish(self, seconds: float) -> None:
        """End waits, let other calls end for a limited time, send the answers, and close."""
        self._is_finishing = True
        self._running.cancel_waits()
        await self._running.ended(seconds)
        self._close()

    async def ended(self) -> None:
        """Return when everything that belongs to the connection has ended."""
        await self._has_ended.wait()


def _described(error: BaseException) -> str:
    """Return the class and the text of an exception, whose text may raise another one."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - raised by a class of the caller
        return type(error).__name__


def _set_ended(end: "asyncio.Future[None]", _task: object) -> None:
    if not end.done():
        end.set_result(None)
