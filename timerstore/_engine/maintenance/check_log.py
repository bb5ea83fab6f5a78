"""Check of the commit log, and of what stands for its records elsewhere: queue units, timer units.

Holds:    the log is walked once, in batches; memory does not grow with it.
Fails:    never on damage: that is named, and the walk goes on behind it where it can.
"""

from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import FAULTS, address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import queue_unit, timer_unit
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.log.scanned_records import Scan, has_impossible_offset
from timerstore._engine.maintenance.findings import Findings, at_offset, first_byte, place
from timerstore._engine.maintenance.id_states import LogFold
from timerstore._engine.maintenance.live_store import LiveStore
from timerstore._engine.maintenance.unit_order import UnitOrder
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Route
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import TimerStoreError

_PIECE_BYTES = 1 << 20
_LENGTHS_HOLD = (lib.TS_FAULT_POSITION, lib.TS_FAULT_BODY_CRC, lib.TS_FAULT_PROPERTY_CRC)
_IN_TIMER_TOPIC = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)


class TimerEnd(NamedTuple):
    """How far the timer log goes, and up to which record of the timer topic."""

    end: int
    linked_offset: int


class LogCheck(Owner):
    """One walk over the commit log."""

    def __init__(
        self,
        findings: Findings,
        config: StoreConfig,
        clock: Clock,
        tree: Tree,
        store: LiveStore,
        timer_route: Route,
        fold: LogFold,
        timer_end: TimerEnd,
    ) -> None:
        self._findings = findings
        self._config = config
        self._clock = clock
        self._tree = tree
        self._store = store
        self._segments = store.log.segments
        self._timer_index = int(timer_route.native.index)
        self._fold = fold
        self._timer_end = timer_end
        self._order: UnitOrder | None = None  # made when it is needed
        self._next: dict[int, int] = {}  # by index of route: queue offset behind the last record
        self._bad_queues: set[int] = set()
        self._timer_units_read = True
        delays = parse_level_delays(config.level_delays)
        self._level_delays, self._level_count = ffi.new("int64_t[]", delays), len(delays)
        self.is_damaged = False

    # --- the walk ---

    def walk(self, begin: int, end: int) -> None:
        """Check the records of [begin, end): both are edges of records."""
        offset = begin
        self._findings.count("records", 0)
        while offset < end:
            try:
                offset = self._walk_some(offset, end)
            except TimerStoreError as error:
                self.is_damaged = True
                self._findings.raised("commit log", place(self._segments, offset), error)
                return

    def _walk_some(self, begin: int, end: int) -> int:
        """Go up to the first damage; where to go on."""
        offset, fault = begin, 0
        for part, reached, why in scan_batches(
            self._segments,
            lambda: self._store.routes.native,
            self._serve_route,
            self._config.precision_ms,
            begin,
            end,
        ):
            self._batch(part, offset, reached)
            offset, fault = reached, why
        if offset >= end:
            return end
        self.is_damaged = True
        self._findings.add(
            f"commit log: {FAULTS.get(fault, 'damaged')}",
            place(self._segments, offset),
            "a whole record",
            self._segments.read(offset, min(16, end - offset)).hex(),
        )
        if fault in _LENGTHS_HOLD:
            return offset + int.from_bytes(self._segments.read(offset, 4), "big")
        size = self._segments.segment_bytes
        return min(end, (offset // size + 1) * size)

    def _serve_route(self, view: Any) -> None:
        route_needed(self._segments, view, self._store.routes, self._clock.now_ms)

    def _batch(self, part: Scan, begin: int, end: int) -> None:
        self._findings.count("records", len(part))
        self._findings.count("log bytes", end - begin)
        if not len(part):
            return
        self._queues(begin, end, len(part))
        self._timer_units(part[np.isin(part["kind"], _IN_TIMER_TOPIC)])
        wild = has_impossible_offset(part)
        for row in np.flatnonzero(wild).tolist():
            self.is_damaged = True
            self._findings.add(
                "timer id of a record",
                place(self._segments, int(part["log_offset"][row])),
                "one that it can have had",
                f"queue offset {part['queue_offset'][row]}",
            )
        self._fold.add(part[~wild])

    # --- queue units ---

    def _queues(self, begin: int, end: int, capacity: int) -> None:
        """Compare the queues' files with the units that these records ask for."""
        units = np.empty(capacity * queue_unit.UNIT_BYTES, np.uint8)
        indexes, offsets = np.empty(capacity, np.int32), np.empty(capacity, np.int64)
        following = ffi.new("int64_t *", begin)
        while following[0] < end:
            with self._segments.view(end) as view:
                count = self._ask(view, following, capacity, units, indexes, offsets)
            if count == 0 and following[0] >= end:
                return
            rows = units.reshape(capacity, queue_unit.UNIT_BYTES)[:count]
            order = np.argsort(indexes[:count], kind="stable")
            edges = np.flatnonzero(np.diff(indexes[:count][order])) + 1
            for one in np.split(order, edges) if count else ():
                self._queue(int(indexes[one[0]]), offsets[one], rows[one].tobytes())
            if count == 0:
                return

    def _ask(
        self, view: Any, following: Any, capacity: int, units: Any, indexes: Any, offsets: Any
    ) -> int:
        while True:
            count = lib.ts_dispatch(
                view,
                self._store.routes.native,
                self._level_delays,
                self._level_count,
                following[0],
                following,
                capacity,
                address(units),
                ffi.from_buffer("int32_t[]", indexes),
                ffi.from_buffer("int64_t[]", offsets),
                ffi.NULL,
                ffi.NULL,
                ffi.NULL,
            )
            if count >= 0:
                return int(count)
            self._segments.serve(view, count, "check")

    def _queue(self, index: int, offsets: Any, wanted: bytes) -> None:
        if index in self._bad_queues:
            return
        route = self._store.routes.by_index[index]
        first = self._next.get(index)
        if first is None:
            first = route.queue.first_at(self._segments.begin)
        self._next[index] = int(offsets[-1]) + 1
        steps = np.flatnonzero(offsets != np.arange(first, first + len(offsets)))
        if len(steps):
            self._bad_queues.add(index)
            at = int(steps[0])
            self._findings.add(
                "queue offsets in the log have a gap",
                f"topic {route.topic} queue {route.queue_id}",
                first + at,
                int(offsets[at]),
            )
            return
        try:
            got = route.queue.read(first, len(offsets))
        except TimerStoreError as error:
            self._bad_queues.add(index)
            self._findings.raised("queue", self._where_of(route, first), error)
            return
        self._findings.count("queue units", len(got) // queue_unit.UNIT_BYTES)
        if got != wanted:
            self._compare(route, first, queue_unit.read(wanted), queue_unit.read(got))

    def _compare(self, route: Route, first: int, wanted: Any, got: Any) -> None:
        shared = min(len(wanted), len(got))
        differs = wanted[:shared] != got[:shared]
        if route.native.kind == lib.TS_ROUTE_LEVELS:
            differs &= ~_is_other_delay(wanted[:shared], got[:shared])
        for at in np.flatnonzero(differs).tolist():
            self._findings.add(
                "queue unit",
                self._where_of(route, first + at),
                queue_unit.text(wanted[at]),
                queue_unit.text(got[at]),
            )
        if shared < len(wanted):
            self._findings.add(
                "queue ends too soon",
                self._where_of(route, first + shared),
                f"{len(wanted) - shared} more units",
                "nothing",
            )

    def _where_of(self, route: Route, queue_offset: int) -> str:
        return self._where_in(route, queue_offset * queue_unit.UNIT_BYTES)

    def _where_in(self, route: Route, byte: int) -> str:
        at = byte % self._config.queue_segment_bytes
        folder = self._tree.queue(route.topic, route.queue_id)
        return at_offset(folder / segment_name(byte - at), at)

    # --- timer units ---

    def _timer_units(self, records: Scan) -> None:
        """Each record of the timer topic up to `linked_offset` has its unit, in the same order."""
        linked = records[records["queue_offset"] < self._timer_end.linked_offset]
        if not len(linked) or not self._timer_units_read:
            return
        segments = self._store.timer_log.segments
        try:
            if self._order is None:
                self._order = UnitOrder(segments, *self._timer_end)
            linked = linked[linked["queue_offset"] >= self._order.begin]  # below, units are gone
            numbers = linked["queue_offset"]
            edges = np.flatnonzero(np.diff(numbers) != 1) + 1
            for run in np.split(np.arange(len(numbers)), edges) if len(numbers) else ():
                done = int(run[0])
                begin, end = int(numbers[run[0]]), int(numbers[run[-1]]) + 1
                for positions, units in self._order.units(begin, end):
                    self._match_units(linked[done : done + len(units)], units, positions)
                    done += len(units)
        except TimerStoreError as error:
            self._timer_units_read = False
            self._findings.raised("timer log", place(segments, segments.begin), error)

    def _match_units(self, records: Scan, units: Any, positions: Any) -> None:
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
                "timer unit does not stand for its record",
                place(self._store.timer_log.segments, int(positions[at])),
                f"log offset {record['log_offset']}, {record['size']} bytes, topic hash "
                f"{record['topic_hash']}, {'a' if is_delete[at] else 'no'} delete record",
                f"log offset {unit['log_offset']}, {unit['size']} bytes, topic hash "
                f"{unit['topic_hash']}, magic {unit['magic']}",
            )

    # --- what lies behind ---

    def ends(self, end: int) -> None:
        """Every queue ends with its last record in the log, and zeros lie behind each end."""
        with self._store.dispatch.still():
            routes = list(self._store.routes.by_index)
            self._findings.count("queues", len(routes))
            is_newest = self._store.log.end == end
            for route in routes:
                self._queue_end(route, is_newest=is_newest)
        self._log_tail(end)

    def _queue_end(self, route: Route, *, is_newest: bool) -> None:
        index = int(route.native.index)
        queue = route.queue
        last = self._next.get(index)
        if last is None:
            last = queue.first_at(self._segments.begin)
            last = last if last == queue.count else None
        if is_newest and not self.is_damaged and queue.count != last:
            self._findings.add(
                "queue counts otherwise than the log",
                self._where_of(route, queue.count),
                f"{last} units",
                queue.count,
            )
        offset = queue.count * queue_unit.UNIT_BYTES
        while True:
            try:
                offset, data = queue.read_tail(offset, _PIECE_BYTES)
            except TimerStoreError as error:
                self._findings.raised("queue", self._where_in(route, offset), error)
                return
            if not data:
                return
            at = first_byte(data)
            if at is not None:
                self._not_zero("queue", self._where_in(route, offset + at), data[at:])
                return
            offset += len(data)

    def _log_tail(self, end: int) -> None:
        offset = end
        while True:
            offset, data = self._store.log.read_tail(offset, _PIECE_BYTES)
            if not data:
                return
            at = first_byte(data)
            if at is not None:
                self._not_zero("commit log", place(self._segments, offset + at), data[at:])
                return
            offset += len(data)

    def _not_zero(self, what: str, where: str, data: bytes) -> None:
        self._findings.add(f"{what}: bytes behind the end", where, "zeros", data[:16].hex())


def _is_other_delay(wanted: Any, got: Any) -> Any:
    """Where units differ in their due time alone, by whole seconds: the table of delays was changed
    since they were written.
    """
    is_same = (wanted["log_offset"] == got["log_offset"]) & (wanted["size"] == got["size"])
    return is_same & ((wanted["tags_code"] - got["tags_code"]) % 1000 == 0)
