"""Read records of the log with their routes, and make the routes that C needs for them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.native import ffi, lib, pointer, raise_status
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import (
    QUEUE_COUNT_MAX,
    SCHEDULE_TOPIC,
    WHEEL_TIMER_TOPIC,
    can_have_queue,
    whole_number,
)
from timerstore._engine.log.log_reader import LogReader
from timerstore._engine.log.scanned_records import SCAN_DTYPE, Scan
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments
from timerstore.types.clock import Clock
from timerstore.types.messages import parse_properties

assert SCAN_DTYPE.itemsize == ffi.sizeof("ts_scanned"), "scanned_records.py and native/api disagree"

_SCAN_BATCH = 65_536

# --- record lookup ---


def record_fields(segments: Segments, view: Any, log_offset: int) -> tuple[bytes, int, bytes]:
    """Return topic, queue number and property text of the record at a log offset."""
    out = ffi.new("int64_t[2]")
    sizes = ffi.new("int32_t[4]")
    segments.call(
        view, "record", lib.ts_record_at,
        log_offset, out, sizes, out + 1, sizes + 1, sizes + 2, sizes + 3,
    )  # fmt: skip
    record = segments.read(log_offset, int(sizes[3]))
    topic = record[out[0] : out[0] + sizes[0]]
    return topic, int(sizes[2]), record[out[1] : out[1] + sizes[1]]


def queues_named(topic: bytes, queue_id: int, text: bytes) -> list[tuple[str, int]]:
    """Return the queue that a record names, and for a delayed message also its real queue.

    text: the record's properties. The queues need not be valid.
    """
    name = topic.decode("utf-8", "replace")
    named = [(name, queue_id)]
    if name in (WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC):
        properties = parse_properties(text)
        real = properties.get("REAL_TOPIC")
        number = whole_number(properties.get("REAL_QID", ""), QUEUE_COUNT_MAX - 1)
        if real and number >= 0:
            named.append((real, number))
    return named


def route_needed(segments: Segments, view: Any, routes: Routes, now_ms: int) -> None:
    """Make the routes of the record at `view.need`: its own, and its real one if it is delayed."""
    need = int(view.need)  # reading the record changes the field
    topic, queue_id, text = record_fields(segments, view, need)
    named = [one for one in queues_named(topic, queue_id, text) if can_have_queue(*one)]
    if all(routes.is_found(*one) for one in named):
        raise_status(
            lib.TS_CORRUPT,
            "a record names no valid queue",
            f"{segments.path(need // segments.segment_bytes)} offset {need}",
        )
    for name, number in named:
        routes.make_of_record(name, number, need, now_ms)


def call_with_routes(
    segments: Segments,
    view: Any,
    routes: Routes,
    clock: Clock,
    what: str,
    function: Callable[..., int],
    *arguments: Any,
) -> int:
    """Call C with a table of routes until it succeeds, like `Segments.call`; return its result.

    Provides the segments and makes the routes that it needs.
    """
    while (got := function(view, routes.native, *arguments)) < 0:
        if got == lib.TS_NEED_ROUTE:
            route_needed(segments, view, routes, clock.now_ms)
        else:
            segments.provide(view, got, what)
    return got


def scan_into(
    rows: Scan,
    segments: Segments,
    view: Any,
    routes: Routes,
    clock: Clock,
    precision_ms: int,
    begin: int,
    what: str,
) -> tuple[Scan, int]:
    """Read the records from a log offset on into `rows`: those read, and the offset after them.

    `view.fault` is the reason why the log ends there (enum ts_fault), if it does.
    """
    following = ffi.new("int64_t *")
    count = call_with_routes(
        segments, view, routes, clock, what, lib.ts_scan,
        precision_ms, begin, following, len(rows), ffi.from_buffer("ts_scanned[]", rows),
    )  # fmt: skip
    return rows[:count], int(following[0])


def scan_one(
    segments: Segments, view: Any, routes: Routes, clock: Clock, precision_ms: int, log_offset: int
) -> Any:
    """Return the record at a log offset as a scan would, as one row of SCAN_DTYPE."""
    row = np.empty(1, SCAN_DTYPE)
    found, _ = scan_into(row, segments, view, routes, clock, precision_ms, log_offset, "record")
    if not len(found):
        raise_status(lib.TS_CORRUPT, "record", f"{segments.directory} offset {log_offset}")
    return found[0]


def scan_batches(
    segments: Segments,
    routes: Routes,
    clock: Clock,
    precision_ms: int,
    begin: int,
    limit: int,
    *,
    whole_groups: bool = False,
) -> Iterator[tuple[Scan, int, int]]:
    """Read the records in [begin, limit) in batches.

    Each batch has the records, the end so far, and the reason why the log ends there (enum
    ts_fault), which is TS_FAULT_NONE for all batches but the last.

    `whole_groups`: if the log ends within an atomic group (native/format/group.h), the last end is
    the begin of that group, although its first records were yielded.
    """
    end, fault = begin, lib.TS_FAULT_NONE
    with segments.view(limit) as view:
        while fault == lib.TS_FAULT_NONE:
            rows = np.empty(_SCAN_BATCH, SCAN_DTYPE)
            part, end = scan_into(rows, segments, view, routes, clock, precision_ms, end, "scan")
            fault = int(view.fault)
            if fault != lib.TS_FAULT_NONE and whole_groups and view.group_end > end:
                end = int(view.group_start)
            yield part, end, fault


def real_routes(
    log: LogReader,
    routes: Routes,
    log_offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int32],
    *,
    is_level: bool,
) -> npt.NDArray[np.int32]:
    """Return the index of the real route of each delayed record, without reading bodies.

    The index is -1 for a record that can never be delivered.

    Raises:
        GoneError: a record was moved or removed.
    """
    count, done = len(log_offsets), 0
    offsets, lengths = np.ascontiguousarray(log_offsets), np.ascontiguousarray(sizes)
    found = np.empty(count, np.int32)
    newest = int((offsets + lengths).max(initial=0))
    with log.segments.view(log.written_through(newest)) as view:
        while done < count:
            got = lib.ts_real_routes(
                view,
                routes.native,
                ffi.from_buffer("int64_t[]", offsets) + done,
                ffi.from_buffer("int32_t[]", lengths) + done,
                count - done,
                is_level,
                ffi.from_buffer("int32_t[]", found) + done,
            )
            if got == lib.TS_NEED_ROUTE:
                route_needed(log.segments, view, routes, log.last_store_ms)
            elif got < 0:
                log.segments.provide(view, got, "record")
            else:
                done += got
    return found


def is_of_topic(routes: Routes, found: npt.NDArray[np.int32], topic: str) -> npt.NDArray[np.bool_]:
    """Mark the route indexes that belong to a topic."""
    own = [k for k, route in enumerate(list(routes.by_index)) if route.topic == topic]
    return np.isin(found, own)


# --- record properties ---
# Read the properties of the delayed messages of some topics from a part of the log.
#
# This costs nothing if no such topic exists. Otherwise it scans that part of the log, and reads
# each such record.
#
# Thread safety: used while a store is opened.


def timer_properties(
    segments: Segments,
    routes: Routes,
    precision_ms: int,
    clock: Clock,
    begin: int,
    end: int,
    is_wanted: Callable[[str], bool],
) -> Iterator[tuple[str, int, bytes]]:
    """Yield topic, log offset and property text of the timers in [begin, end) of the log.

    Includes timers that were delivered or cancelled since.
    is_wanted: returns whether messages for a topic are to be yielded.
    """
    if begin >= end or not any(is_wanted(route.topic) for route in routes.by_index):
        return
    for part, _, _ in scan_batches(segments, routes, clock, precision_ms, begin, end):
        wanted = [k for k, route in enumerate(routes.by_index) if is_wanted(route.topic)]
        rows = part[(part["kind"] == lib.TS_KIND_TIMER) & np.isin(part["route"], wanted)]
        with segments.view(end) as view:
            for row in rows[["route", "log_offset"]].tolist():
                _, _, text = record_fields(segments, view, row[1])
                yield routes.by_index[row[0]].topic, row[1], text


# --- record units ---
# `RecordUnits`: the consume queue units of a log's records, as dispatch writes them.
#
# It makes units in memory and writes none. Dispatch uses it, and so do readers and checks.
#
# Thread safety: one thread for each object.


_BATCH = 16_384

UnitRows = npt.NDArray[np.uint8]
"""Rows of 20 bytes."""


class RecordUnits(NotCopyable):
    """Makes the units of one log, batch by batch."""

    def __init__(self, level_delays: str, capacity: int = _BATCH) -> None:
        """Allocate memory for batches of at most `capacity` units."""
        delays = parse_level_delays(level_delays)
        self._delays, self._delay_count = ffi.new("int64_t[]", delays), len(delays)
        self._capacity = capacity
        self.units: UnitRows = np.empty((capacity, UNIT_BYTES), np.uint8)  # of the last batch
        self.indexes = np.empty(capacity, np.int32)  # of their routes
        self._offsets = np.empty(capacity, np.int64)
        self._columns = (
            pointer("uint8_t[]", self.units),
            pointer("int32_t[]", self.indexes),
            pointer("int64_t[]", self._offsets),
        )
        self._following = ffi.new("int64_t *")

    @property
    def reached(self) -> int:
        """The log offset after the last record of the last batch."""
        return int(self._following[0])

    def make(
        self,
        view: Any,
        routes: Any,
        begin: int,
        keys: Any = ffi.NULL,
        hints: Any = ffi.NULL,
        requests: Any = ffi.NULL,
    ) -> int:
        """Make the units of the records from a log offset on; return how many, or a status of C.

        The index's keys and the timer's requests are made too, if dispatch passes memory for them.
        """
        return int(
            lib.ts_dispatch(
                view,
                routes,
                self._delays,
                self._delay_count,
                begin,
                self._following,
                self._capacity,
                *self._columns,
                keys,
                hints,
                requests,
            )
        )

    def by_queue(self, count: int) -> Iterator[tuple[int, Int64Array, UnitRows]]:
        """Return the units of the last batch: (index of the route, queue offsets, units)."""
        indexes, units = self.indexes[:count], self.units[:count]
        if count and (indexes == indexes[0]).all():  # frequent, and needs no sort
            yield int(indexes[0]), self._offsets[:count].copy(), units.copy()
            return
        order = np.argsort(indexes, kind="stable")
        edges = np.flatnonzero(np.diff(indexes[order])) + 1
        for part in np.split(order, edges) if count else ():
            yield int(indexes[part[0]]), self._offsets[part], units[part]
