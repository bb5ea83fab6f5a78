"""Scan: what to read, and the rows of one part of one table as numpy arrays.

Data:     native/table/message_rows.c; a part is [begin, end) of commit log, timer log or wheel.
Holds:    rows are good until the next ones are asked for: they point into a window.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.tables.damage_policy import Damage, OnCorrupt
from timerstore._engine.tables.file_limits import Snapshot
from timerstore._engine.tables.windows import Windows
from timerstore.errors import CorruptError

RowArray = npt.NDArray[np.void]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
DELIVERED_KINDS = 1 << lib.TS_KIND_DELIVERED | 1 << lib.TS_KIND_LEVEL_DELIVERED
_UNIT_ROWS = 32_768
_SUMS = int(lib.TS_SPAN_COUNT) + 3
_MARKS = {"deliver_at", "kind", "real_topic", "timer_id", "rolls", "lateness_ms", "level"}
_NAMES = {"msg_id", "key", "tags"}
_DELETE = 4  # a unit's magic (native/format/timer_unit.h)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which rows are asked for. Times in ms: from, and below; None: no bound.

    A row without that time is none where it is bounded. `stored` is the record's store time, of
    `deliveries` thus delivered_at; `deliver` is the deliver_at of the table.
    """

    deliver_from_ms: int | None = None
    deliver_to_ms: int | None = None
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None
    topics: tuple[str, ...] | None = None

    @property
    def are_impossible(self) -> bool:
        """Whether no row can be within."""
        return (
            self.topics == ()
            or _is_empty(self.deliver_from_ms, self.deliver_to_ms)
            or _is_empty(self.stored_from_ms, self.stored_to_ms)
        )


def _is_empty(begin: int | None, end: int | None) -> bool:
    return begin is not None and end is not None and begin >= end


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of a table, and how. Plain values: it travels to other processes."""

    table: str
    columns: tuple[str, ...]
    bounds: Bounds = field(default_factory=Bounds)
    times_as_long: bool = False
    verify_crc: bool = True
    on_corrupt: OnCorrupt = "fail"
    batch_rows: int = 10_000
    batch_bytes: int = 4 << 20

    @property
    def wants(self) -> int:
        """What C has to look at: enum ts_table_want."""
        names = set(self.columns)
        return (
            (lib.TS_WANT_MARKS if names & _MARKS else 0)
            | (lib.TS_WANT_NAMES if names & _NAMES else 0)
            | (lib.TS_WANT_PAIRS if "properties" in names else 0)
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one shard's table."""

    shard: int
    store: Snapshot
    begin: int
    end: int


class Records(NamedTuple):
    """Rows of records, and where their texts lie."""

    window: Any
    rows: RowArray
    sums: npt.NDArray[np.int64]


def dtype_of(name: str) -> np.dtype[np.void]:
    """Give the numpy type of a C struct of whole numbers and arrays of them."""
    names, formats, offsets = [], [], []
    for field_name, about in ffi.typeof(name).fields:
        kind = about.type
        shape: tuple[int, ...] = ()
        if kind.kind == "array":
            shape, kind = (kind.length,), kind.item
        names.append(field_name)
        formats.append((f"i{ffi.sizeof(kind)}", shape))
        offsets.append(about.offset)
    size = ffi.sizeof(name)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


ROW = dtype_of("ts_table_row")
UNIT_ROW = dtype_of("ts_unit_row")
SLOT_ROW = dtype_of("ts_slot_row")


def _native_filter(bounds: Bounds, kinds: int) -> tuple[Any, list[Any]]:
    """Give the filter for C, and what it points at."""
    topics = [] if bounds.topics is None else [one.encode() for one in bounds.topics]
    text = ffi.new("uint8_t[]", b"".join(topics))
    ends = np.cumsum([0, *map(len, topics)]).tolist()
    offsets = ffi.new("int32_t[]", ends)
    made = ffi.new("ts_table_filter *")
    made.topics, made.topic_offsets, made.topic_count = text, offsets, len(topics)
    made.kinds = kinds
    made.due_from_ms, made.due_to_ms, made.has_due = _range(
        bounds.deliver_from_ms, bounds.deliver_to_ms
    )
    made.store_from_ms, made.store_to_ms, made.has_store = _range(
        bounds.stored_from_ms, bounds.stored_to_ms
    )
    return made, [text, offsets]


