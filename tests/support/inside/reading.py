"""Pulls, consumers and timerstore.aio."""

from collections.abc import Mapping
from typing import Any

from tests.support.inside.attribute import Attribute
from timerstore._engine.leases import leased_message
from timerstore._engine.leases.lease_appender import LeaseAppender
from timerstore._engine.leases.leases import Leases
from timerstore._engine.read.pull_request import PullRequest
from timerstore._engine.read.query import FoundMessages, Querier


def route_and_filter(store: Any, topic: str, queue_id: int, tags: str | None) -> tuple[Any, Any]:
    """The route of a queue, and the filter of a pull by tags."""
    route, *_, wanted = store._pull_arguments(
        PullRequest(topic, queue_id, 0, 1, 0.0, tags, None, None)
    )
    return route, wanted


def has_waiting_pulls(long_polls: Any) -> bool:
    """Return whether a pull waits."""
    return bool(long_polls._queues)


def property_reader(long_polls: Any) -> Attribute:
    """The function that reads the properties of new messages for pulls that wait with a filter."""
    return Attribute(long_polls, "_read_properties")


def wait_queue_of(consumer: Any) -> Any:
    """The wait queue of a consumer's polls: read/groups.py."""
    return consumer._member.wait_queue


def waiters_of(line: Any) -> list[Any]:
    """The waiting polls of a wait queue."""
    return list(line._waiters)


def group_lock(consumer: Any) -> Any:
    """The lock of a consumer's group."""
    return consumer._group.lock


def consumer_pull(consumer: Any) -> Attribute:
    """The method by which a consumer pulls from one queue."""
    return Attribute(consumer._reader, "pull")


def consumer_fetch(consumer: Any) -> Attribute:
    """The method by which a consumer fetches messages for the current poll."""
    return Attribute(consumer, "fetch_next")


def store_of(consumer: Any) -> Any:
    """The store that a consumer reads."""
    return consumer._context.call.__self__


def pending_commits(offsets: Any) -> list[Any]:
    """The commits that are not written yet, and those of the last write."""
    found: list[Any] = offsets._pending
    return found


def groups_by_topic(groups: Any) -> Mapping[str, Any]:
    """The groups that read, by topic."""
    found: Mapping[str, Any] = groups._by_topic
    return found


def page_buffers(page: Any) -> tuple[Any, Any]:
    """The buffers of a page's bodies and properties."""
    return page._bodies, page._properties


def kept_buffers(buffers: Any) -> list[Any]:
    """The buffers that are kept for later pages."""
    found: list[Any] = buffers._kept
    return found


QUERIER_STEPS = {
    "walk": Attribute(Querier, "_walk"),
    "waiting": Attribute(Querier, "_waiting"),
    "future": Attribute(Querier, "_future"),
    "read": Attribute(FoundMessages, "read"),
}
"""The steps of a query by key."""


def recent_removals(removals: Any) -> Any:
    """The removals that may not be durable yet."""
    return removals._recent


def readers_of_removals(removals: Any) -> list[Any]:
    """The queries that are notified of removals."""
    found: list[Any] = removals._readers
    return found


def forget_sql_parser() -> None:
    """Have the next SQL filter make its parser again."""
    from timerstore._engine.read import sql

    sql._parser.cache_clear()


LEASING_ROW = Attribute(LeaseAppender, "_row")
"""The method that makes the record of one lease."""

LEASES_MOVE = Attribute(Leases, "move")
"""The method that extends or ends one lease."""


def body_of(message: Any) -> bytes:
    """The body of a message that is leased, inflated."""
    return leased_message.body_of(message)


def bells_of(store: Any) -> Mapping[Any, Any]:
    """The bells of an AsyncTimerStore, by event loop."""
    found: Mapping[Any, Any] = store._waiters
    return found


def aio_page_count() -> int:
    """How many pending messages an AsyncTimerStore reads at a time."""
    from timerstore.aio import async_store

    return async_store.PAGE_COUNT
