"""What `put` and `put_many` are given, checked before anything is written.

Holds:    (1) what passes fits its record, and so does every copy that delivery makes of it;
          (2) everything that is wrong with one argument is said at once.
Fails:    MessageError, always; nothing else comes out of here.
Source:   store-format.md 2.1 (properties), 2.6 (limits), 7.1 (names); design.md section 3 (times).
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, join, lib
from timerstore.config import RATE_MAX, RATE_MIN, StoreConfig
from timerstore.errors import MessageError, quoted, typed

TOPIC_BYTES_MAX = 127
QUEUE_COUNT_MAX = 1024
"""Queues that a put may grow a topic to: each has files of its own."""

MESSAGE_ID_BYTES_MAX = 128
"""A message id that a caller gives: it is in every handle, and in each copy's properties."""
PROPERTY_VALUE_BYTES_MAX = 32_767

_Read = TypeVar("_Read")

Body = bytes | memoryview
Int64Array = npt.NDArray[np.int64]

_SYSTEM_TOPICS = frozenset(
    {"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "rmq_sys_timerstore_ingest"}
)
_PROBLEMS_MAX = 5  # named in one error
_TOPIC = re.compile(r"[A-Za-z0-9%_|-]+")
_CONTROL = re.compile("[\x00-\x1f]")
_NO_ID = re.compile("[\x00-\x20\x7f]")

DROPPED_NAMES = frozenset(
    {
        "TS_ID", "TS_GROUP", "TS_LEVEL", "TS_ONCE", "TS_PLACE", "TS_LEASE", "TS_REPLACE", "TS_EVERY"
    }
)  # fmt: skip
"""A caller's value is left out without a word: a forwarded message carries its old store's."""

RESERVED_PREFIX = "TIMER_"
RESERVED_NAMES = {
    "TAGS": "give it as tags=",
    "KEYS": "give them as keys=",
    "UNIQ_KEY": "the store makes it",
    "REAL_TOPIC": "the store makes it",
    "REAL_QID": "the store makes it",
    "DELAY": "give it as level=",
    "__CRC32#": "the store makes it",
    "INNER_NUM": "batch queues are not written",
    "INNER_BASE": "batch queues are not written",
    "INNER_MULTI_DISPATCH": "a broker would dispatch by it",
    "INNER_MULTI_QUEUE_OFFSET": "a broker would dispatch by it",
    "TRAN_MSG": "transactions are not written",
}
"""Names that mean something to the engine or to a broker; so does all that begins with TIMER_."""

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
"""Most that the engine adds to a message's properties over its life, the real topic not counted."""

_RECORD_FIXED_BYTES = 91 + 24  # a record around body, topic and properties; both hosts may be IPv6
_TIMER_TOPIC_BYTES = len("rmq_sys_wheel_timer")


def check_topic(topic: object) -> bytes:
    """Give the topic's bytes, cheaply from the second time; MessageError on one that is wrong."""
    try:
        return _topics_checked[topic]  # type: ignore[index]  # what is no text is not in there
    except (KeyError, TypeError):
        raw = _topic_bytes(topic)
    if len(_topics_checked) >= _TOPICS_CHECKED_MAX:
        _topics_checked.clear()
    _topics_checked[raw.decode()] = raw
    return raw


# What _topic_bytes answered before: it depends on its argument alone, so all stores may share this.
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
    if topic in _SYSTEM_TOPICS:
        problems.append(f"topic: {topic} is the engine's own")
    if problems:
        raise MessageError(problems)
    return raw


def check_queue_id(queue_id: object) -> int:
    """Give the queue number; MessageError unless it is 0 to QUEUE_COUNT_MAX - 1."""
    number = whole(queue_id)
    if number is None or not 0 <= number < QUEUE_COUNT_MAX:
        raise MessageError(f"queue_id: wanted 0 to {QUEUE_COUNT_MAX - 1}, got {quoted(queue_id)}")
    return number


def check_body(body: object, body_bytes_max: int) -> Body:
    """Give the body as bytes, or as a view of single bytes of what was given."""
    if type(body) is bytes and len(body) <= body_bytes_max:
        return body
    view: Body = body if type(body) is bytes else _view_of(body, "body")
    if len(view) > body_bytes_max:
        raise MessageError(f"body: wanted at most {body_bytes_max} bytes, got {len(view)}")
    return view


def _view_of(data: object, what: str) -> memoryview:
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # the question is whether it is a buffer
    except TypeError as error:
        hint = "; encode it first" if isinstance(data, str) else ""
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}{hint}") from error
    except (ValueError, BufferError) as error:  # released, or of a type that has no bytes to show
        raise MessageError(f"{what}: wanted bytes, got {typed(data)}: {error}") from error
    if not view.c_contiguous:
        raise MessageError(f"{what}: wanted contiguous bytes, got a view with steps")
    if not view.nbytes:
        return memoryview(b"")  # a view with a shape of zeros has no other form
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


