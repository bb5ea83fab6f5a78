"""Check the arguments of calls that read: numbers, times, queues.

Raises: MessageError.
"""

from timerstore._engine.base.argument_types import whole
from timerstore.errors import MessageError, plain, quoted


def whole_or(value: object, otherwise: int) -> int:
    """Return a whole number of any type as int, and `otherwise` for every other value."""
    number = whole(value)
    return otherwise if number is None else number


def check_poll(max_count: object, wait: object) -> int:
    """Return the `max_count` of a poll, or raise MessageError with everything that is wrong."""
    problems = []
    count = whole_or(max_count, 0)
    if count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    problems += wait_problems(wait)
    if problems:
        raise MessageError(problems)
    return count


def check_queues(queues: object, count: int) -> tuple[int, ...] | None:
    """Return the queues that a consumer requests; None stands for a fair share.

    count: how many queues the topic has; 0 if it does not exist yet.
    """
    if queues is None:
        return None
    try:
        given = [plain(one) for one in queues]  # type: ignore[attr-defined]  # TypeError if it cannot
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
    """Return the problems of a wait in seconds."""
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait < 1e9:
        return []
    return [f"wait: wanted seconds from 0 on, got {quoted(wait)}"]


def range_problems(begin_ms: object, end_ms: object) -> list[str]:
    """Return the problems of a time range; each end may be None."""
    return [
        f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}"
        for name, value in (("begin_ms", begin_ms), ("end_ms", end_ms))
        if value is not None and whole(value) is None
    ]


def whole_ms(name: str, value: object) -> int:
    """Return a time in ms since 1970."""
    number = whole(value)
    if number is None:
        raise MessageError(f"{name}: wanted a whole number of ms since 1970, got {quoted(value)}")
    return number
