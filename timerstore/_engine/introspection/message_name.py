"""The name of a message that a caller asks about: its topic and message id.

Raises: MessageError if the argument identifies no message.
"""

from collections.abc import Mapping
from typing import NamedTuple

from timerstore._engine.base.message_fields import is_utf8
from timerstore._engine.format.handle import check_receipt, decode
from timerstore._engine.read.groups import check_name
from timerstore.errors import MessageError, quoted, typed
from timerstore.messages import Message
from timerstore.receipts import PutReceipt
from timerstore.reports import PendingTimer


class Name(NamedTuple):
    """The topic and message id that identify a message."""

    topic: str
    message_id: str


def name_of(given: object, topic: str | None) -> Name:
    """Return the name in a receipt, a message, a handle, or a message id with its topic."""
    if isinstance(given, PutReceipt):
        check_receipt(given)
    if isinstance(given, Message) and not isinstance(given.properties, Mapping):
        raise MessageError(
            f"message: wanted a mapping as its properties, got {typed(given.properties)}"
        )
    if isinstance(given, Message | PendingTimer | PutReceipt):
        return _name_in(given.topic, given.message_id)
    if not isinstance(given, str) or not given:
        raise MessageError(
            "message: wanted a receipt, a message, a handle, or a message id with topic=, got "
            f"{typed(given)}"
        )
    if topic is not None:
        if not is_utf8(given):
            raise MessageError(f"message: half a surrogate pair in its id, got {quoted(given)}")
        return Name(check_name("topic", topic), given)
    try:
        handle = decode(given)
    except MessageError as error:
        raise MessageError(
            f"message: {quoted(given)} is no handle; with a message id, give topic=, too"
        ) from error
    return Name(handle.topic, handle.message_id)


def _name_in(topic: object, message_id: object) -> Name:
    """Check the fields of an object, which a caller may have constructed."""
    if not isinstance(message_id, str) or not is_utf8(message_id):
        raise MessageError(f"message: wanted text as its message_id, got {typed(message_id)}")
    return Name(check_name("topic", topic), message_id)
