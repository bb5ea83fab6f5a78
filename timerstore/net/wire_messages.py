"""The messages of the protocol: what a frame contains, as msgpack arrays.

The first element of each array is the kind. Elements that a reader does not know, at the end of an
array, are ignored; missing ones have the defaults stated here.

Raises: ProtocolError for bytes that are no message.
See also: docs/protocol.md.
"""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from timerstore._engine.base.native import lib
from timerstore.errors import ProtocolError
from timerstore.net.wire_values import decoded_extension, encodable, wire_value

PROTOCOL_VERSION: Final = 1
TOO_DEEP: Final = 2**63 - 1
CONFIG_FEATURE: Final = "config"
ACK_FEATURE: Final = "ack"
"""Of a server: `receive` takes receipts to acknowledge first."""
NO_CALL: Final = 0
"""The id in a failure that concerns the connection, not one call."""

Value = TypeVar("Value")


class Hello(Struct, array_like=True, tag=1, frozen=True):
    """The first message of a client."""

    version: int
    features: list[str] = []
    token: str | None = None
    return_leases: bool = False
    """Whether the server gives back the leases of this connection when it ends."""


class Call(Struct, array_like=True, tag=2, frozen=True):
    """A call. Its id is above 0, and not that of another call of the connection still running."""

    id: int
    name: str
    args: list[Any] = []
    """The arguments without a default, in the order of the signature."""
    options: dict[str, Any] = {}
    """The other arguments, by name."""
    target: int = 0
    """0 for the store, or the number of a consumer or of a list of messages."""


class CallHead(Struct, array_like=True, tag=2, frozen=True):
    """The beginning of a call whose arguments are not decoded."""

    id: int
    name: str


class Abandon(Struct, array_like=True, tag=3, frozen=True):
    """The caller does not want the result of a call any more."""

    id: int


class Welcome(Struct, array_like=True, tag=4, frozen=True):
    """The server's answer to Hello."""

    version: int
    features: list[str] = []
    frame_bytes_max: int = 0
    in_flight_max: int = 0
    dedupe_window_ms: int = 0
    path: str = ""
    config: dict[str, str | int | bool] = {}
    """The settings of the store, for a client with the feature `config`."""


class Answer(Struct, array_like=True, tag=5, frozen=True):
    """The result of a call."""

    id: int
    value: Raw


class Failure(Struct, array_like=True, tag=6, frozen=True):
    """The exception of a call. With id 0 the connection ends, and all its calls fail."""

    id: int
    kind: str
    """The name of the exception's class."""
    what: str = ""
    where: str | None = None
    wanted: str | None = None
    got: str | None = None
    problems: list[str] | None = None
    """For errors of arguments: one text for each problem."""
    retryable: bool = False
    result: str | None = None
    """For NotPendingError and LeaseLostError: the state of the message."""
    stored_count: int = 0
    """For FullError, BusyError and ConflictError: how many messages of a batch were stored."""
    conflict: list[str] | None = None
    """For ConflictError: topic, message id, and what differs."""


FromClient = Hello | Call | Abandon
FromServer = Welcome | Answer | Failure

_encoder = msgspec.msgpack.Encoder(enc_hook=wire_value)
_call_encoder = msgspec.msgpack.Encoder()
_from_client = msgspec.msgpack.Decoder(FromClient, ext_hook=decoded_extension)
_hello = msgspec.msgpack.Decoder(Hello)
_head = msgspec.msgpack.Decoder(CallHead)
_from_server = msgspec.msgpack.Decoder(FromServer)


def encode_call(call: Call) -> bytes:
    """Return the bytes of a call, whose arguments are packed."""
    try:
        return _call_encoder.encode(call)
    except (OverflowError, UnicodeEncodeError):
        args, options = encodable(call.args), encodable(call.options)
        return _call_encoder.encode(Call(call.id, call.name, args, options, call.target))


def encode(message: FromClient | FromServer | object) -> bytes:
    """Return the bytes of a message or of a result."""
    return _encoder.encode(message)


def decode_hello(payload: bytes) -> Hello:
    """Return the first message of a client, which is a Hello."""
    return _decoded(_hello, payload)


def decode_from_client(payload: bytes) -> FromClient:
    """Return a client's message."""
    message: FromClient = _decoded(_from_client, payload)
    return message


def decode_head(payload: bytes) -> CallHead:
    """Return the beginning of a call. The rest takes no memory."""
    return _decoded(_head, payload)


def memory_of(payload: bytes) -> int:
    """Return about how many bytes of memory a message takes when it is decoded.

    TOO_DEEP, which is above any limit, if it is nested deeper than 32 lists or maps.
    """
    memory = int(lib.ts_wire_memory(payload, len(payload)))
    if memory < 0:
        raise ProtocolError("a frame is no message of the protocol (it is not one msgpack value)")
    return memory


def described_memory(memory_bytes: int) -> str:
    """Return a text for a result of `memory_of`."""
    return "lists in lists, too deep" if memory_bytes == TOO_DEEP else f"{memory_bytes} bytes"


def decode_from_server(payload: bytes) -> FromServer:
    """Return a server's message. The value of an Answer is not decoded yet."""
    message: FromServer = _decoded(_from_server, payload)
    return message


def decode_value(decoder: "msgspec.msgpack.Decoder[Value]", value: Raw) -> Value:
    """Return the result of a call."""
    return _decoded(decoder, value)


def _decoded(decoder: "msgspec.msgpack.Decoder[Value]", payload: bytes | Raw) -> Value:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"a frame is no message of the protocol ({error})") from error
