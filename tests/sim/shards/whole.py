"""Compare the results of a ShardedStore with those of each of its shards."""

from collections import Counter
from typing import Any

import numpy as np

from tests.sim.shards.facet import in_shard
from timerstore.shards import ShardedStore

_SPAN_MS = 400_000_000
_TOPICS = ("orders", "mail")


def check_whole(whole: ShardedStore, number: int) -> None:
    """Check sums, merges and unions."""
    _check_pending(whole, number)
    _check_counts(whole)
    _check_queries(whole, _TOPICS[number % 2], f"key-{number % 5}", number)
    every = [(one.name, k) for k, s in enumerate(whole.stores) for one in s.recurring()]
    assert [(one.name, one.shard) for one in whole.recurring()] == sorted(every)
    for topic in whole.topics():
        assert whole.topics()[topic] == max(s.topics().get(topic, 0) for s in whole.stores)


def _check_pending(whole: ShardedStore, number: int) -> None:
    topic = (None, *_TOPICS)[number % 3]
    found = list(whole.pending(topic=topic))
    dues = [one.due_ms for one in found]
    assert dues == sorted(dues), f"pending: not in order of due time: {dues}"
    wanted = Counter(
        (one.handle and in_shard(k, one.handle), one.message_id, one.due_ms)
        for k, store in enumerate(whole.stores)
        for one in store.pending(topic=topic)
    )
    assert Counter((one.handle, one.message_id, one.due_ms) for one in found) == wanted
    timers = [one for one in found if one.handle]
    for one in timers[number % 7 :: 7]:
        told = whole.explain(one.handle)
        assert (told.state, told.due_ms) == ("pending", one.due_ms)


def _check_counts(whole: ShardedStore) -> None:
    stats, each = whole.stats(), [store.stats() for store in whole.stores]
    assert stats["shard_count"] == len(each)
    for name in ("pending_messages", "level_pending_messages", "delivery_lag_messages"):
        assert stats[name] == sum(one[name] for one in each), name
    assert stats["pending_by_topic"] == _summed([one["pending_by_topic"] for one in each])
    congestion = _summed([store.congestion() for store in whole.stores])
    assert whole.congestion() == congestion
    distribution = _summed([store.timing_distribution() for store in whole.stores])
    assert whole.timing_distribution() == distribution
    begin_ms = min(congestion, default=0)
    given = begin_ms, begin_ms + _SPAN_MS
    counts = [store.histogram(*given).counts for store in whole.stores]
    assert np.array_equal(whole.histogram(*given).counts, np.sum(counts, axis=0))


def _check_queries(whole: ShardedStore, topic: str, key: str, number: int) -> None:
    if not whole.config.index_enabled:
        return
    found = whole.query(topic, key, max_count=1_000_000)
    times = [one.store_ms for one in found]
    parts = [store.query(topic, key, max_count=1_000_000) for store in whole.stores]
    for k, part in enumerate(parts):
        places = [one.log_offset for one in found if one.shard == k]
        assert places == [one.log_offset for one in part], f"query, shard {k}: {places}"
    assert len(found) == sum(map(len, parts))
    if all(each == sorted(each) for each in ([m.store_ms for m in part] for part in parts)):
        assert times == sorted(times), f"query: not in order of time: {times}"
    count = 1 + number % 5
    newest = whole.query(topic, key, max_count=count)
    assert len(newest) == min(count, len(found))
    assert {one.body for one in newest} <= {one.body for one in found}


def _summed(parts: list[Any]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
