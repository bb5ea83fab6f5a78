"""What the connections of both clients have in common: calls as bytes, the greeting, their errors.

Thread safety: functions without state.
"""

from collections.abc import Mapping
from typing import Any

from timerstore.errors import (
    ConnectionLostError,
    MessageError,
    ProtocolError,
    TimerStoreError,
)
from timerstore.net.call_table import CallSpec
from timerstore.net.wire_errors import error_of
from timerstore.net.wire_messages import (
    ACK_FEATURE,
    PROTOCOL_VERSION,
    Answer,
    Call,
    Failure,
    Welcome,
    encode_call,
)

RECEIVED_BYTES_MAX = 1 << 30
"""Bytes of one frame, from a server that this client trusts."""


class NotSentError(Exception):
    """The call was not sent: it can be made on another connection."""


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


def without_ack(
    welcome: Welcome, options: dict[str, Any]
) -> tuple[dict[str, Any], list[str] | None]:
    """Return the options of a call, and the receipts that a call before it must acknowledge, as the
    server is an older one.
    """
    if "ack" not in options or ACK_FEATURE in welcome.features:
        return options, None
    return {name: one for name, one in options.items() if name != "ack"}, options["ack"]


def wait_of(options: Mapping[str, Any]) -> float:
    """Return the seconds for which a call waits, in addition to the limit for calls."""
    wait = options.get("wait")
    return float(wait) if isinstance(wait, int | float) and wait > 0 else 0.0


def no_answer(spec: CallSpec, limit_s: float, where: object) -> ConnectionLostError:
    """Return the error for a call that was not answered in time."""
    return ConnectionLostError(
        f"{spec.name}: the server did not answer in {limit_s:g} s (call_timeout)", where=where
    )


def window_ended(where: object) -> ConnectionLostError:
    """Return the error of a call that could not be sent again in time."""
    return ConnectionLostError(
        "the connection was lost during the call, and the window of deduplication ended before it "
        "could be sent again",
        where=where,
    )


def not_a_server(got: bytes) -> ProtocolError:
    """Return the error of a first message that has not the form of the protocol."""
    return ProtocolError("the other side is no server of timerstore", got=got)


def error_of_connection(reply: Answer | Failure) -> TimerStoreError:
    """Return the error that a message without a call has for the connection."""
    if isinstance(reply, Failure):
        return error_of(reply)
    return ProtocolError("an answer has the id of no call", got=reply.id)


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
