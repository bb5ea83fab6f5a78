"""Fold the records that name a timer of this store by its id. fold.py states the rules."""

from dataclasses import dataclass

import numpy as np

from timerstore._engine.log.multiset import Int64, Mask, Rows, find, numbered
from timerstore._engine.log.scanned_records import RecordKind, Scan

PENDING, DELIVERED, CANCELLED = 1, 2, 3


@dataclass(slots=True)
class Timers:
    """Timers as columns, with one entry for each timer."""

    ids: Int64
    rows: Rows
    """Row of the current copy; -1 if the log has only deliveries or deletes of the timer."""
    state: Int64
    """PENDING, DELIVERED or CANCELLED."""
    since: Int64
    """Log offset of the first copy with an own id, else -1. Older deletes by key do not apply."""

    def take(self, places: Rows | Mask) -> "Timers":
        """Return the timers at these places, in their order."""
        return Timers(self.ids[places], self.rows[places], self.state[places], self.since[places])


def fold_by_id(scan: Scan, own: Mask) -> tuple[Timers, Rows, int]:
    """Return timers by ascending id, rows of duplicate deliveries, and a count.

    The count is that of timers which have both a delivery and a delete record.
    """
    # The order of assignments to repeated places is intended: the last assignment counts.
    rows = np.flatnonzero(own)
    timer_id, kind = scan["timer_id"][rows], scan["kind"][rows]
    ids, place = numbered(timer_id)

    current = np.full(len(ids), -1, np.intp)
    since = np.full(len(ids), -1, np.int64)
    copies = np.flatnonzero(kind == RecordKind.TIMER)
    since[place[copies[::-1]]] = scan["log_offset"][rows[copies[::-1]]]
    ranked = copies[np.argsort(scan["roll_times"][rows[copies]], kind="stable")]
    current[place[ranked]] = rows[ranked]

    state = np.full(len(ids), PENDING, np.int64)
    evidence = np.flatnonzero(kind != RecordKind.TIMER)[::-1]
    state[place[evidence]] = np.where(kind[evidence] == RecordKind.DELIVERED, DELIVERED, CANCELLED)

    deliveries = np.flatnonzero(kind == RecordKind.DELIVERED)
    delivered, once = np.unique(place[deliveries], return_index=True)
    duplicates = np.delete(rows[deliveries], once)
    both = len(np.intersect1d(delivered, place[kind == RecordKind.DELETE]))
    return Timers(ids, current, state, since), duplicates, both


def maybe_sent_on(scan: Scan, own: Mask, timers_by_id: Timers, duplicate_rows: Rows) -> Mask:
    """Mark deliveries by id that may belong to a message sent on with another message's TS_ID."""
    maybe = np.zeros(len(scan), bool)
    deliveries = np.flatnonzero(own & (scan["kind"] == RecordKind.DELIVERED))
    timer = find(scan["timer_id"][deliveries], timers_by_id.ids)
    maybe[deliveries[timers_by_id.rows[timer] < 0]] = True
    maybe[duplicate_rows] = True
    return maybe
