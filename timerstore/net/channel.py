"""One connection of a client for threads: many calls at a time, matched by id.

No thread is kept for reading. One of the threads that wait for an answer reads for all of them;
when its own answer is there, another one continues. With TLS a thread of its own reads: OpenSSL
runs signal handlers inside its calls, and then loses the bytes.

Thread safety: any thread. An exception at any line of a call, as a signal handler may raise one,
    ends this call only: received and sent bytes are kept, and the next thread repeats the step that
    was interrupted. A thread of its own finishes a call whose result must be given back.
Locking: `_reading` is held by the thread that reads, `_sending` by the one that sends the calls in
    `_unsent`, in their order. Tables are changed by single steps of the interpreter.
Invariants:
    1. An answer goes to the one call that has its id, or to none.
    2. As long as a thread waits for an answer, one of them reads.
    3. Once the connection is lost, every call has been woken, and each later one raises at once.
    4. A call ends within its limit, also if the server neither reads nor answers.
Raises: ConnectionLostError if the connection is lost during a call, NotSentError before it.
"""

import contextlib
import itertools
import math
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    ProtocolError,
    ReentrantCallError,
    TimerStoreError,
)
from timerstore.net.byte_stream import SocketStream
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
from timerstore.net.endpoints import Endpoint, connected_socket, silent_server
from timerstore.net.frames import FRAME_BYTES_MAX, frame, split_frames
from timerstore.net.giving_back import calls_that_give_back, has_to_be_given_back
from timerstore.net.readable_event import ReadableEvent
from timerstore.net.surviving_lock import SurvivingLock
from timerstore.net.tls_stream import TlsStream
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
    encode_call,
)

_LOOK_S = 1.0


class _Slot(NotCopyable):
    """A call that waits for its answer."""

    __slots__ = ("begin_s", "event", "is_waiting", "reply", "unsent", "wakeup")

    def __init__(self, event: ReadableEvent | None = None) -> None:
        """`event`: set with the answer, for a call that no thread waits for."""
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.event = event
        self.begin_s = time.monotonic()
        self.reply: Answer | Failure | TimerStoreError | None = None
        self.unsent: _Unsent | None = None  # its frame; it may be sent already
        self.is_waiting = False  # can read for the others, or waits for `wakeup`

    def wake(self) -> None:
        """Let its thread look again. It may be woken more often than it waits."""
        if self.event is not None:
            self.event.set()
            return
        try:  # `suppress` takes longer than the rest
            self.wakeup.release()
        except RuntimeError:
            return  # it is awake


class _Unsent(NamedTuple):
    """A frame that was not sent yet, or only in part."""

    data: bytes
    sent: list[int]
    """The bytes that were sent, by each system call."""
    slot: _Slot | None
    is_late: Callable[[], bool] | None
    """Returns whether it must not be sent any more; None: it may be sent at any time."""


