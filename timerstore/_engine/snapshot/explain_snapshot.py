"""Explain one message of a read-only store: its records, and its slot from the timer log.

It reads the log, and for a pending message the timer log.

Thread safety: one thread at a time.
See also: introspection/explain.py, which explains a message of an open store.
"""

from typing import Any

import numpy as np

from timerstore._engine.introspection.explain import Explainer
from timerstore._engine.introspection.message_name import Name
from timerstore._engine.introspection.message_records import MessageRecords
from timerstore._engine.snapshot.columns.table_scan import Part, Wanted, units
from timerstore._engine.snapshot.row_types import RowArray
from timerstore._engine.snapshot.snapshot_timers import NOTHING, SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.timer.timer_arrays import Records, slots_of
from timerstore.clock import Clock
from timerstore.reports import Explanation, HistoryEntry


class SnapshotExplainer(Explainer):
    """Explains messages of one store."""

    def __init__(self, view: SnapshotView, timers: SnapshotTimers, clock: Clock) -> None:
        log: Any = view.log
        super().__init__(
            config=view.config,
            clock=clock,
            log=log,
            routes=view.routes,
            records=MessageRecords(
                config=view.config,
                clock=clock,
                log=log,
                dispatch=timers.dispatch,
                routes=view.routes,
                states=timers.states,
                store_id=timers.store_id,
            ),
            levels=timers.cursors,
            level_pending=timers.level_pending,
            timers=NOTHING,
        )
        self._view = view

    def explain(self, name: Name) -> Explanation:
        """Return all that is known. Raises GoneError if retention removed the message."""
        return self._explain(name)

    def _pending(self, name: Name, rows: Records, history: tuple[HistoryEntry, ...]) -> Explanation:
        row = rows[-1]
        precision_ms, due_ms = self._config.precision_ms, int(row["due_ms"])
        unit, chain = self._unit(int(row["log_offset"]))
        why = self._when(due_ms)
        if unit is None:
            why += "; as of the last checkpoint it is not on the wheel yet"
            return self._made(name, rows, history, "pending", "timer topic", why)
        slot_ms = int(unit["slot_ms"])
        if slot_ms < int(unit["write_ms"]) // precision_ms * precision_ms:
            why += "; it gets its slot on the wheel when that is near"
            return self._made(name, rows, history, "pending", "far wheel", why)
        slot, mark = slot_ms // precision_ms, self._view.position.mark
        is_read = mark is not None and slot < mark.replay_slot
        if is_read:
            why += "; its slot is read, it waits to be handed over"
        elif slot < int(slots_of(np.array([due_ms]), precision_ms)[0]):
            why += f"; until {self._at(slot_ms)} it is in an earlier slot, then it rolls"
        else:
            why += f"; its slot is read {self._at(slot_ms)}"
        return self._made(
            name,
            rows,
            history,
            "pending",
            "open slot" if is_read else "wheel",
            why,
            slot=slot,
            slot_ms=slot_ms,
            chain_place=int((chain > int(unit["timer_pos"])).sum()) + 1,
            chain_length=len(chain),
        )

    def _unit(self, log_offset: int) -> tuple[RowArray | None, Any]:
        """Return the newest unit of a record, and the positions of all units in its slot."""
        part = Part.whole(self._view.position.store, "timer_units")
        own, found = None, [np.empty(0, [("slot_ms", np.int64), ("timer_pos", np.int64)])]
        for rows in units(part, Wanted("timer_units", (), batch_rows=32_768)):
            mine = np.flatnonzero(rows["log_offset"] == log_offset)
            if len(mine):
                own = rows[mine[-1]].copy()
            slots = np.empty(len(rows), found[0].dtype)
            slots["slot_ms"], slots["timer_pos"] = rows["slot_ms"], rows["timer_pos"]
            found.append(slots)
        every = np.concatenate(found)
        if own is None:
            return None, every["timer_pos"][:0]
        return own, every["timer_pos"][every["slot_ms"] == own["slot_ms"]]
