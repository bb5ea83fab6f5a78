"""Numbers of a served store, as `ls`, `count`, `pace` and `top` show them.

The files of a served store may be on another machine, so all numbers come from calls.
"""

from collections.abc import Iterable
from typing import NamedTuple

from timerstore._engine.snapshot.store_summary import SYSTEM_TOPICS
from timerstore.store import ConnectedStore

_PAST_ALL = (1 << 62) - 1


class TopicCounts(NamedTuple):
    """The queues and messages of one topic."""

    queue_count: int
    pending: int
    delivered: int


def topics_of(store: ConnectedStore) -> dict[str, TopicCounts]:
    """Return the topics by name, without those of the engine. One call for each queue."""
    pending = store.stats()["pending_by_topic"]
    queues = store.topics()
    names = sorted((queues.keys() | pending.keys()) - SYSTEM_TOPICS)
    return {
        name: TopicCounts(
            queues.get(name, 0),
            pending.get(name, 0),
            sum(queue_ends(store, name, range(queues.get(name, 0))).values()),
        )
        for name in names
    }


def queue_ends(store: ConnectedStore, topic: str, queues: Iterable[int]) -> dict[int, int]:
    """Return the offset after the last message of each queue."""
    return {one: store.pull(topic, one, _PAST_ALL, max_count=1).max_offset for one in queues}
