"""Check topics, queue numbers, tags, keys, properties, message ids, levels and sizes.

Raises: MessageError, with every problem of one argument.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import PROBLEMS_MAX, Int64Array, refuse_values, whole
from timerstore._engine.base.native import ffi, join, lib
from timerstore.errors import MessageError, plain, quoted, typed

# --- priorities ---
# Priorities of messages: each is a queue of a topic with priorities, as in RocketMQ 5.
#
# A topic becomes one with priorities by its first message that has one. Then queue 0 holds the
# messages without a priority, and queue n those of priority n. The message also has the property
# that a RocketMQ client gives it.
#
# Raises: MessageError for an invalid priority.


PRIORITY_PROPERTY = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX = 9
PRIORITY_QUEUE_COUNT = PRIORITY_MAX + 1

_HAS_PRIORITY = re.compile(rb"(?:^|\x02)%s\x01" % PRIORITY_PROPERTY.encode())


class PriorityQueueId(int):
    """The queue of a priority. Its topic becomes one with priorities."""

    __slots__ = ()

    @property
    def text(self) -> bytes:
        """The encoded property of a message with this priority; empty for 0."""
        return b"%s\x01%d\x02" % (PRIORITY_PROPERTY.encode(), self) if self else b""


def queue_of_priority(priority: object, queue_id: object) -> PriorityQueueId | None:
    """Return the queue of a priority, or None for priority 0, which needs no queue of its own."""
    number = whole(priority)
    if number is None or not 0 <= number <= PRIORITY_MAX:
        raise MessageError(f"priority: wanted 0 to {PRIORITY_MAX}, got {quoted(priority)}")
    if queue_id is not None:
        raise MessageError(
            "priority, queue_id: wanted one of them, because a priority is a queue of its topic; "
            f"got priority {number} and queue_id {quoted(queue_id)}"
        )
    return PriorityQueueId(number) if number else None


def rank_of_queue(queue_id: int) -> int:
    """Return the priority of a queue; of one past the priorities, a number below all of them."""
    return queue_id if queue_id <= PRIORITY_MAX else -queue_id


def stored_queue_id(queue_id: int, properties: bytes) -> int:
    """Return a stored queue id as that of a priority if the encoded properties have one."""
    return PriorityQueueId(queue_id) if _HAS_PRIORITY.search(properties) else queue_id


# --- message groups ---
# Message groups: their messages are in one queue of a topic, in the order of their delivery.
#
# The property is that of RocketMQ. Raises: MessageError for an invalid name.


MESSAGE_GROUP_PROPERTY = "__SHARDINGKEY"
MESSAGE_GROUP_BYTES_MAX = 128
MESSAGE_GROUP_QUEUE_COUNT = 16
"""Queues among which a topic's message groups are divided. Stored messages rely on it."""


class MessageGroupQueueId(int):
    """The queue of a message group."""

    def __new__(cls, name: str) -> Self:
        """Return the queue of the group with this name."""
        return super().__new__(cls, zlib.crc32(name.encode()) % MESSAGE_GROUP_QUEUE_COUNT)

    def __init__(self, name: str) -> None:
        self.text = f"{MESSAGE_GROUP_PROPERTY}\x01{name}\x02".encode()
        """The encoded property of a message of the group."""


def queue_of_message_group(name: object, queue_id: object, priority: object) -> MessageGroupQueueId:
    """Return the queue of a message group."""
    name = plain(name)
    is_named = isinstance(name, str) and not _CONTROL.search(name) and is_utf8(name)
    if not is_named or not 1 <= len(str(name).encode()) <= MESSAGE_GROUP_BYTES_MAX:
        raise MessageError(
            f"message_group: wanted text of 1 to {MESSAGE_GROUP_BYTES_MAX} bytes of UTF-8 without "
            f"control characters, got {quoted(name)}"
        )
    for other, value in (("queue_id", queue_id), ("priority", priority)):
        if value is not None:
            raise MessageError(
                f"message_group, {other}: wanted one of them, because a message group has one "
                f"queue of its topic; got {quoted(name)} and {quoted(value)}"
            )
    return MessageGroupQueueId(str(name))