def _range(begin: int | None, end: int | None) -> tuple[int, int, bool]:
    """Give the bounds as C takes them, and whether there are any."""
    low = INT64_MIN if begin is None else max(INT64_MIN, min(begin, INT64_MAX))
    high = INT64_MAX if end is None else max(INT64_MIN, min(end, INT64_MAX))
    return low, high, begin is not None or end is not None


def records(part: Part, wanted: Wanted, *, window_bytes: int | None = None) -> Iterator[Records]:
    """Read the records of a part as rows of messages or deliveries."""
    windows = part.store.log(verify=wanted.verify_crc, end=part.end, window_bytes=window_bytes)
    if wanted.bounds.are_impossible:
        return
    damage = Damage(wanted.on_corrupt, part.shard, part.store)
    kinds = DELIVERED_KINDS if wanted.table == "deliveries" else 0
    chosen, kept = _native_filter(wanted.bounds, kinds)
    rows = np.empty(wanted.batch_rows, ROW)
    sums = np.empty(_SUMS, np.int64)
    native_rows = ffi.from_buffer("ts_table_row[]", rows)
    native_sums = ffi.from_buffer("int64_t[]", sums)
    following = ffi.new("int64_t *", part.begin)

    def scan(window: Any) -> int:
        return int(
            lib.ts_table_scan(
                window,
                part.store.precision_ms,
                chosen,
                wanted.wants,
                following[0],
                following,
                wanted.batch_bytes,
                wanted.batch_rows,
                native_rows,
                native_sums,
            )
        )

    while following[0] < part.end:
        count = _careful(windows, scan, following, lambda e: damage.in_records(windows, e))
        if count:
            yield Records(windows.native, rows[:count], sums)
    del kept


def _careful(
    windows: Windows,
    scan: Callable[[Any], int],
    following: Any,
    on_damage: Callable[[CorruptError], int],
) -> int:
    """Take a step; where there is damage, move over it as the policy says, without rows."""
    begin = int(following[0])
    try:
        return windows.step(scan, begin, "a record" if windows.native.verify else "an item")
    except CorruptError as error:
        if windows.native.fault == lib.TS_FAULT_NONE:
            raise  # not the bytes: a file is missing or short
        following[0] = on_damage(error)
        return 0


def units(part: Part, wanted: Wanted) -> Iterator[RowArray]:
    """Read the timer units of a part, those within the bounds of the slot's end."""
    windows = part.store.timer_log(end=part.end)
    if wanted.bounds.are_impossible:
        return
    damage = Damage(wanted.on_corrupt, part.shard, part.store)
    capacity = min(_UNIT_ROWS, wanted.batch_rows)
    rows = np.empty(capacity, UNIT_ROW)
    native_rows = ffi.from_buffer("ts_unit_row[]", rows)
    following = ffi.new("int64_t *", part.begin)

    def scan(window: Any) -> int:
        return int(lib.ts_units_scan(window, following[0], following, capacity, native_rows))

    def on_damage(error: CorruptError) -> int:
        return damage.in_units(windows, error, UNIT_BYTES)

    bounds, width = wanted.bounds, part.store.precision_ms
    low, high, _ = _range(bounds.deliver_from_ms, bounds.deliver_to_ms)
    enqueued_low, enqueued_high, _ = _range(bounds.stored_from_ms, bounds.stored_to_ms)
    while following[0] < part.end:
        try:
            count = _careful(windows, scan, following, on_damage)
        except CorruptError:
            begin = part.store.timer_log_begin_now
            if begin <= following[0]:
                raise
            following[0] = begin  # retention took the file meanwhile: all in it is past
            continue
        if not count:
            continue
        found = rows[:count]
        due, written = found["slot_ms"] + width, found["write_ms"]
        keep = (due >= low) & (written >= enqueued_low)
        keep &= (due < high) if high < INT64_MAX else True
        keep &= (written < enqueued_high) if enqueued_high < INT64_MAX else True
        if keep.any():
            yield found if keep.all() else found[keep]


