"""Snapshot: the sizes of one store's files, and how far each may be read.

Holds:    what a live store's snapshot speaks of was durable before it could be read: the limits
          are those of its watermark, the newest completed checkpoint. A directory that a broker
          wrote has none: its log is walked, segment by segment, to the first byte that is no
          record, as the broker's own recovery does.
Fails:    ConfigError where there is no store; CorruptError where limits and files do not fit.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from timerstore._engine.format import watermark, wheel_slot
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.format.timer_unit import read as read_units
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.paths import absolute_path
from timerstore._engine.tables.log_walk import goes_on, records_end, segments_of, units_end
from timerstore._engine.tables.windows import Windows
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One store, as it is read. Plain values: it travels to other processes."""

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
    """Own id where the watermark tells; None for what a broker left."""

    @property
    def tree(self) -> Tree:
        """Names of its files."""
        return Tree(self.root)

    def log(
        self,
        *,
        verify: bool = True,
        end: int | None = None,
        window_bytes: int | None = None,
    ) -> Windows:
        """Give the commit log, up to the snapshot's limit."""
        return Windows(
            self.tree.commit_log,
            self.log_segment_bytes,
            self.log_end if end is None else end,
            verify=verify,
            window_bytes=window_bytes,
        )

    def timer_log(self, *, end: int | None = None) -> Windows:
        """Give the timer log, up to the snapshot's limit."""
        limit = self.timer_log_end if end is None else end
        return Windows(self.tree.timer_log, self.timer_log_segment_bytes, limit)

    @property
    def timer_log_begin_now(self) -> int:
        """Where the timer log begins: retention moves it on, also under who reads."""
        return _timers_begin(self.tree, self.timer_log_segment_bytes)

    def pinned(self, log_end: int, timer_log_end: int | None) -> "Snapshot":
        """The same with limits that were taken earlier; ConfigError where it has not come so far.

        Where no limit of the timer log is given, none of it is read.
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
        )


def refreshed(store: Snapshot) -> Snapshot:
    """Give the same store with its limits of now: a small read and a listing where it is ours."""
    if store.store_id is None:
        return take(store.root, store.precision_ms)
    mark = read_watermark(store.tree)
    if mark is None or mark.store_id != store.store_id:
        raise ConfigError(f"path: {store.root} is another store than it was")
    return as_of(store, mark)


def as_of(store: Snapshot, mark: Watermark) -> Snapshot:
    """Give the same store with the limits of a watermark of its own."""
    return replace(
        store,
        log_begin=min(mark.log_begin, mark.log_end),
        log_end=mark.log_end,
        timer_log_begin=min(store.timer_log_begin_now, mark.timer_log_end),
        timer_log_end=mark.timer_log_end,
    )


def _timers_begin(tree: Tree, segment_bytes: int) -> int:
    """Where the timer log begins: no watermark tells."""
    begins = segments_of(tree.timer_log, segment_bytes)
    return begins[0] if begins else 0


def take(root: Path, precision_ms: int | None = None) -> Snapshot:
    """Look at a directory: how far it may be read now. `precision_ms`: of a broker's, where its
    files do not show it.
    """
    tree = Tree(absolute_path("path", root))
    mark = read_watermark(tree)
    disk = Disk()
    if mark is None and not disk.is_directory(tree.commit_log):
        if disk.is_directory(tree.side):
            return empty(tree.root)  # somebody is making it
        is_there = disk.is_directory(tree.root)
        what = "holds no store: no commitlog/" if is_there else "is no directory"
        raise ConfigError(f"path: {tree.root} {what}")
    config = adopt_geometry(disk, tree, StoreConfig(index_enabled=False), mark)
    if mark is not None:
        ours = _ours(tree, mark, config)
        if not broker_was_here(ours, mark):
            return ours
    return _foreign(tree, config, precision_ms)


def empty(root: Path) -> Snapshot:
    """Give what is to be read of a store that nobody opened yet: nothing."""
    config = StoreConfig()
    return Snapshot(
        root=root,
        precision_ms=config.precision_ms,
        log_segment_bytes=config.commit_log_segment_bytes,
        timer_log_segment_bytes=config.timer_log_segment_bytes,
        queue_segment_bytes=config.queue_segment_bytes,
        wheel_slot_count=config.wheel_slot_count,
        log_begin=0,
        log_end=0,
        timer_log_begin=0,
        timer_log_end=0,
        store_id=None,
    )


def read_watermark(tree: Tree) -> Watermark | None:
    """Give the newest completed checkpoint of a store; a few hundred bytes are read."""
    raw = Disk().read_small(tree.watermark)
    return None if raw is None else watermark.read(raw)


def _ours(tree: Tree, mark: Watermark, config: StoreConfig) -> Snapshot:
    return Snapshot(
        root=tree.root,
        precision_ms=mark.precision_ms,
        log_segment_bytes=config.commit_log_segment_bytes,
        timer_log_segment_bytes=config.timer_log_segment_bytes,
        queue_segment_bytes=config.queue_segment_bytes,
        wheel_slot_count=config.wheel_slot_count,
        log_begin=min(mark.log_begin, mark.log_end),
        log_end=mark.log_end,
        timer_log_begin=min(
            _timers_begin(tree, config.timer_log_segment_bytes), mark.timer_log_end
        ),
        timer_log_end=mark.timer_log_end,
        store_id=mark.store_id,
    )


def broker_was_here(store: Snapshot, mark: Watermark) -> bool:
    """Whether a cleanly closed store goes on behind its end, without our having opened it; with a
    record, or with a blank, as the first record was too large for what was left of the segment.
    """
    tree, segment_bytes = store.tree, store.log_segment_bytes
    wheel_bytes = Disk().file_bytes(tree.timer_wheel)
    if not mark.is_clean or wheel_bytes != store.wheel_slot_count * wheel_slot.SLOT_BYTES:
        return False  # without a wheel, or longer: it is open, and no broker takes it
    begins = segments_of(tree.commit_log, segment_bytes)
    if not begins or mark.log_end >= begins[-1] + segment_bytes:
        return False
    windows = Windows(tree.commit_log, segment_bytes, begins[-1] + segment_bytes)
    return goes_on(windows, mark.log_end)


def _foreign(tree: Tree, config: StoreConfig, precision_ms: int | None) -> Snapshot:
    log_begin, log_end = _walked(tree.commit_log, config.commit_log_segment_bytes, records_end)
    timers_begin, timers_end = _walked(tree.timer_log, config.timer_log_segment_bytes, units_end)
    found = Snapshot(
        root=tree.root,
        precision_ms=1,
        log_segment_bytes=config.commit_log_segment_bytes,
        timer_log_segment_bytes=config.timer_log_segment_bytes,
        queue_segment_bytes=config.queue_segment_bytes,
        wheel_slot_count=config.wheel_slot_count,
        log_begin=log_begin,
        log_end=log_end,
        timer_log_begin=timers_begin,
        timer_log_end=timers_end,
        store_id=None,
    )
    precision = precision_ms or _shown_precision(found) or config.precision_ms
    return replace(found, precision_ms=precision)


def _walked(directory: Path, segment_bytes: int, ends: object) -> tuple[int, int]:
    """Where a log begins, and where it ends: in the last segment that starts with a record."""
    begins = segments_of(directory, segment_bytes)
    if not begins:
        return 0, 0
    windows = Windows(directory, segment_bytes, begins[-1] + segment_bytes)
    for begin in reversed(begins):
        end = ends(windows, begin)  # type: ignore[operator]
        if end > begin:
            return begins[0], end
    return begins[0], begins[0]


def _shown_precision(store: Snapshot) -> int | None:
    """Slot width, told by a used slot and the slot time of the unit it points at."""
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


_PRECISION_MS_MAX = 3_600_000
