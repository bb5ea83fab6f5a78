"""Pull: messages of one queue, from an offset on.

Threads:  any.
Holds:    a pull sees only what is durable (or written, where the store says so), without gaps, and
          never takes back what it gave.
Fails:    CorruptError where a unit or record does not check; MessageError on a queue that is not
          there.
Source:   statuses and next offsets: store-format.md 10.3.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from timerstore.clock import Clock
from timerstore.commitlog.commit_log import CommitLog
from timerstore.config import StoreConfig
from timerstore.message import MessageBatch, PullResult, PullStatus
from timerstore.pull.filter import Filter
from timerstore.pull.reading import Reader, empty_batch
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.routes import Route


class _Bounds(NamedTuple):
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int


class Puller:
    """Pulls from the queues of one store."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        dispatch: Dispatch,
        request_sync: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._log = log
        self._reader = Reader(config, log)
        self._dispatch = dispatch
        self._request_sync = request_sync
        self._moved = threading.Condition()
        self._waiting = 0
        self._closed = False
        dispatch.listeners.append(lambda _touched: self.moved())
        log.on_durable.append(self.moved)

    def moved(self) -> None:
        """Something became visible, or the store failed: who waits looks again."""
        if self._waiting:
            with self._moved:
                self._moved.notify_all()

    def close(self) -> None:
        """Answer everybody who waits."""
        self._closed = True
        with self._moved:
            self._moved.notify_all()

    def batch(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None = None,
    ) -> MessageBatch:
        """Give up to `max_count` messages as columns."""
        bounds = self._bounds(route, offset)
        if bounds.status is not PullStatus.FOUND and wait_s > 0:
            bounds = self._await(route, offset, wait_s)
        if bounds.status is not PullStatus.FOUND:
            return empty_batch(route, *bounds)
        return self._reader.read(
            route, offset, max_count, bounds.min_offset, bounds.max_offset, wanted
        )

    def pull(
        self,
        route: Route,
        offset: int,
        max_count: int,
        wait_s: float,
        wanted: Filter | None = None,
    ) -> PullResult:
        """Give up to `max_count` messages as objects."""
        batch = self.batch(route, offset, max_count, wait_s, wanted)
        return PullResult(
            batch.status, tuple(batch), batch.next_offset, batch.min_offset, batch.max_offset
        )

    def _bounds(self, route: Route, offset: int) -> _Bounds:
        low = route.queue.min_offset
        high = route.queue.visible(self._reader.visible_end)
        if high == 0:
            return _Bounds(PullStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return _Bounds(PullStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return _Bounds(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return _Bounds(PullStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        return _Bounds(PullStatus.FOUND, offset, low, high)

    def _await(self, route: Route, offset: int, wait_s: float) -> _Bounds:
        """Wait for the offset to come; real seconds, whatever the clock is."""
        end_ns = self._clock.monotonic_ns + int(wait_s * 1e9)
        with self._moved:
            self._waiting += 1
            try:
                while True:
                    bounds = self._bounds(route, offset)
                    waits = bounds.status in (
                        PullStatus.NO_MESSAGE_IN_QUEUE,
                        PullStatus.OFFSET_OVERFLOW_ONE,
                    )
                    left_s = (end_ns - self._clock.monotonic_ns) / 1e9
                    if not waits or left_s <= 0 or self._closed:
                        return bounds
                    self._log.check_alive()
                    if self._log.durable < self._log.end:
                        self._request_sync()
                    if not self._moved.wait(left_s) and self._clock.by_hand:
                        return self._bounds(route, offset)
            finally:
                self._waiting -= 1
