"""The statistics of all shards together."""

from collections.abc import Mapping, Sequence
from typing import Any

from timerstore.types.reports import GroupBacklog

_GREATEST = ("_ms", "_percent")  # statistics that are those of the worst shard; others are summed

_GREATEST_BY_KEY = frozenset({"group_oldest_ms"})


def stats_of_all(by_shard: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums; of times and percentages the largest; of the version, the one of all."""
    total: dict[str, Any] = {}
    for name, value in by_shard[0].items():
        if isinstance(value, dict):
            keys = {key for one in by_shard for key in one[name]}
            of_keys: Any = max if name in _GREATEST_BY_KEY else sum
            total[name] = {k: of_keys(one[name].get(k, 0) for one in by_shard) for k in keys}
        elif name == "version":
            total[name] = value
        else:
            combine = max if name.endswith(_GREATEST) else sum
            total[name] = combine(one[name] for one in by_shard)
    return total


def backlog_of_all(parts: Sequence[GroupBacklog]) -> GroupBacklog:
    """Return the sums; of the ages the largest."""
    return GroupBacklog(
        ready=sum(one.ready for one in parts),
        leased=sum(one.leased for one in parts),
        in_backoff=sum(one.in_backoff for one in parts),
        dead_letters=sum(one.dead_letters for one in parts),
        oldest_ms=max(one.oldest_ms for one in parts),
    )