# --- message fields ---


TOPIC_BYTES_MAX = 127
QUEUE_COUNT_MAX = 1024
"""Queues that a put may add to a topic. Each queue has its own files."""

MESSAGE_ID_BYTES_MAX = 128
"""Of a caller's message id, which is part of every handle and of the properties of each copy."""
PROPERTY_VALUE_BYTES_MAX = 32_767

_SYSTEM_TOPICS = frozenset({"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"})
_TOPIC = re.compile(r"[A-Za-z0-9%_|-]+")
_CONTROL = re.compile("[\x00-\x1f]")
_NO_ID = re.compile("[\x00-\x20\x7f]")

UNIQUE_PROPERTY = "TS_UNIQUE"
"""The key of a message that is unique until it is done; its copies have it, too."""
DROPPED_NAMES = frozenset(
    {
        "TS_ID", "TS_GROUP", "TS_LEVEL", "TS_ONCE", "TS_PLACE", "TS_LEASE", "TS_ERROR",
        "TS_RENEWED", "TS_REPLACE", UNIQUE_PROPERTY, "TS_EVERY",
    }
)  # fmt: skip
"""Properties dropped silently: a forwarded message still has those of its earlier store."""

RESERVED_PREFIX = "TIMER_"
ENGINE_NAMES = DROPPED_NAMES | {"UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "DELAY", "__CRC32#"}
"""Properties that only the engine sets, with those that begin with TIMER_. C has the same names
(native/log/message_ids.c); a test compares them.
"""
RESERVED_NAMES = {
    "TAGS": "pass it as tags=",
    "KEYS": "pass them as keys=",
    "UNIQ_KEY": "the store sets it",
    "REAL_TOPIC": "the store sets it",
    "REAL_QID": "the store sets it",
    "DELAY": "pass it as level=",
    "__CRC32#": "the store sets it",
    "INNER_NUM": "batch queues are not written",
    "INNER_BASE": "batch queues are not written",
    "INNER_MULTI_DISPATCH": "a broker would dispatch by it",
    "INNER_MULTI_QUEUE_OFFSET": "a broker would dispatch by it",
    "TRAN_MSG": "transactions are not written",
    PRIORITY_PROPERTY: "pass it as priority=",
    MESSAGE_GROUP_PROPERTY: "pass it as message_group=",
    "TS_EXPIRES": "pass it as expires_ms=",
}
"""Names that the engine or a broker uses. Names that begin with TIMER_ are reserved as well."""

_INT64_DIGITS = 19
_INT32_DIGITS = 10
_ENGINE_PROPERTIES = {  # name -> longest value, without the real topic, which is added by topic
    "UNIQ_KEY": 32,
    "TIMER_DELIVER_MS": _INT64_DIGITS,
    "TIMER_OUT_MS": _INT64_DIGITS,
    "REAL_TOPIC": 0,
    "REAL_QID": _INT32_DIGITS,
    "TS_ID": 16,
    "TIMER_ENQUEUE_MS": _INT64_DIGITS,
    "TIMER_DEQUEUE_MS": _INT64_DIGITS,
    "TIMER_ROLL_TIMES": _INT32_DIGITS,
    "TS_PLACE": 16,
    "__CRC32#": 10,
}
PROPERTIES_HEADROOM_BYTES = sum(len(name) + size + 2 for name, size in _ENGINE_PROPERTIES.items())
"""Most bytes that the engine adds to a message's properties, without the destination topic."""

_RECORD_FIXED_BYTES = 91 + 24  # a record around body, topic and properties; both hosts may be IPv6
_TIMER_TOPIC_BYTES = len("rmq_sys_wheel_timer")


def is_of_engine(name: str) -> bool:
    """Return whether the engine sets a property, not the caller of a put."""
    return name in ENGINE_NAMES or name.startswith(RESERVED_PREFIX)


def check_topic(topic: object) -> bytes:
    """Return the topic's bytes; cheap if it was checked before. MessageError if it is invalid."""
    try:
        return _topics_checked[topic]  # type: ignore[index]  # its keys are text
    except (KeyError, TypeError):
        raw = _topic_bytes(topic)
    if len(_topics_checked) >= _TOPICS_CHECKED_MAX:
        _topics_checked.clear()
    _topics_checked[raw.decode()] = raw
    return raw


# Results of _topic_bytes. They depend only on the argument, so all stores share them.
_topics_checked: dict[str, bytes] = {}
_TOPICS_CHECKED_MAX = 4096


def _topic_bytes(topic: object) -> bytes:
    if not isinstance(topic, str):
        raise MessageError(f"topic: wanted text, got {typed(topic)}")
    problems = []
    raw = topic.encode("utf-8", "surrogatepass")
    if not 1 <= len(raw) <= TOPIC_BYTES_MAX:
        problems.append(
            f"topic: wanted 1 to {TOPIC_BYTES_MAX} bytes, got {len(raw)}: {quoted(topic)}"
        )
    if topic and not _TOPIC.fullmatch(topic):
        wrong = sorted({one for one in topic if not _TOPIC.fullmatch(one)})[:8]
        problems.append(
            "topic: wanted ASCII letters, digits, %, _, - and |, "
            f"got {', '.join(map(repr, wrong))} in {quoted(topic)}"
        )
    if topic in _SYSTEM_TOPICS or topic.startswith("rmq_sys_timerstore_"):
        problems.append(f"topic: {topic} is reserved for the engine")
    if problems:
        raise MessageError(problems)
    return raw


def check_queue_id(queue_id: object) -> int:
    """Return the queue number. MessageError unless it is 0 to QUEUE_COUNT_MAX - 1."""
    number = whole(queue_id)
    if number is None or not 0 <= number < QUEUE_COUNT_MAX:
        raise MessageError(f"queue_id: wanted 0 to {QUEUE_COUNT_MAX - 1}, got {quoted(queue_id)}")
    return number


def body_bytes_limit(message_bytes_max: int, record_bytes_max: int, topic: bytes) -> int:
    """Return the largest body without properties of which every copy fits a record, bytes."""
    return min(message_bytes_max, room_bytes(record_bytes_max, topic))


def room_bytes(record_bytes_max: int, topic: bytes) -> int:
    """Return how many bytes body and caller's properties may have together; may be negative."""
    name_bytes = max(len(topic), _TIMER_TOPIC_BYTES)
    headroom = PROPERTIES_HEADROOM_BYTES + len(topic)
    return record_bytes_max - _RECORD_FIXED_BYTES - name_bytes - headroom


def surely_fits_bytes(*, properties_bytes_max: int, record_bytes_max: int) -> int:
    """Return a size of body and caller's properties that passes `check_sizes` for any topic."""
    longest = b"t" * TOPIC_BYTES_MAX
    properties_bytes = properties_bytes_max - PROPERTIES_HEADROOM_BYTES - len(longest)
    return min(properties_bytes, room_bytes(record_bytes_max, longest))


def check_sizes(
    body_bytes: int,
    own_properties_bytes: int,
    topic: bytes,
    *,
    properties_bytes_max: int,
    record_bytes_max: int,
) -> None:
    """Raise MessageError unless body and properties fit, with the engine's later additions."""
    problems = []
    limit = properties_bytes_max - PROPERTIES_HEADROOM_BYTES - len(topic)
    if own_properties_bytes > limit:
        problems.append(
            f"properties: wanted at most {limit} bytes with tags and keys "
            f"({properties_bytes_max} less what delivery adds), got {own_properties_bytes}"
        )
    room = room_bytes(record_bytes_max, topic)
    if body_bytes + own_properties_bytes > room:
        problems.append(
            f"message: wanted at most {room} bytes of body and properties "
            f"(a record of {record_bytes_max}), got {body_bytes} + {own_properties_bytes}"
        )
    if problems:
        raise MessageError(problems)


def encode_properties(
    tags: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    queue_id: object = None,
) -> bytes:
    """Return tags, keys and properties in their on-disk form: name 0x01 value 0x02.

    One key may be passed as plain text. If the queue is that of a priority or of a message group,
    add its property.

    Raises:
        MessageError: with every wrong name and value.
    """
    of_queue = b""
    if queue_id is not None and isinstance(queue_id, PriorityQueueId | MessageGroupQueueId):
        of_queue = queue_id.text
    has_keys = not is_nothing(keys)
    if tags is None and not has_keys and properties is None:
        return of_queue
    problems: list[str] = []
    text = []
    if type(tags) is not str:
        tags = plain(tags)
    if tags is not None:
        problems += tags_problems(tags)
        text.append(f"TAGS\x01{tags}\x02" if not problems else "")
    if has_keys and (joined := _joined_keys(keys, problems)):
        text.append(f"KEYS\x01{joined}\x02")
    for name, value in _own_pairs(properties, problems) if properties is not None else ():
        if _is_clean(name, value, problems):
            text.append(f"{name}\x01{value}\x02")
    if problems:
        raise MessageError(problems)
    return "".join(text).encode() + of_queue


def tags_problems(tags: object) -> list[str]:
    """Return the problems of a message's tag. A tag that no filter can name is wrong as well."""
    if not isinstance(tags, str):
        return [f"tags: wanted text, as property TAGS, or None, got {typed(tags)}"]
    if not tags:
        return ["tags: wanted text that is not empty, as property TAGS, or None, got ''"]
    if _CONTROL.search(tags):
        return [
            f"tags: wanted text without control characters, as property TAGS, got {quoted(tags)}"
        ]
    if not is_utf8(tags):
        return [f"tags: {_HALF}, got {quoted(tags)}"]
    if "||" in tags or tags != tags.strip(" ") or tags == "*":
        return [f"tags: {UNFILTERED}, got {quoted(tags)}"]
    return []


UNFILTERED = "wanted one tag that a filter can name: no || in it, no space at either end, not *"
_HALF = "wanted text without half a surrogate pair, which UTF-8 does not have"


def is_nothing(given: object) -> bool:
    """Return whether keys or properties are empty. The truth value of an array cannot be used."""
    if type(given) in (dict, list, str, tuple):  # the usual types, quickly
        return not given
    if isinstance(given, np.ndarray):
        return given.size == 0
    try:
        return not given
    except ValueError:
        return False


def list_of_keys(keys: object) -> list[Any]:
    """Return one key or several as a list of unchecked items. MessageError on another type."""
    if isinstance(keys, bytes | bytearray | memoryview):
        raise MessageError(f"keys: wanted text or several, got {typed(keys)}; decode it")
    try:
        return [keys] if isinstance(keys, str) else list(keys)  # type: ignore[call-overload]
    except TypeError as error:
        raise MessageError(f"keys: wanted text or several, got {typed(keys)}") from error


def _joined_keys(keys: object, problems: list[str]) -> str:
    try:
        parts = list_of_keys(keys)
    except MessageError as error:
        problems += error.problems
        return ""
    before = len(problems)
    for key in parts:
        if not isinstance(key, str):
            problems.append(f"keys: wanted text, got {typed(key)}")
        elif not key or key.split() != [key] or _CONTROL.search(key):
            problems.append(
                "keys: wanted text without spaces and control characters, not empty, got "
                f"{quoted(key)}"
            )
        elif not is_utf8(key):
            problems.append(f"keys: {_HALF}, got {quoted(key)}")
    return "" if len(problems) > before else " ".join(parts)


def _own_pairs(properties: object, problems: list[str]) -> list[tuple[str, str]]:
    if is_nothing(properties) and type(plain(properties)) not in (bool, int, float):
        return []
    if not isinstance(properties, Mapping):
        problems.append(f"properties: wanted a mapping, got {typed(properties)}")
        return []
    pairs = []
    for name, value in properties.items():
        if name in DROPPED_NAMES:
            continue
        why = RESERVED_NAMES.get(name)
        if why is None and isinstance(name, str) and name.startswith(RESERVED_PREFIX):
            why = "the engine uses it"
        if why is not None:
            problems.append(f"property {quoted(name)}: this name is reserved; {why}")
        else:
            pairs.append(
                (
                    name if type(name) is str else plain(name),
                    value if type(value) is str else plain(value),
                )
            )
    return pairs


def _is_clean(name: object, value: object, problems: list[str]) -> bool:
    before = len(problems)
    for what, text in (("name", name), ("value", value)):
        if not isinstance(text, str):
            problems.append(f"property {quoted(name)}: wanted text as {what}, got {typed(text)}")
        elif not text:
            problems.append(f"property {quoted(name)}: wanted a {what}, got an empty one")
        elif _CONTROL.search(text):
            problems.append(
                f"property {quoted(name)}: wanted a {what} without control characters, got "
                f"{quoted(text)}"
            )
        elif not is_utf8(text):
            problems.append(f"property {quoted(name)}: {_HALF}, as {what}, got {quoted(text)}")
    return len(problems) == before


def is_utf8(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which cannot be stored."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_message_id(message_id: object) -> bytes:
    """Return a caller's message id in UTF-8. MessageError on spaces and control characters."""
    if not isinstance(message_id, str):
        raise MessageError(f"message_id: wanted text, got {typed(message_id)}")
    try:
        raw = message_id.encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"message_id: {_HALF}, got {quoted(message_id)}") from error
    if not message_id or _NO_ID.search(message_id):
        raise MessageError(
            "message_id: wanted text without spaces and control characters, not empty, got "
            f"{quoted(message_id)}"
        )
    if len(raw) > MESSAGE_ID_BYTES_MAX:
        raise MessageError(
            f"message_id: wanted at most {MESSAGE_ID_BYTES_MAX} bytes, got {len(raw)}: "
            f"{quoted(message_id)}"
        )
    return raw


LEVEL_PROPERTY = "DELAY"


def check_level(level: object, delay: object, deliver_at: object, deliver_ms: object) -> int:
    """Return the delay level. MessageError if it is not one, or a time is given as well."""
    given = {"delay": delay, "deliver_at": deliver_at, "deliver_ms": deliver_ms}
    names = [name for name, value in given.items() if value is not None]
    if names:
        got = ", ".join([*names, "level"])
        raise MessageError(f"time: wanted one of delay, deliver_at, deliver_ms, level, got {got}")
    number = whole(level)
    if number is None or number < 1:
        raise MessageError(f"level: wanted a whole number from 1 on, got {quoted(level)}")
    return number


# --- message bodies ---
# Check message bodies: one, or many as a list or as one buffer with offsets.
#
# Raises: MessageError, with every problem of one argument.


Body = bytes | memoryview


def check_body(body: object, body_bytes_max: int) -> Body:
    """Return the body as bytes, or as a view of single bytes of the caller's buffer."""
    if type(body) is bytes and len(body) <= body_bytes_max:
        return body
    view: Body = body if type(body) is bytes else view_of(body, "body")
    if len(view) > body_bytes_max:
        raise MessageError(f"body: wanted at most {body_bytes_max} bytes, got {len(view)}")
    return view


def view_of(data: object, what: str) -> memoryview:
    """Return a view of single bytes. MessageError unless `data` is a contiguous buffer."""
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # TypeError if it is not a buffer
    except TypeError as error:
        hint = "; encode it first" if isinstance(data, str) else ""
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}{hint}") from error
    except (ValueError, BufferError) as error:  # released, or of a type without bytes
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}: {error}") from error
    if not view.c_contiguous:
        raise MessageError(f"{what}: wanted contiguous bytes, got a view with steps")
    if not view.nbytes:
        return memoryview(b"")  # a view with a 0 in its shape cannot be cast
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


