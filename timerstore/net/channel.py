"""One connection of a client for threads: many calls at a time, matched by id.

No thread is kept for reading. One of the threads that wait for an answer reads for all of them;
when its own answer is there, it passes the task on to another.

Thread safety: any thread.
Locking: `_lock` protects the table of calls for a few steps. `_send_lock` orders the calls that are
    sent. The socket is read without a lock by the thread that `_is_read` stands for.
Invariants:
    1. An answer goes to the one call that has its id, or to none.
    2. As long as a thread waits for an answer, one of them reads.
    3. Once the connection is lost, every call has been woken, and each later one raises at once.
Raises: ConnectionLostError if the connection is lost during a call, NotSentError before it.
"""

import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from timerstore._engine.base.owner import Owner
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    MessageError,
    ProtocolError,
    TimerStoreError,
)
from timerstore.net.call_table import CallSpec
from timerstore.net.endpoints import Endpoint, connected_socket
from timerstore.net.frames import FRAME_BYTES_MAX, LENGTH_BYTES, FrameSplitter, frame
from timerstore.net.tls_stream import TlsStream
from timerstore.net.wire_errors import error_of
from timerstore.net.wire_messages import (
    NO_CALL,
    PROTOCOL_VERSION,
    Abandon,
    Answer,
    Call,
    Failure,
    Hello,
    Welcome,
    decode_from_server,
    decode_value,
    encode,
    encode_call,
)

_READ_BYTES = 64 * 1024  # malloc maps and unmaps each block of 128 KiB or more
RECEIVED_BYTES_MAX = 1 << 30  # of one frame, from a server that this client trusts


class NotSentError(Exception):
    """The connection was lost before the call was sent: it can be made on another one."""


class _Slot(Owner):
    """A call that waits for its answer."""

    __slots__ = ("is_reader", "is_waiting", "reply", "wakeup")

    def __init__(self) -> None:
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.reply: Answer | Failure | TimerStoreError | None = None
        self.is_waiting = False  # for `wakeup`
        self.is_reader = False  # reads for all calls


def call_payload(call: Call, frame_bytes_max: int) -> bytes:
    """Return a call as bytes. MessageError if they are too many, or an argument cannot travel."""
    try:
        payload = encode_call(call)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(
            f"{call.name}: an argument cannot be sent to a server: {error}"
        ) from error
    if len(payload) > frame_bytes_max:
        raise MessageError(
            f"{call.name}: its arguments have {len(payload)} bytes, and the server takes at most "
            f"{frame_bytes_max} in one call"
        )
    return payload


def check_welcome(reply: object) -> Welcome:
    """Return the server's first message, or raise the error that it contains."""
    if isinstance(reply, Failure):
        raise error_of(reply)
    if not isinstance(reply, Welcome):
        raise ProtocolError("the server's first message is no welcome", got=type(reply).__name__)
    if reply.version != PROTOCOL_VERSION:
        raise ProtocolError(
            "the server speaks another version of the protocol",
            wanted=f"version {PROTOCOL_VERSION}",
            got=f"version {reply.version}",
        )
    return reply


