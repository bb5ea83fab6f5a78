"""Convert messages to JSON objects for the page.

At most 400 characters of a body are included. A body that is not text is shown in hexadecimal.
"""

from codecs import getincrementaldecoder

from timerstore.dashboard.source import Json
from timerstore.errors import MessageError
from timerstore.types.messages import Message
from timerstore.types.reports import PendingTimer

_BODY_CHARACTERS = 400
_BODY_HEX_BYTES = 64


def row_of_pending(one: PendingTimer) -> Json:
    """Convert a pending message."""
    return {
        "message_id": one.message_id,
        "topic": one.topic,
        "due_ms": one.due_ms,
        "handle": one.handle,
        "state": "pending",
    }


def row_of_message(one: Message) -> Json:
    """Convert a message that was found by its key."""
    return {
        "message_id": one.message_id,
        "topic": one.topic,
        "due_ms": one.due_ms,
        "handle": "",
        "state": "pending" if one.waits else "delivered",
    }


def content(one: Message) -> Json:
    """Return body, tags and keys, shortened for display."""
    try:
        raw = one.body
    except MessageError:
        raw = one.raw_body
    begin = raw[: 4 * _BODY_CHARACTERS]
    try:
        # The prefix may end inside a character. Any other decoding error means binary data.
        text = getincrementaldecoder("utf-8")().decode(begin, final=len(begin) == len(raw))
        is_text = all(one.isprintable() or one in "\n\r\t" for one in text)
    except UnicodeDecodeError:
        text, is_text = "", False
    shown = text if is_text else raw[:_BODY_HEX_BYTES].hex(" ")
    return {
        "body": shown[:_BODY_CHARACTERS],
        "body_is_text": is_text,
        "body_is_cut": len(shown) > _BODY_CHARACTERS
        or (not is_text and len(raw) > _BODY_HEX_BYTES),
        "body_bytes": len(raw),
        "tags": one.tags,
        "keys": list(one.keys),
    }
