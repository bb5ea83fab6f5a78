"""Pull calls of a read-only store: messages of a queue or of a topic, with or without waiting.

Invariants: those of read/pull.py, for the records below the end of the position.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from timerstore._engine.base.argument_types import whole
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.pull import bounds_of, kept_range, pull_result
from timerstore._engine.read.pull_request import (
    PullRequest,
    check_pull,
    refuse_shard,
    wait_problems,
    whole_ms,
)
from timerstore._engine.read.queue_reader import empty_batch, first_stored
from timerstore._engine.read.waiting import WAITING
from timerstore._engine.snapshot.snapshot_calls import SnapshotCalls, answered
from timerstore.errors import ClosedError, MessageError, quoted
from timerstore.types.messages import Message, MessageBatch, PullResult, PullStatus

_FOLLOWED = 1024  # messages of a queue that are read at a time


class SnapshotPullCalls(SnapshotCalls):
    """The pull calls of a read-only store."""

    def _do_pull(self, request: PullRequest) -> PullResult:
        return pull_result(self._pulled(request))

    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._pulled(request)

    def _pulled(self, request: PullRequest) -> MessageBatch:
        """Pull as an open store does, but look every 50 ms (snapshot_calls.py) while waiting:
        the store's owner completes a checkpoint every `checkpoint_interval_ms` while there is
        something new. A pull whose store is closed while it waits returns its last result.
        """
        topic, wait = request.topic, request.wait
        refuse_shard(request.shard)
        queue_id, offset, max_count = request.queue_id, request.offset, request.max_count

        def look() -> MessageBatch:
            route = self._route(topic, queue_id)
            wanted = check_pull(route, offset, max_count, wait, request.tags, request.sql)
            log = self._view.log
            bounds = bounds_of(route.queue, offset, log.end, log.segments.begin)
            if bounds.status is not PullStatus.FOUND:
                return empty_batch(route, *bounds)
            return self._reader.read(
                route, offset, max_count, bounds.min_offset, bounds.max_offset, wanted
            )

        asked, got = offset, self.answer(look)
        if wait <= 0 or got.status not in WAITING:
            return got
        end_ns = self._polling.end_ns(wait)
        while got.next_offset < got.max_offset or self._polling.pause(end_ns):
            try:
                got = self.answer(look)
            except ClosedError:
                break
            if got.status is PullStatus.NO_MATCHED_MESSAGE:
                offset = got.next_offset  # new messages did not match
            elif got.status not in WAITING:
                return got
        if got.status is PullStatus.OFFSET_OVERFLOW_ONE and offset > asked:
            return replace(got, status=PullStatus.NO_MATCHED_MESSAGE)
        return got

    def _route(self, topic: Any, queue_id: Any) -> Route:
        routes, name = self._view.routes, topic if isinstance(topic, str) else ""
        number = queue_id if type(queue_id) is int else -1
        route = routes.find(name, number)
        if route is None:
            known = routes.full_queue_count(name)
            raise MessageError(
                f"queue: topic {quoted(topic)} has {known} queues, got {quoted(queue_id)}"
            )
        return self._view.settle(route)

    def follow(
        self,
        topic: str,
        offsets: Mapping[int, int] | None = None,
        *,
        wait: float | None = 0.0,
        tags: str | None = None,
        sql: str | None = None,
    ) -> Iterator[Message]:
        """Return the messages of a topic from the given offsets on, from its queues in turns.

        `offsets`: the first queue offset, by queue. A queue that is not named starts at its begin.
        An offset past the end waits until the queue has come so far. Queues and topics that are
        created later are followed too.
        `wait`: seconds to wait for the next message (None: for ever). The iterator ends when none
        came. Nothing is committed: `message.queue_offset + 1` is the offset to go on from.

        Raises:
            MessageError: an argument is not valid.
        """
        topic = check_name("topic", topic)
        if wait is not None and (problems := wait_problems(wait)):
            raise MessageError(problems)
        given: Any = {} if offsets is None else offsets
        is_mapping = isinstance(given, Mapping)
        at = {whole(queue): whole(given[queue]) for queue in given} if is_mapping else {}
        if not is_mapping or None in at or None in at.values():
            raise MessageError(f"offsets: wanted whole numbers by queue, got {quoted(offsets)}")
        self.check_open()
        return self._followed(topic, dict(at), wait, tags, sql)  # type: ignore[arg-type]

    def _followed(
        self,
        topic: str,
        at: dict[int, int],
        wait: float | None,
        tags: str | None,
        sql: str | None,
    ) -> Iterator[Message]:
        end_ns = self._polling.end_ns(wait)
        while True:
            found = False
            for queue_id in range(self._queue_count(topic)):
                before = at.get(queue_id, 0)
                got = self._pulled(
                    PullRequest(topic, queue_id, before, _FOLLOWED, 0.0, tags, sql, None)
                )
                found |= got.next_offset > before
                # An offset past the end stays: an earlier reader may have seen these messages.
                at[queue_id] = max(before, got.next_offset)
                yield from got
                if len(got):
                    end_ns = self._polling.end_ns(wait)
            if not found and not self._polling.pause(end_ns):
                return

    @answered
    def _queue_count(self, topic: str) -> int:
        return self._view.routes.full_queue_count(topic)

    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        refuse_shard(shard)
        wanted_ms = whole_ms("time_ms", time_ms)
        queue_id = queue_id if (number := whole(queue_id)) is None else number

        def look() -> int:
            route, log = self._route(topic, queue_id), self._view.log
            low, high = kept_range(route.queue, log.end, log.segments.begin)
            return first_stored(self._reader, route, low, high, wanted_ms)

        return self.answer(look)