class Channel(NotCopyable):
    """A connection that was greeted."""

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Hello,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        call_timeout_s: float,
    ) -> None:
        """Connect and exchange the first messages, in `timeout_s`. OSError if no server listens."""
        deadline_s = time.monotonic() + timeout_s
        raw = connected_socket(endpoint, timeout_s)
        try:
            self._stream = SocketStream(raw)
            if endpoint.is_tls:
                context = tls or ssl.create_default_context()
                self._stream = TlsStream(raw, context, endpoint.host, deadline_s)
            self._chunks: list[bytes] = []  # received, and not given to calls yet
            with contextlib.suppress(BrokenPipeError):  # the server has sent the reason
                self._stream.send(frame(encode(hello)), [], deadline_s)
            self.welcome = check_welcome(self._first_reply(deadline_s))
        except TimeoutError as error:
            reason = silent_server(endpoint, raw)
            raw.close()
            raise TimeoutError(reason) from error
        except BaseException:
            raw.close()
            raise
        self.endpoint = endpoint
        self._call_timeout_s = call_timeout_s
        self._ids = itertools.count(NO_CALL + 1)
        self._slots: dict[int, _Slot] = {}
        self._unsent: deque[_Unsent] = deque()
        self._reading, self._sending = SurvivingLock(), SurvivingLock()
        self._callers: set[int] = set()  # threads that make a call
        self._received_s = time.monotonic()
        self._lost: TimerStoreError | None = None
        self._unused_targets: deque[int] = deque()
        self._has_reader = endpoint.is_tls
        if self._has_reader:
            _start_reader(weakref.ref(self), self._stream)

    def _first_reply(self, deadline_s: float) -> object:
        chunks = self._chunks
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not self._stream.receive(chunks, left_s):
                continue
            if not chunks[-1]:
                raise ConnectionResetError("the server closed the connection")
            try:
                found = split_frames(chunks, FRAME_BYTES_MAX)
            except ProtocolError as error:
                raise not_a_server(b"".join(chunks)[:4]) from error
            if found is not None:
                self._chunks = [found[1]] if found[1] else []
                return decode_from_server(found[0][0])
        raise TimeoutError("no welcome came in time")

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._lost is not None

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""
        return self._stream.fileno()

    # --- calls ---

    def request(
        self,
        spec: CallSpec,
        args: list[Any],
        options: Mapping[str, Any],
        target: int = 0,
        is_late: Callable[[], bool] | None = None,
    ) -> Any:
        """Make a call and return its result.

        `is_late`: returns whether it must not be sent any more; None: it may be sent at any time.

        Raises:
            NotSentError: the call was not sent.
            ConnectionLostError: the connection was lost since, or no answer came in time; whether
                the call was made is unknown.
            MessageError: an argument cannot be sent.
            ReentrantCallError: a signal handler calls during a call of the same thread.
        """
        thread, call_id, slot = threading.get_ident(), next(self._ids), _Slot()
        found: Any = None
        error: Exception | None = None  # raised below: the handler is for interruptions
        call = Call(call_id, spec.name, args, dict(options), target)
        payload = call_payload(call, self.welcome.frame_bytes_max)
        if thread in self._callers:
            raise ReentrantCallError("a signal handler calls a store during a call of its thread")
        try:
            self._callers.add(thread)
            self._slots[call_id] = slot
            if self._lost is None:
                limit_s = self._call_timeout_s
                if spec.waits:
                    limit_s += wait_of(options)
                elif spec.takes_long:
                    limit_s = math.inf
                deadline_s = slot.begin_s + limit_s
                if self._unused_targets:
                    self._close_unused_targets(deadline_s)
                self._send(payload, deadline_s, slot, is_late)
                self._await(slot, deadline_s)
                if slot.reply is None:
                    error = self._unanswered(no_answer(spec, limit_s, self.endpoint), slot)
                    self._give_up(call_id, slot, spec)
                else:
                    found, error = _result(spec, slot.reply)
            else:
                error = NotSentError(str(self._lost))
            self._leave(call_id)
            self._callers.discard(thread)
            if error is None:
                return found
        except BaseException:
            self._give_up(call_id, slot, spec)
            self._callers.discard(thread)
            raise
        raise error

    def begin(
        self, spec: CallSpec, args: list[Any], options: Mapping[str, Any], event: ReadableEvent
    ) -> "BegunCall":
        """Send a call whose answer no thread waits for. `event` is set when it is there.

        Raises:
            NotSentError, MessageError: as `request`.
        """
        call_id, slot = next(self._ids), _Slot(event)
        call = Call(call_id, spec.name, args, dict(options))
        payload = call_payload(call, self.welcome.frame_bytes_max)
        if self._lost is not None:
            raise NotSentError(str(self._lost))
        limit_s = self._call_timeout_s + wait_of(options)
        try:
            self._slots[call_id] = slot
            self._send(payload, slot.begin_s + self._call_timeout_s, slot)
        except BaseException:
            self._give_up(call_id, slot, spec)
            raise
        return BegunCall(self, spec, call_id, slot, limit_s)

    def read_for(self, slot: _Slot) -> None:
        """Read the bytes that have come, for a call without a thread: its answer, a part of it, or
        answers of other calls. This never waits.
        """
        if slot.reply is not None or self._has_reader:
            return
        reading = self._reading
        try:
            if (self._chunks or self._stream.has_bytes()) and reading.acquire(blocking=False):
                self._read_until(slot, time.monotonic() + self._call_timeout_s, waits=False)
                reading.release()
                self._let_another_read()
        except BaseException:
            reading.release_own()
            raise

    def close_later(self, target: int) -> None:
        """Close a target with the next call. This neither sends nor locks: a finalizer calls it."""
        self._unused_targets.append(target)

    def _close_unused_targets(self, deadline_s: float) -> None:
        while self._unused_targets:
            with contextlib.suppress(IndexError):  # another thread took the last one
                target = self._unused_targets.popleft()
                call = Call(next(self._ids), "close", [], {}, target)
                self._send(encode_call(call), deadline_s)

    def _unanswered(self, error: ConnectionLostError, slot: _Slot) -> ConnectionLostError:
        """Return the error of a call without an answer. The connection ends if the server has sent
        nothing since the call began: then it is stopped, or out of reach.
        """
        if self._received_s < slot.begin_s:
            self._lose(error)
        return error

    def _leave(self, call_id: int) -> None:
        """Remove a call, and let another thread read if none does."""
        self._slots.pop(call_id, None)
        if not self._let_another_read() and self._lost is not None:
            self._close_if_unused()

    def _let_another_read(self) -> bool:
        """Wake a thread that waits for its answer, if none reads. Return whether one was woken."""
        if self._slots and not self._has_reader and self._reading.acquire(blocking=False):
            self._reading.release()
            for one in list(self._slots.values()):
                if one.is_waiting and one.reply is None:
                    one.wake()
                    return True
        return False

    def _give_up(self, call_id: int, slot: _Slot, spec: CallSpec) -> None:
        """Remove a call that raised an error or was interrupted, and repeat the steps that may have
        been interrupted.
        """
        self._reading.release_own()
        self._sending.release_own()
        if (lost := self._lost) is not None:
            self._lose(lost)
        is_answered = isinstance(slot.reply, Answer) and has_to_be_given_back(spec)
        is_running = (
            slot.reply is None
            and call_id in self._slots
            and (spec.waits or has_to_be_given_back(spec))
        )
        if lost is None and (is_answered or is_running):
            slot.is_waiting, slot.event = False, None  # a thread waits for it from now on
            self._finish_elsewhere(call_id, slot, spec)
        else:
            self._leave(call_id)

    # --- a call whose caller is gone ---

    def _finish_elsewhere(self, call_id: int, slot: _Slot, spec: CallSpec) -> None:
        """Finish a call on a thread of its own, which no signal handler interrupts."""
        try:
            threading.Thread(
                target=self._finish,
                args=(call_id, slot, spec),
                name="timerstore-abandon",
                daemon=True,
            ).start()
        except RuntimeError:  # the interpreter ends: the server gives up with the connection
            self._lose(ConnectionLostError("a call was interrupted"))
            self._leave(call_id)

    def _finish(self, call_id: int, slot: _Slot, spec: CallSpec) -> None:
        deadline_s = time.monotonic() + self._call_timeout_s
        try:
            if slot.reply is None and not self._is_sent(slot):
                return
            if slot.reply is None:
                if spec.waits:
                    self._send(encode(Abandon(call_id)), deadline_s)
                self._await(slot, deadline_s)
            reply = slot.reply
            if reply is None:
                self._lose(no_answer(spec, self._call_timeout_s, self.endpoint))
            elif not isinstance(reply, TimerStoreError):
                for one in calls_that_give_back(spec, reply):
                    self.request(*one)
        except (TimerStoreError, NotSentError):
            return  # a lease ends later, and a target with its connection
        finally:
            self._leave(call_id)

    def _is_sent(self, slot: _Slot) -> bool:
        """Return whether the frame of a call was sent, or will be. An interruption may come before
        that.
        """
        one = slot.unsent
        if one is None:
            return False
        return any(each is one for each in list(self._unsent)) or bool(one.sent)

    # --- sending ---

    def _send(
        self,
        payload: bytes,
        deadline_s: float,
        slot: _Slot | None = None,
        is_late: Callable[[], bool] | None = None,
    ) -> None:
        """Send a frame after those that were not sent yet. Each stays in the list until it is sent
        completely, so that the next thread continues an interrupted one.
        """
        unsent = self._unsent
        one = _Unsent(frame(payload), [], slot, is_late)
        if slot is not None:
            slot.unsent = one
        unsent.append(one)
        sending = self._sending
        if not sending.acquire(blocking=False):
            left_s = min(max(deadline_s - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            if not sending.acquire(timeout=left_s):
                return  # the time for the answer is over, too
        try:
            while unsent and self._send_first(*unsent[0], deadline_s):
                unsent.popleft()
        except OSError as error:
            self._lose(ConnectionLostError(f"the connection was lost ({error})"))
        sending.release()

    def _send_first(
        self,
        data: bytes,
        sent: list[int],
        slot: _Slot | None,
        is_late: Callable[[], bool] | None,
        deadline_s: float,
    ) -> bool:
        if is_late is not None and not sent and is_late():
            assert slot is not None, "only a call can be late"
            slot.reply = window_ended(self.endpoint)
            slot.wake()
            return True
        return self._stream.send(data, sent, deadline_s)

    # --- receiving ---

    def _await(self, slot: _Slot, deadline_s: float) -> None:
        """Wait for an answer, and read for all calls if no other thread does. The answer is missing
        if it did not come until `deadline_s`.
        """
        slot.is_waiting = True
        reading = self._reading
        while slot.reply is None and (left_s := deadline_s - time.monotonic()) > 0:
            if not self._has_reader and reading.acquire(blocking=False):
                self._read_until(slot, deadline_s)
                reading.release()
            else:
                slot.wakeup.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))

    def _read_until(self, slot: _Slot, deadline_s: float, *, waits: bool = True) -> None:
        """Read until the answer comes or the time is over. Without `waits`, do not wait."""
        try:
            now_s = time.monotonic()
            self._deliver_received()  # what an interrupted reader left
            while slot.reply is None and now_s < deadline_s and self._lost is None:
                if not waits and not self._stream.has_bytes():
                    return
                is_received = self._stream.receive(self._chunks, deadline_s - now_s)
                now_s = time.monotonic()
                if is_received:
                    self._received_s = now_s
                    self._deliver_received()
        except OSError as error:
            self._lose(ConnectionLostError(f"the connection was lost ({error})"))
        except ProtocolError as error:
            self._lose(error)

    def _deliver_received(self) -> None:
        """Give the answers in received bytes to their calls. Bytes are removed only then: after an
        interruption, some answers come to their calls a second time, which changes nothing.
        """
        chunks = self._chunks
        if not chunks:
            return
        if (found := split_frames(chunks, RECEIVED_BYTES_MAX)) is not None:
            payloads, rest = found
            for payload in payloads:
                self._deliver(decode_from_server(payload))
            is_end = not chunks[-1]
            self._chunks = ([rest] if rest else []) + ([b""] if is_end else [])
        if chunks and not chunks[-1]:
            self._lose(ConnectionLostError("the server closed the connection"))

    def _deliver(self, reply: Welcome | Answer | Failure) -> None:
        if isinstance(reply, Welcome):
            raise ProtocolError("the server sent a second welcome")
        if reply.id == NO_CALL:
            self._lose(error_of_connection(reply))
        elif (slot := self._slots.get(reply.id)) is not None:  # else the call was interrupted
            slot.reply = reply
            slot.wake()

    # --- the end ---

    def _lose(self, error: TimerStoreError) -> None:
        """End the connection, and wake every call with this error. It may be repeated."""
        if self._lost is None:
            self._lost = error
        for slot in list(self._slots.values()):
            if slot.reply is None:
                slot.reply = self._lost
            slot.wake()
        with contextlib.suppress(OSError):
            self._stream.shutdown()  # a thread that waits for bytes returns
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the socket of a lost connection, when no thread can wait for its bytes."""
        is_used = any(one.event is None for one in list(self._slots.values()))
        if self._lost is None or self._has_reader or is_used:
            return
        if self._reading.acquire(blocking=False):  # else a call without a thread just reads
            self._stream.close()
            self._reading.release()

    def lose_if_idle(self) -> bool:
        """End a connection that its other end has closed, unless a thread reads it. Return whether
        it ended.
        """
        for one in list(self._slots.values()):
            if one.event is None:
                return False
            self.read_for(one)
        self._lose(ConnectionLostError("the server closed the connection"))
        return True

    def close(self) -> None:
        """End the connection. Running calls raise ClosedError."""
        error = ClosedError("the connection to the server is closed", where=self.endpoint)
        try:
            self._lose(error)
        except BaseException:  # of a signal handler
            self._lose(error)
            raise

    def forget_in_child(self) -> None:
        """Close this process's copy of the socket; the parent goes on with its own."""
        self._stream.close()