def body_bytes_limit(message_bytes_max: int, record_bytes_max: int, topic: bytes) -> int:
    """Give how large a body without properties may be, so that every copy of it fits a record."""
    return min(message_bytes_max, room_bytes(record_bytes_max, topic))


def room_bytes(record_bytes_max: int, topic: bytes) -> int:
    """Give what body and the caller's properties may have together in one record; may be < 0."""
    name_bytes = max(len(topic), _TIMER_TOPIC_BYTES)
    headroom = PROPERTIES_HEADROOM_BYTES + len(topic)
    return record_bytes_max - _RECORD_FIXED_BYTES - name_bytes - headroom


def check_sizes(
    body_bytes: int,
    own_properties_bytes: int,
    topic: bytes,
    *,
    properties_bytes_max: int,
    record_bytes_max: int,
) -> None:
    """See that body and properties fit, with what the engine will add until delivery."""
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
    tags: str | None, keys: str | Iterable[str], properties: Mapping[str, str] | None
) -> bytes:
    """Write tags, keys and properties in their on-disk form: name 0x01 value 0x02.

    One key may be given as plain text. Raises MessageError with every name and value that is wrong.
    """
    if tags is None and is_nothing(keys) and is_nothing(properties):
        return b""
    problems: list[str] = []
    pairs: list[tuple[str, str]] = []
    text = []
    if tags is not None:
        problems += tags_problems(tags)
        text.append(f"TAGS\x01{tags}\x02" if not problems else "")
    if joined := _joined_keys(keys, problems):
        text.append(f"KEYS\x01{joined}\x02")
    pairs.extend(_own_pairs(properties, problems))
    for name, value in pairs:
        if _is_clean(name, value, problems):
            text.append(f"{name}\x01{value}\x02")
    if problems:
        raise MessageError(problems)
    return "".join(text).encode()


def tags_problems(tags: object) -> list[str]:
    """Say what is wrong with the tag of a message. One that no filter can name is wrong, too."""
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
    """Whether no keys, or no properties, are given; an array does not tell by its truth."""
    if isinstance(given, np.ndarray):
        return given.size == 0
    try:
        return not given
    except ValueError:
        return False


def list_of_keys(keys: object) -> list[Any]:
    """Give one key or several as a list, not looked at yet; MessageError on what is neither."""
    if isinstance(keys, bytes | bytearray | memoryview):
        raise MessageError(f"keys: wanted text or several, got {typed(keys)}; decode it")
    try:
        return [keys] if isinstance(keys, str) else list(keys)  # type: ignore[call-overload]
    except TypeError as error:
        raise MessageError(f"keys: wanted text or several, got {typed(keys)}") from error


def _joined_keys(keys: object, problems: list[str]) -> str:
    if is_nothing(keys):
        return ""
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
    if is_nothing(properties) and properties is not False and properties != 0:
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
            why = "the engine's own"
        if why is not None:
            problems.append(f"property {quoted(name)}: this name is reserved; {why}")
        else:
            pairs.append((name, value))
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
    """Whether a text can be stored: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_message_id(message_id: object) -> bytes:
    """Give a caller's message id as it is stored: UTF-8 without spaces and control characters."""
    if not isinstance(message_id, str):
        raise MessageError(f"message_id: wanted text, got {typed(message_id)}")
    if not is_utf8(message_id):
        raise MessageError(f"message_id: {_HALF}, got {quoted(message_id)}")
    if not message_id or _NO_ID.search(message_id):
        raise MessageError(
            "message_id: wanted text without spaces and control characters, not empty, got "
            f"{quoted(message_id)}"
        )
    raw = message_id.encode()
    if len(raw) > MESSAGE_ID_BYTES_MAX:
        raise MessageError(
            f"message_id: wanted at most {MESSAGE_ID_BYTES_MAX} bytes, got {len(raw)}: "
            f"{quoted(message_id)}"
        )
    return raw


