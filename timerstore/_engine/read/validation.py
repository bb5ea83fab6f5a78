"""What those who read are given, checked: numbers, times, queues.

Fails:    MessageError.
"""

from timerstore._engine.base.argument_types import whole
from timerstore.errors import MessageError, quoted


def whole_or(value: object, otherwise: int) -> int:
    """Give a whole number; what is none becomes `otherwise`, which is refused like it."""
    number = whole(value)
    return otherwise if number is None else number


def check_queues(queues: object, count: int) -> tuple[int, ...] | None:
    """Give the queues that a consumer asks for; `count`: those of its topic, 0: not there yet."""
    if queues is None:
        return None
    try:
        given = list(queues)  # type: ignore[call-overload]  # the question is whether it can
    except TypeError as error:
        raise MessageError(f"queues: wanted whole numbers, got {quoted(queues)}") from error
    found = tuple(whole_or(one, -1) for one in given)
    if not found or not all(0 <= one < (count or 2**31) for one in found):
        wanted = f"0 to {count - 1}" if count else "whole numbers from 0 on"
        raise MessageError(f"queues: wanted some of {wanted}, got {quoted(given)}")
    if len(set(found)) < len(found):
        raise MessageError(f"queues: wanted each once, got {quoted(given)}")
    return found


def wait_problems(wait: object) -> list[str]:
    """What is wrong with seconds to wait."""
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait < 1e9:
        return []
    return [f"wait: wanted seconds from 0 on, got {quoted(wait)}"]


def range_problems(begin_ms: object, end_ms: object) -> list[str]:
    """What is wrong with a range of times, of which both ends may be None."""
    return [
        f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}"
        for name, value in (("begin_ms", begin_ms), ("end_ms", end_ms))
        if value is not None and whole(value) is None
    ]


def whole_ms(name: str, value: object) -> int:
    """Give a time in ms since 1970."""
    number = whole(value)
    if number is None:
        raise MessageError(f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}")
    return number
