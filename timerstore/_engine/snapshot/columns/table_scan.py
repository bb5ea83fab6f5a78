"""The options of a scan, and the rows of one part of one table as numpy arrays.

A part is [begin, end) of the commit log, the timer log or the wheel. native/table reads it.

Invariants: rows are valid until the next ones are read, because they point into a window.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.ledger_json import ChunkHeader, SourceState, read
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.format.timer_unit import MAGIC_DELETE, UNIT_BYTES
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.snapshot.columns.record_starts import QueueUnits, RecordStarts, is_covered
from timerstore._engine.snapshot.log_windows import (
    ROW,
    SLOT_ROW,
    UNIT_ROW,
    RowArray,
    Windows,
    whole_units,
)
from timerstore._engine.snapshot.position import Snapshot
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError

# --- damage policy ---
# `Damage`: the behaviour of a scan at bytes of the log that are not a record.
#
# | on_corrupt | behaviour                                                                       |
# |------------|---------------------------------------------------------------------------------|
# | fail       | raise CorruptError with shard, file, offset and the options                     |
# | skip       | log a warning; go on at the next record that a queue or a segment's start shows |
# | stop       | log a warning; end this part of the table                                       |


OnCorrupt = Literal["fail", "skip", "stop"]
ON_CORRUPT: Final = get_args(OnCorrupt)

_log = logging.getLogger("timerstore.tables")


class Damage:
    """The policy, for one part of one store."""

    def __init__(self, on_corrupt: OnCorrupt, shard: int, store: Snapshot) -> None:
        self._on_corrupt = on_corrupt
        self._shard = shard
        self._store = store

    def in_records(self, windows: Windows, error: CorruptError) -> int:
        """Return the log offset to go on from, or the windows' end to stop."""
        offset = self._met(windows, error)
        if self._on_corrupt == "stop":
            return windows.end
        starts = RecordStarts(self._store.tree, self._store.queue_segment_bytes, windows)
        following = starts.first_from(offset + 1, self._store.log_segment_bytes)
        return self._skip(offset, following)

    def in_units(self, windows: Windows, error: CorruptError) -> int:
        """Return the timer log position to go on from."""
        pos = self._met(windows, error)
        if self._on_corrupt == "stop":
            return windows.end
        size = self._store.timer_log_segment_bytes
        in_segment = pos % size // UNIT_BYTES * UNIT_BYTES + UNIT_BYTES
        following = pos - pos % size + (size if in_segment + UNIT_BYTES > size else in_segment)
        return self._skip(pos, min(following, windows.end))

    def _met(self, windows: Windows, error: CorruptError) -> int:
        if self._on_corrupt == "fail":
            raise CorruptError(
                f"shard {self._shard}: {error}; on_corrupt=skip goes on after it, "
                "on_corrupt=stop ends this part there"
            ) from error
        offset = int(windows.native.fault_offset)
        _log.warning(
            "damage shard=%d file=%s offset=%d on_corrupt=%s reason=%s",
            self._shard, windows.path(offset), offset, self._on_corrupt, error,
        )  # fmt: skip
        return offset

    def _skip(self, offset: int, following: int) -> int:
        _log.warning("skipped shard=%d offset=%d bytes=%d", self._shard, offset, following - offset)
        return following


