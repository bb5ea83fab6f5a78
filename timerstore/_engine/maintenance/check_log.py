"""Check the commit log and the files that must match its records: queue units, timer units.

The log is walked once. In an open store the walk also folds it, so that the states in memory and in
the side files can be compared with it (check_states.py).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit, timer_unit
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import Tree, can_have_queue, segment_name
from timerstore._engine.log.scanned_records import Scan, has_impossible_offset
from timerstore._engine.log.survey import Files, SurveyedRecords
from timerstore._engine.maintenance.expected_states import Expected, LogFold
from timerstore._engine.maintenance.store_view import (
    Findings,
    LiveStore,
    LogPart,
    StoreView,
    TimerEnd,
    UnitOrder,
    UnitRun,
    at_offset,
    check_zeros,
    place,
)
from timerstore._engine.queues.index_file import ENTRY_BYTES, HEADER_BYTES
from timerstore._engine.queues.key_index import KEYS_MAX, Index
from timerstore._engine.queues.record_lookup import RecordUnits, UnitRows, queues_named
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore.errors import CorruptError, TimerStoreError
from timerstore.types.config import StoreConfig
from timerstore.types.reports import Problem

# --- check queues ---
# Check consume queues: each record's unit is in its queue, as dispatch writes it.


class QueueCheck(NotCopyable):
    """Compares queues with the records of the log, run after run."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._findings = view.findings
        self._file_bytes = view.config.queue_segment_bytes
        self._next: dict[int, int] = {}  # by index of route: offset after the last record
        self._bad: set[int] = set()
        self._hint = view.derived("remove the queue's folder, and opening makes it again")

    def add(self, run: UnitRun) -> None:
        """Compare one run of units."""
        route, offset, wanted = run
        if below := self._view.deleted_below.get(route.topic):
            kept = queue_unit.read(wanted.tobytes())["log_offset"] >= below
            if not kept.any():
                return
            offset, wanted = offset + int(kept.argmax()), wanted[kept.argmax() :]
        index = int(route.native.index)
        if index in self._bad:
            return
        first = self._next.get(index)
        if first is None:
            first = self._view.first_offset(route)
        self._next[index] = offset + len(wanted)
        if first is not None and offset != first and self._view.engine is not None:
            self._bad.add(index)
            self._findings.add(
                "queue offsets in the log have a gap",
                f"topic {route.topic} queue {route.queue_id}",
                first,
                offset,
            )
            return
        try:
            got = self._view.queue_units(route, offset, len(wanted))
        except TimerStoreError as error:
            self._bad.add(index)
            self._findings.raised("queue", self._where(route, offset), error)
            return
        if got is None:
            return
        self._findings.count("queue units", len(got) // UNIT_BYTES)
        data = wanted.tobytes()
        if got != data:
            self._compare(route, offset, queue_unit.read(data), queue_unit.read(got))

    def _compare(self, route: Route, first: int, wanted: Any, got: Any) -> None:
        shared = min(len(wanted), len(got))
        differs = wanted[:shared] != got[:shared]
        if route.native.kind == lib.TS_ROUTE_LEVELS and not self._view.knows_delays:
            differs &= ~_is_other_delay(wanted[:shared], got[:shared])
        for at in np.flatnonzero(differs).tolist():
            self._findings.add(
                f"queue unit does not match its record{self._hint}",
                self._where(route, first + at),
                queue_unit.text(wanted[at]),
                queue_unit.text(got[at]),
            )
        if shared < len(wanted):
            self._findings.add(
                f"queue ends too soon{self._hint}",
                self._where(route, first + shared),
                f"{len(wanted) - shared} more units",
                "nothing",
            )

    def check_ends(self, end: int, *, is_damaged: bool) -> None:
        """Check that the queues of an open store end with the last record of the log."""
        engine = self._view.engine
        if engine is None:
            return
        with engine.dispatch.still():
            routes = list(engine.routes.by_index)
            self._findings.count("queues", len(routes))
            is_comparable = engine.log.end == end and not is_damaged
            for route in routes:
                self._check_end(engine, route, is_comparable=is_comparable)

    def _check_end(self, engine: LiveStore, route: Route, *, is_comparable: bool) -> None:
        queue = route.queue
        last = self._next.get(int(route.native.index))
        if last is None:
            last = queue.first_at(engine.log.segments.begin)
            last = last if last == queue.count else None
        if is_comparable and queue.count != last:
            self._findings.add(
                "queue has another count than the log",
                self._where(route, queue.count),
                f"{last} units",
                queue.count,
            )
        check_zeros(
            self._findings,
            "queue",
            queue.read_tail,
            lambda byte: self._where_byte(route, byte),
            queue.count * UNIT_BYTES,
        )

    def _where(self, route: Route, queue_offset: int) -> str:
        return self._where_byte(route, queue_offset * UNIT_BYTES)

    def _where_byte(self, route: Route, byte: int) -> str:
        """Return the file of a queue that holds a byte, and the offset in it."""
        at = byte % self._file_bytes
        folder = self._view.tree.queue(route.topic, route.queue_id)
        return at_offset(folder / segment_name(byte - at), at)


def _is_other_delay(wanted: Any, got: Any) -> Any:
    """Return where units differ in their due time alone, by whole seconds. Then the table of delays
    was changed since they were written.
    """
    is_same = (wanted["log_offset"] == got["log_offset"]) & (wanted["size"] == got["size"])
    return is_same & ((wanted["tags_code"] - got["tags_code"]) % 1000 == 0)


# --- check log ---


_IN_TIMER_TOPIC = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)


