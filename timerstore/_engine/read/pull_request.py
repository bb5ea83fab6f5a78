"""The arguments of one pull, as a value."""

from dataclasses import dataclass
from typing import Any

from timerstore._engine.base.argument_types import whole
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter, make_filter
from timerstore.errors import MessageError, plain, quoted

# --- pull request ---


@dataclass(slots=True)
class PullRequest:
    """The arguments of StoreApi.pull."""

    topic: str
    queue_id: int
    offset: int
    max_count: int
    wait: float
    tags: str | None
    sql: str | None
    shard: int | None

    def __post_init__(self) -> None:
        self.topic, self.tags, self.sql = plain(self.topic), plain(self.tags), plain(self.sql)
        self.queue_id, self.offset = plain(self.queue_id), plain(self.offset)
        self.max_count, self.shard = plain(self.max_count), plain(self.shard)
        self.wait = plain(self.wait)


def refuse_shard(shard: object) -> None:
    """Raise MessageError if a shard is named to a store that has none."""
    if shard is not None:
        raise MessageError(f"shard: this store has no shards, got {quoted(shard)}")


# --- validation ---
# Check the arguments of calls that read: numbers, times, queues.
#
# Raises: MessageError.


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


# --- pull validation ---
# Check the arguments of a pull, except its queue.
#
# Raises: MessageError with everything that is wrong; ConfigError for SQL if lark is not installed.


def check_pull(
    route: Route, offset: Any, max_count: Any, wait: Any, tags: Any, sql: Any
) -> Filter | None:
    """Return the filter of a pull, or None if every message passes; raise on bad arguments."""
    problems: list[str] = []
    if type(offset) is not int or offset < 0:
        problems.append(f"offset: wanted a whole number from 0 on, got {quoted(offset)}")
    if type(max_count) is not int or max_count < 1:
        problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
    problems += wait_problems(wait)
    message_filter = None
    if tags is not None or sql is not None:
        try:
            message_filter = make_filter(route, tags, sql)
        except MessageError as error:
            problems.extend(error.problems)
    if problems:
        raise MessageError(problems)
    return message_filter
