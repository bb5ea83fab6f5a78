"""Check the arguments of a query.

Raises: MessageError with everything that is wrong.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from timerstore._engine.base.argument_types import whole
from timerstore._engine.format.store_paths import topic_component
from timerstore.errors import MessageError, quoted, typed

KEY_BYTES_MAX = 32_767
"""The bytes that the properties of a record have room for; no key is longer."""

TIME_MIN_MS, TIME_MAX_MS = -(2**63), 2**63 - 1


class Query(NamedTuple):
    """The validated arguments of one query."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_count: int


def check_query(topic: Any, key: Any, begin_ms: Any, end_ms: Any, max_count: Any) -> Query:
    """Return the validated arguments; raise MessageError with everything that is wrong."""
    problems = []
    try:
        if topic_component(topic) != topic:
            raise AssertionError
    except (TypeError, MessageError):
        problems.append(f"topic: wanted 1 to 255 of A-Za-z0-9%_|-, got {quoted(topic)}")
    problems.extend(_key_problems(key))
    times = []
    for name, value, otherwise in (
        ("begin_ms", begin_ms, TIME_MIN_MS),
        ("end_ms", end_ms, TIME_MAX_MS),
    ):
        number = otherwise if value is None else whole(value)
        if number is None:
            problems.append(f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}")
            number = otherwise
        times.append(min(max(number, TIME_MIN_MS), TIME_MAX_MS))
    if times[0] > times[1]:
        problems.append(
            f"begin_ms: wanted at most end_ms ({quoted(end_ms)}), got {quoted(begin_ms)}"
        )
    count = whole(max_count)
    if count is None or count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    if problems:
        raise MessageError(problems)
    return Query(topic, key, times[0], times[1], count or 0)


def _key_problems(key: Any) -> Iterator[str]:
    if not isinstance(key, str):
        yield f"key: wanted text, got {typed(key)}"
        return
    if not key or key.split() != [key]:
        yield f"key: wanted one without spaces, not empty, got {quoted(key)}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        yield f"key: wanted text without half a surrogate pair, got {quoted(key)}"
        return
    if size > KEY_BYTES_MAX:
        yield f"key: wanted at most {KEY_BYTES_MAX} bytes, got {size}"
