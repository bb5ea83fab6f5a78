"""Read the tail of the log after the watermark, to restore memory and side files at opening."""

from collections.abc import Iterator

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import lib
from timerstore._engine.format.lease import group_of
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.index_file import Geometry
from timerstore._engine.queues.key_index import Index
from timerstore._engine.queues.record_lookup import record_fields, scan_batches, timer_properties
from timerstore._engine.read.consumer_offsets import LeaseProgress, Offsets
from timerstore._engine.recovery.recovery import Recovery
from timerstore._engine.storage.disk import Disk
from timerstore.types.clock import Clock


class LogTail:
    """The tail of the log of a store that is being opened."""

    def __init__(self, recovered: Recovery, clock: Clock) -> None:
        self._recovered = recovered
        self._clock = clock

    def open_index(self, disk: Disk, tree: Tree) -> Index:
        """Return the key index, extended to cover at least the log that the queues cover."""
        recovered, config = self._recovered, self._recovered.config
        geometry = Geometry(config.index_slot_count, config.index_entry_count)
        lag_bytes = config.checkpoint_log_bytes // 8
        index = Index(disk, tree, self._clock, geometry, lag_bytes, has_tags=config.index_tags)
        if recovered.mark is None:  # a broker may have been here
            index.restart(recovered.store_id, recovered.segments.begin)
        else:
            index.recover(recovered.store_id, recovered.segments.begin, recovered.log_end)
        index.catch_up(recovered.segments, recovered.dispatch_from)
        return index

    def dispatch(self, dispatch: Dispatch) -> None:
        """Dispatch the tail to the queues."""
        recovered = self._recovered
        dispatch.through(recovered.log_end)
        for route in recovered.routes.by_index:
            route.native.next_offset = route.queue.count
            route.queue.reserve_from_end()
            if route.native.kind == lib.TS_ROUTE_LEVELS:
                recovered.levels.begin_at(route.queue_id, route.queue.min_offset)
        recovered.routes.save_deletions(recovered.segments.begin, self._clock.now_ms)
        reach("recover_dispatched")

    def clamp(self, offsets: Offsets) -> None:
        """Reduce committed offsets that are past the end of their queue."""
        offsets.clamp(self._recovered.routes)
        reach("recover_offsets_clamped")

    def read_leases(self, progress: LeaseProgress) -> None:
        """Restore the read progress of groups that use leases."""
        recovered = self._recovered
        texts = timer_properties(
            recovered.segments,
            recovered.routes,
            recovered.config.precision_ms,
            self._clock,
            recovered.dispatch_from,
            recovered.log_end,
            lambda topic: group_of(topic) is not None,
        )
        progress.recover(texts, recovered.store_id, recovered.routes.deleted_below)

    def batches(self) -> Iterator[Scan]:
        """Return the records of the tail."""
        recovered = self._recovered
        found = scan_batches(
            recovered.segments,
            recovered.routes,
            self._clock,
            recovered.config.precision_ms,
            recovered.dispatch_from,
            recovered.log_end,
        )
        return (batch for batch, _, _ in found)

    def properties_at(self, log_offset: int) -> bytes:
        """Return the properties of a record of the tail."""
        recovered = self._recovered
        with recovered.segments.view(recovered.log_end) as view:
            return record_fields(recovered.segments, view, log_offset)[2]
