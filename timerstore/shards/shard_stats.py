"""The statistics of all shards together."""

from collections.abc import Mapping, Sequence
from typing import Any

_GREATEST = ("_ms", "_percent")  # statistics that are those of the worst shard; others are summed


def stats_of_all(by_shard: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums; of times and percentages the largest."""
    total: dict[str, Any] = {}
    for name, value in by_shard[0].items():
        if isinstance(value, dict):
            keys = {key for one in by_shard for key in one[name]}
            total[name] = {k: sum(one[name].get(k, 0) for one in by_shard) for k in keys}
        else:
            combine = max if name.endswith(_GREATEST) else sum
            total[name] = combine(one[name] for one in by_shard)
    return total
