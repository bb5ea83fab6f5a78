"""Read one topic with the filter of a group: pulls, searches by time, and long polls.

It has no reference to its consumer: a consumer that its caller has dropped must be collected, even
while its polls are in the long-poll table.

Thread safety: any thread.
Raises: MessageError if the topic has no such queue; what a pull raises.
"""

from collections.abc import Callable

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.filter import Filter, make_filter
from timerstore._engine.read.groups import AssignedQueue, Filters
from timerstore._engine.read.long_poll import LongPoll
from timerstore._engine.read.pull import Puller, pull_result
from timerstore.types.clock import Clock
from timerstore.types.messages import PullResult


class TopicReader(NotCopyable):
    """Reads one topic."""

    def __init__(
        self, routes: Routes, puller: Puller, clock: Clock, topic: str, filters: Filters
    ) -> None:
        self._routes = routes
        self._puller = puller
        self._clock = clock
        self._topic = topic
        self._filters = filters
        self._made: tuple[Filter | None] | None = None

    def pull(self, queue_id: int, offset: int, max_count: int, bytes_max: int) -> PullResult:
        """Pull without a wait, about `bytes_max` bytes at most, and at least one message."""
        route = self._routes.readable(self._topic, queue_id, self._clock.now_ms)
        wanted = self._filter(route)
        return pull_result(self._puller.look(route, offset, max_count, wanted, bytes_max))

    def is_at_end(self, queue: AssignedQueue) -> bool:
        """Return whether all messages of a queue were handed out."""
        if queue.buffered or queue.position < 0:  # -1: the group may be anywhere
            return False
        route = self._routes.get(self._topic, queue.queue_id)
        return route is not None and self._puller.is_at_end(route, queue.fetch_at)

    def first_stored(self, queue_id: int, time_ms: int) -> int:
        """Return the first offset stored at `time_ms` or later, or the queue's end."""
        route = self._routes.readable(self._topic, queue_id, self._clock.now_ms)
        return self._puller.first_stored(route, time_ms)

    def add_poll(
        self, queue_id: int, offset: int, end_ns: int, wake: Callable[[], None]
    ) -> LongPoll | None:
        """Wait for messages from an offset on; return None if there is something to read."""
        route = self._routes.get(self._topic, queue_id)
        if route is None:
            return None  # reading creates it
        long_polls = self._puller.long_polls
        return long_polls.enter(route, offset, end_ns, self._filter(route), wake, for_group=True)

    def _filter(self, route: Route) -> Filter | None:
        if self._made is None:
            self._made = (make_filter(route, *self._filters),)
        return self._made[0]
