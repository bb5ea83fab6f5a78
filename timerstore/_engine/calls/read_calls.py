"""Read an open store: topics, pulls, queries, committed offsets."""

from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.groups import check_name
from timerstore._engine.read.pull_request import PullRequest, refuse_shard
from timerstore._engine.read.pull_validation import check_pull
from timerstore._engine.read.query_validation import check_query
from timerstore._engine.read.validation import whole_ms
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore.errors import MessageError, typed
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
        offset, max_count = request.offset, request.max_count
        refuse_shard(request.shard)
        if not isinstance(topic, str):
            raise MessageError(f"queue: wanted text as topic, got {typed(topic)}")
        route = self._engine.routes.readable(topic, request.queue_id, self._clock.now_ms)
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
