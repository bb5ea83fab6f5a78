"""How far a store is read: answers are as of a SnapshotPosition.

    whose, and who has it open        it is read up to
    ours, somebody                    the last completed checkpoint: the watermark's log end
    ours, nobody                      the same, and the whole records and groups behind it
    a broker's                        the last whole record

Threads:  one at a time.
Holds:    (1) everything below a moment's end is on the disk: a watermark says so of what it speaks
          of, and files that are read beyond one are synced first, by a descriptor that cannot
          write; so no recovery ends the log before it; (2) a moment never ends before the last one.
Fails:    ConfigError where there is no store, FailedError where it is another one than it was.
Source:   docs/decisions/0012-snapshots-and-retention.md.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from timerstore._engine.format import counts_json
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.snapshot_segments import SnapshotSegments
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore._engine.tables.file_limits import (
    Snapshot,
    as_of,
    broker_was_here,
    read_watermark,
    take,
)
from timerstore._engine.tables.log_walk import segments_of, units_end
from timerstore.clock import Clock
from timerstore.errors import FailedError, FullError

_READ_ON_NS = 500_000_000  # between two syncs of a log that a broker has open, as its own
_TRIES = 5  # a checkpoint may complete between two reads


class SnapshotPosition(NamedTuple):
    """One store, as of one moment."""

    store: Snapshot
    mark: Watermark | None
    """None: a broker's, or one that has no checkpoint yet."""
    counts: Counts | None
    """As of the mark."""

    @property
    def log_end(self) -> int:
        """How far the log is read; at the mark's end, or behind it."""
        return self.store.log_end


class SnapshotPositions:
    """Looks at one store again and again."""

    def __init__(
        self, disk: ReadOnlyDisk, tree: Tree, clock: Clock, precision_ms: int | None
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._read_ns: int | None = None  # when a log was read on last
        self._tree = tree
        self._precision_ms = precision_ms
        self._seen, self.last = self._anew()

    def look(self, records_end: Callable[[SnapshotSegments, int, int], int]) -> SnapshotPosition:
        """Give the moment of now. `records_end(segments, begin, limit)`: where whole records end
        that begin there.
        """
        mark = read_watermark(self._tree)
        if mark != self._seen:
            self._take(mark)
        elif (
            mark is not None
            and self.last.mark is not None
            and broker_was_here(self.last.store, mark)
        ):
            self._know(*self._anew())
        if self.last.mark is None:
            self.last = self._begun(self.last)
        is_held = owner_pid(self._disk, self._tree) is not None
        if not is_held or (self.last.mark is None and self._is_time()):
            self._read_on(records_end)
        return self.last

    def _is_time(self) -> bool:
        """Whether who has it open is to be given another sync: it slows a broker down."""
        now_ns = self._clock.monotonic_ns
        is_early = self._read_ns is not None and now_ns - self._read_ns < _READ_ON_NS
        if not is_early or self._clock.by_hand:
            self._read_ns = now_ns
            return True
        return False

    def _anew(self) -> tuple[Watermark | None, SnapshotPosition]:
        """Look at the directory as if nothing was known: its watermark, and the moment. FailedError
        where the disk does not say that it has what a broker wrote.
        """
        for _ in range(_TRIES):
            mark = read_watermark(self._tree)
            store = take(self._tree.root, self._precision_ms)
            if mark != read_watermark(self._tree):
                continue
            if store.store_id is None:
                self._sync_whole(store)
                return mark, SnapshotPosition(store, None, None)
            assert mark is not None, "a store of ours has one"
            if (counts := self._counts(mark)) is not None:
                return mark, SnapshotPosition(store, mark, counts)
        ours = mark if store.store_id is not None else None
        if ours is None:
            self._sync_whole(store)
        return mark, SnapshotPosition(store, ours, None)

    def _know(self, mark: Watermark | None, found: SnapshotPosition) -> None:
        """Go on to a moment that does not end before the last. The watermark is noted behind it:
        who is cut off before, by Ctrl-C too, looks at it again.
        """
        if found.log_end >= self.last.log_end:
            self.last = found
        self._seen = mark

    def _sync_whole(self, store: Snapshot) -> None:
        log = self._log(store)
        try:
            log.sync_range(store.log_begin, store.log_end)
        finally:
            log.close()

    def _counts(self, mark: Watermark) -> Counts | None:
        text = self._disk.read_small(self._tree.counts)
        return counts_json.read_counts(text, mark.log_end, mark.sequence)

    def _take(self, mark: Watermark | None) -> None:
        """A checkpoint was completed, or there is another owner."""
        last = self.last
        if mark is None:
            return  # it is being built anew: until it is, what was known holds
        known = last.store.store_id
        if known is None:
            self._know(*self._anew())
            return
        if mark.store_id != known:
            raise FailedError(
                "the store was replaced by another while it was open",
                where=self._tree.root,
                wanted=f"store id {known}",
                got=mark.store_id,
            )
        if mark.log_end >= last.log_end:
            found = SnapshotPosition(as_of(last.store, mark), mark, self._counts(mark))
            self._know(mark, found)

    def _begun(self, last: SnapshotPosition) -> SnapshotPosition:
        """The same from the first file that is there: a broker's retention removes what is old."""
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
        """A broker's timer log goes on, too."""
        if last.mark is not None:
            return store
        begins = segments_of(self._tree.timer_log, store.timer_log_segment_bytes)
        if not begins:
            return store
        windows = store.timer_log(end=begins[-1] + store.timer_log_segment_bytes)
        end = units_end(windows, max(store.timer_log_end, begins[0]))
        return replace(store, timer_log_begin=begins[0], timer_log_end=end)

    def _log(self, store: Snapshot) -> SnapshotSegments:
        return SnapshotSegments(self._disk, self._tree.commit_log, store.log_segment_bytes)

    def _extent(self, begin: int) -> int:
        """Where the files end that lie side by side from the one with `begin` on."""
        size = self.last.store.log_segment_bytes
        at = begin - begin % size
        while self._disk.file_bytes(self._tree.commit_log / segment_name(at)) == size:
            at += size
        return at


def _sync(log: SnapshotSegments, begin: int, end: int) -> bool:
    """Have the disk hold what is to be read; False where it does not say so."""
    try:
        log.sync_range(begin, end)
    except (FailedError, FullError):
        return False
    return True