class LogResult(NamedTuple):
    """The results of a walk over the log."""

    is_damaged: bool
    fold: LogFold | None = None
    at_mark: Expected | None = None
    """States that the fold requires at the watermark."""
    at_end: Expected | None = None
    inherited: tuple[list[tuple[int, int]], list[int]] = ([], [])
    """Timers and level messages that only records past the watermark show to have been pending."""
    mark_end: int = 0


def check_log(view: StoreView) -> LogResult:
    """Walk the log and compare its records with queues and timer log."""
    engine = view.engine
    if engine is None:
        walk = _Walk(view, None, None)
        walk.run(view.log_begin, view.log_end)
        return LogResult(walk.is_damaged)
    begin, end = view.log_begin, view.log_end
    floor = engine.timer_route.queue.first_at(begin)
    levels = {
        route.queue_id: route.queue.first_at(begin)
        for route in list(engine.routes.by_index)
        if route.native.kind == lib.TS_ROUTE_LEVELS
    }
    fold = LogFold(engine.store_id, floor, levels)
    order = _OrderCheck(
        view.findings, engine.timer_log.segments, view.timer_end, engine.log.segments
    )
    walk = _Walk(view, fold, order)
    mark_end = begin if view.mark is None else min(max(begin, view.mark.log_end), end)
    walk.run(begin, mark_end)
    at_mark = Expected.of_walk(fold)
    counts = len(fold.inherited), len(fold.levels.inherited)
    walk.run(mark_end, end)
    at_end = Expected.of_walk(fold)
    walk.queues.check_ends(end, is_damaged=walk.is_damaged)
    segments = engine.log.segments
    check_zeros(
        view.findings, "commit log", engine.log.read_tail, lambda at: place(segments, at), end
    )
    inherited = fold.inherited[counts[0] :], fold.levels.inherited[counts[1] :]
    return LogResult(walk.is_damaged, fold, at_mark, at_end, inherited, mark_end)


