"""What messages look like to the page.

Threads:  any; pure.
Holds:    at most 400 characters of a body are told; what is no text is told as hexadecimal.
"""

from codecs import getincrementaldecoder

from timerstore.dashboard.source import Json
from timerstore.errors import MessageError
from timerstore.messages import Message
from timerstore.reports import PendingTimer

_BODY_CHARACTERS = 400
_BODY_HEX_BYTES = 64


def row_of_pending(one: PendingTimer) -> Json:
    """One that waits, as a row."""
    return {
        "message_id": one.message_id,
        "topic": one.topic,
        "due_ms": one.due_ms,
        "handle": one.handle,
        "state": "waiting",
    }


def row_of_message(one: Message) -> Json:
    """One that was found by a key, as a row."""
    return {
        "message_id": one.message_id,
        "topic": one.topic,
        "due_ms": one.due_ms,
        "handle": "",
        "state": "waiting" if one.waits else "delivered",
    }


def content(one: Message) -> Json:
    """What is in a message, as far as a page shows it."""
    try:
        raw = one.body
    except MessageError:
        raw = one.raw_body
    begin = raw[: 4 * _BODY_CHARACTERS]
    try:
        # A character may be cut at the end of what is looked at; anything else is no text.
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