class Spans(NamedTuple):
    """Bodies of a batch: body k is `data[offsets[k]:offsets[k + 1]]`."""

    data: Body
    offsets: Int64Array
    largest: int  # bytes of the largest body


_COUNTED_IN_BYTES = {bytes, bytearray}  # the length of a view counts elements, not bytes


def gather_bodies(bodies: object, body_bytes_max: int) -> Spans:
    """Return the bodies of a batch as one buffer and `count + 1` offsets into it.

    `bodies` is a sequence of bytes-likes, or a pair (buffer, array or list of offsets).
    """
    if type(bodies) is list:
        offsets = np.empty(len(bodies) + 1, np.int64)
        found = join(bodies, offsets)
        if found is not None:  # every body is `bytes`, the usual case
            return _checked_sizes(Spans(found[0], offsets, found[1]), body_bytes_max)
    if (offsets_of := _pair_offsets(bodies)) is not None:
        return _checked_spans(view_of(bodies[0], "bodies"), offsets_of, body_bytes_max)  # type: ignore[index]  # a pair
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Sequence):
        raise MessageError(
            "bodies: wanted a sequence of bytes-likes, or (buffer, array of offsets), "
            f"got {typed(bodies)}"
        )
    offsets = np.zeros(len(bodies) + 1, np.int64)
    try:
        joined = b"".join(bodies)
        if not {*map(type, bodies)} <= _COUNTED_IN_BYTES:
            bodies = [view_of(body, "bodies") for body in bodies]
        np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), out=offsets[1:])
    except (TypeError, ValueError, BufferError) as error:
        raise MessageError(_wrong_bodies(bodies)) from error
    return _checked_spans(joined, offsets, body_bytes_max)


