"""Read from several shards: pulls of one shard, queries and groups over all."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from timerstore._engine.read.pull_request import PullRequest
from timerstore._engine.read.waiting import WaitingPull
from timerstore.errors import MessageError
from timerstore.shards.receipt import ShardMessage, in_shard
from timerstore.shards.shard_calls import ShardCalls
from timerstore.shards.shard_consumer import ShardConsumer
from timerstore.shards.unsupported import NO_QUEUES
from timerstore.types.messages import MessageBatch, PullResult


class ShardReads(ShardCalls):
    """The calls of a ShardedStore that read messages."""

    def _do_topics(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for part in self._in_all(lambda store: store.topics()):
            for topic, count in part.items():
                counts[topic] = max(count, counts.get(topic, 0))
        return counts

    def _do_pull(self, request: PullRequest) -> PullResult:
        return self._in(
            self._checked(request.shard), lambda store: store._do_pull(replace(request, shard=None))
        )

    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_pull_batch(replace(request, shard=None)),
        )

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_begin_pull(replace(request, shard=None)),
        )

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        return self._in(
            self._checked(request.shard),
            lambda store: store._do_begin_pull_batch(replace(request, shard=None)),
        )

    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        return self._in(
            self._checked(shard), lambda store: store.offset_at(topic, queue_id, time_ms)
        )

    def _do_consumer(
        self,
        topic: str,
        group: str,
        queues: Sequence[int] | None,
        tags: str | None,
        sql: str | None,
        wait: float | None,
    ) -> ShardConsumer:
        if queues is not None:
            raise MessageError(NO_QUEUES)
        made = []
        try:
            for store in self.stores:
                made.append(  # noqa: PERF401 - those before one that fails are closed
                    store.consumer(topic, group, tags=tags, sql=sql, wait=wait)
                )
        except BaseException:
            for one in made:
                one.close()
            raise
        return ShardConsumer(self._clock, made, wait)

    def _do_committed(self, topic: str, group: str) -> dict[tuple[int, int], int]:
        found = self._in_all(lambda store: store.committed(topic, group))
        return {(k, queue): at for k, one in enumerate(found) for queue, at in one.items()}

    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[ShardMessage]:
        found = self._in_all(
            lambda store: store.query(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count
            )
        )
        parts = [[in_shard(k, one) for one in part] for k, part in enumerate(found)]
        # Merged, not sorted: if the clock was set back, each shard keeps the order of its log.
        messages = list(heapq.merge(*parts, key=lambda one: one.store_ms))
        return messages[-max_count:]
