"""Format times, spans, sizes, bodies and messages as text and as JSON.

Invariants:
    1. Text of a store reaches a terminal without control characters.
    2. `timerstore import` accepts the JSON of a message.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from timerstore._engine.base.message_fields import DROPPED_NAMES, RESERVED_NAMES, RESERVED_PREFIX
from timerstore.types.messages import Message

_SPANS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the last that datetime has

Fields = dict[str, Any]
WriteMessage = Callable[[Fields], None]


def time_text(ms: int, *, ahead_of: int | None = None) -> str:
    """Return a local time with its zone, and with `ahead_of` its distance from that time."""
    if not -_MS_MAX < ms <= _MS_MAX:
        return f"{ms} ms"
    text = datetime.fromtimestamp(ms / 1000, UTC).astimezone().isoformat(" ", "milliseconds")
    if ahead_of is None:
        return text
    far = span_text(abs(ms - ahead_of))
    return f"{text} (in {far})" if ms > ahead_of else f"{text} ({far} ago)"


def iso(ms: int | None) -> str | None:
    """Return an ISO 8601 time in UTC; None if datetime cannot represent it."""
    if ms is None or not -_MS_MAX < ms <= _MS_MAX:
        return None
    text = datetime.fromtimestamp(ms // 1000, UTC).isoformat("T", "seconds")[:19]
    return f"{text}.{ms % 1000:03d}Z"


def span_text(ms: int) -> str:
    """Return a span in its two largest units: 2d 3h, 1m 30s, 12.3s, 400ms."""
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g}s"
    at = next(k for k, (_, size) in enumerate(_SPANS) if ms >= size)
    name, size = _SPANS[at]
    below, unit = _SPANS[at + 1]
    whole, rest = divmod((ms + unit // 2) // unit * unit, size)
    return f"{whole}{name} {rest // unit}{below}" if rest else f"{whole}{name}"


def exact_span_text(ms: int) -> str:
    """Return an exact span: 1h 30m 30s."""
    parts = []
    for name, size in (*_SPANS, ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts) or "0ms"


def size_text(size: int) -> str:
    """Return a number of bytes with its unit."""
    for name, unit in _SIZES:
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def safe(text: str) -> str:
    """Escape control characters, so that a message cannot control a terminal."""
    return _CONTROL.sub(lambda m: _ESCAPES.get(m[0], f"\\x{ord(m[0]):02x}"), text)


def body_text(body: bytes) -> str:
    """Return a body on one line; a long binary body is shown as its length."""
    try:
        return safe(body.decode())
    except UnicodeDecodeError:
        return safe(body.decode("latin-1")) if len(body) <= 64 else f"<{len(body)} bytes>"


def body_fields(body: bytes | None) -> Fields:
    """Return the JSON field of a body: text if it is UTF-8, else base64."""
    if body is None:
        return {"body": None}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def message_fields(message: Message) -> Fields:
    """Return the JSON fields of a message."""
    delivered = None if message.waits else message.delivered_ms
    shard = getattr(message, "shard", None)
    return {
        "topic": message.topic,
        **({} if shard is None else {"shard": shard}),
        "queue_id": message.queue_id,
        "queue_offset": None if message.waits else message.queue_offset,
        "log_offset": message.log_offset,
        "message_id": message.message_id,
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": own_properties(message.properties),
        "due_ms": message.due_ms,
        "due": iso(message.due_ms),
        "delivered_ms": delivered,
        "lateness_ms": None if delivered is None else delivered - message.due_ms,
        **({"handle": message.handle} if message.handle else {}),
        **body_fields(message.body),
    }


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the producer set, without those of the engine or a broker."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED_NAMES
        and name not in DROPPED_NAMES
        and not name.startswith(RESERVED_PREFIX)
    }


def message_line(fields: Fields) -> str:
    """Return a message on one line, from its JSON fields."""
    if fields["delivered_ms"] is None:
        head = f"{time_text(fields['due_ms'])}  {fields['topic']} pending"
    else:
        place = f"{fields['topic']}/{fields['queue_id']}@{fields['queue_offset']}"
        late = fields["lateness_ms"] or 0
        head = f"{time_text(fields['delivered_ms'])}  {place}  +{span_text(max(0, late))}"
    names = []
    if fields["tags"]:
        names.append(f"tag={safe(fields['tags'])}")
    if fields["keys"]:
        names.append(f"key={safe(','.join(fields['keys']))}")
    return "  ".join([head, *names, body_text(body_of(fields))])


def body_of(fields: Fields) -> bytes:
    """Return the body from the JSON fields of a message."""
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    return (fields.get("body") or "").encode()


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number and its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
