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
from typing import Any, NamedTuple

import numpy as np

from timerstore.clock import Clock
from timerstore.commitlog.commit_log import CommitLog
from timerstore.config import StoreConfig
from timerstore.message import MessageBatch, PullResult, PullStatus
from timerstore.native import ffi, lib
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.routes import Route

_BUFFER_BYTES_MAX = 64 << 20

PULLED = np.dtype(
    [
        ("queue_offset", np.int64),
        ("log_offset", np.int64),
        ("born_ms", np.int64),
        ("store_ms", np.int64),
        ("due_ms", np.int64),
        ("delivered_ms", np.int64),
        ("body_at", np.int64),
        ("properties_at", np.int64),
        ("body_size", np.int32),
        ("properties_size", np.int32),
        ("size", np.int32),
        ("queue_id", np.int32),
        ("flag", np.int32),
        ("sys_flag", np.int32),
        ("reconsume_times", np.int32),
        ("body_crc", np.int32),
        ("born_host", np.uint8, (20,)),
        ("store_host", np.uint8, (20,)),
        ("born_host_size", np.int32),
        ("store_host_size", np.int32),
    ]
)
assert PULLED.itemsize == ffi.sizeof("ts_pulled"), "pull.py and api.h disagree"


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
        self._config = config
        self._clock = clock
        self._log = log
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

    @property
    def visible_end(self) -> int:
        """Log offset below which messages may be seen."""
        if self._config.visibility == "written":
            return self._log.written
        return self._log.durable

    def batch(self, route: Route, offset: int, max_count: int, wait_s: float) -> MessageBatch:
        """Give up to `max_count` messages as columns."""
        bounds = self._bounds(route, offset)
        if bounds.status is not PullStatus.FOUND and wait_s > 0:
            bounds = self._await(route, offset, wait_s)
        if bounds.status is not PullStatus.FOUND:
            return _empty(route, bounds)
        return self._read(route, offset, min(max_count, bounds.max_offset - offset), bounds)

    def pull(self, route: Route, offset: int, max_count: int, wait_s: float) -> PullResult:
        """Give up to `max_count` messages as objects."""
        batch = self.batch(route, offset, max_count, wait_s)
        return PullResult(
            batch.status, tuple(batch), batch.next_offset, batch.min_offset, batch.max_offset
        )

    def _bounds(self, route: Route, offset: int) -> _Bounds:
        low = route.queue.min_offset
        high = route.queue.visible(self.visible_end)
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

    def _read(self, route: Route, offset: int, count: int, bounds: _Bounds) -> MessageBatch:
        units = route.queue.read(offset, count)
        count = len(units) // 20
        sizes = np.frombuffer(units, np.uint8).reshape(count, 20)[:, 8:12]
        total = int(np.ascontiguousarray(sizes).view(">i4").sum(dtype=np.int64))
        room = min(total, _BUFFER_BYTES_MAX)
        while True:
            got = self._fill(route, units, count, offset, room, bounds)
            if isinstance(got, MessageBatch):
                return got
            room = max(2 * room, got)

    def _fill(
        self, route: Route, units: bytes, count: int, offset: int, room: int, bounds: _Bounds
    ) -> "MessageBatch | int":
        pulled = np.empty(count, PULLED)
        bodies = np.empty(room, np.uint8)
        properties = np.empty(room, np.uint8)
        with self._log.segments.view(self._log.written) as view:
            while True:
                got = lib.ts_pull(
                    view,
                    route.native,
                    units,
                    ffi.NULL,
                    count,
                    offset,
                    self.visible_end,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_pulled[]", pulled),
                    ffi.from_buffer("uint8_t[]", bodies),
                    room,
                    ffi.from_buffer("uint8_t[]", properties),
                    room,
                )
                if got == lib.TS_NEED_ROOM:
                    return int(view.need)
                if got < 0:
                    self._log.segments.serve(view, got, "pull")
                    continue
                if got < count and view.fault == lib.TS_NEED_SEGMENT:
                    self._log.segments.serve(view, lib.TS_NEED_SEGMENT, "pull")
                    continue
                break  # what is missing is not visible yet, or the buffers are full
        return _columns(
            route, pulled[:got], bodies, properties, bounds, self._config.message_bytes_max
        )


def _offsets(sizes: Any) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    out = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    return out


def _columns(
    route: Route, pulled: Any, bodies: Any, properties: Any, bounds: _Bounds, body_bytes_max: int
) -> MessageBatch:
    body_offsets = _offsets(pulled["body_size"])
    properties_offsets = _offsets(pulled["properties_size"])
    first = int(pulled["queue_offset"][0]) if len(pulled) else bounds.next_offset
    return MessageBatch(
        topic=route.topic,
        queue_id=route.queue_id,
        queue_offset=pulled["queue_offset"],
        log_offset=pulled["log_offset"],
        born_ms=pulled["born_ms"],
        store_ms=pulled["store_ms"],
        due_ms=pulled["due_ms"],
        delivered_ms=pulled["delivered_ms"],
        bodies=memoryview(bodies)[: int(body_offsets[-1])],
        body_offsets=body_offsets,
        properties=memoryview(properties)[: int(properties_offsets[-1])],
        properties_offsets=properties_offsets,
        flag=pulled["flag"],
        sys_flag=pulled["sys_flag"],
        reconsume_times=pulled["reconsume_times"],
        body_crc=pulled["body_crc"],
        store_bytes=pulled["size"],
        born_hosts=pulled["born_host"],
        store_hosts=pulled["store_host"],
        status=bounds.status,
        next_offset=first + len(pulled),
        min_offset=bounds.min_offset,
        max_offset=bounds.max_offset,
        body_bytes_max=body_bytes_max,
    )


def _empty(route: Route, bounds: _Bounds) -> MessageBatch:
    nothing = np.empty(0, PULLED)
    buffer = np.empty(0, np.uint8)
    return _columns(route, nothing, buffer, buffer, bounds, 0)
