"""The tail of the log past the watermark, read for what is kept in memory or in side files."""

from collections.abc import Iterator
from typing import Any

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import lib
from timerstore._engine.format.lease import group_of
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import record_fields, route_needed
from timerstore._engine.queues.record_properties import timer_properties
from timerstore._engine.read.consumer_offsets import Offsets
from timerstore._engine.read.lease_progress import LeaseProgress
from timerstore._engine.recovery.recovery import Recovered
from timerstore._engine.recurring.definitions import Definitions
from timerstore._engine.timer import timer_recovery
from timerstore.clock import Clock


class LogTail:
    """The tail of one store's log while it is opened."""

    def __init__(self, found: Recovered, clock: Clock) -> None:
        self._found = found
        self._clock = clock

    def dispatch(self, dispatch: Dispatch) -> None:
        """Bring the queues up to the log's end."""
        found = self._found
        dispatch.through(found.log_end)
        timer_recovery.finish_queues(found.routes)
        for route in found.routes.by_index:
            if route.native.kind == lib.TS_ROUTE_LEVELS:
                found.levels.begin_at(route.queue_id, route.queue.min_offset)
        reach("recover_dispatched")

    def clamp(self, offsets: Offsets) -> None:
        """Take back committed offsets past the end of their queue."""
        offsets.clamp(self._found.routes)
        reach("recover_offsets_clamped")

    def read_leases(self, progress: LeaseProgress) -> None:
        """Restore how far groups that use leases have read."""
        found = self._found
        texts = timer_properties(
            found.segments,
            found.routes,
            found.config.precision_ms,
            self._clock.now_ms,
            found.dispatch_from,
            found.log_end,
            lambda topic: group_of(topic) is not None,
        )
        progress.recover(texts, found.store_id)

    def read_definitions(self, definitions: Definitions) -> None:
        """Restore the recurring definitions and their last runs."""
        definitions.recover(self._parts, self._properties_at)

    def _parts(self) -> Iterator[Scan]:
        found = self._found
        for part, _, _ in scan_batches(
            found.segments,
            lambda: found.routes.native,
            self._serve_route,
            found.config.precision_ms,
            found.dispatch_from,
            found.log_end,
        ):
            yield part

    def _serve_route(self, view: Any) -> None:
        route_needed(self._found.segments, view, self._found.routes, self._clock.now_ms)

    def _properties_at(self, log_offset: int) -> bytes:
        with self._found.segments.view(self._found.log_end) as view:
            return record_fields(self._found.segments, view, log_offset)[2]
