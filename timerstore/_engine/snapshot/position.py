"""Decide how far a store may be read. All readers of a live store take their limits from here.

    files                             they are read up to
    ours, and a process has them open the log end of the watermark: the last completed checkpoint
    ours, and no process has them     the same; a `FollowedPosition` also reads the whole records
                                      after it
    a broker's                        the last whole record (broker_limits.py)

Thread safety: one thread at a time for each object.
Invariants:
    1. Records below the end of a position of ours are durable, because the watermark is written
       after them. A `FollowedPosition` syncs the files before it reads past a watermark, so no
       recovery ends the log before it.
    2. A followed position never ends before the one it returned last.
Raises: ConfigError if there is no store. FailedError or ConfigError if another store has its name.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.broker_limits import broker_limits, broker_was_here
from timerstore._engine.snapshot.file_limits import Snapshot, empty, limits, timer_log_begin
from timerstore._engine.snapshot.log_walk import segments_of, units_end
from timerstore._engine.snapshot.snapshot_segments import SnapshotSegments
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.paths import absolute_path
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, FailedError, FullError

_READ_ON_NS = 500_000_000  # between two syncs of a log that a broker has open, as its own
_TRIES = 5  # a checkpoint may complete between two reads


class SnapshotPosition(NamedTuple):
    """How far one store is read, and the side files that belong to it."""

    store: Snapshot
    mark: Watermark | None
    """None: a broker's store, or one without a checkpoint yet."""
    counts: Counts | None
    """The counts of `mark`; None if they could not be read."""

    @property
    def log_end(self) -> int:
        """The log offset up to which records are read: the watermark's end, or past it."""
        return self.store.log_end


class PositionReader:
    """Reads the position of one store from its files. Syncs and writes nothing."""

    def __init__(self, disk: Disk, tree: Tree, precision_ms: int | None = None) -> None:
        """`precision_ms`: of a broker's store whose files do not show it."""
        self._disk = disk
        self._tree = tree
        self._precision_ms = precision_ms

    def mark(self) -> Watermark | None:
        """Return the newest completed checkpoint. Reads a few hundred bytes."""
        raw = self._disk.read_small(self._tree.watermark)
        return None if raw is None else watermark.read(raw, self._tree.watermark)

    def counts(self, mark: Watermark) -> Counts | None:
        """Return the counts of a watermark; None if the file holds those of others."""
        text = self._disk.read_small(self._tree.counts)
        return counts_json.read_counts(text, mark.log_end, mark.sequence)

    def find(self) -> SnapshotPosition:
        """Return the position, with the watermark and the counts that belong to it."""
        return self.find_with_mark()[1]

    def find_with_mark(self) -> tuple[Watermark | None, SnapshotPosition]:
        """Return the same, and the watermark that was read even if the files are a broker's."""
        mark, read_with, store = self.mark(), None, None
        for _ in range(_TRIES):
            read_with, store = mark, self.limits(mark)
            mark = self.mark()
            if mark != read_with:
                continue
            if store.store_id is None:
                return mark, SnapshotPosition(store, None, None)
            assert mark is not None, "a store of ours has a watermark"
            if (counts := self.counts(mark)) is not None:
                return mark, SnapshotPosition(store, mark, counts)
            mark = self.mark()
        # Return the watermark of these limits: with a newer one, no later look would read again.
        assert store is not None
        ours = read_with if store.store_id is not None else None
        return read_with, SnapshotPosition(store, ours, None)

    def limits(self, mark: Watermark | None) -> Snapshot:
        """Return how far the files may be read, given the newest watermark."""
        disk, tree = self._disk, self._tree
        if mark is None and not disk.is_directory(tree.commit_log):
            if disk.is_directory(tree.side):
                return empty(tree.root)  # its owner is making it
            is_there = disk.is_directory(tree.root)
            what = "holds no store: no commitlog/" if is_there else "is no directory"
            raise ConfigError(f"path: {tree.root} {what}")
        config = adopt_geometry(disk, tree, StoreConfig(index_enabled=False), mark)
        if mark is not None:
            begin = timer_log_begin(tree, config.timer_log_segment_bytes)
            ours = limits(
                tree.root,
                config,
                (min(mark.log_begin, mark.log_end), mark.log_end),
                (min(begin, mark.timer_log_end), mark.timer_log_end),
                mark.store_id,
            )
            if not broker_was_here(ours, mark):
                return ours
        return broker_limits(tree, config, self._precision_ms)


def take(root: Path, precision_ms: int | None = None) -> Snapshot:
    """Return how far a store may be read now.

    `precision_ms`: of a broker's store whose files do not show it.

    Raises:
        ConfigError: there is no store. CorruptError: limits and files do not fit.
    """
    disk, tree = Disk(), Tree(absolute_path("path", root))
    reader = PositionReader(disk, tree, precision_ms)
    written_ms = disk.modified_ms(tree.watermark)  # first: not later than the watermark read
    store = reader.limits(reader.mark())
    as_of_ms = SystemClock().now_ms if store.store_id is None else written_ms
    return replace(store, as_of_ms=as_of_ms)


def refreshed(store: Snapshot) -> Snapshot:
    """Return the same store with its limits of now. For a store of ours this costs one small read
    and one directory listing.
    """
    if store.store_id is None:
        return take(store.root, store.precision_ms)
    disk = Disk()
    written_ms = disk.modified_ms(store.tree.watermark)
    mark = PositionReader(disk, store.tree).mark()
    if mark is None or mark.store_id != store.store_id:
        raise ConfigError(f"path: {store.root} is another store than it was")
    return replace(as_of(store, mark), as_of_ms=written_ms)