# --- table scan ---


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
DELIVERED_KINDS = 1 << lib.TS_KIND_DELIVERED | 1 << lib.TS_KIND_LEVEL_DELIVERED
_UNIT_ROWS = 32_768
_SUMS = int(lib.TS_SPAN_COUNT) + 3
_MARKS = {"deliver_at", "kind", "real_topic", "timer_id", "rolls", "lateness_ms", "level"}
_NAMES = {"msg_id", "key", "tags"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which rows are read. Times are in ms: from (inclusive) and to (exclusive). None is no bound.

    A row that lacks a bounded time is left out. `stored` is the record's store time, which is
    delivered_at in the table `deliveries`. `deliver` is deliver_at of the table. A message is kept
    if it has one of the `keys`.
    """

    deliver_from_ms: int | None = None
    deliver_to_ms: int | None = None
    stored_from_ms: int | None = None
    stored_to_ms: int | None = None
    topics: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def stored_since(self, begin_ms: int) -> "Bounds":
        """Return these bounds without rows that were stored before a time."""
        if self.stored_from_ms is not None:
            begin_ms = max(begin_ms, self.stored_from_ms)
        return replace(self, stored_from_ms=begin_ms)

    @property
    def are_impossible(self) -> bool:
        """Whether no row can lie within them."""
        return (
            self.topics == ()
            or self.keys == ()
            or _is_empty(self.deliver_from_ms, self.deliver_to_ms)
            or _is_empty(self.stored_from_ms, self.stored_to_ms)
        )


def _is_empty(begin: int | None, end: int | None) -> bool:
    return begin is not None and end is not None and begin >= end


@dataclass(frozen=True, slots=True)
class Wanted:
    """Table, columns, bounds and options of a scan. A value that is sent to other processes.

    `with_ledger`: whether the table messages has the records of the topic in which a store counts
    what it ingested. It has them too if the bounds name this topic.
    """

    table: str
    columns: tuple[str, ...]
    bounds: Bounds = field(default_factory=Bounds)
    times_as_long: bool = False
    verify_crc: bool = True
    on_corrupt: OnCorrupt = "fail"
    batch_rows: int = 10_000
    batch_bytes: int = 4 << 20
    with_ledger: bool = False
    property_names: tuple[str, ...] | None = None

    @property
    def left_out_topic(self) -> str:
        """The topic without rows in the table messages; empty for none."""
        is_named = INGEST_TOPIC in (self.bounds.topics or ())
        return "" if self.with_ledger or is_named else INGEST_TOPIC

    @property
    def wants(self) -> int:
        """The parts of a record that C must read: enum ts_table_want."""
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

    @classmethod
    def whole(cls, store: Snapshot, table: str, shard: int = 0) -> "Part":
        """Return the part that is the whole table of a store."""
        if table == "timer_units":
            return cls(shard, store, store.timer_log_begin, store.timer_log_end)
        if table == "slots":
            return cls(shard, store, 0, store.wheel_slot_count)
        return cls(shard, store, store.log_begin, store.log_end)


class Records(NamedTuple):
    """Rows of records, and the window that holds their texts."""

    window: Any
    rows: RowArray
    sums: npt.NDArray[np.int64]
    filter: Any
    """That of the scan, for C."""


class PendingBits(NamedTuple):
    """The records of the timer topic that become rows, and whether records of levels do.

    A bit stands for a queue offset, the first one for `first`, the lowest bit of a byte first.
    """

    first: int
    bits: bytes
    has_levels: bool

    @property
    def kinds(self) -> int:
        """The kinds of records that become rows."""
        levels = 1 << lib.TS_KIND_LEVEL if self.has_levels else 0
        return int(1 << lib.TS_KIND_TIMER | levels)


def _native_texts(given: tuple[str, ...] | None) -> tuple[Any, Any, int]:
    """Return texts as bytes, the offsets of each, and their number."""
    texts = [one.encode() for one in given or ()]
    ends = np.cumsum([0, *map(len, texts)]).tolist()
    return ffi.new("uint8_t[]", b"".join(texts)), ffi.new("int32_t[]", ends), len(texts)


def _native_filter(wanted: Wanted, kinds: int, pending: PendingBits | None) -> tuple[Any, Any]:
    """Return the filter for C, and the buffers that it points to."""
    bounds = wanted.bounds
    topics, keys = _native_texts(bounds.topics), _native_texts(bounds.keys)
    names = _native_texts(wanted.property_names)
    without = ffi.new("uint8_t[]", wanted.left_out_topic.encode())
    made = ffi.new("ts_table_filter *")
    made.topics, made.topic_offsets, made.topic_count = topics
    made.keys, made.key_offsets, made.key_count = keys
    made.names, made.name_offsets, made.name_count = names
    made.without, made.without_size = without, len(without) - 1
    made.kinds, made.by_real_topic = kinds, pending is not None
    flags = ffi.NULL
    if pending is not None:
        flags = ffi.from_buffer("uint8_t[]", pending.bits)
        made.timer_bits, made.first_timer = flags, pending.first
        made.timer_bit_count = 8 * len(pending.bits)
    made.due_from_ms, made.due_to_ms, made.has_due = _range(
        bounds.deliver_from_ms, bounds.deliver_to_ms
    )
    made.store_from_ms, made.store_to_ms, made.has_store = _range(
        bounds.stored_from_ms, bounds.stored_to_ms
    )
    return made, (topics, keys, names, without, flags)


def _range(begin: int | None, end: int | None) -> tuple[int, int, bool]:
    """Return the bounds as 64-bit numbers, and whether there are any."""
    low = INT64_MIN if begin is None else max(INT64_MIN, min(begin, INT64_MAX))
    high = INT64_MAX if end is None else max(INT64_MIN, min(end, INT64_MAX))
    return low, high, begin is not None or end is not None


def records(
    part: Part,
    wanted: Wanted,
    *,
    pending: PendingBits | None = None,
    window_bytes: int | None = None,
) -> Iterator[Records]:
    """Read the records of a part as rows of messages or deliveries, or of timers.

    `pending`: for the table timers, which records are rows.
    """
    windows = part.store.log(verify=wanted.verify_crc, end=part.end, window_bytes=window_bytes)
    if wanted.bounds.are_impossible:
        return
    damage = Damage(wanted.on_corrupt, part.shard, part.store)
    kinds = DELIVERED_KINDS if wanted.table == "deliveries" else 0
    if pending is not None:
        kinds = pending.kinds
    chosen, kept = _native_filter(wanted, kinds, pending)
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
        count = careful_step(windows, scan, following, damage.in_records)
        if count:
            yield Records(windows.native, rows[:count], sums, chosen)
    del kept


def careful_step(
    windows: Windows,
    scan: Callable[[Any], int],
    following: Any,
    on_damage: Callable[[Windows, CorruptError], int],
) -> int:
    """Take one step. At damage, move past it as the policy says, and return no rows."""
    begin = int(following[0])
    try:
        return windows.step(scan, begin, "a record" if windows.native.verify else "an item")
    except CorruptError as error:
        if windows.native.fault == lib.TS_FAULT_NONE:
            raise  # a file is missing or short
        following[0] = on_damage(windows, error)
        return 0


def units(part: Part, wanted: Wanted) -> Iterator[RowArray]:
    """Read the timer units of a part whose slot ends within the bounds."""
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

    bounds, width = wanted.bounds, part.store.precision_ms
    low, high, _ = _range(bounds.deliver_from_ms, bounds.deliver_to_ms)
    enqueued_low, enqueued_high, _ = _range(bounds.stored_from_ms, bounds.stored_to_ms)
    while following[0] < part.end:
        try:
            count = careful_step(windows, scan, following, damage.in_units)
        except CorruptError:
            begin = part.store.timer_log_begin_now
            if begin <= following[0]:
                raise
            following[0] = begin  # retention removed the file: its messages were delivered
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
    """Read the used slots of the wheel, as they were at the end of the timer log."""
    disk, path = Disk(), part.store.tree.timer_wheel
    if part.store.timer_log_end == part.store.timer_log_begin or not disk.exists(path):
        return  # a slot points to units
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
    """Return the slots that begin within the bounds."""
    low, high, _ = _range(bounds.deliver_from_ms, bounds.deliver_to_ms)
    begins = rows["time"] * store.precision_ms
    keep = (begins >= low) & ((begins < high) if high < INT64_MAX else True)
    kept: RowArray = rows[keep]
    return kept


def _units_beyond(store: Snapshot) -> RowArray:
    """Return the units past the limit. The wheel's file may point to them already, because its
    pages are written before the watermark.
    """
    size, begin = store.timer_log_segment_bytes, store.timer_log_end
    windows = store.timer_log(end=(begin // size + 2) * size)
    return np.concatenate(
        [np.empty(0, UNIT_ROW), *(rows for rows, _ in whole_units(windows, begin))]
    )


def _cut_back(rows: RowArray, end: int, later: RowArray) -> RowArray:
    """Return the slots as they were before the later units: those that point below `end`.

    Each later unit of a slot's chain points to the previous one. It counts one, a delete minus one.
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
            rows["count"][k] += 1 if magic & MAGIC_DELETE else -1
        rows["last_pos"][k] = pos
    kept: RowArray = rows[(rows["last_pos"] >= 0) & (rows["last_pos"] < end)]
    return kept


# --- transactions ---
# `transactions`: the complete ingested versions of each source, from the headers of their chunks.
#
# The queue of the ledger's topic shows where the headers are, so only they are read. If the queue
# is missing or incomplete, the whole log is read.
#
# Invariants:
#     1. A version is a row once its last chunk lies below the limit. Then its group is complete.
#     2. A field is None if the version is known only from a source's state, which does not have it.
# On-disk format: format/ledger_json.py.


_LOOK_BYTES = 1 << 14


class Transaction(NamedTuple):
    """One complete version of one source."""

    source: str
    version: int
    rows: int | None
    bytes: int | None
    applied_ms: int | None


class _Open(NamedTuple):
    chunks: int = 0
    bytes: int | None = 0


def transactions(part: Part, bounds: Bounds) -> list[Transaction]:
    """Return the complete versions, in the order in which they were completed."""
    begun: dict[tuple[str, int], _Open] = {}
    done: dict[tuple[str, int], Transaction] = {}
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    for record, store_ms in _ledger(part):
        if isinstance(record, SourceState):
            _take_state(record, begun, done)
            ranges[record.source] = record.versions
            continue
        key = (record.source, record.version)
        before = begun.get(key, _Open())
        if key in done or record.chunk < before.chunks:
            continue
        size = None if before.bytes is None else before.bytes + record.bytes
        begun[key] = _Open(record.chunk + 1, size)
        if record.last:
            done[key] = Transaction(*key, record.rows_so_far, size, store_ms)
    for source, spans in ranges.items():
        for begin, end in spans:
            for version in range(begin, end):
                done.setdefault((source, version), Transaction(source, version, None, None, None))
    return [one for one in done.values() if _is_within(one, bounds)]


def _take_state(
    state: SourceState,
    begun: dict[tuple[str, int], _Open],
    done: dict[tuple[str, int], Transaction],
) -> None:
    for version, row_count, _ in state.done:
        key = (state.source, version)
        done.setdefault(key, Transaction(*key, row_count, None, None))
    for one in state.open:
        begun.setdefault((state.source, one.version), _Open(one.chunk_count, None))


def _is_within(one: Transaction, bounds: Bounds) -> bool:
    low, high = bounds.stored_from_ms, bounds.stored_to_ms
    if one.applied_ms is None:
        return low is None and high is None
    return (low is None or one.applied_ms >= low) and (high is None or one.applied_ms < high)


def _ledger(part: Part) -> Iterator[tuple[ChunkHeader | SourceState, int]]:
    """Read every record of the ledger below the limit, with its store time."""
    store = part.store
    if not is_covered(store, (INGEST_TOPIC,)):
        yield from _records(part, Wanted("messages", ("body",), Bounds(topics=(INGEST_TOPIC,))))
        return
    queue = QueueUnits(store.tree.queue(INGEST_TOPIC, 0), store.queue_segment_bytes)
    wanted = Wanted("messages", ("body",), Bounds(topics=(INGEST_TOPIC,)), batch_rows=1)
    for number in range(queue.begin, queue.end):
        at, size = queue.at(number)
        if at + size > part.end:
            return
        if at >= part.begin:
            yield _record(replace(part, begin=at, end=at + size), wanted, store)


def _records(
    part: Part, wanted: Wanted, window_bytes: int | None = None
) -> Iterator[tuple[ChunkHeader | SourceState, int]]:
    for found in records(part, wanted, window_bytes=window_bytes):
        for row in found.rows:
            at, size = row["at"][lib.TS_SPAN_BODY], row["sizes"][lib.TS_SPAN_BODY]
            body = bytes(ffi.buffer(found.window.bytes + int(at), int(size)))
            yield read(body), int(row["store_ms"])


def _record(part: Part, wanted: Wanted, store: Snapshot) -> tuple[ChunkHeader | SourceState, int]:
    for found in _records(part, wanted, _LOOK_BYTES):
        return found
    raise CorruptError(
        "a unit of the ledger's queue points at another topic's record",
        where=f"{store.tree.commit_log} offset {part.begin}",
        wanted=INGEST_TOPIC,
    )
