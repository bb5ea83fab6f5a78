"""Decide how far a store may be read. All readers of a live store take their limits from here.

    files                             they are read up to
    ours, and a process has them open the log end of the watermark: the last completed checkpoint
    ours, and no process has them     the same; a `FollowedPosition` also reads the whole records
                                      after it
    a broker's                        the last whole record (position.py)

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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore._engine.format import counts_json, watermark, wheel_slot
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.format.timer_unit import read as read_units
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.log_windows import (
    Windows,
    goes_on,
    records_end,
    segments_of,
    units_end,
)
from timerstore._engine.snapshot.snapshot_log import SnapshotSegments
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.directory import owner_pid
from timerstore._engine.storage.disk import Disk, ReadOnlyDisk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore.errors import ConfigError, CorruptError, FailedError, FullError
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.config import StoreConfig

# --- file limits ---
# `Snapshot`: the sizes of one store's files, and how far each file is read.
#
# A Snapshot is a value. `position.py` makes it; a Spark driver sends it to its workers.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One store, as far as it is read."""

    root: Path
    precision_ms: int
    log_segment_bytes: int
    timer_log_segment_bytes: int
    queue_segment_bytes: int
    wheel_slot_count: int
    log_begin: int
    log_end: int
    timer_log_begin: int
    timer_log_end: int
    store_id: int | None
    """The store's id from its watermark; None for files that a broker wrote."""
    as_of_ms: int | None = field(default=None, compare=False)
    """When the files had this state, ms since 1970: the time at which the checkpoint was written,
    or, for a broker's store and for records after the last checkpoint, at which the files were
    read. None: not known."""

    @property
    def tree(self) -> Tree:
        """The names of its files."""
        return Tree(self.root)

    @property
    def as_of(self) -> str | None:
        """The time of this state, as ISO 8601 in UTC."""
        if self.as_of_ms is None:
            return None
        return datetime.fromtimestamp(self.as_of_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def log(
        self,
        *,
        verify: bool = True,
        end: int | None = None,
        window_bytes: int | None = None,
    ) -> Windows:
        """Return the commit log up to the limit, or up to `end`."""
        return Windows(
            self.tree.commit_log,
            self.log_segment_bytes,
            self.log_end if end is None else end,
            verify=verify,
            window_bytes=window_bytes,
        )

    def timer_log(self, *, end: int | None = None) -> Windows:
        """Return the timer log up to the limit, or up to `end`."""
        limit = self.timer_log_end if end is None else end
        return Windows(self.tree.timer_log, self.timer_log_segment_bytes, limit)

    @property
    def timer_log_begin_now(self) -> int:
        """The begin of the first file of the timer log, which retention may have moved. Only the
        files tell: the watermark does not.
        """
        begins = segments_of(self.tree.timer_log, self.timer_log_segment_bytes)
        return begins[0] if begins else 0

    def pinned(
        self, log_end: int, timer_log_end: int | None, as_of_ms: int | None = None
    ) -> "Snapshot":
        """Return the same store with earlier limits. Without a limit of the timer log, none of it
        is read. `as_of_ms`: when the store had these limits.

        Raises:
            ConfigError: a limit lies past the end of the store's file.
        """
        timers = self.timer_log_begin if timer_log_end is None else timer_log_end
        for name, given, end in (
            ("log", log_end, self.log_end),
            ("timer log", timers, self.timer_log_end),
        ):
            if not 0 <= given <= end:
                raise ConfigError(
                    f"as_of: the {name} of {self.root} ends at {end}, asked for {given}; "
                    "it was taken of another store, or this one was restored from a copy"
                )
        return replace(
            self,
            log_end=log_end,
            log_begin=min(self.log_begin, log_end),
            timer_log_end=timers,
            timer_log_begin=min(self.timer_log_begin, timers),
            as_of_ms=as_of_ms,
        )


def limits(
    root: Path,
    config: StoreConfig,
    log: tuple[int, int] = (0, 0),
    timer_log: tuple[int, int] = (0, 0),
    store_id: int | None = None,
) -> Snapshot:
    """Return a Snapshot with the sizes of `config`, of [begin, end) of each log."""
    return Snapshot(
        root=root,
        precision_ms=config.precision_ms,
        log_segment_bytes=config.commit_log_segment_bytes,
        timer_log_segment_bytes=config.timer_log_segment_bytes,
        queue_segment_bytes=config.queue_segment_bytes,
        wheel_slot_count=config.wheel_slot_count,
        log_begin=log[0],
        log_end=log[1],
        timer_log_begin=timer_log[0],
        timer_log_end=timer_log[1],
        store_id=store_id,
    )


def empty(root: Path) -> Snapshot:
    """Return the Snapshot of a store that was never opened: it holds nothing."""
    return limits(root, StoreConfig())


# --- broker limits ---
# How far the files of a RocketMQ broker may be read: up to the first bytes that are not a record.
#
# A broker has no watermark. Its logs are walked segment by segment, as its own recovery does.


_PIECE_BYTES = 1 << 20
_PRECISION_MS_MAX = 3_600_000
_TRIES = 5  # a file may be removed, or a checkpoint complete, between two reads


def broker_limits(tree: Tree, config: StoreConfig, precision_ms: int | None) -> Snapshot:
    """Walk both logs of a broker's store. `precision_ms` overrides the files' own.

    Walk again if a file is missing: an owner may have removed it since it was listed.
    """
    for _ in range(_TRIES - 1):
        with suppress(CorruptError):
            return _both_walked(tree, config, precision_ms)
    return _both_walked(tree, config, precision_ms)


def _both_walked(tree: Tree, config: StoreConfig, precision_ms: int | None) -> Snapshot:
    log = _walked(tree.commit_log, config.commit_log_segment_bytes, records_end)
    timer_log = _walked(tree.timer_log, config.timer_log_segment_bytes, units_end)
    found = limits(tree.root, config, log, timer_log)
    precision = precision_ms or _shown_precision(found) or config.precision_ms
    return replace(found, precision_ms=precision)


def broker_was_here(store: Snapshot, mark: Watermark) -> bool:
    """Return whether a broker appended to a store of ours since it was closed cleanly.

    Then the log goes on past the watermark's end with a record. It may also go on with a blank, if
    the broker's first record was too large for the rest of the segment.
    """
    tree, segment_bytes = store.tree, store.log_segment_bytes
    wheel_bytes = Disk().file_bytes(tree.timer_wheel)
    if not mark.is_clean or wheel_bytes != store.wheel_slot_count * wheel_slot.SLOT_BYTES:
        return False  # an open store's wheel file is longer, so that no broker accepts it
    begins = segments_of(tree.commit_log, segment_bytes)
    if not begins or mark.log_end >= begins[-1] + segment_bytes:
        return False
    windows = Windows(tree.commit_log, segment_bytes, begins[-1] + segment_bytes)
    return goes_on(windows, mark.log_end)


def _walked(
    directory: Path, segment_bytes: int, end_of: Callable[[Windows, int], int]
) -> tuple[int, int]:
    """Return where a log begins, and its end in the last segment that starts with a record."""
    begins = segments_of(directory, segment_bytes)
    if not begins:
        return 0, 0
    windows = Windows(directory, segment_bytes, begins[-1] + segment_bytes)
    for begin in reversed(begins):
        end = end_of(windows, begin)
        if end > begin:
            return begins[0], end
    return begins[0], begins[0]


def _shown_precision(store: Snapshot) -> int | None:
    """Return the slot width that a used slot and the slot time of its newest unit show."""
    disk, path = Disk(), store.tree.timer_wheel
    if not disk.exists(path) or store.timer_log_end == store.timer_log_begin:
        return None
    file = disk.open(path, read_only=True)
    windows = store.timer_log()
    for begin in range(
        0, file.size() // wheel_slot.SLOT_BYTES * wheel_slot.SLOT_BYTES, _PIECE_BYTES
    ):
        size = min(_PIECE_BYTES, file.size() - begin) // wheel_slot.SLOT_BYTES
        slots = wheel_slot.read(file.read(begin, size * wheel_slot.SLOT_BYTES))
        for slot in slots[np.flatnonzero(slots["time"] > 0)]:
            last = int(slot["last_pos"])
            if not store.timer_log_begin <= last <= store.timer_log_end - UNIT_BYTES:
                continue
            [unit] = read_units(bytes(windows.read(last, UNIT_BYTES)))
            width, rest = divmod(int(unit["write_ms"]) + int(unit["delay_ms"]), int(slot["time"]))
            if unit["unit_size"] == UNIT_BYTES and rest == 0 and 0 < width <= _PRECISION_MS_MAX:
                return width
    return None


# --- position ---


_READ_ON_NS = 500_000_000  # between two syncs of a log that a broker has open, as its own


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

    def find(self) -> tuple[Watermark | None, SnapshotPosition]:
        """Return the watermark, also one that a broker's files do not follow, and the position with
        the watermark and the counts that belong to it.
        """
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
            ours = as_of(limits(tree.root, config, store_id=mark.store_id), mark)
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

    def has_newer_begin(self) -> bool:
        """Return whether retention has moved the begin of the log since the last look."""
        last = self.last
        if last.mark is None:
            return self._from_first_file(last) is not last
        mark = self.mark()
        return mark is not None and mark.log_begin > last.mark.log_begin

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
        mark, found = self.find()
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
