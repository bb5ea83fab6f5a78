"""Change and report the pending messages of several shards."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np

from timerstore._engine.base import argument_types, due_times, message_fields
from timerstore._engine.format.handle import decode
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore.shards.rate_share import share_of
from timerstore.shards.receipt import ShardReceipt, join_handle, split_handle
from timerstore.shards.shard_calls import ShardCalls
from timerstore.types.messages import Message
from timerstore.types.reports import CancelResult, Explanation, Histogram, PendingTimer

Bucket = TypeVar("Bucket")


class ShardPending(ShardCalls):
    """The calls of a ShardedStore about pending messages."""

    def _do_cancel(self, receipt_or_handle: ShardReceipt | str) -> CancelResult:
        shard, handle = self._place_of(receipt_or_handle)
        return self._in(shard, lambda store: store.cancel(handle))

    def _do_commit(self, half: ShardReceipt | LeasedMessage | str) -> AckResult:
        shard, given = self._place_of_half(half)
        return self._in(shard, lambda store: store.commit(given))

    def _do_rollback(self, half: ShardReceipt | LeasedMessage | str) -> AckResult:
        shard, given = self._place_of_half(half)
        return self._in(shard, lambda store: store.rollback(given))

    def _place_of_half(self, half: object) -> tuple[int, Any]:
        return self._place_of(half.receipt if isinstance(half, LeasedMessage) else half)

    def _do_cancel_many(
        self, receipts_or_handles: Iterable[ShardReceipt | str]
    ) -> list[CancelResult]:
        places = argument_types.each_of(
            "receipts_or_handles", receipts_or_handles, self._checked_place
        )
        answers: dict[int, CancelResult] = {}
        for shard in sorted({shard for shard, _ in places}):
            which = [at for at, place in enumerate(places) if place[0] == shard]
            handles = [places[at][1] for at in which]
            found = self._in(shard, methodcaller("cancel_many", handles))
            answers.update(zip(which, found, strict=True))
        return [answers[at] for at in range(len(places))]

    def _do_reschedule(
        self,
        receipt_or_handle: ShardReceipt | str,
        delay: timedelta | float | None,
        deliver_at: datetime | None,
        deliver_ms: int | None,
    ) -> ShardReceipt:
        shard, handle = self._place_of(receipt_or_handle)
        receipt = self._in(
            shard,
            lambda store: store.reschedule(
                handle, delay=delay, deliver_at=deliver_at, deliver_ms=deliver_ms
            ),
        )
        return ShardReceipt(shard, receipt)

    def _checked_place(self, given: object) -> tuple[int, Any]:
        """Return the shard and its handle, checked before any shard is called."""
        shard, handle = self._place_of(given)
        if isinstance(handle, str):
            decode(handle)
        return shard, handle

    def _place_of(self, given: object) -> tuple[int, Any]:
        if isinstance(given, ShardReceipt):
            return self._checked(given.shard), given.receipt
        return split_handle(given, len(self.stores))

    def _do_pace(self, topic: str, per_second: float | None) -> None:
        message_fields.check_topic(topic)
        rate = due_times.check_rate(per_second)
        share = None if rate is None else share_of(rate, len(self.stores))
        self._in_all(lambda store: store.pace(topic, share))

    def _do_pending(
        self, begin_ms: int | None, end_ms: int | None, topic: str | None
    ) -> Iterator[PendingTimer]:
        parts = [
            _with_shard(k, store.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic))
            for k, store in enumerate(self.stores)
        ]
        return heapq.merge(*parts, key=lambda one: one.due_ms)

    def _do_histogram(
        self, begin: datetime | int | None, end: datetime | int | None, by: str, topic: str | None
    ) -> Histogram:
        if begin is None:
            begin = self._clock.now_ms  # the same buckets for each shard
        parts = self._in_all(lambda store: store.histogram(begin, end, by, topic))
        return Histogram(parts[0].edges, np.sum([part.counts for part in parts], axis=0))

    def _do_timing_distribution(self) -> dict[int | None, int]:
        return _summed(self._in_all(lambda store: store.timing_distribution()))

    def _do_congestion(self) -> dict[int, int]:
        found = _summed(self._in_all(lambda store: store.congestion()))
        return dict(sorted(found.items()))

    def _do_explain(
        self, message: ShardReceipt | Message | PendingTimer | str, topic: str | None
    ) -> Explanation:
        if isinstance(message, ShardReceipt) or (isinstance(message, str) and topic is None):
            shard, given = self._place_of(message)
            return self._in(shard, lambda store: store.explain(given))
        name = message
        found = self._in_all(lambda store: store.explain(name, topic=topic))
        return next((one for one in found if one.state != "unknown"), found[0])


def _with_shard(shard: int, found: Iterator[PendingTimer]) -> Iterator[PendingTimer]:
    for one in found:
        yield replace(one, handle=join_handle(shard, one.handle))


def _summed(parts: Sequence[dict[Bucket, int]]) -> dict[Bucket, int]:
    total: dict[Bucket, int] = {}
    for part in parts:
        for bucket, count in part.items():
            total[bucket] = total.get(bucket, 0) + count
    return total
