"""enqueue-get: reads the timer topic's queue, gives requests to enqueue-put.

Threads:  enqueue-get.
Holds:    requests leave in queue order, none twice in one opening.
Fails:    CorruptError where a unit points at something else.
"""

import numpy as np

from timerstore.commitlog.commit_log import CommitLog
from timerstore.config import StoreConfig
from timerstore.failpoint import reach
from timerstore.metrics import Metrics
from timerstore.native import ffi, lib
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.routes import Route
from timerstore.service import Handoff, Service
from timerstore.timer.request import REQUEST, Records

_BATCH = 8192


class EnqueueGet(Service):
    """From queue units to requests."""

    name = "enqueue-get"

    def __init__(
        self,
        metrics: Metrics,
        config: StoreConfig,
        log: CommitLog,
        dispatch: Dispatch,
        route: Route,
        store_id: int,
        start: int,
        out: Handoff[Records],
    ) -> None:
        super().__init__(metrics)
        self._config = config
        self._log = log
        self._dispatch = dispatch
        self._route = route
        self._store_id = store_id
        self._out = out
        self.queue_offset = start  # next to read
        self.downstream: Service | None = None

    def step(self) -> bool:
        """Read one batch."""
        if self._config.stop_enqueue or self._out.is_full:
            return False
        end = self._dispatch.dispatched  # before the units: all of them then point below it
        units = self._route.queue.read(self.queue_offset, _BATCH)
        count = lib.ts_units_below(units, len(units) // 20, end) if units else 0
        if not count:
            return False
        requests = np.empty(count, REQUEST)
        with self._log.segments.view(end) as view:
            done = 0
            while done < count:
                got = lib.ts_timer_requests(
                    view,
                    ffi.from_buffer("uint8_t[]", units) + 20 * done,
                    count - done,
                    self.queue_offset + done,
                    self._store_id,
                    self._config.precision_ms,
                    ffi.from_buffer("ts_request[]", requests) + done,
                )
                if got < 0:
                    self._log.segments.serve(view, got, "enqueue-get")
                else:
                    done += got
        reach("enqueue_requests_read")
        self._out.put(requests)
        self.queue_offset += count
        if self.downstream is not None:
            self.downstream.wake()
        return True
