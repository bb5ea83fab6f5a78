"""Pulls, consumers and timerstore.aio."""

from collections.abc import Mapping
from typing import Any

from tests.support.inside.attribute import Attribute
from timerstore._engine.leases import leasing
from timerstore._engine.leases.leases import Leases
from timerstore._engine.leases.leasing import Leasing
from timerstore._engine.read.query import Querier
from timerstore._engine.read.requests import PullRequest


def route_and_filter(store: Any, topic: str, queue_id: int, tags: str | None) -> tuple[Any, Any]:
    """Return the route of a queue, and the filter of a pull by tags."""
    route, *_, wanted = store._pull_arguments(
        PullRequest(topic, queue_id, 0, 1, 0.0, tags, None, None)
    )
    return route, wanted


def text_reader(long_polls: Any) -> Attribute:
    """Return the reader of the properties of new messages for waiting pulls with a filter."""
    return Attribute(long_polls, "_read_texts")


def line_of(consumer: Any) -> Any:
    """Return the wait queue of a consumer's polls: read/wait_queue.py."""
    return consumer._member.line


def places_of(line: Any) -> list[Any]:
    """Return the polls in a wait queue."""
    return list(line._places)


def group_lock(consumer: Any) -> Any:
    """Return the lock of a consumer's group."""
    return consumer._group.lock


def consumer_pull(consumer: Any) -> Attribute:
    """Return the method by which a consumer pulls from one queue."""
    return Attribute(consumer, "_pull")


def consumer_fetch(consumer: Any) -> Attribute:
    """Return the method by which a consumer fetches messages for the first waiting poll."""
    return Attribute(consumer, "_fetch_next")


def consumer_seams(consumer: Any) -> Attribute:
    """Return the calls of the store that a consumer makes."""
    return Attribute(consumer, "_seams")


def store_of(consumer: Any) -> Any:
    """Return the store that a consumer reads."""
    return consumer._seams.call.__self__


def commits_asked(offsets: Any) -> list[Any]:
    """Return the commits to be written, and the last ones that were written."""
    found: list[Any] = offsets._asked
    return found


def groups_by_topic(groups: Any) -> Mapping[str, Any]:
    """Return the groups that read, by topic."""
    found: Mapping[str, Any] = groups._by_topic
    return found


def page_buffers(page: Any) -> tuple[Any, Any]:
    """Return the buffers of a page's bodies and properties."""
    return page._bodies, page._properties


def kept_buffers(buffers: Any) -> list[Any]:
    """Return the buffers that are kept for later pages."""
    found: list[Any] = buffers._kept
    return found


QUERIER_STEPS = {
    "walk": Attribute(Querier, "_walk"),
    "waiting": Attribute(Querier, "_waiting"),
    "future": Attribute(Querier, "_future"),
    "read": Attribute(Querier, "_read"),
}
"""The steps of a query by key."""


def recent_removals(removals: Any) -> Any:
    """Return the removals that may not be durable yet."""
    return removals._recent


def readers_of_removals(removals: Any) -> list[Any]:
    """Return the queries that are notified of removals."""
    found: list[Any] = removals._readers
    return found


def forget_sql_parser() -> None:
    """Make the next SQL filter build its parser again."""
    from timerstore._engine.read import sql

    sql._parser.cache_clear()


LEASING_ROW = Attribute(Leasing, "_row")
"""The method that makes the record of one lease."""

LEASES_MOVE = Attribute(Leases, "_move")
"""The method that extends or ends one lease."""


def body_of(message: Any) -> bytes:
    """Return the body of a message that is leased, inflated."""
    return leasing._body_of(message)


def bells_of(store: Any) -> Mapping[Any, Any]:
    """Return the wakers of an AsyncTimerStore, by event loop."""
    found: Mapping[Any, Any] = store._bells
    return found


def aio_page_count() -> int:
    """Return how many pending messages an AsyncTimerStore reads at a time."""
    from timerstore import aio

    return aio._PAGE
