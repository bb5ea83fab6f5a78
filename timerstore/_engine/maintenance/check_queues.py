"""Check consume queues: each record's unit is in its queue, as dispatch writes it."""

from typing import Any

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import queue_unit
from timerstore._engine.format.queue_unit import UNIT_BYTES
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.maintenance.findings import Findings, at_offset, first_byte
from timerstore._engine.maintenance.store_view import LiveStore, StoreView, UnitRun
from timerstore._engine.queues.routes import Route
from timerstore.errors import TimerStoreError

_PIECE_BYTES = 1 << 20


class QueueCheck(Owner):
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

    def _where(self, route: Route, queue_offset: int) -> str:
        return place_in_queue(self._view.tree, route, queue_offset * UNIT_BYTES, self._file_bytes)

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
        offset = queue.count * UNIT_BYTES
        while True:
            try:
                offset, data = queue.read_tail(offset, _PIECE_BYTES)
            except TimerStoreError as error:
                where = place_in_queue(self._view.tree, route, offset, self._file_bytes)
                self._findings.raised("queue", where, error)
                return
            if not data:
                return
            at = first_byte(data)
            if at is not None:
                where = place_in_queue(self._view.tree, route, offset + at, self._file_bytes)
                add_not_zero(self._findings, "queue", where, data[at:])
                return
            offset += len(data)


def place_in_queue(tree: Tree, route: Route, byte: int, file_bytes: int) -> str:
    """Return the file of a queue that holds a byte, and the offset in it."""
    at = byte % file_bytes
    folder = tree.queue(route.topic, route.queue_id)
    return at_offset(folder / segment_name(byte - at), at)


def add_not_zero(findings: Findings, what: str, where: str, data: bytes) -> None:
    """Add bytes past the end of a file's contents that are not zero."""
    findings.add(f"{what}: bytes past the end", where, "zeros", data[:16].hex())


def _is_other_delay(wanted: Any, got: Any) -> Any:
    """Return where units differ in their due time alone, by whole seconds. Then the table of delays
    was changed since they were written.
    """
    is_same = (wanted["log_offset"] == got["log_offset"]) & (wanted["size"] == got["size"])
    return is_same & ((wanted["tags_code"] - got["tags_code"]) % 1000 == 0)
