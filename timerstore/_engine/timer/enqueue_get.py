"""Read the timer topic's queue, and pass requests to enqueue-put.

This is the first of the six timer services. Requests that dispatch passes on need not be read.

Thread safety: runs on the enqueue-get thread only; dispatch may call `take_dispatched`.
Invariants:
    1. Requests are passed on in queue order, each once while the store is open.
Raises: CorruptError if a queue unit does not point at a record of the timer topic.
"""

from collections import deque

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.base.service import Handoff, Service
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.timer.timer_arrays import REQUEST, Records

_BATCH = 8192
_HANDED_MAX = 4  # batches of dispatch that are kept: 4 MB


class EnqueueGet(Service):
    """Makes requests from queue units."""

    name = "enqueue-get"

    def __init__(self, core: Core, dispatch: Dispatch, start: int, out: Handoff[Records]) -> None:
        super().__init__(core.metrics, core.signals)
        self._config = core.config
        self._log = core.log
        self._dispatch = dispatch
        self._route = core.timer_route
        self._store_id = core.store_id
        self._out = out
        self.queue_offset = start  # next to read
        self._handed: deque[Records] = deque()  # from dispatch: the next requests, or later ones

    def take_dispatched(self, requests: bytes) -> None:
        """Take requests from dispatch, so that they need not be read.

        If too many are waiting already, these are dropped and read from the queue later.
        """
        if len(self._handed) < _HANDED_MAX:
            self._handed.append(np.frombuffer(requests, REQUEST))

    def step(self) -> bool:
        """Take or read one batch."""
        if self._config.stop_enqueue or self._out.is_full:
            return False
        requests = self._take_handed()
        if requests is None:
            requests = self._read()
        if requests is None:
            return False
        reach("enqueue_requests_read")
        self._out.put(requests)
        self.queue_offset += len(requests)
        self._signals.requests_ready()
        return True

    def _take_handed(self) -> Records | None:
        """Return the next requests, or None if dispatch did not pass them on."""
        while self._handed:
            requests = self._handed[0]
            first = int(requests["queue_offset"][0])
            if self.queue_offset < first:
                return None
            rest = requests[self.queue_offset - first :]
            if len(rest) > _BATCH:
                return rest[:_BATCH]
            self._handed.popleft()
            if len(rest):
                return rest
        return None

    def _read(self) -> Records | None:
        """Read and return the next requests, or None if there are none."""
        end = self._dispatch.dispatched  # read before the units, so that all point below it
        units = self._route.queue.read(self.queue_offset, _BATCH)
        count = lib.ts_units_below(units, len(units) // 20, end) if units else 0
        if not count:
            return None
        requests = np.empty(count, REQUEST)
        with self._log.segments.view(end) as view:
            done = 0
            while done < count:
                done += self._log.segments.call(
                    view,
                    "enqueue-get",
                    lib.ts_timer_requests,
                    ffi.from_buffer("uint8_t[]", units) + 20 * done,
                    count - done,
                    self.queue_offset + done,
                    self._log.native.states,
                    self._store_id,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_request[]", requests) + done,
                )
        return requests