def count_bodies(bodies: object) -> int:
    """Return the number of bodies; 0 if this is not a batch, which `gather_bodies` rejects."""
    if (offsets := _pair_offsets(bodies)) is not None:
        return max(0, offsets.size - 1)
    return len(bodies) if isinstance(bodies, Sequence) else 0


def _pair_offsets(bodies: object) -> npt.NDArray[np.generic] | None:
    """Return the offsets of a pair (buffer, offsets); None for another value."""
    if not isinstance(bodies, tuple) or len(bodies) != 2:
        return None
    if isinstance(bodies[1], np.ndarray):
        return bodies[1]
    if not isinstance(bodies[1], list):
        return None
    try:
        return np.asarray(bodies[1])
    except ValueError:  # lists of several lengths
        return None


def _wrong_bodies(bodies: Sequence[object]) -> list[str]:
    problems: list[str] = []
    for k, body in enumerate(bodies):
        try:
            view_of(body, f"bodies[{k}]")
        except MessageError as error:
            problems.extend(error.problems)
    if len(problems) > PROBLEMS_MAX:
        problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more of {len(bodies)}"]
    return problems or ["bodies: wanted bytes-likes"]


def _checked_spans(data: Body, offsets: npt.NDArray[np.generic], body_bytes_max: int) -> Spans:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 1:
        raise MessageError(
            f"bodies: wanted one row of whole offsets, count + 1 of them, got {offsets.dtype} "
            f"of shape {offsets.shape}"
        )
    spans = np.array(offsets, np.int64)  # a copy: the caller cannot change it after the check
    native_offsets = ffi.from_buffer("int64_t[]", spans)
    largest = int(lib.ts_spans_largest(native_offsets, len(spans) - 1, len(data)))
    if largest < 0:
        raise MessageError(
            f"bodies: wanted offsets that rise from 0 or more to at most {len(data)}, "
            f"got {spans[0]} to {spans[-1]}"
        )
    return _checked_sizes(Spans(data, spans, largest), body_bytes_max)


def _checked_sizes(spans: Spans, body_bytes_max: int) -> Spans:
    if spans.largest > body_bytes_max:
        sizes = np.diff(spans.offsets)
        refuse_values(
            sizes > body_bytes_max, f"bodies: wanted at most {body_bytes_max} bytes", sizes
        )
    return spans