LEVEL_PROPERTY = "DELAY"


def check_level(level: object, delay: object, deliver_at: object, deliver_ms: object) -> int:
    """Give the fixed level; MessageError on what is none, or where a time stands beside it."""
    given = {"delay": delay, "deliver_at": deliver_at, "deliver_ms": deliver_ms}
    names = [name for name, value in given.items() if value is not None]
    if names:
        got = ", ".join([*names, "level"])
        raise MessageError(f"time: wanted one of delay, deliver_at, deliver_ms, level, got {got}")
    number = whole(level)
    if number is None or number < 1:
        raise MessageError(f"level: wanted a whole number from 1 on, got {quoted(level)}")
    return number


SANE_MS_MIN = 946_684_800_000
"""The year 2000: due times before it are most often seconds, given as milliseconds."""

_SANE = "wanted 0 (now), or a time from 2000-01-01 on in ms since 1970"
MANY_SECONDS = "if these are seconds, multiply them by 1000"


def resolve_due_ms(
    now_ms: int,
    delay: timedelta | float | None,
    deliver_at: datetime | None,
    deliver_ms: int | None,
    delay_ms_max: int,
) -> int | None:
    """Give when a message is due, epoch ms; None: now (no time given, or one that has passed).

    Parts of a millisecond round up: never early. `delay` below zero, NaN, infinite or of another
    type, a naive `deliver_at`, two times at once, more than `delay_ms_max` ahead: MessageError.
    So is a time from 1970 to the year 2000 where the clock is past that: most such times are
    seconds that were given as milliseconds. 0 and less mean now.
    """
    if delay is None and deliver_at is None:
        if deliver_ms is None:
            return None
        if type(deliver_ms) is int and now_ms < deliver_ms <= now_ms + delay_ms_max:
            return deliver_ms
    name, due_ms = _named_due_ms(now_ms, delay, deliver_at, deliver_ms)
    if due_ms <= now_ms:
        if 0 < due_ms < SANE_MS_MIN <= now_ms:
            raise _too_early(name, due_ms)
        return None
    if due_ms - now_ms > delay_ms_max:
        raise MessageError(
            f"{name}: wanted at most {delay_ms_max} ms from now, got {quoted(due_ms - now_ms)}"
        )
    return due_ms


def _too_early(name: str, due_ms: int) -> MessageError:
    """Make the error for a due time before the year 2000."""
    hint = "0 means now"
    if SANE_MS_MIN <= due_ms * 1000 < 2**43:
        hint = f"it looks like seconds; use {name}={due_ms} * 1000"
        if name == "deliver_at":
            hint = "it looks like seconds that were read as milliseconds"
    return MessageError(f"{name}: {_SANE}, got {quoted(due_ms)} ms since 1970; {hint}")


def is_too_early(due_ms: Int64Array, now_ms: int) -> npt.NDArray[np.bool_] | None:
    """Tell which due times are above 0, and before the year 2000; None: none of them is."""
    if now_ms < SANE_MS_MIN or not len(due_ms) or due_ms.min() >= SANE_MS_MIN:
        return None
    wrong: npt.NDArray[np.bool_] = (due_ms < SANE_MS_MIN) & (due_ms > 0)
    return wrong if wrong.any() else None


def due_ms_of(
    now_ms: int,
    delay: timedelta | float | None,
    deliver_at: datetime | None,
    deliver_ms: int | None,
    config: StoreConfig,
) -> int:
    """Give when a message is due in a store, epoch ms; 0: now.

    As `resolve_due_ms`, and MessageError for a time to come where timers are off.
    """
    due_ms = resolve_due_ms(now_ms, delay, deliver_at, deliver_ms, config.delay_ms_max)
    if due_ms is None:
        return 0
    if not config.timer_enabled:
        raise timers_off()
    return due_ms


