"""Watcher: puts the holds of one consumer in the hold table."""

from collections.abc import Callable

from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.filter import Filter, make_filter
from timerstore._engine.read.groups import Filters
from timerstore._engine.read.long_poll import LongPoll, LongPollTable


class Watcher:
    """Of one topic, with the filter of the consumer's group. It does not know the consumer: one
    that nobody holds any more must go, though its polls have a place to stand.
    """

    def __init__(self, routes: Routes, holds: LongPollTable, topic: str, filters: Filters) -> None:
        self._routes = routes
        self._holds = holds
        self._topic = topic
        self._filters = filters
        self._made: tuple[Filter | None] | None = None

    def __call__(
        self, queue_id: int, offset: int, end_ns: int, ring: Callable[[], None]
    ) -> LongPoll | None:
        """Wait for what comes from an offset on; None where there is something to look at."""
        route = self._routes.get(self._topic, queue_id)
        if route is None:
            return None  # looking makes it
        if self._made is None:
            self._made = (make_filter(route, *self._filters),)
        return self._holds.enter(route, offset, end_ns, self._made[0], ring, for_group=True)