def slots(part: Part, wanted: Wanted) -> Iterator[RowArray]:
    """Read the used slots of the wheel, as they stood where the timer log ends."""
    disk, path = Disk(), part.store.tree.timer_wheel
    if part.store.timer_log_end == part.store.timer_log_begin or not disk.exists(path):
        return  # no unit that a slot could point at
    if wanted.bounds.are_impossible:
        return
    file = disk.open(path, read_only=True)
    later = _units_beyond(part.store)
    step = wanted.batch_rows
    count = part.store.wheel_slot_count
    for first in range(part.begin, min(part.end, count), step):
        size = min(step, part.end - first, count - first)
        raw = file.read(first * SLOT_BYTES, size * SLOT_BYTES)
        rows = np.empty(size, SLOT_ROW)
        found = lib.ts_slots_scan(
            ffi.from_buffer("uint8_t[]", raw),
            first,
            size,
            count,
            ffi.from_buffer("ts_slot_row[]", rows),
        )
        kept = _within(rows[:found], part.store, wanted.bounds)
        kept = _cut_back(kept, part.store.timer_log_end, later)
        if len(kept):
            yield kept


def _within(rows: RowArray, store: Snapshot, bounds: Bounds) -> RowArray:
    """Those whose slot begins within the bounds."""
    low, high, _ = _range(bounds.deliver_from_ms, bounds.deliver_to_ms)
    begins = rows["time"] * store.precision_ms
    keep = (begins >= low) & ((begins < high) if high < INT64_MAX else True)
    kept: RowArray = rows[keep]
    return kept


def _units_beyond(store: Snapshot) -> RowArray:
    """Units behind the limit: the wheel may point at them already, as pages are written first."""
    size = store.timer_log_segment_bytes
    begin = store.timer_log_end
    windows = store.timer_log(end=(begin // size + 2) * size)
    following = ffi.new("int64_t *", begin)
    parts = [np.empty(0, UNIT_ROW)]
    disk = Disk()
    while following[0] < windows.end and disk.exists(windows.path(int(following[0]))):
        rows = np.empty(_UNIT_ROWS, UNIT_ROW)

        def scan(window: Any, rows: RowArray = rows) -> int:
            native = ffi.from_buffer("ts_unit_row[]", rows)
            return int(lib.ts_units_scan(window, following[0], following, len(rows), native))

        try:
            parts.append(rows[: windows.step(scan, int(following[0]), "timer log")])
        except CorruptError:
            break  # zeros: nobody wrote there
    return np.concatenate(parts)


def _cut_back(rows: RowArray, end: int, later: RowArray) -> RowArray:
    """Slots as they were before the later units came: those that point below `end`.

    Each later unit of a slot's chain leads to the one before it; it counts one, a delete minus one.
    """
    if not len(rows) or not (rows["last_pos"] >= end).any():
        return rows
    rows = rows.copy()
    names = ("timer_pos", "prev_pos", "magic")
    before = {pos: rest for pos, *rest in zip(*(later[n].tolist() for n in names), strict=True)}
    for k in np.flatnonzero(rows["last_pos"] >= end).tolist():
        pos = int(rows["last_pos"][k])
        while pos >= end and pos in before:
            pos, magic = before.pop(pos)  # each is in one chain
            rows["count"][k] += 1 if magic & _DELETE else -1
        rows["last_pos"][k] = pos
    kept: RowArray = rows[(rows["last_pos"] >= 0) & (rows["last_pos"] < end)]
    return kept
