"""`PendingSet`: the records of a log that stand for the pending messages, one record each.

    a store of ours, at its watermark    the state file (2 bits a timer), the cursors of the levels
    an earlier position, a broker's      a fold of the whole log (log/fold.py)
    store, or missing side files

The record of a timer is its source, or its current copy if retention removed the source. Rolls and
the far wheel change neither, so every pending message keeps one row, with its own due time.

Thread safety: pure functions of a snapshot.
Invariants:
    1. Both ways give the same set for the same position.
    2. Each pending message that can be delivered has exactly one record, and it is in the log.
Raises: CorruptError if the log is damaged and `on_corrupt` is "fail".
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import timer_unit
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.fold import Fold, fold
from timerstore._engine.log.scanned_records import (
    SCAN_DTYPE,
    Scan,
    has_impossible_offset,
)
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.snapshot.columns.record_starts import QueueUnits, is_covered
from timerstore._engine.snapshot.columns.table_scan import (
    Damage,
    OnCorrupt,
    Part,
    PendingBits,
    Records,
    Wanted,
    careful_step,
    records,
    units,
)
from timerstore._engine.snapshot.log_windows import RowArray
from timerstore._engine.snapshot.position import PositionReader, Snapshot, refreshed
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.timer_arrays import due_within
from timerstore._engine.timer.timer_recovery import pending_ids
from timerstore.errors import CorruptError
from timerstore.types.config import StoreConfig
from timerstore.types.messages import Int64Array

# --- cancelled ---
# Find the timers that were cancelled, by a fold of the whole log.
#
# The fold reads the log once, at about 1 GB/s, and needs 130 bytes of memory for each timer. It is
# left out if no timer unit is a delete's and every entry of the timer topic has its unit: then only
# the timer log is read.


_BATCH = 65_536


def cancelled_offsets(store: Snapshot, shard: int, on_corrupt: OnCorrupt) -> Int64Array:
    """Return the log offsets of all copies of cancelled messages, ascending."""
    if not _has_deletes(store, shard):
        return np.empty(0, np.int64)
    scanned = scan_all(store, shard, on_corrupt)
    found = fold(scanned, store.store_id)
    timers = scanned[scanned["kind"] == lib.TS_KIND_TIMER]
    is_own = (timers["timer_id"] >= 0) & np.isin(
        timers["store_id"], np.array(found.store_ids, np.uint32)
    )
    ids = np.where(is_own, timers["timer_id"], timers["queue_offset"])
    offsets: Int64Array = timers["log_offset"][np.isin(ids, found.ids_cancelled)]
    return offsets


def _has_deletes(store: Snapshot, shard: int) -> bool:
    """Return whether the timer log has a delete unit, or the timer topic has entries after the
    last unit, which may be deletes.
    """
    wanted = Wanted("timer_units", (), on_corrupt="stop", batch_rows=_BATCH)
    last = store.log_begin - 1
    for rows in units(Part.whole(store, "timer_units", shard), wanted):
        if (rows["magic"] & timer_unit.MAGIC_DELETE).any():
            return True
        last = max(last, int(rows["log_offset"].max()))
    following = _timer_queue(store).first_from(last + 1)
    return following is not None and following < store.log_end


def scan_all(store: Snapshot, shard: int = 0, on_corrupt: OnCorrupt = "fail") -> Scan:
    """Read every record as a row of the fold."""
    windows = store.log()
    damage = Damage(on_corrupt, shard, store)
    following = ffi.new("int64_t *", store.log_begin)
    parts: list[Scan] = [np.empty(0, SCAN_DTYPE)]
    while following[0] < store.log_end:
        part = np.empty(_BATCH, SCAN_DTYPE)

        def scan(window: Any, part: Scan = part) -> int:
            return int(
                lib.ts_window_scan(
                    window,
                    store.precision_ms,
                    following[0],
                    following,
                    _BATCH,
                    ffi.from_buffer("ts_scanned[]", part),
                )
            )

        count = careful_step(windows, scan, following, damage.in_records)
        parts.append(part[:count].copy())
    return np.concatenate(parts)


# --- pending set ---


_TRIES = 5  # a checkpoint may complete between two reads


@dataclass(frozen=True, slots=True)
class PendingSet:
    """Which records of the timer topic, and of the level topic, are pending."""

    first: int
    """The queue offset of the timer topic that the first bit stands for."""
    bits: bytes
    """One bit a queue offset, the lowest bit of a byte first."""
    level_offsets: Int64Array
    """The log offsets of the pending messages on delay levels, ascending."""
    level_due_ms: Int64Array
    """Their due times."""

    @property
    def is_empty(self) -> bool:
        """Whether no message is pending."""
        return not self.bits and not len(self.level_offsets)

    @property
    def end(self) -> int:
        """The queue offset after that of the last bit."""
        return self.first + 8 * len(self.bits)

    def cut(self, queue_range: tuple[int, int], begin: int, end: int) -> "PendingSet":
        """Return the part for the log [begin, end), which has this range of queue offsets."""
        low, high = (max(0, min(one - self.first, 8 * len(self.bits))) for one in queue_range)
        flags = np.unpackbits(
            np.frombuffer(self.bits[low // 8 : -(-high // 8)], np.uint8), bitorder="little"
        )[low % 8 :][: max(0, high - low)]
        levels = slice(*np.searchsorted(self.level_offsets, (begin, end)).tolist())
        first, bits = _packed(np.flatnonzero(flags) + self.first + low)
        return PendingSet(first, bits, self.level_offsets[levels], self.level_due_ms[levels])

    def with_levels(self, rows: RowArray) -> RowArray:
        """Return the rows of timers, and those of pending messages on levels with due times."""
        on_level = rows["kind"] == lib.TS_KIND_LEVEL
        if not on_level.any():
            return rows
        at = np.searchsorted(self.level_offsets, rows["log_offset"])
        at = np.minimum(at, len(self.level_offsets) - 1)
        on_level &= self.level_offsets[at] == rows["log_offset"]
        rows["due_ms"][on_level] = self.level_due_ms[at[on_level]]
        kept: RowArray = rows[on_level | (rows["kind"] == lib.TS_KIND_TIMER)]
        return kept


def pending_set(
    store: Snapshot, shard: int, on_corrupt: OnCorrupt, *, is_pinned: bool
) -> tuple[Snapshot, PendingSet]:
    """Return the messages that were pending when the log ended as in the snapshot, and that
    snapshot: `store`, or if that is not pinned, one of now. A newer one rarely has to read the log,
    because a newer watermark than that of `store` is taken as well.
    """
    for _ in range(_TRIES):
        found = _from_side_files(store)
        if found is not None:
            return store, found
        if is_pinned or store.store_id is None:
            break
        again = refreshed(store)
        if again == store or again.log_end < store.log_end:  # read on past the last checkpoint
            break
        store = again
    return store, _from_log(store, shard, on_corrupt)


def pending_records(part: Part, wanted: Wanted, pending: PendingSet) -> Iterator[Records]:
    """Read the records of the pending messages of a part, with their due times."""
    bounds, has_levels = wanted.bounds, len(pending.level_offsets) > 0
    bits = PendingBits(pending.first, pending.bits, has_levels)
    if bounds.are_impossible or pending.is_empty:
        return
    if not has_levels:
        yield from records(part, wanted, pending=bits)
        return
    # C does not know the due times of levels.
    any_due = replace(bounds, deliver_from_ms=None, deliver_to_ms=None)
    for found in records(part, replace(wanted, bounds=any_due), pending=bits):
        rows = pending.with_levels(found.rows)
        rows = due_within(rows, bounds.deliver_from_ms, bounds.deliver_to_ms)
        if len(rows):
            sums = found.sums.copy()
            sums[: rows["sizes"].shape[1]] = rows["sizes"].sum(axis=0, dtype=np.int64)
            yield found._replace(rows=rows, sums=sums)


def pending_span(store: Snapshot, found: PendingSet) -> tuple[int, int, QueueUnits | None]:
    """Return the part of the log that has all these records, and the queue of the timer topic.

    The part is the whole log, and the queue None, if the queue is incomplete.
    """
    if found.is_empty:
        return store.log_end, store.log_end, None
    if not is_covered(store, (WHEEL_TIMER_TOPIC,)):
        return store.log_begin, store.log_end, None
    queue = _timer_queue(store)
    begin, end = store.log_end, store.log_begin
    if found.bits:
        begin = queue.at(found.first)[0]
        end = sum(queue.at(_last(found)))
    if len(found.level_offsets):
        begin, end = min(begin, int(found.level_offsets[0])), store.log_end
    return begin, end, queue


def _last(found: PendingSet) -> int:
    return found.end - 9 + found.bits[-1].bit_length()


def _timer_queue(store: Snapshot) -> QueueUnits:
    return QueueUnits(store.tree.queue(WHEEL_TIMER_TOPIC, 0), store.queue_segment_bytes)


def _packed(queue_offsets: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    """Return ascending queue offsets as the first one and bits."""
    if not len(queue_offsets):
        return 0, b""
    first = int(queue_offsets[0])
    flags = np.zeros(int(queue_offsets[-1]) - first + 1, np.bool_)
    flags[queue_offsets - first] = True
    return first, np.packbits(flags, bitorder="little").tobytes()


# --- a store of ours ------------------------------------------------------------------------------


def _from_side_files(store: Snapshot) -> PendingSet | None:
    """Return the set that the side files of the watermark show; None if they are of another
    position, or retention has removed the source of a pending message.
    """
    disk, tree = Disk(), store.tree
    reader = PositionReader(disk, tree)
    mark = reader.mark()
    if mark is None or not _is_of(mark, store) or not disk.exists(tree.state):
        return None
    counts = reader.counts(mark)
    if counts is None:
        return None
    states = TimerStates()
    states.read_from(disk.open(tree.state, read_only=True))
    if not states.read(mark.state_chunk_count, mark.state_digest, mark.log_end, counts.past):
        return None
    ids = pending_ids(states)
    if len(ids):
        if not is_covered(store, (WHEEL_TIMER_TOPIC,)):
            return None
        if ids[0] < _timer_queue(store).number_from(store.log_begin):
            return None  # a later copy of the message counts
    cursors = LevelCursors()
    cursors.add(counts.levels)
    parts = [np.empty((0, 2), np.int64)]
    for queue_id, end in counts.ends.get(SCHEDULE_TOPIC, {}).items():
        for gap in cursors.gaps(queue_id, 0, end):
            units = _level_units(store, queue_id, *gap)
            if units is None:
                return None
            parts.append(units)
    levels = np.concatenate(parts)
    levels = levels[np.argsort(levels[:, 0], kind="stable")]
    return PendingSet(*_packed(ids), *np.ascontiguousarray(levels.T))


def _is_of(mark: Watermark, store: Snapshot) -> bool:
    """Return whether the watermark has the position of the snapshot."""
    return (
        not mark.is_bootstrap and mark.store_id == store.store_id and mark.log_end == store.log_end
    )


def _level_units(store: Snapshot, queue_id: int, begin: int, end: int) -> Int64Array | None:
    """Return log offset and due time of units of a level's queue whose records are in the log;
    None if the queue does not have them all.
    """
    queue = QueueUnits(store.tree.queue(SCHEDULE_TOPIC, queue_id), store.queue_segment_bytes)
    begin = max(begin, queue.number_from(store.log_begin))
    if begin >= end:
        return np.empty((0, 2), np.int64)
    units = queue.read(begin, end)
    if len(units) < end - begin or not (units["size"] > 0).all():
        return None
    return np.stack([units["log_offset"], units["tags_code"]], axis=1).astype(np.int64)


# --- any store ------------------------------------------------------------------------------------


def _from_log(store: Snapshot, shard: int, on_corrupt: OnCorrupt) -> PendingSet:
    scanned = scan_all(store, shard, on_corrupt)
    wild = has_impossible_offset(scanned)
    if wild.any():
        at = int(scanned["log_offset"][np.argmax(wild)])
        raise CorruptError(
            "the commit log is damaged: a record says a timer id that none can have had",
            where=f"{store.tree.commit_log} offset {at}",
        )
    found = fold(scanned, known_id=store.store_id)
    there = scanned["queue_offset"][scanned["kind"] == lib.TS_KIND_TIMER]
    copies = scanned["queue_offset"][found.rows_pending]
    sources = np.isin(found.ids_pending, there)
    queue_offsets = np.unique(np.where(sources, found.ids_pending, copies))
    return PendingSet(*_packed(queue_offsets), *_levels(store, scanned, found))


def _levels(store: Snapshot, scanned: Scan, found: Fold) -> tuple[Int64Array, Int64Array]:
    """Return the log offsets and the due times of the pending messages of levels.

    A due time is that of the queue's unit. Without one it follows from the default delays.
    """
    rows = scanned[found.level_rows_pending]
    rows = rows[rows["kind"] == lib.TS_KIND_LEVEL]
    delays = np.array(parse_level_delays(StoreConfig().level_delays), np.int64)
    level = np.clip(rows["delay_level"], 1, len(delays))
    due_ms = rows["store_ms"] + delays[level - 1]
    for queue_id in np.unique(rows["queue_id"]).tolist():
        mine = np.flatnonzero(rows["queue_id"] == queue_id)
        numbers = rows["queue_offset"][mine]
        queue = QueueUnits(store.tree.queue(SCHEDULE_TOPIC, queue_id), store.queue_segment_bytes)
        begin = int(numbers.min())
        units = queue.read(begin, int(numbers.max()) + 1)
        there = numbers - begin < len(units)
        mine, numbers = mine[there], numbers[there]
        units = units[numbers - begin]
        fits = units["log_offset"] == rows["log_offset"][mine]
        due_ms[mine[fits]] = units["tags_code"][fits]
    return np.ascontiguousarray(rows["log_offset"]), due_ms


# --- store facts ---
# `Facts`: what the rows of a table depend on besides their own record or unit.
#
# They are found once for each store, before its parts are read.


class Facts(NamedTuple):
    """The facts of one store, or of one part of it."""

    cancelled: Int64Array | None = None
    """For timer_units.cancelled: the log offsets of all copies of cancelled messages, ascending."""
    pending: PendingSet | None = None
    """For the table timers."""


NO_FACTS = Facts()


def facts_for(
    store: Snapshot, wanted: Wanted, shard: int = 0, *, is_pinned: bool
) -> tuple[Snapshot, Facts]:
    """Return what a scan of a store needs, and the snapshot that it is true for.

    `is_pinned`: the snapshot must stay as it is. Otherwise a newer one may be returned.

    Raises:
        CorruptError: the log is damaged and the scan's `on_corrupt` is "fail".
    """
    if wanted.table == "timers":
        store, pending = pending_set(store, shard, wanted.on_corrupt, is_pinned=is_pinned)
        return store, Facts(pending=pending)
    if "cancelled" in wanted.columns:
        return store, Facts(cancelled_offsets(store, shard, wanted.on_corrupt))
    return store, NO_FACTS
