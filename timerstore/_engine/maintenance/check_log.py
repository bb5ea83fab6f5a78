"""Check the commit log and the files that must match its records: queue units, timer units.

The log is walked once. In an open store the walk also folds it, so that the states in memory and in
the side files can be compared with it (check_states.py).
"""

from typing import Any, NamedTuple

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import timer_unit
from timerstore._engine.log.scanned_records import Scan, has_impossible_offset
from timerstore._engine.maintenance.check_queues import QueueCheck, add_not_zero
from timerstore._engine.maintenance.expected_states import Expected
from timerstore._engine.maintenance.findings import Findings, at_offset, first_byte, place
from timerstore._engine.maintenance.id_states import LogFold
from timerstore._engine.maintenance.store_view import LiveStore, LogPart, StoreView, TimerEnd
from timerstore._engine.maintenance.unit_order import UnitOrder
from timerstore._engine.storage.segments import Segments
from timerstore.errors import TimerStoreError
from timerstore.reports import Problem

_PIECE_BYTES = 1 << 20
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
    assert view.wheel is not None, "an open store has a wheel"
    order = _OrderCheck(
        view.findings, engine.timer_log.segments, view.wheel.timer_end, engine.log.segments
    )
    walk = _Walk(view, fold, order)
    mark_end = begin if view.mark is None else min(max(begin, view.mark.log_end), end)
    walk.run(begin, mark_end)
    at_mark = Expected.of_walk(fold)
    counts = len(fold.inherited), len(fold.levels.inherited)
    walk.run(mark_end, end)
    at_end = Expected.of_walk(fold)
    walk.queues.check_ends(end, is_damaged=walk.is_damaged)
    _check_log_tail(view.findings, engine, end)
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


class _OrderCheck(Owner):
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


def _check_log_tail(findings: Findings, engine: LiveStore, end: int) -> None:
    """Check that zeros follow the end of the log."""
    offset = end
    while True:
        offset, data = engine.log.read_tail(offset, _PIECE_BYTES)
        if not data:
            return
        at = first_byte(data)
        if at is not None:
            where = place(engine.log.segments, offset + at)
            add_not_zero(findings, "commit log", where, data[at:])
            return
        offset += len(data)
