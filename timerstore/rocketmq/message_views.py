"""Messages and times, from the protocol to the store and back.

Raises: RejectedError for a body or a time that cannot be used.
"""

import hashlib
import zlib
from typing import Any

from timerstore._engine.base.message_fields import (
    MESSAGE_GROUP_PROPERTY,
    PRIORITY_PROPERTY,
    is_of_engine,
)
from timerstore._engine.leases import LeasedMessage
from timerstore.errors import quoted
from timerstore.rocketmq.codes import RejectedError
from timerstore.rocketmq.definitions import (
    Code,
    DigestType,
    Encoding,
    FilterType,
    MessageType,
    messages,
)
from timerstore.types.messages import inflate_body

_OWN_FIELDS = frozenset({"TAGS", "KEYS", PRIORITY_PROPERTY, MESSAGE_GROUP_PROPERTY})
_ANY_HEADER = 47
"""Of zlib.decompressobj: a body with a header of gzip or of zlib."""


def milliseconds(value: Any) -> int:
    """Return a Timestamp or a Duration in ms, rounded down."""
    return int(value.seconds) * 1000 + int(value.nanos) // 1_000_000


def timestamp(ms: int) -> Any:
    """Return a Timestamp."""
    return messages.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def duration(ms: int) -> Any:
    """Return a Duration of 0 or more."""
    return messages.Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def body_of(message: Any, bytes_max: int, left_bytes: int) -> bytes:
    """Return the body of a message that a client sends, decompressed.

    left_bytes: how many bytes may be used. One that inflates to more is cut off one byte above it.
    """
    body: bytes = message.body
    if not body:
        raise RejectedError(Code.MESSAGE_BODY_EMPTY, "body: wanted one byte or more, got none")
    if message.system_properties.body_encoding != Encoding.GZIP:
        return body
    inflater = zlib.decompressobj(_ANY_HEADER)
    try:
        found = inflater.decompress(body, min(bytes_max, left_bytes) + 1)
    except zlib.error as error:
        raise RejectedError(
            Code.BAD_REQUEST, f"body: wanted gzip, as its encoding says ({error})"
        ) from error
    if len(found) > bytes_max:
        raise RejectedError(
            Code.MESSAGE_BODY_TOO_LARGE, f"body: inflates to more than {bytes_max} bytes"
        )
    if len(found) <= left_bytes and not inflater.eof:
        raise RejectedError(Code.BAD_REQUEST, "body: its gzip stream ends too soon")
    return found


def view(one: LeasedMessage, topic: Any, lease_ms: int) -> Any:
    """Return a leased message as a client receives it.

    topic: the Resource by which the client named the topic.
    """
    # Not `one.body`, which keeps an inflated body as long as the message.
    body = inflate_body(one.raw_body, one.sys_flag, one.body_bytes_max)
    system = messages.SystemProperties(
        keys=one.keys,
        message_id=one.message_id,
        # MD5: the client for Node compares a CRC32 as a decimal number, and drops the message.
        body_digest=messages.Digest(
            type=DigestType.MD5,
            checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
        ),
        body_encoding=Encoding.IDENTITY,
        message_type=_type_of(one),
        born_timestamp=timestamp(one.born_ms),
        born_host=one.born_host,
        store_timestamp=timestamp(one.store_ms),
        store_host=one.store_host,
        receipt_handle=one.receipt,
        queue_id=one.queue_id,
        queue_offset=one.queue_offset,
        invisible_duration=duration(lease_ms),
        delivery_attempt=one.attempt,
    )
    if one.tags is not None:
        system.tag = one.tags
    if _is_delayed(one):
        system.delivery_timestamp.CopyFrom(timestamp(one.due_ms))
    if PRIORITY_PROPERTY in one.properties:
        system.priority = one.priority
    if one.message_group is not None:
        system.message_group = one.message_group
    return messages.Message(
        topic=topic, user_properties=_user_properties(one), system_properties=system, body=body
    )


def _is_delayed(one: LeasedMessage) -> bool:
    return "TIMER_DELIVER_MS" in one.properties


def _type_of(one: LeasedMessage) -> int:
    if _is_delayed(one):
        return int(MessageType.DELAY)
    if PRIORITY_PROPERTY in one.properties:
        return int(MessageType.PRIORITY)
    if one.message_group is not None:
        return int(MessageType.FIFO)
    return int(MessageType.NORMAL)


def _user_properties(one: LeasedMessage) -> dict[str, str]:
    return {
        name: value
        for name, value in one.properties.items()
        if name not in _OWN_FIELDS and not is_of_engine(name)
    }


def filter_of(expression: Any) -> dict[str, Any]:
    """Return the filter of a subscription as an argument of `receive`."""
    text = expression.expression
    if expression.type == FilterType.SQL:
        return {"sql": text}
    return {} if text in ("", "*") else {"tags": text}


def type_name(number: int) -> str:
    """Return the name of a message type, for the text of an error."""
    try:
        return str(MessageType(number).name)
    except ValueError:
        return quoted(number)
