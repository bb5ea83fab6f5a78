"""Pull: messages of one queue, from an offset on; at once, or when they come.

Threads:  any.
Holds:    a pull sees only what is durable (or written, where the store says so), without gaps, and
          never takes back what it gave.
Fails:    CorruptError where a unit or record does not check; MessageError on a queue that is not
          there.
Source:   statuses and next offsets are RocketMQ's.
"""

from collections.abc import Callable
from typing import TypeVar

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.owner import Owner
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.filter import Filter
from timerstore._engine.read.long_poll import LongPollTable, Texts
from timerstore._engine.read.queue_reader import Reader, empty_batch
from timerstore._engine.read.time_seek import first_stored
from timerstore._engine.read.waiting_pull import (
    WAITING,
    Bounds,
    WaitContext,
    WaitingPull,
    wait_in_thread,
)
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import GoneError, TimerStoreError
from timerstore.messages import MessageBatch, PullResult, PullStatus

Answer = TypeVar("Answer")
Within = Callable[[Callable[[], Answer]], Answer]

_TEXTS_MAX = 1024  # messages that are read to find out whom to wake; of more the pulls read


class Puller(Owner):
    """Pulls from the queues of one store."""

    def __init__(
        self,
        metrics: Metrics,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        request_sync: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._reader = Reader(config, log)
        self._request_sync = request_sync
        self.holds = LongPollTable(
            metrics,
            lambda: self._reader.visible_end,
            request_sync,
            self._texts,
            wakes=config.long_poll_enabled,
        )
        self._waiter = WaitContext(
            clock,
            self.holds,
            log.check_alive,
            self._ask_sync,
            None if config.long_poll_enabled else config.short_poll_ms * 1_000_000,
        )

    def durable(self) -> None:
        if self._log.failed is not None:
            self.holds.answer_all()  # each finds that out, and raises it
        else:
            self.holds.durable()

    def _ask_sync(self) -> None:
        """Somebody waits: what was appended may be for him."""
        if self._log.durable < self._log.end:
            self._request_sync()

    def turned(self) -> None:
        """The clock was turned by hand: pulls whose time is over are answered."""
        self.holds.turned(self._clock.monotonic_ns)

    def close(self) -> None:
        """Answer everybody who waits."""
        self.holds.close()

    def batch(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None = None,
    ) -> MessageBatch:
        """Give up to `max_count` messages as columns."""
        got = self._look(route, offset, max_count, wanted)
        if wait_s <= 0 or got.status not in WAITING:
            return got
        waiting = self.begin_batch(route, offset, max_count, wait_s, wanted, within=_at_once)
        return wait_in_thread(waiting, got)

    def pull(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None = None,
    ) -> PullResult:
        """Give up to `max_count` messages as objects."""
        return result_of(self.batch(route, offset, max_count, wait_s, wanted))

    def first_stored(self, route: Route, time_ms: int) -> int:
        """Give the first queue offset stored at a time or later; the end where none was."""
        while True:
            begin = self._log.segments.begin
            try:
                low, high = kept_range(route.queue, self._reader.visible_end, begin)
                return first_stored(self._reader, route, low, high, time_ms)
            except GoneError:
                if begin == self._log.segments.begin:  # retention has removed nothing since
                    raise

    def begin_batch(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None,
        *,
        within: Within[MessageBatch],
    ) -> WaitingPull[MessageBatch]:
        """As `batch`, for who does the waiting himself; every look is made within a call."""

        def look(at: int) -> MessageBatch:
            return within(lambda: self._look(route, at, max_count, wanted))

        return WaitingPull(self._waiter, route, offset, wait_s, wanted, look, _empty)

    def begin_pull(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None,
        *,
        within: Within[PullResult],
    ) -> WaitingPull[PullResult]:
        """As `pull`, for who does the waiting himself; every look is made within a call."""

        def look(at: int) -> PullResult:
            return within(lambda: result_of(self._look(route, at, max_count, wanted)))

        return WaitingPull(self._waiter, route, offset, wait_s, wanted, look, _no_result)

    def _look(
        self, route: Route, offset: int, max_count: int, wanted: Filter | None
    ) -> MessageBatch:
        """Pull without waiting; once more where retention has overtaken it."""
        while True:
            try:
                return self._look_once(route, offset, max_count, wanted)
            except GoneError:
                if offset >= route.queue.first_at(self._log.segments.begin):
                    raise

    def _look_once(
        self, route: Route, offset: int, max_count: int, wanted: Filter | None
    ) -> MessageBatch:
        bounds = self._bounds(route, offset)
        if bounds.status is not PullStatus.FOUND:
            return _empty(route, bounds)
        return self._reader.read(
            route, offset, max_count, bounds.min_offset, bounds.max_offset, wanted
        )

    def _texts(self, route: Route, begin: int, end: int) -> Texts | None:
        """Property texts of what came, for those who wait behind a filter."""
        if end - begin > _TEXTS_MAX:
            return None
        try:
            batch = self._look(route, begin, end - begin, None)
        except TimerStoreError:
            return None
        if len(batch) < end - begin:
            return None
        return Texts(batch.properties, batch.properties_offsets)

    def _bounds(self, route: Route, offset: int) -> Bounds:
        return bounds_of(route.queue, offset, self._reader.visible_end, self._log.segments.begin)


def bounds_of(queue: ConsumeQueue, offset: int, visible_end: int, log_begin: int) -> Bounds:
    """What a pull from an offset comes to, of what lies in [log_begin, visible_end) of the log."""
    low = queue.min_offset
    high = queue.visible(visible_end)
    if high == 0:
        return Bounds(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return Bounds(PullStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return Bounds(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return Bounds(PullStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    if (following := queue.after_gap(offset)) != offset:
        return Bounds(PullStatus.OFFSET_FOUND_NULL, following, low, high)
    if (following := queue.first_kept(offset, high, log_begin)) != offset:
        return Bounds(PullStatus.MESSAGE_WAS_REMOVING, following, low, high)
    return Bounds(PullStatus.FOUND, offset, low, high)


def kept_range(queue: ConsumeQueue, visible_end: int, log_begin: int) -> tuple[int, int]:
    """Give the queue offsets [low, high) that can be pulled."""
    low, high = queue.min_offset, queue.visible(visible_end)
    return (queue.first_kept(low, high, log_begin), high) if low < high else (low, low)


def _at_once(look: Callable[[], Answer]) -> Answer:
    return look()


def result_of(batch: MessageBatch) -> PullResult:
    """Give the same as objects."""
    return PullResult(
        batch.status, tuple(batch), batch.next_offset, batch.min_offset, batch.max_offset
    )


def _empty(route: Route, bounds: Bounds) -> MessageBatch:
    return empty_batch(route, *bounds)


def _no_result(_route: Route, bounds: Bounds) -> PullResult:
    return PullResult(bounds.status, (), bounds.next_offset, bounds.min_offset, bounds.max_offset)
