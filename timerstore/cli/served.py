"""Numbers of a served store, as `ls`, `count`, `pace` and `top` show them.

The files of a served store may be on another machine, so all numbers come from calls.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import GROUP_GAUGES, GROUP_SEPARATOR
from timerstore._engine.snapshot.live_stats import SYSTEM_TOPICS
from timerstore.store import ConnectedStore
from timerstore.types.reports import GroupBacklog

_PAST_ALL = (1 << 62) - 1


class TopicCounts(NamedTuple):
    """The queues and messages of one topic."""

    queue_count: int
    pending: int
    delivered: int


def backlogs_of(stats: Mapping[str, Any]) -> tuple[tuple[str, str, GroupBacklog], ...]:
    """Return topic, group and backlog of each group, in order of their names."""
    found = []
    for key in sorted(stats["group_ready_messages"]):
        topic, _, group = key.partition(GROUP_SEPARATOR)
        fields = {field: stats[name][key] for name, (field, _) in GROUP_GAUGES.items()}
        found.append((topic, group, GroupBacklog(**fields)))
    return tuple(found)


def served_groups(store: ConnectedStore) -> list[tuple[None, str, str, int, int, int]]:
    """Return topic, group, queue, committed offset and unread messages of each queue of a group.

    The first field is the shard, as in other lists: a served store has none.
    """
    rows = []
    for topic, group, _ in backlogs_of(store.stats()):
        committed = store.committed(topic, group)
        ends = queue_ends(store, topic, committed)
        rows += [(None, topic, group, one, at, ends[one] - at) for one, at in committed.items()]
    return rows


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
