"""Tasks as messages of a store, and the names of queues, exchanges and tasks as names there.

A message of kombu is a JSON object, the body of a message of the store. Its task id is a key, and
its `eta` is the due time, so a worker gets a task when it is due and not before.

A run of a recurring definition (scheduler.py) has a body that is the same for each run. Its task id
is made from the id of the run's message, and `expires` is counted from the run's due time.

Raises: MessageError for a name or an `eta` that is invalid.
"""

import math
import re
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from celery import current_app
from celery.utils.time import maybe_make_aware
from kombu.utils.json import dumps, loads

from timerstore.errors import MessageError

GROUP = "celery"
"""The group of all workers."""
BINDINGS_TOPIC = "%kombu%bindings"
EVERY_PROPERTY = "celery_every"
"""The property of a run of a recurring definition: seconds after which it expires, or "-"."""

_INNER = "%kombu%"  # "%" begins two hexadecimal digits in an escaped name
_QUEUE_CHARS_MAX = 113  # the topic of its leases, "%RETRY%celery|QUEUE", has 127
_OTHERS = re.compile(rb"[^A-Za-z0-9_-]")
_TASK_IDS = uuid.UUID("6a9f42a1-2b1c-5f0e-8a52-1d6f0c3b7e55")


def escaped(name: str) -> str:
    """Return a name with only the characters of a topic. Different names stay different."""
    return _OTHERS.sub(lambda one: b"%%%02X" % one[0][0], name.encode()).decode()


def topic_of(queue: str) -> str:
    """Return the topic of a queue."""
    topic = escaped(queue)
    if not 1 <= len(topic) <= _QUEUE_CHARS_MAX:
        raise MessageError(
            f"queue: wanted a name of 1 to {_QUEUE_CHARS_MAX} characters, in which each byte that "
            f"is no letter, digit, - or _ counts as three, got {len(topic)} for {queue!r}"
        )
    return topic


def topic_of_exchange(exchange: str) -> str:
    """Return the topic of the messages that an exchange sends to broadcast queues."""
    return f"{_INNER}exchange%{topic_of(exchange)}"


def queue_of(topic: str) -> str | None:
    """Return the queue of a topic; None for a topic that is not that of a queue."""
    name = unquote(topic)
    return name if escaped(name) == topic else None


def task_id_of(message: Mapping[str, Any]) -> str | None:
    """Return the task id of a message of kombu; None if it is no task."""
    found = message["headers"].get("id")
    return found if isinstance(found, str) and found else None


EXPIRED_KEPT_MS = 3_600_000
"""For so long a worker still gets an expired task, and marks it as revoked for its result."""


def due_ms(headers: Mapping[str, Any], now: datetime) -> int | None:
    """Return the due time of a task in milliseconds since 1970; None if it is due now."""
    at_ms = _time_ms(headers, "eta")
    return at_ms if at_ms is not None and at_ms > now.timestamp() * 1000 else None


def _time_ms(headers: Mapping[str, Any], name: str) -> int | None:
    """Return a time of the headers in milliseconds since 1970, or None."""
    text = headers.get(name)
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise MessageError(f"{name}: wanted a time in ISO 8601, got {text!r}") from error
    if at.tzinfo is None:  # as a worker reads it
        at = maybe_make_aware(at, current_app.timezone)
    return math.ceil(at.timestamp() * 1000)


def put_options(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `put` for a message of kombu."""
    options: dict[str, Any] = {}
    if (task_id := task_id_of(message)) is not None:
        options["keys"] = escaped(task_id)
    if (at_ms := due_ms(message["headers"], datetime.now(UTC))) is not None:
        options["deliver_ms"] = at_ms
    if (expires_ms := _time_ms(message["headers"], "expires")) is not None:
        now_ms = math.ceil(time.time() * 1000)
        options["expires_ms"] = max(expires_ms, at_ms or now_ms) + EXPIRED_KEPT_MS
    if priority := priority_of(message):
        options["priority"] = priority
    return options


def priority_of(message: Mapping[str, Any]) -> int:
    """Return the priority of a message of kombu, 0 to 9; higher ones come first."""
    given = message["properties"].get("priority")
    return min(max(given, 0), 9) if isinstance(given, int) else 0


def pack(message: Mapping[str, Any]) -> bytes:
    """Return the body for a message of kombu."""
    text: str = dumps(message)
    return text.encode()


def unpack(found: Any, tag: str, *, is_redelivered: bool) -> dict[str, Any]:
    """Return the message of kombu in a message of the store.

    Raises:
        ValueError: another program put it there.
    """
    message = loads(found.body.decode())
    if not isinstance(message, dict) or not {"body", "headers", "properties"} <= message.keys():
        raise ValueError("wanted an object with body, headers and properties")
    if (expires_s := found.properties.get(EVERY_PROPERTY)) is not None:
        _become_run(message, found, expires_s)
    properties = message["properties"]
    properties["delivery_tag"] = tag
    properties.setdefault("delivery_info", {})["redelivered"] = is_redelivered
    return message


def _become_run(message: dict[str, Any], found: Any, expires_s: str) -> None:
    run_id = str(uuid.uuid5(_TASK_IDS, found.message_id))
    message["headers"].update(id=run_id, root_id=run_id)
    message["properties"]["correlation_id"] = run_id
    if expires_s != "-":
        due = datetime.fromtimestamp(found.due_ms / 1000, UTC)
        message["headers"]["expires"] = (due + timedelta(seconds=float(expires_s))).isoformat()