def timers_off() -> MessageError:
    """Make the error for a time to come in a store that has no timers."""
    return MessageError("time: timers are off in this store (timer_enabled), got a due time")


def _named_due_ms(
    now_ms: int, delay: object, deliver_at: object, deliver_ms: object
) -> tuple[str, int]:
    """Give the argument that says the time, and the time."""
    if (delay is not None) + (deliver_at is not None) + (deliver_ms is not None) != 1:
        given = {"delay": delay, "deliver_at": deliver_at, "deliver_ms": deliver_ms}
        names = ", ".join(name for name, value in given.items() if value is not None)
        raise MessageError(f"time: wanted one of delay, deliver_at, deliver_ms, got {names}")
    if delay is not None:
        return "delay", now_ms + _delay_ms(delay)
    if deliver_at is not None:
        return "deliver_at", moment_ms("deliver_at", deliver_at)
    number = whole(deliver_ms)
    if number is None:
        raise MessageError(
            f"deliver_ms: wanted a whole number of ms since 1970, got {quoted(deliver_ms)}"
        )
    return "deliver_ms", number


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _delay_ms(delay: object) -> int:
    # A float is rounded to the microsecond first: 16.1 * 1000 is a little above 16100.
    if type(delay) is float and 0.0 <= delay < 1e9:
        return -(-int(delay * 1e6 + 0.5) // 1000)
    if isinstance(delay, timedelta):
        microseconds = delay // _MICROSECOND
    elif isinstance(delay, float):
        if not math.isfinite(delay):
            raise MessageError(f"delay: wanted a finite number of seconds, got {delay}")
        microseconds = round(delay * 1e6) if abs(delay) < 1e15 else int(delay) * 1_000_000
    else:
        seconds = whole(delay)
        if seconds is None:
            raise MessageError(f"delay: wanted seconds or a timedelta, got {quoted(delay)}")
        microseconds = seconds * 1_000_000
    if microseconds < 0:
        raise MessageError(f"delay: wanted 0 or more, got {quoted(delay)}")
    return -(-microseconds // 1000)


def check_spread(spread: object) -> int:
    """Give the window of a spread in ms; seconds or a timedelta, as a delay is given."""
    try:
        return _delay_ms(spread)
    except MessageError as error:
        raise MessageError(f"spread{str(error).removeprefix('delay')}") from error


def check_rate(per_second: object) -> float | None:
    """Give messages a second, None for no rate."""
    if per_second is None:
        return None
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not RATE_MIN <= per_second <= RATE_MAX:  # type: ignore[operator]
        raise MessageError(
            f"per_second: wanted {RATE_MIN} to {RATE_MAX}, or None, got {quoted(per_second)}"
        )
    return float(per_second)  # type: ignore[arg-type]


def moment_ms(name: str, moment: object) -> int:
    """Give a moment in ms since 1970, rounded up: not before it.

    A time that comes twice, as clocks go back, is the first or the second one as its `fold` says.
    One that a change of clocks skips is read with the offset from before the change, whatever its
    `fold`: the other reading would be early.
    """
    if not isinstance(moment, datetime):
        raise MessageError(f"{name}: wanted a datetime, got {quoted(moment)}")
    offset = moment.utcoffset()
    if offset is None:
        raise MessageError(f"{name}: wanted a datetime with its time zone, got {moment!r}")
    if moment.fold:
        before = moment.replace(fold=0)
        if offset > (before.utcoffset() or offset):  # clocks went forward: this time is skipped
            moment = before
    return -(-((moment - _EPOCH) // _MICROSECOND) // 1000)


def resolve_due_array(
    now_ms: int,
    count: int,
    delay: object,
    deliver_ms: object,
    delay_ms_max: int,
) -> Int64Array:
    """Give when each of `count` messages is due, epoch ms; 0: now. One value stands for all.

    `deliver_ms` are whole numbers, `delay` seconds or a timedelta. Fails like resolve_due_ms.
    """
    if delay is not None and deliver_ms is not None:
        raise MessageError("time: wanted one of delay, deliver_ms, got both")
    if delay is None and deliver_ms is None:
        return np.zeros(count, np.int64)
    name = "delay" if delay is not None else "deliver_ms"
    given = delay if delay is not None else deliver_ms
    if isinstance(given, timedelta):
        due = np.full(count, _far(now_ms + _delay_ms(given)), np.int64)
    elif name == "delay":
        due = now_ms + _delays_ms(_numbers(given, count, name))
    else:
        numbers = _numbers(given, count, name)
        if numbers.dtype.kind == "f":
            raise MessageError("deliver_ms: wanted whole numbers of ms since 1970, got fractions")
        due = numbers.astype(np.int64)  # a copy: what has passed becomes 0 in it
        if (wrong := is_too_early(due, now_ms)) is not None:
            _refuse(wrong, f"{name}: {_SANE}; {MANY_SECONDS}", due)
    latest_ms = now_ms + delay_ms_max
    native_due = ffi.from_buffer("int64_t[]", due)
    if lib.ts_due_settle(native_due, len(due), now_ms, latest_ms) >= 0:
        _refuse(due > latest_ms, f"{name}: wanted due times of at most {latest_ms} ms", due)
    return due


def _far(due_ms: int) -> int:
    return min(due_ms, 2**62)


_BOOLS = frozenset({bool, np.bool_})


def _numbers(given: object, count: int, name: str) -> npt.NDArray[np.int64 | np.float64]:
    if isinstance(given, list | tuple) and not _BOOLS.isdisjoint(map(type, given)):
        raise MessageError(f"{name}: wanted numbers, got a bool in {quoted(given)}")
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise MessageError(f"{name}: wanted numbers, got {quoted(given)}") from error
    if numbers.size == 0 and count == 0:
        return np.zeros(0, np.int64)
    if numbers.dtype.kind not in "iuf":
        raise MessageError(f"{name}: wanted numbers, got {numbers.dtype} from {quoted(given)}")
    if numbers.ndim == 0:
        numbers = np.full(count, numbers)
    if numbers.dtype.kind == "u":
        _refuse(numbers > 2**62, f"{name}: wanted less than 2^62", numbers)
        numbers = numbers.astype(np.int64)
    if numbers.shape != (count,):
        raise MessageError(
            f"{name}: wanted one value, or one for each of {count} bodies, got {numbers.shape}"
        )
    return numbers


def _delays_ms(seconds: npt.NDArray[np.int64 | np.float64]) -> Int64Array:
    # 64 bits before anything is counted: a float32 does not tell the microseconds of a day apart,
    # and the bounds are beyond an int32.
    if seconds.dtype.kind == "f":
        _refuse(~np.isfinite(seconds), "delay: wanted finite numbers of seconds", seconds)
        _refuse(seconds < 0, "delay: wanted 0 or more", seconds)
        bounded = np.minimum(seconds.astype(np.float64), 9e12)  # far beyond delay_ms_max, and
        microseconds = np.rint(bounded * 1e6).astype(np.int64)  # within int64 as us
    else:
        _refuse(seconds < 0, "delay: wanted 0 or more", seconds)
        microseconds = np.minimum(seconds.astype(np.int64), 9_000_000_000_000) * 1_000_000
    return -(-microseconds // 1000)


def _refuse(wrong: npt.NDArray[np.bool_], message: str, values: npt.NDArray[np.generic]) -> None:
    """Raise MessageError where any is wrong: how many, and the first few."""
    places = np.flatnonzero(wrong)
    if len(places):
        some = ", ".join(f"{values[k]} at {k}" for k in places[:_PROBLEMS_MAX])
        raise MessageError(f"{message}; {len(places)} are not: {some}")


class Spans(NamedTuple):
    """Bodies of a batch: body k is `data[offsets[k]:offsets[k + 1]]`."""

    data: Body
    offsets: Int64Array
    largest: int  # bytes of the largest body


_COUNTED_IN_BYTES = {bytes, bytearray}  # of a view, len counts elements, which may be wider


def gather_bodies(bodies: object, body_bytes_max: int) -> Spans:
    """Give the bodies of a batch as one buffer and `count + 1` offsets into it.

    `bodies` is a sequence of bytes-likes, or a pair (buffer, offsets) which is used as it is.
    """
    if type(bodies) is list:
        offsets = np.empty(len(bodies) + 1, np.int64)
        found = join(bodies, offsets)
        if found is not None:  # it is bytes alone, as most are
            return _checked_sizes(Spans(found[0], offsets, found[1]), body_bytes_max)
    if isinstance(bodies, tuple) and len(bodies) == 2 and isinstance(bodies[1], np.ndarray):
        return _checked_spans(_view_of(bodies[0], "bodies"), bodies[1], body_bytes_max)
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Sequence):
        raise MessageError(
            "bodies: wanted a sequence of bytes-likes, or (buffer, array of offsets), "
            f"got {typed(bodies)}"
        )
    offsets = np.zeros(len(bodies) + 1, np.int64)
    try:
        joined = b"".join(bodies)
        if not {*map(type, bodies)} <= _COUNTED_IN_BYTES:
            bodies = [_view_of(body, "bodies") for body in bodies]
        np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), out=offsets[1:])
    except (TypeError, ValueError, BufferError) as error:
        raise MessageError(_wrong_bodies(bodies)) from error
    return _checked_spans(joined, offsets, body_bytes_max)


def count_bodies(bodies: object) -> int:
    """How many a batch has; 0 where it is none, which `gather_bodies` says."""
    if isinstance(bodies, tuple) and len(bodies) == 2 and isinstance(bodies[1], np.ndarray):
        return max(0, bodies[1].size - 1)
    return len(bodies) if isinstance(bodies, Sequence) else 0


def _wrong_bodies(bodies: Sequence[object]) -> list[str]:
    problems: list[str] = []
    for k, body in enumerate(bodies):
        try:
            _view_of(body, f"bodies[{k}]")
        except MessageError as error:
            problems.extend(error.problems)
    if len(problems) > _PROBLEMS_MAX:
        problems[_PROBLEMS_MAX:] = [f"and {len(problems) - _PROBLEMS_MAX} more of {len(bodies)}"]
    return problems or ["bodies: wanted bytes-likes"]


def _checked_spans(data: Body, offsets: npt.NDArray[np.generic], body_bytes_max: int) -> Spans:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 1:
        raise MessageError(
            f"bodies: wanted one row of whole offsets, count + 1 of them, got {offsets.dtype} "
            f"of shape {offsets.shape}"
        )
    spans = np.array(offsets, np.int64)  # a copy: what was checked is what C reads
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
        _refuse(sizes > body_bytes_max, f"bodies: wanted at most {body_bytes_max} bytes", sizes)
    return spans


def whole(value: object) -> int | None:
    """Give a whole number, numpy's too, as int; None for a bool and for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the question is whether it has one
    except TypeError:
        return None


def check_flag(name: str, value: object) -> bool:
    """Give a flag; MessageError on what is no truth value, though it may count as one."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise MessageError(f"{name}: wanted True or False, got {quoted(value)}")


def each_of(what: str, given: object, read: Callable[[Any], _Read]) -> list[_Read]:
    """Read each of several; MessageError where it is one alone, or says which is wrong first."""
    return [read_of(what, at, one, read) for at, one in enumerate(several(what, given))]


def several(what: str, given: object) -> Iterator[Any]:
    """Give one by one; MessageError where it is one alone.

    A tuple with names is one: receipts are such.
    """
    is_one = isinstance(given, str | bytes) or (
        isinstance(given, tuple) and type(given) is not tuple
    )
    if isinstance(given, Iterable) and not is_one:
        with suppress(TypeError):  # an array of numpy may be one alone, too
            return iter(given)
    raise MessageError(f"{what}: wanted several, got {typed(given)}")


def read_of(what: str, at: int, one: object, read: Callable[[Any], _Read]) -> _Read:
    """Read one of several; MessageError says which it was."""
    try:
        return read(one)
    except MessageError as error:
        raise MessageError([f"{what}[{at}]: {one}" for one in error.problems]) from error