class _Walk:
    """A walk over the log, part by part."""

    def __init__(self, view: StoreView, fold: LogFold | None, order: "_OrderCheck | None") -> None:
        self._view = view
        self._fold = fold
        self._order = order
        self.queues = QueueCheck(view)
        self.is_damaged = False

    def run(self, begin: int, end: int) -> None:
        """Check the records of [begin, end), which are both edges of records."""
        for part in self._view.log_parts(begin, end):
            if isinstance(part, Problem):
                self.is_damaged = True
                self._view.findings.add(part.what, part.where, part.wanted, part.got)
                continue
            try:
                self._add(part)
            except TimerStoreError as error:  # its queues or records cannot be read
                self.is_damaged = True
                where = at_offset(self._view.tree.commit_log, part.begin)
                self._view.findings.raised("commit log", where, error)
                return

    def _add(self, part: LogPart) -> None:
        for run in part.runs:
            self.queues.add(run)
        if self._fold is None or self._order is None or not len(part.rows):
            return
        rows = part.rows
        self._order.add(rows[np.isin(rows["kind"], _IN_TIMER_TOPIC)])
        wild = has_impossible_offset(rows)
        for row in np.flatnonzero(wild).tolist():
            self.is_damaged = True
            self._view.findings.add(
                "timer id of a record",
                place(self._order.log_segments, int(rows["log_offset"][row])),
                "one that it can have had",
                f"queue offset {rows['queue_offset'][row]}",
            )
        self._fold.add(rows[~wild])


class _OrderCheck(NotCopyable):
    """Compares records of the timer topic with their units, which stand in the same order."""

    def __init__(
        self, findings: Findings, segments: Segments, timer_end: TimerEnd, log_segments: Segments
    ) -> None:
        self._findings = findings
        self._segments = segments
        self._timer_end = timer_end
        self.log_segments = log_segments
        self._order: UnitOrder | None = None  # made when it is needed
        self._is_readable = True

    def add(self, records: Scan) -> None:
        """Compare the records up to `linked_offset` with their units."""
        linked = records[records["queue_offset"] < self._timer_end.linked_offset]
        if not len(linked) or not self._is_readable:
            return
        try:
            if self._order is None:
                self._order = UnitOrder(self._segments, *self._timer_end)
            linked = linked[linked["queue_offset"] >= self._order.begin]  # older units are gone
            numbers = linked["queue_offset"]
            edges = np.flatnonzero(np.diff(numbers) != 1) + 1
            for run in np.split(np.arange(len(numbers)), edges) if len(numbers) else ():
                done = int(run[0])
                begin, end = int(numbers[run[0]]), int(numbers[run[-1]]) + 1
                for positions, units in self._order.units(begin, end):
                    self._match(linked[done : done + len(units)], units, positions)
                    done += len(units)
        except TimerStoreError as error:
            self._is_readable = False
            self._findings.raised("timer log", place(self._segments, self._segments.begin), error)

    def _match(self, records: Scan, units: Any, positions: Any) -> None:
        is_delete = records["kind"] == lib.TS_KIND_DELETE
        wrong = (units["log_offset"] != records["log_offset"]) | (units["size"] != records["size"])
        wrong |= (records["kind"] != lib.TS_KIND_UNUSABLE) & (
            ((units["magic"] & timer_unit.MAGIC_DELETE) != 0) != is_delete
        )
        wrong |= (records["kind"] == lib.TS_KIND_TIMER) & (
            units["topic_hash"] != records["topic_hash"]
        )
        for at in np.flatnonzero(wrong).tolist():
            record, unit = records[at], units[at]
            self._findings.add(
                "timer unit does not match its record",
                place(self._segments, int(positions[at])),
                f"log offset {record['log_offset']}, {record['size']} bytes, topic hash "
                f"{record['topic_hash']}, {'a' if is_delete[at] else 'no'} delete record",
                f"log offset {unit['log_offset']}, {unit['size']} bytes, topic hash "
                f"{unit['topic_hash']}, magic {unit['magic']}",
            )


# --- check index ---
# Check the key index: built again from the log, in memory, it must have the same bytes.
#
# This walks the log once more, and needs memory for the slots of one file.


_KEY_BYTES = ffi.sizeof("ts_key")