class BegunCall(NotCopyable):
    """A call that was sent, and that no thread waits for."""

    def __init__(
        self, channel: Channel, spec: CallSpec, call_id: int, slot: _Slot, limit_s: float
    ) -> None:
        self._channel = channel
        self._spec = spec
        self._id = call_id
        self._slot = slot
        self._limit_s = limit_s

    def fileno(self) -> int:
        """Return the socket from which the caller reads the answer; -1 if a thread reads it."""
        return -1 if self._channel._has_reader else self._channel.fileno()

    def has_ended(self) -> bool:
        """Read received bytes; return whether the answer is there, or its time is over."""
        slot = self._slot
        self._channel.read_for(slot)
        return slot.reply is not None or time.monotonic() >= slot.begin_s + self._limit_s

    def result(self) -> Any:
        """Return the result of a call that has ended, or raise its error."""
        channel, slot = self._channel, self._slot
        if slot.reply is None:
            why = channel._unanswered(no_answer(self._spec, self._limit_s, channel.endpoint), slot)
            self.give_up()
            raise why
        channel._leave(self._id)
        slot.unsent = None  # it refers to the slot: without it, the event is closed at once
        found, error = _result(self._spec, slot.reply)
        if error is not None:
            raise error
        return found

    def give_up(self) -> None:
        """End the call. What it receives from now on is given back."""
        self._channel._give_up(self._id, self._slot, self._spec)


def _start_reader(found: "weakref.ref[Channel]", stream: SocketStream) -> None:
    """Read on a thread for all calls of a connection with TLS."""

    def read() -> None:
        slot = _Slot()  # gets no answer
        while (one := found()) is not None:
            one._read_until(slot, time.monotonic() + _LOOK_S)
            if one.is_lost:
                one._has_reader = False
                one._close_if_unused()
                return
            del one  # a channel that is used no more can go
        stream.close()

    threading.Thread(target=read, name="timerstore-tls", daemon=True).start()


def _result(
    spec: CallSpec, reply: Answer | Failure | TimerStoreError
) -> tuple[Any, Exception | None]:
    """Return the result of a call, or its error."""
    if isinstance(reply, Answer):
        try:
            value = decode_value(spec.decoder, reply.value)
            return value if spec.from_wire is None else spec.from_wire(value), None
        except ProtocolError as error:
            return None, error
    if isinstance(reply, Failure):
        return None, error_of(reply)
    if isinstance(reply, ConnectionLostError | ClosedError):  # of several threads
        return None, type(reply)(reply.what, where=reply.where)
    return None, reply
