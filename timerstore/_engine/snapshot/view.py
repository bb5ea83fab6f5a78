"""The commit log and queues of one store, as of a position that moves on.

    SnapshotPositions.look -> log: [begin, end) -> queues: units in files, or from the log where
                                                    those are behind, damaged or gone

Threads:  one at a time.
Holds:    a queue is asked only when it is settled: `settle`, `settle_all`.
Fails:    GoneError where its owner removed what was to be read: `advance`, and ask again.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.queues.consume_queue import UNIT_BYTES
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route
from timerstore._engine.snapshot.position import SnapshotPosition, SnapshotPositions
from timerstore._engine.snapshot.snapshot_log import SnapshotLog
from timerstore._engine.snapshot.snapshot_queue import SnapshotQueue
from timerstore._engine.snapshot.snapshot_routes import SnapshotRoutes
from timerstore._engine.snapshot.snapshot_segments import SnapshotSegments
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.geometry import adopt_geometry, queue_bytes
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError, FailedError

_BATCH = 16_384
_TAIL_UNITS = 65_536  # of a broker's: 1.3 MB in memory, before its files are looked at again


class SnapshotView(Owner):
    """One store."""

    def __init__(self, root: Path, config: StoreConfig | None, clock: Clock) -> None:
        self.disk = ReadOnlyDisk()
        self.tree = Tree(root)
        self._clock = clock
        given = dataclasses.replace(config or StoreConfig(), index_enabled=False)
        default = StoreConfig().precision_ms
        asked_ms = given.precision_ms if given.precision_ms != default else None
        self._given = given
        self._sized: SnapshotPosition | None = (
            None  # as of when the sizes were held against the files
        )
        self._has_all_sizes = False  # there are files of each kind
        self._moments = SnapshotPositions(self.disk, self.tree, clock, asked_ms)
        self._anchor = self.disk.anchor(root)
        self.moment: SnapshotPosition = self._moments.last
        self.config = self._sizes()
        log_bytes = self.config.commit_log_segment_bytes
        self.log = SnapshotLog(SnapshotSegments(self.disk, self.tree.commit_log, log_bytes))
        self.routes = SnapshotRoutes(self.disk, self.tree, self.config.queue_segment_bytes)
        self.routes.load()
        # Who knows the table of delays holds levels' units against it; else they are believed.
        self._believes_levels = config is None
        delays = parse_level_delays(self.config.level_delays)
        self._level_count, self._delays = len(delays), ffi.new("int64_t[]", delays)
        self._distrusted: int | None = None  # as of what the queues' files do not fit: `_version`
        self._tail_units = 0  # in memory
        self._tail_units_max: int | None = None  # as many may be; None: as is found next
        self._is_torn = False  # a step was cut off, by Ctrl-C too: what is known is to be read anew
        self._covered = 0  # units of what lies below are in files
        self._tail_end = 0  # of what lies below, at least in memory
        self._take(self.moment, anew=True)

    # --- how far ---

    def advance(self) -> None:
        """Go on to the moment of now. FailedError where another folder has the store's name."""
        if self._anchor.identity() != self.disk.identity(self.tree.root):
            raise FailedError(
                "the store's folder was replaced by another while it was open",
                where=self.tree.root,
            )
        moment = self._moments.look(self._records_end)
        self.routes.look()
        # No watermark moves a broker's on; what is in memory may be in its files by now.
        most = self._tail_units_max
        is_long = moment.mark is None and most is not None and self._tail_units > most
        if is_long or moment != self.moment or self._is_torn:
            self._take(moment, anew=is_long)

    def _sizes(self) -> StoreConfig:
        """What was given, with the sizes that the files have which are there."""
        adopted = adopt_geometry(self.disk, self.tree, self._given, self.moment.mark)
        return dataclasses.replace(adopted, precision_ms=self.moment.store.precision_ms)

    def is_outgrown(self) -> bool:
        """Whether its owner made the first file of a kind since, and of another size than was taken
        for granted: then another room is to be made.
        """
        if self.config.precision_ms != self.moment.store.precision_ms:
            return True
        if self._sized is self.moment or self._has_all_sizes:
            return False
        if self._sizes() != self.config:
            return True
        disk, tree = self.disk, self.tree
        has_logs = disk.list(tree.commit_log) and disk.list(tree.timer_log)
        self._has_all_sizes = bool(has_logs) and queue_bytes(disk, tree) is not None
        self._sized = self.moment
        return False

    def start_over(self) -> None:
        """Let go of all that is known of files: they may be others by now."""
        self._is_torn = True
        self.log.segments.start_over()
        for queue in self.routes.queues():
            queue.forget()
        self._take(self.moment, anew=True)

    def distrust_queues(self) -> bool:
        """Read all units from the log, as of this watermark, or until a broker's log begins
        elsewhere; False where that is so already.
        """
        version = _version(self.moment)
        if self._distrusted == version:
            return False
        self._distrusted = version
        self._take(self.moment, anew=True)
        return True

    def _take(self, moment: SnapshotPosition, *, anew: bool = False) -> None:
        anew |= self._is_torn
        self._is_torn = True
        last, self.moment = self.moment, moment
        begin = moment.store.log_begin
        self.log.segments.show(begin, moment.log_end)
        self.log.show(moment.log_end)
        if anew or moment.mark != last.mark or begin != last.store.log_begin:
            self._covered = self._tail_end = self._covered_by_files(moment)
            self._tail_units, self._tail_units_max = 0, None
            for queue in self.routes.queues():
                queue.unsettle()
        # else the log is longer, and that is all
        self._is_torn = False

    def _covered_by_files(self, moment: SnapshotPosition) -> int:
        begin, mark = moment.store.log_begin, moment.mark
        if self._distrusted == _version(moment) or (mark is not None and mark.is_bootstrap):
            return begin
        if mark is not None:
            return mark.log_end
        disk, tree = self.disk, self.tree
        is_unclean = disk.exists(tree.abort) and owner_pid(disk, tree) is None
        if is_unclean or disk.exists(tree.side):  # which one of ours has, that is built anew
            return begin
        # A broker makes units in the log's order, one by one: all queues are as far as any is.
        try:
            ends = [queue.end_in_files() for queue in self.routes.queues()]
        except CorruptError:  # a file is missing
            return begin
        return max(begin, min(max(ends, default=0), moment.log_end))

    def _records_end(self, segments: SnapshotSegments, begin: int, limit: int) -> int:
        """Where whole records, and whole groups of records, end."""
        end = begin
        for _, end, _ in scan_batches(  # noqa: B007 - the last one counts
            segments,
            lambda: self.routes.native,
            lambda view: route_needed(segments, view, self.routes, self._clock.now_ms),
            self.config.precision_ms,
            begin,
            limit,
            whole_groups=True,
        ):
            pass
        return end

    # --- queues ---

    def settle(self, route: Route) -> Route:
        """Have a queue ready to be read."""
        self._read_tail()
        self._settle(route, is_done=True)
        return route

    def settle_all(self) -> None:
        """Have every queue ready to be read."""
        self._read_tail()
        for route in self.routes.by_index:
            self._settle(route, is_done=True)
            route.native.next_offset = route.queue.count

    def _settle(self, route: Route, *, is_done: bool) -> SnapshotQueue:
        queue = route.queue
        assert isinstance(queue, SnapshotQueue), "routes make no others"
        if queue.is_settled:
            return queue
        moment, begin = self.moment, self.moment.store.log_begin
        wanted = None
        if moment.counts is not None:
            wanted = moment.counts.ends.get(route.topic, {}).get(route.queue_id, 0)
        if self._covered <= begin and not is_done:
            wanted = None  # its units are being read
        queue.settle(self._covered, begin, wanted)
        if self._believes_levels and route.native.kind == lib.TS_ROUTE_LEVELS:
            queue.believe()
        return queue

    def _read_tail(self) -> None:
        """Make the units of what no file is known to have them of."""
        if self._tail_end >= self.log.end:
            self._bound_tail()
            return
        self._is_torn = True
        self._read_units()
        self._bound_tail()
        self._is_torn = False

    def _bound_tail(self) -> None:
        """Behind the files: what is in none now is let grow to twice as much before they are looked
        at again.
        """
        if self._tail_units_max is None:
            self._tail_units_max = max(_TAIL_UNITS, 2 * self._tail_units)

    def _read_units(self) -> None:
        units = np.empty(_BATCH * UNIT_BYTES, np.uint8)
        indexes, offsets = np.empty(_BATCH, np.int32), np.empty(_BATCH, np.int64)
        following = ffi.new("int64_t *")
        segments = self.log.segments
        with segments.view(self.log.end) as view:
            while self._tail_end < self.log.end:
                count = lib.ts_dispatch(
                    view,
                    self.routes.native,
                    self._delays,
                    self._level_count,
                    self._tail_end,
                    following,
                    _BATCH,
                    address(units),
                    ffi.from_buffer("int32_t[]", indexes),
                    ffi.from_buffer("int64_t[]", offsets),
                    ffi.NULL,
                    ffi.NULL,
                    ffi.NULL,
                )
                if count == lib.TS_NEED_ROUTE:
                    route_needed(segments, view, self.routes, self._clock.now_ms)
                elif count < 0:
                    segments.serve(view, count, "queues")
                else:
                    self._add(indexes[:count], offsets[:count], units[: count * UNIT_BYTES])
                    if following[0] <= self._tail_end:
                        raise CorruptError(
                            "the log ends before what is known of it",
                            where=f"{segments.directory} offset {self._tail_end}",
                            wanted=f"records up to {self.log.end}",
                        )
                    self._tail_end = int(following[0])

    def _add(self, indexes: Any, offsets: Any, units: Any) -> None:
        rows = units.reshape(len(indexes), UNIT_BYTES)
        order = np.argsort(indexes, kind="stable")
        edges = np.flatnonzero(np.diff(indexes[order])) + 1
        for part in np.split(order, edges) if len(order) else ():
            queue = self._settle(self.routes.by_index[int(indexes[part[0]])], is_done=False)
            self._tail_units += len(part)
            queue.add(int(offsets[part[0]]), np.ascontiguousarray(rows[part]).data.cast("B"))

    def close(self) -> None:
        """Let go of the files."""
        self.log.segments.close()
        self.routes.close()
        self._anchor.close()


def _version(moment: SnapshotPosition) -> int:
    """What tells files of one moment from another's: a watermark's sequence, or below zero where
    the log begins.
    """
    return -1 - moment.store.log_begin if moment.mark is None else moment.mark.sequence
