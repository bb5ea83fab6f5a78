"""Topics that puts go to: their queues, their fixed delay levels, and what a put needs at hand.

Thread safety: any thread.
Locking: one lock for creating a topic or adding queues to it. Reads take no lock.
Raises: MessageError for an invalid topic name or queue id; FullError if there is no space for the
files of a new queue; FailedError once the store has failed.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from timerstore._engine.base import message_fields
from timerstore._engine.base.message_fields import (
    PRIORITY_QUEUE_COUNT,
    MessageGroupQueueId,
    PriorityQueueId,
)
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.lease import group_of, lease_queue_of
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore.errors import MessageError
from timerstore.types.receipts import ReceiptOrigin


class Level(NamedTuple):
    """A fixed delay level of one queue of a topic. The C putter reads it by position."""

    address: int  # of the ts_route
    text: bytes
    delay_ms: int
    route: Route


class TopicTarget:
    """A topic that was put to, with everything that a put to it needs."""

    __slots__ = (
        "body_bytes_max", "has_priorities", "levels", "name", "next_queue", "only", "origin",
        "routes", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        name: bytes,
        routes: list[Route],
        origin: ReceiptOrigin,
        body_bytes_max: int,
        *,
        has_priorities: bool,
    ) -> None:
        """`body_bytes_max`: of a body without tags, keys and properties."""
        self.topic = topic
        self.name = name
        self.origin = origin
        self.body_bytes_max = body_bytes_max
        self.next_queue = 0
        self.levels: dict[int, dict[int, Level]] = {}  # by queue id, then by level as given
        self.set_routes(routes, has_priorities=has_priorities)

    def set_routes(self, routes: list[Route], *, has_priorities: bool) -> None:
        """Set the topic's queues. `only` gets the messages that name no queue: the single queue, or
        queue 0 if the topic has priorities. None: all queues in turn.
        """
        self.routes = routes
        self.has_priorities = has_priorities
        self.only = routes[0] if has_priorities or len(routes) == 1 else None


class Targets(NotCopyable):
    """All topics that were put to since the store was opened."""

    def __init__(self, core: Core, id_prefix: str) -> None:
        """`id_prefix`: prefix of the message ids that this opening generates."""
        self._config = core.config
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self.id_prefix = id_prefix
        self._lock = Lock()
        self.level_delays = parse_level_delays(core.config.level_delays)
        self.by_topic: dict[str, TopicTarget] = {}
        self.fastpath_topics: dict[str, tuple[int, ReceiptOrigin, int, dict[int, Level]]] = {}
        """Topics with one queue, as the C putter reads them."""

    def make(self, topic: str) -> TopicTarget:
        """Check the topic's name and create the topic with its queues unless it exists."""
        name = message_fields.check_topic(topic)
        with self._lock:
            target = self.by_topic.get(topic)
            if target is None:
                self._log.check_alive()  # a failed store must not create files
                self._routes.refuse_deleting(topic)
                config = self._config
                count = self._routes.queue_count(topic) or config.topic_queue_count
                origin = ReceiptOrigin(
                    topic, self.id_prefix, config.broker_name, config.precision_ms
                )
                body_bytes_max = message_fields.body_bytes_limit(
                    config.message_bytes_max, config.record_bytes_max, name
                )
                routes = self._make_routes(topic, count)
                target = TopicTarget(
                    topic,
                    name,
                    routes,
                    origin,
                    body_bytes_max,
                    has_priorities=topic in self._routes.priority_topics,
                )
                self.by_topic[topic] = target
                self._set_fastpath(target)
            return target

    def forget(self, topics: Iterable[str]) -> None:
        """Forget topics that are being deleted: until that is complete, `make` raises BusyError."""
        with self._lock:
            for topic in topics:
                self.by_topic.pop(topic, None)
                self.fastpath_topics.pop(topic, None)

    def route_of(self, target: TopicTarget, queue_id: int | None) -> Route:
        """Return the queue with this id, created if necessary; None: the topic's next queue."""
        routes = target.routes
        if queue_id is None:
            if target.only is not None:
                return target.only
            at = target.next_queue
            target.next_queue = (at + 1) % len(routes)
            return routes[at % len(routes)]
        if type(queue_id) is int and 0 <= queue_id < len(routes):
            return routes[queue_id]
        number = message_fields.check_queue_id(queue_id)
        if isinstance(queue_id, PriorityQueueId) and not target.has_priorities:
            self._set_priorities(target)
        elif isinstance(queue_id, MessageGroupQueueId) and target.has_priorities:
            raise MessageError(
                f"message_group: wanted a topic without priorities, got {target.topic!r}, in which "
                "each queue has the messages of one priority"
            )
        with self._lock:
            if number >= len(target.routes):
                self._log.check_alive()
                routes = self._make_routes(target.topic, number + 1)
                target.set_routes(routes, has_priorities=target.has_priorities)
                self._set_fastpath(target)
        return target.routes[number]

    def retry_queue(self, topic: str, queue_id: int, *, is_grouped: bool) -> int:
        """Return the queue of the retries of a message in a queue of the topic."""
        if is_grouped:
            return lease_queue_of(queue_id)
        return PriorityQueueId(queue_id) if topic in self._routes.priority_topics else 0

    def _set_priorities(self, target: TopicTarget) -> None:
        """Make a topic one with priorities. Its messages so far must be in queue 0.

        This does not apply to the topic of a group's retries, which the store itself fills: those
        in other queues count as of that priority.
        """
        topic = target.topic
        with self._lock:
            self._log.check_alive()
            used = [one.queue_id for one in target.routes[1:] if _is_used(one)]
            if used and group_of(topic) is None:
                raise MessageError(
                    f"priority: topic {topic!r} has messages in queue {used[0]}; wanted a topic "
                    "whose messages are in queue 0, because each priority is a queue; put "
                    "messages with priorities into a topic of their own"
                )
            self._routes.set_priorities(topic, PRIORITY_QUEUE_COUNT, self._clock.now_ms)
            count = max(PRIORITY_QUEUE_COUNT, len(target.routes))
            target.set_routes(self._make_routes(topic, count), has_priorities=True)
            self._set_fastpath(target)

    def level_of(self, target: TopicTarget, real: Route, level: int) -> Level:
        """Return a fixed delay level of one of the topic's queues, created if necessary."""
        found = target.levels.get(real.queue_id, {}).get(level)
        return found or self._make_level(target, real, level)

    def _make_routes(self, topic: str, count: int) -> list[Route]:
        now_ms = self._clock.now_ms
        self._routes.grow(topic, count, now_ms)
        return [self._routes.make(topic, queue_id, now_ms) for queue_id in range(count)]

    def may_append_on_level(self, native: Any, real: Route) -> bool:
        """Return whether the calendar has space for messages of a level; else set the need of the
        log. The caller holds the append lock: so no deletion of the topic begins before they count.

        Raises:
            BusyError: the topic is being deleted.
        """
        self._routes.refuse_deleting(real.topic)
        fits = bool(lib.ts_calendar_fits(native, 1))
        if not fits:
            native.need = 0
        return fits

    def _make_level(self, target: TopicTarget, real: Route, level: int) -> Level:
        self._log.check_alive()
        number = min(level, len(self.level_delays))
        now_ms = self._clock.now_ms
        routes = self._routes
        routes.grow(SCHEDULE_TOPIC, len(self.level_delays), now_ms)
        route = routes.make(SCHEDULE_TOPIC, number - 1, now_ms)
        text = b"%s\x01%d\x02" % (message_fields.LEVEL_PROPERTY.encode(), number)
        text += bytes(ffi.buffer(real.native.real, real.native.real_size))
        address = int(ffi.cast("uintptr_t", route.native))
        made = Level(address, text, self.level_delays[number - 1], route)
        if level <= len(self.level_delays):  # any number above the last level means the last one
            target.levels.setdefault(real.queue_id, {})[level] = made
        return made

    def _set_fastpath(self, target: TopicTarget) -> None:
        """Give the topic to the C putter if it has one queue, else take it away."""
        if target.only is None:
            self.fastpath_topics.pop(target.topic, None)
        else:
            address = int(ffi.cast("uintptr_t", target.only.native))
            levels = target.levels.setdefault(0, {})
            found = (address, target.origin, target.body_bytes_max, levels)
            self.fastpath_topics[target.topic] = found


def _is_used(route: Route) -> bool:
    """Return whether a queue has messages, delivered or pending."""
    native = route.native
    return bool(route.queue.count or native.next_offset or native.pending or native.level_pending)