class Channel(Owner):
    """A connection that was greeted."""

    def __init__(
        self, endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        """Connect and exchange the first messages. OSError if no server listens."""
        raw = connected_socket(endpoint, timeout_s)
        try:
            self._socket: socket.socket | TlsStream = raw
            if endpoint.is_tls:
                context = tls or ssl.create_default_context()
                self._socket = TlsStream(raw, context, endpoint.host)
            self._splitter = FrameSplitter(RECEIVED_BYTES_MAX)
            with contextlib.suppress(BrokenPipeError):  # the server has sent the reason
                self._socket.sendall(frame(encode(hello)))
            self.welcome = check_welcome(self._first_reply())
            raw.settimeout(None)
        except BaseException:
            raw.close()
            raise
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._last_id = NO_CALL
        self._is_read = False
        self._lost: TimerStoreError | None = None
        self._unused_targets: deque[int] = deque()

    def _first_reply(self) -> object:
        head = self._read_exactly(LENGTH_BYTES)
        length = int.from_bytes(head, "big")
        if not 1 <= length <= FRAME_BYTES_MAX:
            raise ProtocolError("the other side is no server of timerstore", got=head)
        return decode_from_server(self._read_exactly(length))

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the server closed the connection")
            data += part
        return data

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._lost is not None

    def fileno(self) -> int:
        """Return the number of the socket."""
        return self._socket.fileno()

    # --- calls ---

    def request(
        self, spec: CallSpec, args: list[Any], options: Mapping[str, Any], target: int = 0
    ) -> Any:
        """Make a call and return its result.

        Raises:
            NotSentError: the connection was lost before.
            ConnectionLostError: the connection was lost since; whether the call was made is
                unknown.
            MessageError: an argument cannot be sent.
        """
        slot = _Slot()
        call_id = self._next_id()
        payload = call_payload(
            Call(call_id, spec.name, args, dict(options), target), self.welcome.frame_bytes_max
        )
        with self._lock:
            if self._lost is not None:
                raise NotSentError(str(self._lost)) from self._lost
            self._slots[call_id] = slot
        try:
            self._close_unused_targets()
            self._send(payload)
            self._await(slot)
        except BaseException:
            self._forget(call_id, slot, abandon=spec.waits)
            raise
        reply = slot.reply
        if isinstance(reply, Answer):
            value = decode_value(spec.decoder, reply.value)
            return value if spec.from_wire is None else spec.from_wire(value)
        raise error_of(reply) if isinstance(reply, Failure) else _copied(reply)

    def close_later(self, target: int) -> None:
        """Close a target with the next call. This neither sends nor locks: a finalizer calls it."""
        self._unused_targets.append(target)

    def _close_unused_targets(self) -> None:
        while self._unused_targets:
            with contextlib.suppress(IndexError):  # another thread took the last one
                target = self._unused_targets.popleft()
                self._send(encode_call(Call(self._next_id(), "close", [], {}, target)))

    def _next_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    def _send(self, payload: bytes) -> None:
        data = frame(payload)
        try:
            with self._send_lock:
                self._socket.sendall(data)
        except OSError as error:
            self._lose(ConnectionLostError(f"the connection was lost ({error})"))
        except BaseException:  # a part may be sent, after which no other call can follow
            self._lose(ConnectionLostError("a call was interrupted while it was sent"))
            raise

    def _forget(self, call_id: int, slot: _Slot, *, abandon: bool) -> None:
        """Remove a call that was interrupted."""
        with self._lock:
            is_known = self._slots.pop(call_id, None) is not None
        if slot.is_reader:
            self._pass_on(slot)
        if is_known and abandon and self._lost is None:
            with contextlib.suppress(TimerStoreError):
                self._send(encode(Abandon(call_id)))

    def _await(self, slot: _Slot) -> None:
        """Wait for an answer, and read for all calls if no other thread does."""
        with self._lock:
            if slot.reply is not None:
                return
            if self._is_read:
                slot.is_waiting = True
            else:
                self._is_read = slot.is_reader = True
        if not slot.is_reader:
            slot.wakeup.acquire()
        if slot.is_reader:
            self._read_until(slot)

    def _read_until(self, slot: _Slot) -> None:
        try:
            while slot.reply is None:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    self._lose(ConnectionLostError("the server closed the connection"))
                    return
                for payload in self._splitter.feed(data):
                    self._deliver(decode_from_server(payload))
        except OSError as error:
            self._lose(ConnectionLostError(f"the connection was lost ({error})"))
        except ProtocolError as error:
            self._lose(error)
        except BaseException:  # such as Ctrl-C: received bytes may be lost
            self._lose(ConnectionLostError("a thread was interrupted while it read answers"))
            raise
        finally:
            self._pass_on(slot)

    def _pass_on(self, slot: _Slot) -> None:
        """Let another thread read, if one waits."""
        with self._lock:
            slot.is_reader = False
            for one in self._slots.values():
                if one.is_waiting:
                    one.is_waiting = False
                    one.is_reader = True
                    one.wakeup.release()
                    return
            self._is_read = False

    def _deliver(self, reply: Welcome | Answer | Failure) -> None:
        if isinstance(reply, Welcome):
            raise ProtocolError("the server sent a second welcome")
        if reply.id == NO_CALL:
            assert isinstance(reply, Failure), "checked by the reader of messages"
            self._lose(error_of(reply))
            return
        with self._lock:
            slot = self._slots.pop(reply.id, None)
            if slot is None:
                return  # the call was interrupted
            slot.reply = reply
            if slot.is_waiting:
                slot.is_waiting = False
                slot.wakeup.release()

    # --- the end ---

    def _lose(self, error: TimerStoreError) -> None:
        """End the connection, and wake every call with this error."""
        with self._lock:
            if self._lost is None:
                self._lost = error
            slots = list(self._slots.values())
            self._slots.clear()
            for slot in slots:
                slot.reply = self._lost
                if slot.is_waiting:
                    slot.is_waiting = False
                    slot.wakeup.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that reads it returns

    def lose_if_idle(self) -> bool:
        """End a connection that its other end has closed, unless a thread reads it. Return whether
        it ended.
        """
        with self._lock:
            if self._slots:
                return False
        self._lose(ConnectionLostError("the server closed the connection"))
        return True

    def close(self) -> None:
        """End the connection. Running calls raise ClosedError."""
        self._lose(ClosedError("the connection to the server is closed", where=self.endpoint))
        self._socket.close()

    def forget_in_child(self) -> None:
        """Close this process's copy of the socket; the parent goes on with its own."""
        self._socket.close()


def _copied(error: object) -> BaseException:
    """Return an error for one of several threads, each of which adds its own traceback."""
    if isinstance(error, ConnectionLostError | ClosedError):
        return type(error)(error.what, where=error.where)
    assert isinstance(error, BaseException), "set by _lose"
    return error
