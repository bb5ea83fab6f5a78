"""The records of one message in the log, and the history that they tell.

The records are found by message id, in the key index, or in the whole log if there is no index.

Thread safety: any thread.
Raises: GoneError if retention removes a record during the call.
"""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from timerstore._engine.introspection.message_name import Name
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.log_recovery import scan_batches
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.record_lookup import route_needed
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.timer_arrays import Records
from timerstore._engine.timer.timer_states import TimerStates
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import CorruptError, GoneError
from timerstore.reports import HistoryEntry

_logger = logging.getLogger("timerstore.introspection")

DELIVERED_KINDS = (lib.TS_KIND_DELIVERED, lib.TS_KIND_LEVEL_DELIVERED, lib.TS_KIND_ORDINARY)
_PENDING_KINDS = (lib.TS_KIND_TIMER, lib.TS_KIND_LEVEL)


class MessageRecords:
    """Finds the records of messages of one store."""

    def __init__(
        self,
        *,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        dispatch: Dispatch,
        routes: Routes,
        states: TimerStates,
        store_id: int,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._dispatch = dispatch
        self._routes = routes
        self.states = states
        self._store_id = store_id

    def find(self, name: Name) -> Records:
        """Return all records of a message, in the order of the log."""
        log, index = self._log, self._dispatch.index
        wanted = f"{name.topic}+{name.message_id}".encode()
        identity = int(lib.ts_identity(wanted, len(wanted)))
        with log.lock:
            end = log.end
        self._dispatch.through(end)
        log.write_out()
        rows = None
        if index is not None:
            try:
                rows = self._from_index(index, name, identity, end)
            except GoneError:
                raise
            except CorruptError as error:
                _logger.warning("index=passed error=%r", str(error))
        if rows is None:
            rows = self._from_log(identity)
        kinds = (*DELIVERED_KINDS, *_PENDING_KINDS, lib.TS_KIND_DELETE)
        return rows[np.isin(rows["kind"], kinds)]

    def _from_index(self, index: Any, name: Name, identity: int, end: int) -> Records:
        key, begin = name.message_id.encode(), self._log.segments.begin
        offsets: set[int] = set()
        for topic in (name.topic, WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC):
            for some in index.find(topic.encode(), key):
                offsets.update(some[(some >= begin) & (some < end)].tolist())
        rows = [self._row(offset) for offset in sorted(offsets)]
        found = np.concatenate(rows) if rows else np.empty(0, SCAN_DTYPE)
        own: Records = found[found["identity"] == np.uint64(identity)]
        return own

    def _row(self, offset: int) -> Records:
        segments = self._log.segments
        record, following = np.empty(1, SCAN_DTYPE), ffi.new("int64_t *")
        with segments.view(self._log.written) as view:
            while True:
                count = lib.ts_scan(
                    view,
                    self._routes.native,
                    self._config.precision_ms,
                    offset,
                    following,
                    1,
                    ffi.from_buffer("ts_scanned[]", record),
                )
                if count == lib.TS_NEED_ROUTE:
                    self._serve_route(view)
                elif count < 0:
                    segments.serve(view, count, "explain")
                else:
                    return record[:count]

    def _serve_route(self, view: Any) -> None:
        route_needed(self._log.segments, view, self._routes, self._clock.now_ms)

    def _from_log(self, identity: int) -> Records:
        """Return the records with this hash by reading the whole log."""
        parts = [
            part[part["identity"] == np.uint64(identity)].copy()
            for part, _, _ in scan_batches(
                self._log.segments,
                lambda: self._routes.native,
                self._serve_route,
                self._config.precision_ms,
                self._log.segments.begin,
                self._log.written,
            )
        ]
        return np.concatenate(parts) if parts else np.empty(0, SCAN_DTYPE)

    def history(self, rows: Records) -> tuple[HistoryEntry, ...]:
        """Return the events that the records tell of, in order."""
        return tuple(self._entries(rows))

    def _entries(self, rows: Records) -> Iterator[HistoryEntry]:
        rolls: dict[int, int] = {}  # number of rolls, by timer id
        moved_to = -1  # end of a delete record: a record there replaces the deleted one
        for k, row in enumerate(rows):
            kind, offset = int(row["kind"]), int(row["log_offset"])
            following = rows[k + 1]["log_offset"] if k + 1 < len(rows) else -1
            due_ms = int(row["due_ms"]) if kind in _PENDING_KINDS else 0
            if kind == lib.TS_KIND_DELETE:
                if following == offset + row["size"]:
                    moved_to = int(following)
                    continue
                what = "cancelled"
            elif kind == lib.TS_KIND_LEVEL:
                what, due_ms = "put", 0
            elif offset == moved_to:
                what = "rescheduled"
            elif kind == lib.TS_KIND_TIMER and (timer_id := self.timer_id(row)) in rolls:
                what = "rolled" if int(row["roll_times"]) > rolls[timer_id] else "moved"
            elif kind in (lib.TS_KIND_DELIVERED, lib.TS_KIND_LEVEL_DELIVERED):
                what = "delivered"
            else:
                what = "put"
            if kind == lib.TS_KIND_TIMER:
                rolls[self.timer_id(row)] = int(row["roll_times"])
            yield HistoryEntry(what, int(row["store_ms"]), offset, due_ms)

    def timer_id(self, row: Records) -> int:
        """Return the timer id of a record."""
        return self.states.id_of(row, self._store_id)
