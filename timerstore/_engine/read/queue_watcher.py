"""Add a consumer's long polls to the long-poll table."""

from collections.abc import Callable

from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.filter import Filter, make_filter
from timerstore._engine.read.groups import Filters
from timerstore._engine.read.long_poll import LongPoll, LongPollTable


class QueueWatcher:
    """Adds the polls of one consumer of a topic, with the filter of its group.

    It has no reference to the consumer: a consumer that its caller has dropped must be collected,
    even while its polls are in the table.
    """

    def __init__(
        self, routes: Routes, long_polls: LongPollTable, topic: str, filters: Filters
    ) -> None:
        self._routes = routes
        self._long_polls = long_polls
        self._topic = topic
        self._filters = filters
        self._made: tuple[Filter | None] | None = None

    def __call__(
        self, queue_id: int, offset: int, end_ns: int, wake: Callable[[], None]
    ) -> LongPoll | None:
        """Wait for messages from an offset on; return None if there is something to read."""
        route = self._routes.get(self._topic, queue_id)
        if route is None:
            return None  # reading creates it
        if self._made is None:
            self._made = (make_filter(route, *self._filters),)
        return self._long_polls.enter(route, offset, end_ns, self._made[0], wake, for_group=True)