def as_of(store: Snapshot, mark: Watermark) -> Snapshot:
    """Return the same store with the limits of a watermark of its own."""
    return replace(
        store,
        log_begin=min(mark.log_begin, mark.log_end),
        log_end=mark.log_end,
        timer_log_begin=min(store.timer_log_begin_now, mark.timer_log_end),
        timer_log_end=mark.timer_log_end,
    )


class FollowedPosition(PositionReader):
    """Follows the position of one store, and reads on past it where no owner appends."""

    def __init__(
        self, disk: ReadOnlyDisk, tree: Tree, clock: Clock, precision_ms: int | None
    ) -> None:
        super().__init__(disk, tree, precision_ms)
        self._read_only = disk
        self._clock = clock
        self._read_ns: int | None = None  # when a log was last read past the position
        self._seen, self.last = self._find_durable()

    def look(self, records_end: Callable[[SnapshotSegments, int, int], int]) -> SnapshotPosition:
        """Return the position of now.

        `records_end(segments, begin, limit)` returns the end of the whole records from `begin` on.
        """
        mark = self.mark()
        if mark != self._seen:
            self._take(mark)
        elif (
            mark is not None
            and self.last.mark is not None
            and broker_was_here(self.last.store, mark)
        ):
            self._know(*self._find_durable())
        if self.last.mark is None:
            self.last = self._from_first_file(self.last)
        is_held = owner_pid(self._disk, self._tree) is not None
        if not is_held or (self.last.mark is None and self._is_time()):
            self._read_on(records_end)
        return self.last

    def _is_time(self) -> bool:
        """Return whether to sync the log of a broker that has it open: a sync slows it down."""
        now_ns = self._clock.monotonic_ns
        is_early = self._read_ns is not None and now_ns - self._read_ns < _READ_ON_NS
        if not is_early or self._clock.by_hand:
            self._read_ns = now_ns
            return True
        return False

    def _find_durable(self) -> tuple[Watermark | None, SnapshotPosition]:
        """Find the position from scratch. A broker's files are synced first: FailedError if that
        fails.
        """
        mark, found = self.find_with_mark()
        if found.mark is None:
            log = self._log(found.store)
            try:
                log.sync_range(found.store.log_begin, found.store.log_end)
            finally:
                log.close()
        return mark, found

    def _know(self, mark: Watermark | None, found: SnapshotPosition) -> None:
        """Go on to a position, unless it ends before the last one. The watermark is noted after
        it, so that a call that Ctrl-C interrupts looks at the watermark again.
        """
        if found.log_end >= self.last.log_end:
            self.last = found
        self._seen = mark

    def _take(self, mark: Watermark | None) -> None:
        """Take in the watermark of another checkpoint, or of another owner."""
        last = self.last
        if mark is None:
            return  # the owner rebuilds it; until then the last position holds
        known = last.store.store_id
        if known is None:
            self._know(*self._find_durable())
            return
        if mark.store_id != known:
            raise FailedError(
                "the store was replaced by another while it was open",
                where=self._tree.root,
                wanted=f"store id {known}",
                got=mark.store_id,
            )
        if mark.log_end >= last.log_end:
            found = SnapshotPosition(as_of(last.store, mark), mark, self.counts(mark))
            self._know(mark, found)

    def _from_first_file(self, last: SnapshotPosition) -> SnapshotPosition:
        """Return the same from the first file on: a broker's retention removes old files."""
        begins = segments_of(self._tree.commit_log, last.store.log_segment_bytes)
        if not begins or begins[0] == last.store.log_begin:
            return last
        end = max(begins[0], last.log_end)
        store = replace(last.store, log_begin=begins[0], log_end=end)
        return last._replace(store=store)

    def _read_on(self, records_end: Callable[[SnapshotSegments, int, int], int]) -> None:
        last = self.last
        store, begin = last.store, last.log_end
        limit = self._extent(begin)
        if limit <= begin:
            return
        log = self._log(store)
        log.show(begin, limit)
        try:
            end = records_end(log, begin, limit)
            if end == begin or not _sync(log, begin, end):
                return
        finally:
            log.close()
        store = self._with_timers(replace(store, log_end=end), last)
        self.last = last._replace(store=store)

    def _with_timers(self, store: Snapshot, last: SnapshotPosition) -> Snapshot:
        """Return the store with the end of a broker's timer log of now."""
        if last.mark is not None:
            return store
        begins = segments_of(self._tree.timer_log, store.timer_log_segment_bytes)
        if not begins:
            return store
        windows = store.timer_log(end=begins[-1] + store.timer_log_segment_bytes)
        end = units_end(windows, max(store.timer_log_end, begins[0]))
        return replace(store, timer_log_begin=begins[0], timer_log_end=end)

    def _log(self, store: Snapshot) -> SnapshotSegments:
        return SnapshotSegments(self._read_only, self._tree.commit_log, store.log_segment_bytes)

    def _extent(self, begin: int) -> int:
        """Return the end of the whole files without a gap, from the one with `begin` on."""
        size = self.last.store.log_segment_bytes
        at = begin - begin % size
        while self._disk.file_bytes(self._tree.commit_log / segment_name(at)) == size:
            at += size
        return at


def _sync(log: SnapshotSegments, begin: int, end: int) -> bool:
    """Sync a range of the log that is to be read; return whether the disk did."""
    try:
        log.sync_range(begin, end)
    except (FailedError, FullError):
        return False
    return True
