"""Pull messages of one queue from an offset on, now or when they arrive.

Statuses and next offsets are those of RocketMQ.

Thread safety: any thread.
Invariants:
    1. A pull returns only durable messages; with `visibility="written"`, only written ones.
    2. There are no gaps: an offset returns the same message every time.
    3. A pull finds each message whose put returned before it, if the message is due and durable
       and at most one batch of dispatch is missing. It then dispatches that batch itself.
Raises: CorruptError if a unit or record fails its check; MessageError if the queue does not exist.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.long_poll import LongPollTable, PropertyColumn
from timerstore._engine.read.queue_reader import QueueReader, empty_batch, first_stored
from timerstore._engine.read.waiting import (
    WAITING,
    PullBounds,
    Pulled,
    WaitContext,
    WaitingPull,
    wait_in_thread,
)
from timerstore.errors import FullError, GoneError, TimerStoreError
from timerstore.types.messages import MessageBatch, PullResult, PullStatus

# --- pull ---


Answer = TypeVar("Answer", PullResult, MessageBatch)
MakeAnswer = Callable[[Route, Pulled], Answer]
"""Makes the answer of a pull of this queue: `batch_of` or `result_of`."""
Within = Callable[[Callable[[], Answer]], Answer]

_AT_END = {*WAITING, PullStatus.OFFSET_OVERFLOW_BADLY}
_SYNC_INTERVAL_NS = 10_000_000
"""The least time between two syncs that looks without a result request."""
_PROPERTIES_MAX = 1024  # messages read to decide which polls to wake; with more, all are woken


class Puller(NotCopyable):
    """Pulls from the queues of one store."""

    def __init__(self, core: Core, dispatch: Dispatch, request_sync: Callable[[], None]) -> None:
        self._clock = core.clock
        self._log = core.log
        self._dispatch = dispatch
        self._shows_written = core.config.visibility == "written"
        self._next_sync_ns = 0
        self._reader = QueueReader(core.config, core.log)
        self._request_sync = request_sync
        self.long_polls = LongPollTable(
            core.metrics,
            lambda: self._reader.visible_end,
            request_sync,
            self._properties,
            core.log.native,
            wakes_on_arrival=core.config.long_poll_enabled,
        )
        self._wait_context = WaitContext(
            core.clock,
            self.long_polls,
            self.before_wait,
            None if core.config.long_poll_enabled else core.config.short_poll_ms * 1_000_000,
        )

    def durable(self) -> None:
        """Wake the pulls of messages that became durable; all of them if the log has failed."""
        if self._log.failed is not None:
            self.long_polls.wake_all()  # each pull raises the failure
        else:
            self.long_polls.durable()

    def before_wait(self) -> None:
        """Raise if the store has failed. Request a sync if appended records are not durable:
        a call that begins to wait may wait for one of them.
        """
        self._log.check_alive()
        if self._log.durable < self._log.end:
            self._request_sync()

    def pull(
        self,
        answer: MakeAnswer[Answer],
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        message_filter: Filter | None = None,
    ) -> Answer:
        """Return up to `max_count` messages, made by `answer`; wait up to `wait_s` for one."""
        first = answer(route, self.look(route, offset, max_count, message_filter))
        if wait_s <= 0 or first.status not in WAITING:
            return first
        waiting = self.begin(answer, route, offset, max_count, wait_s, message_filter)
        return wait_in_thread(waiting, first)

    def begin(
        self,
        answer: MakeAnswer[Answer],
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        message_filter: Filter | None,
        *,
        within: Within[Answer] = lambda look: look(),
    ) -> WaitingPull[Answer]:
        """Begin a `pull` during which the caller waits; `within` runs each look."""

        def look(at: int) -> Answer:
            return within(lambda: answer(route, self.look(route, at, max_count, message_filter)))

        return WaitingPull(self._wait_context, route, offset, wait_s, message_filter, look, answer)

    def first_stored(self, route: Route, time_ms: int) -> int:
        """Return the first queue offset stored at `time_ms` or later, or the queue's end."""
        with suppress(FullError):  # dispatch tries again, and reports it
            self._dispatch.through(self.visible_end)
        while True:
            begin = self._log.segments.begin
            try:
                low, high = kept_range(route.queue, self._reader.visible_end, begin)
                return first_stored(self._reader, route, low, high, time_ms)
            except GoneError:
                if begin == self._log.segments.begin:  # retention has not removed a segment since
                    raise

    def look(
        self,
        route: Route,
        offset: int,
        max_count: int,
        message_filter: Filter | None,
        bytes_max: int | None = None,
    ) -> Pulled:
        """Pull without waiting. If nothing is there, dispatch what could be, and look again.

        bytes_max: about how many bytes to read at most, and at least one message.
        """
        before = self._dispatch.dispatched
        bounds = self._bounds(route, offset)
        if bounds.status in _AT_END and self._dispatches_visible(before):
            bounds = self._bounds(route, offset)
        while bounds.status is PullStatus.FOUND:
            low, high = bounds.min_offset, bounds.max_offset
            try:
                return self._reader.read(
                    route, offset, max_count, low, high, message_filter, bytes_max
                )
            except GoneError:
                first = route.queue.first_at(self._log.segments.begin)
                if first <= offset < route.queue.count:
                    raise
                # Retention or the deletion of the topic removed the messages since.
                bounds = self._bounds(route, offset)
        return bounds

    def catch_up(self) -> None:
        """Dispatch one batch of visible records, if dispatch is behind."""
        self._dispatches_visible(self._dispatch.dispatched)

    def is_at_end(self, route: Route, offset: int) -> bool:
        """Return whether a queue has no units from an offset on, of visible messages or others."""
        if self._dispatch.dispatched < self._log.native.soon_end:
            self.catch_up()
        return bool(route.queue.count <= offset)

    @property
    def visible_end(self) -> int:
        """Return the log offset below which messages are visible when they are dispatched."""
        return self._log.end if self._shows_written else self._log.durable

    def _dispatches_visible(self, before: int) -> bool:
        """Dispatch one batch of visible records, if one of them is due. If only a sync is missing,
        request one.

        Return whether records were dispatched since `dispatched` was `before`, here or by another
        thread. The dispatch thread would do the same, but a caller that polls may keep it from
        running for 5 ms, the interpreter's switch interval.
        """
        log = self._log
        due_end = log.native.soon_end  # records after it are timers, or cancel them
        end = min(self.visible_end, due_end)
        if self._dispatch.dispatched < end:
            with suppress(FullError):  # dispatch tries again, and reports it
                self._dispatch.batch_through(end)
            return True  # also on a full disk: some queues may have new units
        if log.durable < due_end and self._clock.monotonic_ns >= self._next_sync_ns:
            self._next_sync_ns = self._clock.monotonic_ns + _SYNC_INTERVAL_NS
            self._request_sync()
        return self._dispatch.dispatched != before

    def _properties(self, route: Route, begin: int, end: int) -> PropertyColumn | None:
        """Return the properties of new messages, for pulls that wait with a filter."""
        if end - begin > _PROPERTIES_MAX:
            return None
        try:
            batch = self.look(route, begin, end - begin, None)
        except TimerStoreError:
            return None
        if isinstance(batch, PullBounds) or len(batch) < end - begin:
            return None
        return batch.properties, batch.properties_offsets

    def _bounds(self, route: Route, offset: int) -> PullBounds:
        queue, segments = route.queue, self._log.segments
        while True:
            low = queue.min_offset
            try:
                return bounds_of(queue, offset, self._reader.visible_end, segments.begin)
            except GoneError:
                if low == queue.min_offset:  # retention has not removed a file of the queue since
                    raise


