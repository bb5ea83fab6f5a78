"""Read an open store: topics, pulls, queries, committed offsets."""

from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.groups import Filters, check_name
from timerstore._engine.read.pull_request import PullRequest, refuse_shard
from timerstore._engine.read.pull_validation import check_pull
from timerstore._engine.read.query_validation import check_query
from timerstore._engine.read.queue_watcher import QueueWatcher
from timerstore._engine.read.validation import whole_ms
from timerstore._engine.read.wait_queue import AddPoll
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore.errors import MessageError, quoted, typed
from timerstore.messages import Message, MessageBatch, PullResult


class ReadCalls(OpenStore):
    """The calls of a store that read messages."""

    @counted
    def _do_topics(self) -> dict[str, int]:
        return self._engine.routes.topics()

    # --- pulling ---

    @counted
    def _do_pull(self, request: PullRequest) -> PullResult:
        return self._engine.puller.pull(*self._pull_arguments(request))

    def _pull_for_consumer(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        bytes_max: int,
        filters: Filters,
    ) -> PullResult:
        """Pull without a wait, about `bytes_max` bytes at most; a step of a counted call."""
        request = PullRequest(topic, queue_id, offset, max_count, 0.0, *filters, None)
        route, offset, max_count, _, wanted = self._pull_arguments(request)
        return self._engine.puller.pull_some(route, offset, max_count, wanted, bytes_max)

    @counted
    def _do_pull_batch(self, request: PullRequest) -> MessageBatch:
        return self._engine.puller.batch(*self._pull_arguments(request))

    def _do_begin_pull(self, request: PullRequest) -> WaitingPull[PullResult]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin_pull(*given, within=self._call)

    def _do_begin_pull_batch(self, request: PullRequest) -> WaitingPull[MessageBatch]:
        self._check_open()
        given = self._pull_arguments(request)
        return self._engine.puller.begin_batch(*given, within=self._call)

    def _pull_arguments(self, request: PullRequest) -> tuple[Route, int, int, float, Filter | None]:
        topic, wait = request.topic, request.wait
        queue_id, offset, max_count = request.queue_id, request.offset, request.max_count
        refuse_shard(request.shard)
        if not isinstance(topic, str):
            raise MessageError(f"queue: wanted text as topic, got {typed(topic)}")
        routes, name = self._engine.routes, topic
        number = queue_id if type(queue_id) is int else -1
        route = routes.get(name, number)
        if route is None:
            known = routes.queue_count(name)
            if not 0 <= number < known:
                raise MessageError(
                    f"queue: topic {quoted(topic)} has {known} queues, got {quoted(queue_id)}"
                )
            route = routes.make(name, number, self._clock.now_ms)
        wanted = check_pull(route, offset, max_count, wait, request.tags, request.sql)
        return route, offset, max_count, wait, wanted

    @counted
    def _do_query(
        self, topic: str, key: str, begin_ms: int | None, end_ms: int | None, max_count: int
    ) -> list[Message]:
        wanted = check_query(topic, key, begin_ms, end_ms, max_count)
        self._log.check_alive()
        return self._engine.querier.query(wanted)

    # --- offsets ---

    @counted
    def _do_committed(self, topic: str, group: str) -> dict[int, int]:
        topic, group = check_name("topic", topic), check_name("group", group)
        return self._engine.offsets.committed(topic, group)

    @counted
    def _do_offset_at(self, topic: str, queue_id: int, time_ms: int, shard: int | None) -> int:
        route = self._pull_arguments(PullRequest(topic, queue_id, 0, 1, 0.0, None, None, shard))[0]
        return self._engine.puller.first_stored(route, whole_ms("time_ms", time_ms))

    # --- waiting consumers ---

    def _watch(self, topic: str, filters: Filters) -> AddPoll:
        return QueueWatcher(self._engine.routes, self._engine.puller.long_polls, topic, filters)

    def _stay_awake(self) -> None:
        """Request a sync before a consumer sleeps, if appended messages are not durable yet."""
        self._log.check_alive()
        if self._log.durable < self._log.end:
            self._engine.pipeline.flush.request()
