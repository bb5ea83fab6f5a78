"""Read the pending messages of delay levels from the level topic's queues.

Thread safety: any thread may call it.
Locking: the append lock, while the undelivered offsets are copied.
Invariants:
    1. Every message that was pending when a call began is returned once, in order of (due time,
       level, put order). Its due time is the time at which it will be delivered (level_runs.py).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.delay_levels import parse_level_delays, real_queue
from timerstore._engine.levels.level_runs import LEVEL_DUE, Entries
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.old_units import LevelUnits
from timerstore._engine.queues.record_lookup import is_of_topic, real_routes, record_fields
from timerstore._engine.queues.routes import Route, Routes
from timerstore.config import StoreConfig
from timerstore.messages import parse_properties
from timerstore.reports import PendingTimer

_UNITS = 65_536  # units read at a time


class Gaps(NamedTuple):
    """The messages that were not delivered when the log had a certain end."""

    log_end: int
    gaps: list[tuple[Route, tuple[int, int]]]  # a level's queue, and queue offsets [begin, end)


class LevelPending(Owner):
    """Reads the pending messages of one store's delay levels."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        routes: Routes,
        dispatch: Dispatch,
        cursors: LevelCursors,
    ) -> None:
        self._level_units = LevelUnits(log, parse_level_delays(config.level_delays))
        self._log = log
        self._routes = routes
        self._dispatch = dispatch
        self._cursors = cursors

    def read(
        self, begin_ms: int | None = None, end_ms: int | None = None, topic: str | None = None
    ) -> Iterator[PendingTimer]:
        """Yield messages that are due in [begin_ms, end_ms), in order."""
        entries = self.entries()
        if begin_ms is not None:
            entries = entries[entries["due_ms"] >= begin_ms]
        if end_ms is not None:
            entries = entries[entries["due_ms"] < end_ms]
        if topic is not None:
            found = real_routes(
                self._log,
                self._routes,
                entries["log_offset"],
                entries["size"],
                is_level=True,
            )
            entries = entries[is_of_topic(self._routes, found, topic)]
        for entry in entries:
            one = self.describe(entry)
            if one is not None:
                yield one

    def entries(self) -> Entries:
        """Return every pending message as a due entry, in order."""
        with self._log.lock:
            gaps = self.gaps()
        return self.read_gaps(gaps)

    def due_ms(self) -> npt.NDArray[np.int64]:
        """Return the due times of the messages that can be delivered.

        Retention must not remove files during the call.
        """
        entries = self.entries()
        found = real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=True
        )
        due_ms: npt.NDArray[np.int64] = entries["due_ms"][found >= 0]
        return due_ms

    def gaps(self) -> Gaps:
        """Return the undelivered offsets of all levels. The caller holds the append lock."""
        return Gaps(
            self._log.end,
            [
                (route, gap)
                for route in list(self._routes.by_index)
                if route.native.kind == lib.TS_ROUTE_LEVELS
                for gap in self._cursors.gaps(route.queue_id, 0, int(route.native.next_offset))
            ],
        )

    def read_gaps(self, found: Gaps) -> Entries:
        """Return the messages of gaps in order, even those that were delivered since."""
        self._dispatch.through(found.log_end)
        parts = [
            self._units(route, at, min(_UNITS, gap_end - at))
            for route, (begin, gap_end) in found.gaps
            for at in range(begin, gap_end, _UNITS)
        ]
        entries = np.concatenate(parts) if parts else np.empty(0, LEVEL_DUE)
        in_order: Entries = entries[np.lexsort((entries["place"], entries["due_ms"]))]
        return in_order

    def _units(self, route: Route, begin: int, count: int) -> Entries:
        units = self._level_units.read(route, begin, count)
        entries = np.zeros(len(units), LEVEL_DUE)
        entries["place"] = np.arange(begin, begin + len(units))
        entries["log_offset"], entries["size"] = units["log_offset"], units["size"]
        entries["due_ms"] = units["tags_code"]
        return entries

    def describe(self, entry: Entries) -> PendingTimer | None:
        """Describe an entry. Return None if it is invalid and will never be delivered."""
        segments = self._log.segments
        log_offset = int(entry["log_offset"])
        with segments.view(self._log.written_through(log_offset + 1)) as view:
            _, _, text = record_fields(segments, view, log_offset)
        properties = parse_properties(text)
        real = real_queue(properties)
        if real is None:
            return None
        return PendingTimer(
            message_id=properties.get("UNIQ_KEY", ""),
            topic=real[0],
            queue_id=real[1],
            due_ms=int(entry["due_ms"]),
            timer_id=-1,
            log_offset=log_offset,
            handle="",
        )
