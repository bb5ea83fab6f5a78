"""Scan the commit log during recovery, including staged records that continue it."""

from typing import Any

import numpy as np

from timerstore._engine.base.failpoints import reach
from timerstore._engine.log.log_recovery import restore_staged, scan
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.log.staging import StagedBytes
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments
from timerstore.clock import Clock


class LogScan:
    """Scans one store's log while it is opened."""

    def __init__(self, segments: Segments, routes: Routes, clock: Clock, precision_ms: int) -> None:
        self._segments = segments
        self._routes = routes
        self._clock = clock
        self._precision_ms = precision_ms

    def with_staged(self, begin: int, staged: StagedBytes) -> tuple[Scan, int, int]:
        """Scan the log from `begin`, and write and scan the staged bytes that continue it.

        Returns the records, their end, and the reason for the end (enum ts_fault).
        """
        scanned, end, fault = self._scan(begin)
        for base, data in staged.pieces:
            if restore_staged(self._segments, base, data, end):
                more, end, fault = self._scan(end)
                scanned = np.concatenate([scanned, more])
        reach("recover_staged_restored")
        return scanned, end, fault

    def _scan(self, begin: int) -> tuple[Scan, int, int]:
        self._segments.reserve_edges(begin)
        return scan(
            self._segments,
            lambda: self._routes.native,
            self._make_route,
            self._precision_ms,
            begin,
        )

    def _make_route(self, view: Any) -> None:
        route_needed(self._segments, view, self._routes, self._clock.now_ms)