def check_index(view: StoreView) -> None:
    """Compare every file of an open store's index with the log. Services go on during this."""
    store, findings = view.engine, view.findings
    index = None if store is None else store.dispatch.index
    if store is None or index is None or index.begin < store.log.segments.begin:
        return  # there is no index, or retention removed its first records
    remake = _Remake(findings, index)
    try:
        remake.run(store)
    except (TimerStoreError, OSError) as error:
        findings.raised("index", index.begin, error)
    findings.count("index entries", remake.entries)


class _Remake(NotCopyable):
    def __init__(self, findings: Findings, index: Index) -> None:
        self._findings = findings
        self._index = index
        self._files, self._states, self._newest_slots, self._end = index.snapshot()
        self._geometry = index.geometry
        self._capacity = 2 * KEYS_MAX
        self._keys = np.empty(self._capacity * _KEY_BYTES, np.uint8)
        self._entries = np.empty(self._capacity * ENTRY_BYTES, np.uint8)
        self._slots = np.zeros(4 * self._geometry.slot_count, np.uint8)
        self._pages = np.zeros(4 * self._geometry.slot_count // 4096 + 1, np.uint8)
        self._native: Any = ffi.new("ts_index *")
        self._native.slots = address(self._slots)
        self._native.dirty_pages = address(self._pages)
        self._native.slot_count = self._geometry.slot_count
        self._native.entry_count = self._geometry.entry_count
        self._native.next_entry = 1
        self._at = 0  # which file
        self.entries = 0

    def run(self, store: LiveStore) -> None:
        """Walk the part of the log that the index has."""
        keys: Any = ffi.new("ts_keys *")
        keys.at = ffi.cast("ts_key *", ffi.from_buffer(self._keys))
        keys.capacity = self._capacity
        keys.has_tags = self._index.has_tags
        following = ffi.new("int64_t *", self._index.begin)
        segments = store.log.segments
        with segments.view(self._end) as view:
            while following[0] < self._end:
                keys.count = 0
                at = following[0]
                segments.call(view, "check", lib.ts_index_keys, at, following, KEYS_MAX, keys)
                if not self._add(keys.at, int(keys.count)):
                    return
        self._finish()
        if self._at < len(self._files) - 1:
            self._wrong("index files", "none after it", len(self._files) - 1 - self._at)

    def _add(self, keys: Any, count: int) -> bool:
        """Compare the entries of these keys. Return False at the first difference."""
        done = 0
        while done < count:
            if self._native.next_entry >= self._native.entry_count and not self._next_file():
                return False
            if not self._files:
                self._findings.add("index", "the store", "a file", "none")
                return False
            first = int(self._native.next_entry)
            taken = int(
                lib.ts_index_append(self._native, keys + done, count - done, address(self._entries))
            )
            wanted = self._entries[: taken * ENTRY_BYTES].tobytes()
            got = self._files[self._at].read_entries(first, taken)
            self.entries += taken
            if wanted != got:
                a, b = (np.frombuffer(x, np.uint8).reshape(-1, ENTRY_BYTES) for x in (wanted, got))
                row = int(np.flatnonzero((a != b).any(axis=1))[0])
                where = at_offset(self._files[self._at].path, self._geometry.entry_at(first + row))
                self._findings.add(
                    "index entry", where, a[row].tobytes().hex(), b[row].tobytes().hex()
                )
                return False
            done += taken
        return True

    def _next_file(self) -> bool:
        self._finish()
        if self._at + 1 >= len(self._files):
            self._wrong("index files", "another after it", "none")
            return False
        self._at += 1
        self._slots[:] = 0
        native = self._native
        native.next_entry, native.slots_used = 1, 0
        native.begin_ms, native.begin_offset = native.end_ms, native.end_offset
        return True

    def _finish(self) -> None:
        """Compare slots and header of a file whose entries are complete."""
        if not self._files:
            return
        file, state = self._files[self._at], self._states[self._at]
        is_newest = self._at == len(self._files) - 1
        slots = self._newest_slots if is_newest else file.copy_slots().tobytes()
        if slots != self._slots.tobytes():
            a, b = np.frombuffer(slots, ">i4"), self._slots.view(">i4")
            slot = int(np.flatnonzero(a != b)[0])
            where = at_offset(file.path, HEADER_BYTES + 4 * slot)
            self._findings.add("index slot", where, int(b[slot]), int(a[slot]))
        out = ffi.new("uint8_t[]", HEADER_BYTES)
        lib.ts_index_header_put(self._native, out)
        wanted = bytes(ffi.buffer(out))
        headers = [file.header_of(state)]
        if state.slots_crc is not None:  # then the file has it too
            written = file.read_header()
            if file.state() == state:  # else it may have been written again
                headers.append(written)
        for got in headers:
            if got != wanted:
                self._findings.add("index header", file.path, wanted.hex(), got.hex())

    def _wrong(self, what: str, wanted: object, got: object) -> None:
        self._findings.add(what, self._files[self._at].path, wanted, got)


# --- log units ---
# The queue units that the records of a log at rest require, without any file of a queue.


def runs_of(route: Route, offsets: Int64Array, units: UnitRows) -> Iterator[UnitRun]:
    """Split the units of one queue into runs of consecutive queue offsets."""
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    for rows in np.split(np.arange(len(offsets)), edges):
        yield UnitRun(route, int(offsets[rows[0]]), units[rows])


class LogUnits(NotCopyable):
    """Makes the units that dispatch would write."""

    def __init__(self, tree: Tree, files: Files, config: StoreConfig) -> None:
        self._files = files
        # Routes of a folder that does not exist: they find no file and make none.
        self.routes = Routes(Disk(), Tree(tree.side / "none"), config.queue_segment_bytes)
        self._units = RecordUnits(config.level_delays)

    def of(self, piece: SurveyedRecords, limit: int = 2**62) -> Iterator[UnitRun]:
        """Return the units of records below a log offset, which is the edge of a record. They come
        batch by batch, and in each batch queue by queue.
        """
        if not len(piece.rows):
            return
        data = address(piece.data)
        segments = ffi.new("const uint8_t *[]", [data])
        view = ffi.new("ts_view *")
        view.segments = segments
        view.segment_bytes = self._files.segment_bytes
        view.first_segment = piece.begin // self._files.segment_bytes
        view.segment_count = 1
        last = int(piece.rows["log_offset"][-1] + piece.rows["size"][-1])
        view.end = min(last, limit)
        begin = piece.begin
        try:
            while begin < view.end:
                count = self._units.make(view, self.routes.native, begin)
                if count == lib.TS_NEED_ROUTE:
                    self._make_routes(view, piece)
                    begin = self._units.reached
                elif count < 0:
                    break  # these records were read before: another process writes to the file
                else:
                    for index, offsets, units in self._units.by_queue(count):
                        yield from runs_of(self.routes.by_index[index], offsets, units)
                    begin = self._units.reached
        finally:
            ffi.release(data)

    def _make_routes(self, view: Any, piece: SurveyedRecords) -> None:
        out, sizes = ffi.new("int64_t[2]"), ffi.new("int32_t[4]")
        need = int(view.need)
        lib.ts_record_at(view, need, out, sizes, out + 1, sizes + 1, sizes + 2, sizes + 3)
        at = need % self._files.segment_bytes
        record = bytes(piece.data[at : at + sizes[3]])
        topic, text = record[out[0] : out[0] + sizes[0]], record[out[1] : out[1] + sizes[1]]
        before = len(self.routes.by_index)
        for name, number in queues_named(topic, int(sizes[2]), text):
            if can_have_queue(name, number):
                self.routes.make(name, number, 0, persist=False)
        if len(self.routes.by_index) == before:
            raise CorruptError(
                "a record names no queue that can be made",
                where=f"{self._files.path(need)} offset {at}",
                wanted="a topic's name, and a number",
                got=f"{topic[:80]!r}, {sizes[2]}",
            )
