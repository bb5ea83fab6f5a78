"""Check the arguments of a pull, except its queue.

Raises: MessageError with everything that is wrong; ConfigError for SQL if lark is not installed.
"""

from typing import Any

from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter, make_filter
from timerstore._engine.read.validation import wait_problems
from timerstore.errors import MessageError, quoted


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
