"""`SnapshotView`: the commit log and the queues of one store, at a position that moves on.

    FollowedPosition.look -> log: [begin, end) -> queue: units from its files, or from the log if
                                                  the files are incomplete, damaged or missing

Thread safety: one thread at a time.
Invariants: a queue is read only after `settle` or `settle_all`.
Raises: GoneError if the owner removed a file that is needed. Then call `advance` and read again.
"""

import dataclasses
from pathlib import Path

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.queues.record_lookup import (
    RecordUnits,
    call_with_routes,
    scan_batches,
)
from timerstore._engine.queues.routes import Route
from timerstore._engine.snapshot.position import FollowedPosition, SnapshotPosition
from timerstore._engine.snapshot.snapshot_log import (
    SnapshotLog,
    SnapshotQueue,
    SnapshotRoutes,
    SnapshotSegments,
)
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import ReadOnlyDisk
from timerstore._engine.storage.geometry import adopt_geometry, queue_bytes
from timerstore.errors import CorruptError, FailedError, GoneError
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

_TAIL_UNITS = 65_536  # of a broker's store: 1.3 MB in memory, before its files are read again


class SnapshotView(NotCopyable):
    """One store."""

    def __init__(self, root: Path, config: StoreConfig | None, clock: Clock) -> None:
        self.disk = ReadOnlyDisk()
        self.tree = Tree(root)
        self._clock = clock
        given = dataclasses.replace(config or StoreConfig(), index_enabled=False)
        default = StoreConfig().precision_ms
        asked_ms = given.precision_ms if given.precision_ms != default else None
        self._given = given
        self._sized: SnapshotPosition | None = None  # the position of the last look at file sizes
        self._has_all_sizes = False  # whether there are files of each kind
        self._followed = FollowedPosition(self.disk, self.tree, clock, asked_ms)
        self._anchor = self.disk.anchor(root)
        self.position: SnapshotPosition = self._followed.last
        self.config = self._sizes()
        log_bytes = self.config.commit_log_segment_bytes
        self.log = SnapshotLog(SnapshotSegments(self.disk, self.tree.commit_log, log_bytes))
        self.routes = SnapshotRoutes(self.disk, self.tree, self.config.queue_segment_bytes)
        self.routes.load()
        # Units of fixed levels are compared with the log only if the table of delays is known.
        self._trusts_levels = config is None
        self._units = RecordUnits(self.config.level_delays)
        self._distrusted: int | None = None  # version of the queue files that do not fit the log
        self._tail_units = 0  # in memory
        self._tail_units_max: int | None = None  # None: not known until the next read of the tail
        self._may_lack_units = False  # a queue, since the begin of the log was checked
        self._is_torn = False  # a step was interrupted, as by Ctrl-C: read everything again
        self._covered = 0  # the files have all units of the log below this offset
        self._tail_end = 0  # the files and memory have all units of the log below this one
        self._take(self.position, from_scratch=True)

    # --- the position ---

    def advance(self) -> None:
        """Go on to the position of now.

        Raises:
            FailedError: another folder has the store's name.
        """
        if self._anchor.identity() != self.disk.identity(self.tree.root):
            raise FailedError(
                "the store's folder was replaced by another while it was open",
                where=self.tree.root,
            )
        position = self._followed.look(self._records_end)
        self.routes.look()
        # A broker's store has no watermark that moves, and its files may have the tail's units now.
        most = self._tail_units_max
        is_long = position.mark is None and most is not None and self._tail_units > most
        if is_long or position != self.position or self._is_torn:
            self._take(position, from_scratch=is_long)

    def _sizes(self) -> StoreConfig:
        """Return the given configuration with the sizes of the files that exist."""
        adopted = adopt_geometry(self.disk, self.tree, self._given, self.position.mark)
        return dataclasses.replace(adopted, precision_ms=self.position.store.precision_ms)

    def is_outgrown(self) -> bool:
        """Return whether the owner has made the first file of a kind, with another size than was
        assumed. Then a new view is needed.
        """
        if self.config.precision_ms != self.position.store.precision_ms:
            return True
        if self._sized is self.position or self._has_all_sizes:
            return False
        if self._sizes() != self.config:
            return True
        disk, tree = self.disk, self.tree
        has_logs = disk.list(tree.commit_log) and disk.list(tree.timer_log)
        self._has_all_sizes = bool(has_logs) and queue_bytes(disk, tree) is not None
        self._sized = self.position
        return False

    def start_over(self) -> None:
        """Forget all files, because others may have their names."""
        self._is_torn = True
        self.log.segments.close()
        for queue in self.routes.queues():
            queue.forget()
        self._take(self.position, from_scratch=True)

    def distrust_queues(self) -> bool:
        """Read all units from the log as long as the watermark (of a broker's store, the begin of
        the log) stays the same. Return False if that is the case already.
        """
        version = _version(self.position)
        if self._distrusted == version:
            return False
        self._distrusted = version
        self._take(self.position, from_scratch=True)
        return True

    def _take(self, position: SnapshotPosition, *, from_scratch: bool = False) -> None:
        from_scratch |= self._is_torn
        self._is_torn = True
        last, self.position = self.position, position
        begin = position.store.log_begin
        self.log.show(begin, position.log_end)
        if from_scratch or position.mark != last.mark or begin != last.store.log_begin:
            self._covered = self._tail_end = self._covered_by_files(position)
            self._tail_units, self._tail_units_max = 0, None
            for queue in self.routes.queues():
                queue.unsettle()
        self._is_torn = False

    def _covered_by_files(self, position: SnapshotPosition) -> int:
        """Return the log offset up to which the queues' files are complete."""
        begin, mark = position.store.log_begin, position.mark
        if self._distrusted == _version(position) or (mark is not None and mark.is_bootstrap):
            return begin
        if mark is not None:
            return mark.log_end
        disk, tree = self.disk, self.tree
        is_unclean = disk.exists(tree.abort) and owner_pid(disk, tree) is None
        if is_unclean or disk.exists(tree.side):  # our recovery rebuilds the queues
            return begin
        # A broker writes units in the order of the log: all queues reach as far as any of them.
        try:
            ends = [queue.end_in_files() for queue in self.routes.queues()]
        except CorruptError:  # a file is missing
            return begin
        return max(begin, min(max(ends, default=0), position.log_end))

    def _records_end(self, segments: SnapshotSegments, begin: int, limit: int) -> int:
        """Return where the whole records and whole groups of records end."""
        end = begin
        for _, end, _ in scan_batches(  # noqa: B007 - the last one counts
            segments,
            self.routes,
            self._clock,
            self.config.precision_ms,
            begin,
            limit,
            whole_groups=True,
        ):
            pass
        return end

    # --- queues ---

    def settle(self, route: Route) -> Route:
        """Make a queue ready to be read."""
        self._read_tail()
        self._settle(route, is_done=True)
        self._check_begin()
        return route

    def settle_all(self) -> None:
        """Make every queue ready to be read."""
        self._read_tail()
        for route in self.routes.by_index:
            self._settle(route, is_done=True)
            route.native.next_offset = route.queue.count
        self._check_begin()

    def _check_begin(self) -> None:
        """Check that the queues have all units of the position. Retention moves the begin of the
        log before it removes the first file of a queue.
        """
        if self._may_lack_units and self._followed.has_newer_begin():
            raise GoneError("a file of a queue was removed", where=self.tree.queues)
        self._may_lack_units = False

    def _settle(self, route: Route, *, is_done: bool) -> SnapshotQueue:
        queue = route.queue
        assert isinstance(queue, SnapshotQueue), "these routes make no other queues"
        if queue.is_settled:
            return queue
        position, begin = self.position, self.position.store.log_begin
        wanted = None
        if position.counts is not None:
            wanted = position.counts.ends.get(route.topic, {}).get(route.queue_id, 0)
        if self._covered <= begin and not is_done:
            wanted = None  # its units are being read from the log
        queue.settle(self._covered, begin, wanted)
        self._may_lack_units |= queue.may_lack_units()
        if self._trusts_levels and route.native.kind == lib.TS_ROUTE_LEVELS:
            queue.trust()
        return queue

    def _read_tail(self) -> None:
        """Make the units of the records that the queues' files do not have."""
        if self._tail_end >= self.log.end:
            self._bound_tail()
            return
        self._is_torn = True
        self._read_units()
        self._bound_tail()
        self._is_torn = False

    def _bound_tail(self) -> None:
        """Let the units in memory grow to twice as many before the files are read again."""
        if self._tail_units_max is None:
            self._tail_units_max = max(_TAIL_UNITS, 2 * self._tail_units)

    def _read_units(self) -> None:
        segments = self.log.segments
        with segments.view(self.log.end) as view:
            while self._tail_end < self.log.end:
                make, begin = self._units.make, self._tail_end
                count = call_with_routes(
                    segments, view, self.routes, self._clock, "queues", make, begin
                )
                for index, offsets, units in self._units.by_queue(count):
                    queue = self._settle(self.routes.by_index[index], is_done=False)
                    self._tail_units += len(units)
                    queue.add(int(offsets[0]), units.data.cast("B"))
                if self._units.reached <= begin:
                    raise CorruptError(
                        "the log ends before its known end",
                        where=f"{segments.directory} offset {begin}",
                        wanted=f"records up to {self.log.end}",
                    )
                self._tail_end = self._units.reached

    def close(self) -> None:
        """Close the files."""
        self.log.segments.close()
        self.routes.close()
        self._anchor.close()


def _version(position: SnapshotPosition) -> int:
    """Return a number that differs for positions with other files: the sequence of the watermark,
    or below zero the begin of the log.
    """
    return -1 - position.store.log_begin if position.mark is None else position.mark.sequence
