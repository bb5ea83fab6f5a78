"""Compute which messages known groups have not read yet, for retention and metrics.

A group is known in a topic if it has committed there or has a consumer in this process. In every
queue of the topic, messages that it has not committed count as unread.

Thread safety: ConsumerLag is used on the retention thread only.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

import logging
from collections.abc import Iterator

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.format import queue_unit
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.groups import Groups

_NOTHING = 2**62


class ConsumerLag:
    """The unread messages of the groups of one store."""

    def __init__(self, metrics: Metrics, routes: Routes, offsets: Offsets, groups: Groups) -> None:
        self._metrics = metrics
        self._routes = routes
        self._offsets = offsets
        self._groups = groups

    def lowest(self) -> int:
        """Return the lowest log offset that a group has not read."""
        found = _NOTHING
        for topic, name in self._known():
            committed = self._offsets.committed(topic, name)
            for queue_id in range(self._routes.full_queue_count(topic)):
                route = self._routes.get(topic, queue_id)
                if route is not None:
                    found = min(found, self._first(route, committed.get(queue_id, 0)))
        return found

    def _known(self) -> Iterator[tuple[str, str]]:
        yield from dict.fromkeys([*self._offsets.known(), *self._groups.known()])

    def _first(self, route: Route, offset: int) -> int:
        offset = max(offset, route.queue.min_offset)
        units = queue_unit.read(route.queue.read(offset, 1))
        return int(units["log_offset"][0]) if len(units) else _NOTHING

    def dropped(self, route: Route, begin: int, end: int) -> None:
        """Count and log the unread messages of [begin, end), which the queue has lost."""
        for topic, name in self._known() if begin < end else ():
            if topic != route.topic:
                continue
            at = self._offsets.committed(topic, name).get(route.queue_id, 0)
            count = end - max(at, begin)
            if count > 0:
                self._metrics.add("retention_unconsumed_messages", count)
                logging.getLogger("timerstore.read").warning(
                    "removed_unread=%d topic=%s queue=%d group=%s", count, topic,
                    route.queue_id, name,
                )  # fmt: skip


def log_removed_unread(topic: str, queue_id: int, group: str, count: int) -> None:
    """Log that retention removed messages before a consumer read them; it continues after them."""
    logging.getLogger("timerstore.read").warning(
        "removed_unread=%d topic=%s queue=%d group=%s reader=behind", count, topic, queue_id, group
    )