def bounds_of(queue: ConsumeQueue, offset: int, visible_end: int, log_begin: int) -> PullBounds:
    """Return the status and next offset of a pull, if [log_begin, visible_end) is visible."""
    low = queue.min_offset
    high = queue.visible(visible_end)
    if high == 0:
        return PullBounds(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return PullBounds(PullStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return PullBounds(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return PullBounds(PullStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    if (following := queue.after_gap(offset)) != offset:
        return PullBounds(PullStatus.OFFSET_FOUND_NULL, following, low, high)
    if (following := queue.first_kept(offset, high, log_begin)) != offset:
        return PullBounds(PullStatus.MESSAGE_WAS_REMOVING, following, low, high)
    return PullBounds(PullStatus.FOUND, offset, low, high)


def kept_range(queue: ConsumeQueue, visible_end: int, log_begin: int) -> tuple[int, int]:
    """Return the queue offsets [low, high) that can be pulled."""
    low, high = queue.min_offset, queue.visible(visible_end)
    return (queue.first_kept(low, high, log_begin), high) if low < high else (low, low)


def batch_of(route: Route, pulled: Pulled) -> MessageBatch:
    """Return pulled messages as columns."""
    return empty_batch(route, *pulled) if isinstance(pulled, PullBounds) else pulled


def result_of(_route: Route, pulled: Pulled) -> PullResult:
    """Return pulled messages as objects; the same arguments as `batch_of`."""
    return pull_result(pulled)


def pull_result(pulled: Pulled) -> PullResult:
    """Return pulled messages as objects."""
    messages = () if isinstance(pulled, PullBounds) else tuple(pulled)
    return PullResult(
        pulled.status, messages, pulled.next_offset, pulled.min_offset, pulled.max_offset
    )
